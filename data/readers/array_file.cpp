#include "data/readers/array_file.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <optional>

#include "data/files/npy.h"
#include "data/files/zip.h"
#include "data/loading/tensor_dataset.h"
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

/// Returns the array of one field, or an undefined tensor after adding to `problems`.
at::Tensor read_array(const FieldSpec& field, std::string_view bytes, const ZipMember& member,
                      const std::string& path, Problems& problems) {
  const std::string where = path + ":" + member.name;
  std::string unpacked;
  const Result<std::string_view> content = zip_member(bytes, member, unpacked, path);
  if (!content) return append(problems, content.problems()), at::Tensor();
  const Result<at::Tensor> array = npy_tensor(*content, where);
  if (!array) return append(problems, array.problems()), at::Tensor();
  const at::ScalarType type = array->scalar_type();
  const bool converts = at::isFloatingType(type) == at::isFloatingType(field.dtype);
  return array->to(at::TensorOptions(converts ? field.dtype : type), false, /*copy=*/true);
}

Result<std::shared_ptr<const Dataset>> read_arrays(const std::string& path,
                                                   const std::vector<FieldSpec>& fields) {
  Result<std::string> bytes = read_regular_file(path, 64 * kGiB);
  if (!bytes) return bytes.problems();
  const Result<std::vector<ZipMember>> members = parse_zip(*bytes, path);
  if (!members) return members.problems();
  TensorDatasetText text{
      .description = path,
      .fingerprint = "arrays " + std::to_string(bytes->size()) + " " + std::to_string(crc32_of(*bytes))};
  Problems problems;
  std::string names;
  for (const ZipMember& m : *members) names += (names.empty() ? "" : ", ") + m.name;
  std::vector<at::Tensor> arrays;
  std::vector<std::string> places;
  for (const FieldSpec& field : fields) {
    const auto member = std::ranges::find_if(
        *members, [&](const ZipMember& m) { return m.name == field.name + ".npy" || m.name == field.name; });
    if (member == members->end()) {
      problems.push_back({path, "has no array " + escaped(field.name) + "; it has " + escaped(names),
                          "numpy.savez(\"data.npz\", " + escaped(field.name) + "=...)"});
      continue;
    }
    arrays.push_back(read_array(field, *bytes, *member, path, problems));
    places.push_back(path + ":" + member->name);
  }
  if (!problems.empty()) return problems;
  for (const ZipMember& m : *members) {
    const std::string name = m.name.ends_with(".npy") ? m.name.substr(0, m.name.size() - 4) : m.name;
    if (std::ranges::find(fields, name, &FieldSpec::name) == fields.end())
      text.notes.push_back(path + ": the model does not read the array " + escaped(name));
  }
  text.where = [&](std::size_t field) { return places[field]; };
  return make_tensor_dataset(fields, std::move(arrays), text);
}

}  // namespace

Result<at::Tensor> npy_tensor(std::string_view bytes, const std::string& name) {
  const Result<NpyHeader> header = parse_npy(bytes, name);
  if (!header) return header.problems();
  const auto type = type_of(header->descr);
  if (!type || header->fortran_order)
    return Problem{name, "is of type " + header->descr + (header->fortran_order ? " in Fortran order" : ""),
                   "save float32, float64, integers or bool of this machine's byte order, in C order"};
  const std::string_view data = bytes.substr(header->data_offset);
  return at::from_blob(const_cast<char*>(data.data()), header->shape, at::TensorOptions(*type));
}

Result<std::shared_ptr<const Dataset>> make_array_file(const DatasetOptions& options,
                                                       const std::string& paths) {
  const std::size_t comma = paths.find(',');
  std::string path = paths.substr(0, comma);
  if (options.split != DataSplit::Train) {
    if (comma == std::string::npos) return std::shared_ptr<const Dataset>();
    path = paths.substr(comma + 1);
  }
  return read_arrays(path, options.fields);
}

}  // namespace millrace
