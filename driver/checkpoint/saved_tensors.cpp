#include "driver/checkpoint/saved_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "driver/checkpoint/dcp_folder.h"
#include "driver/checkpoint/pt_file.h"
#include "runtime/base/check.h"
#include "runtime/base/log.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

/// Adds the tensors of the file. Problem: another file has one of its names.
Status add_file(SavedTensors& to, TensorFile file) {
  for (const std::string& name : file.names()) {
    const SavedTensor tensor{{name, file.element_type(name), file.shape(name)}, file.elements(name)};
    if (!to.tensors.emplace(name, tensor).second)
      return Problem{file.path(), name + " stands in another shard too", "the checkpoint is damaged"};
  }
  to.files.push_back(std::move(file));
  return Ok{};
}

Result<SavedTensors> open_step(const fs::path& folder) {
  Result<ManifestHead> manifest = read_manifest_head(folder);
  if (!manifest) return manifest.problems();
  if (const Problems damage = check_shards(folder, *manifest); !damage.empty()) return damage;
  SavedTensors all{.path = folder.string()};
  for (const ShardEntry& shard : manifest->shards) {
    Result<TensorFile> file = TensorFile::open((folder / shard.file).string());
    if (!file) return file.problems();
    if (Status added = add_file(all, *std::move(file)); !added) return added.problems();
  }
  all.manifest = *std::move(manifest);
  return all;
}

Problem no_keys(const std::string& path) {
  return {path, "has no dicts in dicts, so there is no key to choose", "leave --key out"};
}

template <class T>
T read(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

float bfloat16_at(const char* at) {
  const std::uint32_t bits = std::uint32_t{read<std::uint16_t>(at)} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// IEEE 754 binary16.
double float16_at(const char* at) {
  const auto bits = read<std::uint16_t>(at);
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31)
    return fraction ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  return exponent == 0 ? sign * std::ldexp(fraction, -24) : sign * std::ldexp(1024 + fraction, exponent - 25);
}

}  // namespace

double number_at(ElementType type, const char* at) {
  switch (type) {
    case ElementType::F32:
    case ElementType::C64:
      return read<float>(at);
    case ElementType::F64:
      return read<double>(at);
    case ElementType::F16:
      return float16_at(at);
    case ElementType::BF16:
      return bfloat16_at(at);
    case ElementType::I64:
      return static_cast<double>(read<std::int64_t>(at));
    case ElementType::I32:
      return read<std::int32_t>(at);
    case ElementType::I16:
      return read<std::int16_t>(at);
    case ElementType::I8:
      return read<std::int8_t>(at);
    case ElementType::U8:
    case ElementType::Bool:
      return read<std::uint8_t>(at);
  }
  return 0;
}

Result<SavedTensors> open_saved_tensors(const std::string& path, const std::string& key) {
  std::error_code ignored;
  if (is_dcp_folder(path)) return open_dcp_folder(path, key);
  if (!fs::is_directory(path, ignored)) {
    if (is_pt_file(path)) return open_pt_file(path, key);
    if (!key.empty()) return no_keys(path);
    Result<TensorFile> file = TensorFile::open(path);
    if (!file) return file.problems();
    SavedTensors all{.path = path};
    if (Status added = add_file(all, *std::move(file)); !added) return added.problems();
    return all;
  }
  if (!key.empty()) return no_keys(path);
  const Result<CheckpointChoice> choice = checkpoints_at(path);
  if (!choice) return choice.problems();
  Problems skipped;
  for (const fs::path& step : choice->steps) {
    Result<SavedTensors> opened = open_step(step);
    if (opened) {
      for (const Problem& problem : skipped) log_warning("checkpoint skipped: " + to_string(problem));
      return opened;
    }
    append(skipped, opened.problems());
  }
  return skipped;
}

std::string shape_text(const TensorShape& shape) {
  std::string text = "[";
  for (std::size_t d = 0; d < shape.shape.size(); ++d)
    text += (d == 0 ? "" : ", ") + std::to_string(shape.shape[d]);
  return text + "] " + to_string(shape.type);
}

TensorDifference difference_of(const SavedTensor& a, const SavedTensor& b) {
  MILLRACE_CHECK(a.elements.size() == b.elements.size());
  const ElementType type = a.shape.type;
  const std::size_t bytes = bytes_of(type), step = type == ElementType::C64 ? bytes / 2 : bytes;
  TensorDifference result{.elements = static_cast<std::int64_t>(a.elements.size() / bytes)};
  if (a.elements == b.elements) return result;
  double squares = 0, squares_of_a = 0;
  for (std::size_t at = 0; at < a.elements.size(); at += bytes) {
    if (std::memcmp(a.elements.data() + at, b.elements.data() + at, bytes) != 0) ++result.different;
    for (std::size_t part = at; part < at + bytes; part += step) {
      const double x = number_at(type, a.elements.data() + part),
                   y = number_at(type, b.elements.data() + part);
      const double apart = x == y ? 0 : std::abs(x - y);  // equal infinities are 0 apart
      squares += apart * apart;
      squares_of_a += x * x;
      if (std::isnan(apart) || apart > result.largest) result.largest = apart;  // no number is above NaN
    }
  }
  if (squares != 0) result.relative = std::sqrt(squares / squares_of_a);
  return result;
}

}  // namespace millrace
