#include "data/volumes/kits_files.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "data/files/file_writer.h"
#include "data/files/npy.h"
#include "runtime/base/error.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr Bytes kMostHeader = 4096;
constexpr std::size_t kMostProblems = 8;  ///< named at once
constexpr const char* kMeaning = "docs/unet3d.md says what a case's two files hold";

/// Returns NNNNN and 'x' or 'y' of "case_NNNNN_x.npy".
std::optional<std::pair<std::int64_t, char>> parse_name(std::string_view name) {
  constexpr std::string_view kFront = "case_", kEnd = ".npy";
  if (!name.starts_with(kFront) || !name.ends_with(kEnd)) return std::nullopt;
  name = name.substr(kFront.size(), name.size() - kFront.size() - kEnd.size());
  if (name.size() < 3 || name[name.size() - 2] != '_' || (name.back() != 'x' && name.back() != 'y'))
    return std::nullopt;
  const auto number = number_of<std::int64_t>(name.substr(0, name.size() - 2));
  if (!number || *number < 0) return std::nullopt;
  return std::pair{*number, name.back()};
}

/// Reads the header of a file into `file`. Returns the sides.
Result<VoxelSides> read_header(const fs::path& path, bool labels, VolumeFile& file) {
  const FileReader reader(path, {});
  AlignedBuffer buffer;
  const Result<NpyHeader> header =
      parse_npy_header(reader.read(0, std::min(reader.size(), kMostHeader), buffer), path.string());
  if (!header) return header.problems();
  const std::string expected = labels ? "|u1" : "<f4";
  if (header->descr != expected || header->fortran_order || header->shape.size() != 4 ||
      header->shape[0] != 1)
    return Problem{path.string(),
                   "is of type " + header->descr + " with " + std::to_string(header->shape.size()) +
                       " dimensions" + (header->fortran_order ? " in Fortran order" : ""),
                   "expected " + expected + " [1, depth, height, width] in C order; " + kMeaning};
  const Bytes whole = static_cast<Bytes>(header->data_offset) + header->data_bytes;
  if (reader.size() != whole)
    return Problem{
        path.string(),
        "has " + std::to_string(reader.size()) + " bytes, its header tells " + std::to_string(whole),
        "copy or make the file again"};
  file = {path, static_cast<std::int64_t>(header->data_offset)};
  return VoxelSides{header->shape[1], header->shape[2], header->shape[3]};
}

std::string text_of_sides(const VoxelSides& s) {
  return std::to_string(s[0]) + " x " + std::to_string(s[1]) + " x " + std::to_string(s[2]);
}

/// Reads both headers of a case.
Result<KitsCase> read_case(const fs::path& folder, std::int64_t number, const fs::path& values,
                           const fs::path& labels, std::int64_t smallest) {
  KitsCase one{.number = number};
  const Result<VoxelSides> sides = read_header(folder / values, false, one.values),
                           of_labels = read_header(folder / labels, true, one.labels);
  Problems problems;
  if (!sides) append(problems, sides.problems());
  if (!of_labels) append(problems, of_labels.problems());
  if (!problems.empty()) return problems;
  one.sides = *sides;
  if (*sides != *of_labels)
    return Problem{
        (folder / labels).string(),
        "has labels of " + text_of_sides(*of_labels) + " voxels, its values are " + text_of_sides(*sides),
        "make both files from the same scan"};
  if (std::ranges::min(one.sides) < smallest)
    return Problem{
        (folder / values).string(),
        "has " + text_of_sides(one.sides) + " voxels, smaller than the crop of " + std::to_string(smallest),
        "give a smaller --image-size, or pad the volume"};
  return one;
}

}  // namespace

bool is_evaluation_case(std::int64_t number) {
  static constexpr int kCases[] = {0,   3,   5,   6,   12,  24,  34,  41,  44,  49,  52,  56,  61,  65,
                                   66,  70,  76,  78,  80,  84,  86,  87,  92,  111, 112, 125, 128, 138,
                                   157, 160, 161, 162, 169, 171, 176, 185, 187, 189, 198, 203, 206, 207};
  return std::ranges::find(kCases, number) != std::end(kCases);
}

Result<std::vector<KitsCase>> read_kits_folder(const fs::path& folder, std::int64_t smallest,
                                               bool (*wants)(std::int64_t number), LeftOut& left_out) {
  std::error_code error, ignored;
  std::map<std::int64_t, std::map<char, fs::path>> names;
  std::vector<std::string> others;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const fs::path file = entry->path().filename();
    const auto name = parse_name(file.string());
    if (name && entry->is_regular_file(ignored) && names[name->first].emplace(name->second, file).second)
      continue;
    if (file != kDatasetManifest) others.push_back(entry->path().string());
  }
  std::ranges::sort(others);
  for (std::string& other : others)
    left_out.add("files and folders that are no case_NNNNN_x.npy and _y.npy of their own", std::move(other));
  if (error) return Problem{folder.string(), "cannot be read: " + error.message(), "give a folder of cases"};
  if (names.empty())
    return Problem{folder.string(), "has no case_NNNNN_x.npy",
                   "millrace data generate --workload kidneys makes some; " + std::string(kMeaning)};
  Problems problems;
  std::vector<KitsCase> cases;
  for (const auto& [number, files] : names) {
    if (!wants(number)) continue;
    if (files.size() < 2) {
      const fs::path& there = files.begin()->second;
      std::string missing = there.string();
      missing[missing.size() - 5] = files.contains('x') ? 'y' : 'x';
      problems.push_back({(folder / missing).string(), "is missing beside " + there.string(),
                          "a case has values in _x.npy and labels in _y.npy"});
    } else {
      const Result<KitsCase> one = read_case(folder, number, files.at('x'), files.at('y'), smallest);
      if (one)
        cases.push_back(*one);
      else
        append(problems, one.problems());
    }
    if (problems.size() >= kMostProblems) break;
  }
  if (!problems.empty()) return problems;
  return cases;
}

at::Tensor read_box(const VolumeFile& file, const VoxelSides& sides, at::ScalarType dtype,
                    const VoxelBox& box, double outside) {
  const auto bytes = static_cast<std::int64_t>(c10::elementSize(dtype));
  VoxelSides out{};
  VoxelBox inside;  ///< the part of the box that lies in the volume
  for (std::size_t d = 0; d < 3; ++d) {
    out[d] = box.end[d] - box.begin[d];
    inside.begin[d] = std::clamp<std::int64_t>(box.begin[d], 0, sides[d]);
    inside.end[d] = std::clamp<std::int64_t>(box.end[d], inside.begin[d], sides[d]);
  }
  at::Tensor result = at::empty({1, out[0], out[1], out[2]}, dtype);
  if (inside.voxels() != result.numel()) result.fill_(outside);
  if (inside.voxels() == 0) return result;
  const FileReader reader(file.path, {});
  AlignedBuffer buffer;
  auto* const to = static_cast<char*>(result.mutable_data_ptr());
  const std::int64_t row_bytes = sides[2] * bytes, rows = inside.end[1] - inside.begin[1];
  for (std::int64_t z = inside.begin[0]; z < inside.end[0]; ++z) {
    const std::int64_t first = (z * sides[1] + inside.begin[1]) * row_bytes;
    const std::string_view plane = reader.read(file.data_offset + first, rows * row_bytes, buffer);
    for (std::int64_t y = 0; y < rows; ++y) {
      const std::int64_t at = ((z - box.begin[0]) * out[1] + y + inside.begin[1] - box.begin[1]) * out[2] +
                              inside.begin[2] - box.begin[2];
      std::memcpy(to + at * bytes, plane.data() + y * row_bytes + inside.begin[2] * bytes,
                  static_cast<std::size_t>((inside.end[2] - inside.begin[2]) * bytes));
    }
  }
  return result;
}

}  // namespace millrace
