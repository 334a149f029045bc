#include "data/readers/array_file.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <optional>

#include "data/files/npy.h"
#include "data/files/zip.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

std::optional<at::ScalarType> type_of(const std::string& descr) {
  static constexpr std::pair<const char*, at::ScalarType> kTypes[] = {
      {"f4", at::kFloat}, {"f8", at::kDouble}, {"f2", at::kHalf}, {"i8", at::kLong}, {"i4", at::kInt},
      {"i2", at::kShort}, {"i1", at::kChar},   {"u1", at::kByte}, {"b1", at::kBool}};
  if (descr.size() != 3 || descr[0] == '>') return std::nullopt;
  for (const auto& [name, type] : kTypes)
    if (descr.substr(1) == name) return type;
  return std::nullopt;
}

class ArrayDataset final : public Dataset {
 public:
  ArrayDataset(std::string path, std::vector<FieldSpec> fields)
      : path_(std::move(path)), fields_(std::move(fields)) {}

  Problems read() {
    Result<std::string> bytes = read_regular_file(path_, 64 * kGiB);
    if (!bytes) return bytes.problems();
    fingerprint_ = std::to_string(bytes->size()) + " " + std::to_string(crc32_of(*bytes));
    const Result<std::vector<ZipMember>> members = parse_zip(*bytes, path_);
    if (!members) return members.problems();
    Problems problems;
    std::string names;
    for (const ZipMember& m : *members) names += (names.empty() ? "" : ", ") + m.name;
    for (const FieldSpec& field : fields_) {
      const auto member = std::ranges::find_if(*members, [&](const ZipMember& m) {
        return m.name == field.name + ".npy" || m.name == field.name;
      });
      if (member == members->end()) {
        problems.push_back({path_, "has no array " + escaped(field.name) + "; it has " + escaped(names),
                            "numpy.savez(\"data.npz\", " + escaped(field.name) + "=...)"});
        arrays_.emplace_back();
        continue;
      }
      add(field, *bytes, *member, problems);
    }
    for (const ZipMember& m : *members) {
      const std::string name = m.name.ends_with(".npy") ? m.name.substr(0, m.name.size() - 4) : m.name;
      if (std::ranges::find(fields_, name, &FieldSpec::name) == fields_.end())
        notes_.push_back(path_ + ": the model does not read the array " + escaped(name));
    }
    return problems;
  }

  std::int64_t size() const override { return size_; }
  std::string describe() const override { return path_ + ", " + std::to_string(size_) + " samples"; }
  std::string fingerprint() const override { return "arrays " + fingerprint_; }
  std::vector<std::string> notes() const override { return notes_; }

  void measure(std::int64_t, std::span<std::int64_t> lengths, std::span<std::int64_t>) const override {
    for (std::size_t d = 0; d < lengths.size() && d < lengths_.size(); ++d) lengths[d] = lengths_[d];
  }

  Sample get(std::int64_t index, std::uint64_t, Wanted wanted) const override {
    Sample sample(fields_.size());
    for (std::size_t f = 0; f < sample.size(); ++f)
      if (wanted[f]) sample[f].tensor = arrays_[f].select(0, index);
    return sample;
  }

 private:
  void add(const FieldSpec& field, const std::string& bytes, const ZipMember& member, Problems& problems) {
    arrays_.emplace_back();
    const std::string where = path_ + ":" + member.name;
    std::string unpacked;
    const Result<std::string_view> content = zip_member(bytes, member, unpacked, path_);
    if (!content) return append(problems, content.problems());
    const Result<NpyHeader> header = parse_npy(*content, where);
    if (!header) return append(problems, header.problems());
    const auto type = type_of(header->descr);
    if (!type || header->fortran_order) {
      problems.push_back(
          {where, "is of type " + header->descr + (header->fortran_order ? " in Fortran order" : ""),
           "save float32, float64, integers or bool of this machine's byte order, in C order"});
      return;
    }
    if (at::isFloatingType(*type) != at::isFloatingType(field.dtype)) {
      problems.push_back({where,
                          "is of type " + header->descr + ", the model reads " +
                              (at::isFloatingType(field.dtype) ? "floating numbers" : "integers"),
                          "convert it with .astype"});
      return;
    }
    if (!fits(field, header->shape)) {
      std::string found, expected = "N";
      for (std::int64_t d : header->shape) found += (found.empty() ? "" : ", ") + std::to_string(d);
      for (std::int64_t d : field.shape) expected += d < 0 ? ", length" : ", " + std::to_string(d);
      problems.push_back({where, "is [" + found + "], the model reads [" + expected + "]",
                          "the first dimension counts the samples, which all arrays have alike"});
      return;
    }
    const std::string_view data = content->substr(header->data_offset);
    at::Tensor array = at::from_blob(const_cast<char*>(data.data()), header->shape, at::TensorOptions(*type))
                           .to(at::TensorOptions(field.dtype), false, /*copy=*/true);
    if (field.limit > 0 && array.numel() > 0) {
      const auto [least, most] = at::aminmax(array);
      if (most.item<std::int64_t>() >= field.limit ||
          (least.item<std::int64_t>() < 0 && least.item<std::int64_t>() != field.padding))
        problems.push_back({where,
                            "has values from " + std::to_string(least.item<std::int64_t>()) + " to " +
                                std::to_string(most.item<std::int64_t>()) + ", the model takes 0 to " +
                                std::to_string(field.limit - 1),
                            {}});
    }
    arrays_.back() = std::move(array);
  }

  bool fits(const FieldSpec& field, const std::vector<std::int64_t>& shape) {
    if (shape.size() != field.shape.size() + 1 || shape[0] < 1 || (size_ > 0 && shape[0] != size_))
      return false;
    for (std::size_t d = 0; d < field.shape.size(); ++d) {
      const std::int64_t expected = field.shape[d], found = shape[d + 1];
      if (expected >= 0 && found != expected) return false;
      if (expected >= 0) continue;
      const auto number = static_cast<std::size_t>(-1 - expected);
      if (lengths_.size() <= number) lengths_.resize(number + 1, 0);
      if (lengths_[number] != 0 && lengths_[number] != found) return false;
      lengths_[number] = found;
    }
    size_ = shape[0];
    return true;
  }

  std::string path_, fingerprint_;
  std::vector<FieldSpec> fields_;
  std::vector<at::Tensor> arrays_;  ///< by field: [N, ...]
  std::vector<std::int64_t> lengths_;
  std::vector<std::string> notes_;
  std::int64_t size_ = 0;
};

}  // namespace

Result<std::shared_ptr<const Dataset>> make_array_file(const DatasetOptions& options,
                                                       const std::string& paths) {
  const std::size_t comma = paths.find(',');
  std::string path = paths.substr(0, comma);
  if (options.split != DataSplit::Train) {
    if (comma == std::string::npos) return std::shared_ptr<const Dataset>();
    path = paths.substr(comma + 1);
  }
  auto dataset = std::make_shared<ArrayDataset>(path, options.fields);
  if (Problems problems = dataset->read(); !problems.empty()) return problems;
  return std::shared_ptr<const Dataset>(std::move(dataset));
}

}  // namespace millrace
