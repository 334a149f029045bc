#include "experiments/io/dlio/sample_order.h"

#include <algorithm>
#include <bit>

#include "data/made_up/payload.h"
#include "runtime/base/check.h"
#include "runtime/base/random.h"

namespace millrace {

Permutation::Permutation(std::int64_t count, std::uint64_t key) : count_(count), key_(key) {
  MILLRACE_CHECK(count >= 0 && count < (std::int64_t{1} << 60));
  const int bits = std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(count, 2) - 1));
  half_bits_ = (bits + 1) / 2;
}

std::uint64_t Permutation::once(std::uint64_t value) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = value >> half_bits_, right = value & mask;
  for (std::uint64_t round = 0; round < 4; ++round) {
    const std::uint64_t next = left ^ (hashed(key_ + round, right) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

std::int64_t Permutation::operator()(std::int64_t position) const {
  auto value = static_cast<std::uint64_t>(position);
  // About four rounds on average suffice: the network permutes less than four times as many values.
  do value = once(value);
  while (value >= static_cast<std::uint64_t>(count_));
  return static_cast<std::int64_t>(value);
}

SampleOrder::SampleOrder(const OrderOptions& options)
    : options_(options),
      files_(options.files, derive_seed(options.key, "order.files")),
      samples_(options.files * options.samples_per_file, derive_seed(options.key, "order.samples")) {}

SamplePlace SampleOrder::at(std::int64_t position) const {
  if (options_.shuffle_samples) position = samples_(position);
  const std::int64_t file = position / options_.samples_per_file,
                     sample = position % options_.samples_per_file;
  return {options_.shuffle_files && !options_.shuffle_samples ? files_(file) : file, sample};
}

std::int64_t num_steps(std::int64_t samples, std::int64_t ranks, std::int64_t batch) {
  return (samples + ranks * batch - 1) / (ranks * batch);
}

Share share_of(std::int64_t samples, std::int64_t ranks, std::int64_t batch, std::int64_t step,
               std::int64_t rank) {
  const std::int64_t begin = step * ranks * batch, left = samples - begin;
  if (left >= ranks * batch) return {begin + rank * batch, batch};
  const std::int64_t each = left / ranks, more = left % ranks;
  return {begin + rank * each + std::min(rank, more), each + (rank < more)};
}

}  // namespace millrace
