#include "driver/worker/worker_data_report.h"

#include <algorithm>

#include <ATen/ops/zeros.h>

namespace millrace {
namespace {

constexpr std::size_t kMostNames = 100;
constexpr std::int64_t kBits = 8;  // room for the bits of OddSample beside an index

/// Joins the maps of all ranks by a sum of tensors in which each rank has filled its own part.
std::map<std::int64_t, unsigned> joined(const std::map<std::int64_t, unsigned>& mine,
                                        Communicator& communicator) {
  const auto rank = static_cast<std::int64_t>(communicator.rank().value),
             ranks = std::int64_t{communicator.size()};
  at::Tensor counts = at::zeros({ranks}, at::kLong);
  counts.mutable_data_ptr<std::int64_t>()[rank] = static_cast<std::int64_t>(mine.size());
  communicator.all_reduce(counts, "odd files: how many")->wait();
  const std::int64_t* of_rank = counts.const_data_ptr<std::int64_t>();
  std::int64_t begin = 0, total = 0;
  for (std::int64_t r = 0; r < ranks; ++r) {
    if (r < rank) begin += of_rank[r];
    total += of_rank[r];
  }
  if (total == 0) return {};
  at::Tensor entries = at::zeros({total}, at::kLong);
  std::int64_t* entry = entries.mutable_data_ptr<std::int64_t>();
  for (const auto& [index, bits] : mine) entry[begin++] = index * kBits + bits;
  communicator.all_reduce(entries, "odd files")->wait();
  std::map<std::int64_t, unsigned> all;
  for (std::int64_t i = 0; i < total; ++i) all[entry[i] / kBits] |= static_cast<unsigned>(entry[i] % kBits);
  return all;
}

}  // namespace

Json data_report(const Dataset& dataset, Communicator& communicator) {
  const std::map<std::int64_t, unsigned> odd = joined(dataset.odd_samples(), communicator);
  const auto count = [&](OddSample bit) {
    return std::ranges::count_if(odd, [bit](const auto& sample) { return (sample.second & bit) != 0; });
  };
  Json names = Json::array();
  for (const auto& [index, bits] : odd) {
    if ((bits & kDamagedSample) && names.size() < kMostNames) names.push_back(dataset.name_of(index));
  }
  return Json::object({{"samples", dataset.size()},
                       {"classes", dataset.num_classes()},
                       {"grey", static_cast<std::int64_t>(count(kGreySample))},
                       {"cmyk", static_cast<std::int64_t>(count(kCmykSample))},
                       {"damaged", static_cast<std::int64_t>(count(kDamagedSample))},
                       {"left_out", dataset.left_out()},
                       {"damaged_files", names}});
}

std::string data_report_text(const Json& report) {
  std::string odd;
  for (const auto& [key, words] : {std::pair{"grey", "grey"},
                                   {"cmyk", "CMYK"},
                                   {"damaged", "damaged (replaced)"},
                                   {"left_out", "left out"}}) {
    const std::int64_t count = report.find(key)->as_int();
    if (count > 0) odd += (odd.empty() ? "" : ", ") + std::to_string(count) + " " + words;
  }
  return odd.empty() ? "" : std::to_string(report.find("samples")->as_int()) + " samples: " + odd;
}

}  // namespace millrace
