#include "data/readers/array_file.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <optional>

#include "data/files/left_out.h"
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

/// Returns a copy of the array in the field's type. A kind of number that does not fit stays, for
/// make_tensor_dataset() to refuse.
at::Tensor as_field(const at::Tensor& array, const FieldSpec& field) {
  const at::ScalarType type = array.scalar_type();
  const bool converts = at::isFloatingType(type) == at::isFloatingType(field.dtype);
  return array.to(at::TensorOptions(converts ? field.dtype : type), false, /*copy=*/true);
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
  return as_field(*array, field);
}

/// An NPZ file: an array for each field, and what to say of it.
struct ArrayFile {
  std::vector<at::Tensor> arrays;
  std::vector<std::string> places;  ///< by field, for messages
  TensorDatasetText text;
};

Result<ArrayFile> read_npz(const std::string& path, const std::vector<FieldSpec>& fields) {
  Result<std::string> bytes = read_regular_file(path, 64 * kGiB);
  if (!bytes) return bytes.problems();
  const Result<std::vector<ZipMember>> members = parse_zip(*bytes, path);
  if (!members) return members.problems();
  ArrayFile read;
  read.text = {
      .description = path,
      .fingerprint = "arrays " + std::to_string(bytes->size()) + " " + std::to_string(crc32_of(*bytes))};
  Problems problems;
  std::string names;
  for (const ZipMember& m : *members) names += (names.empty() ? "" : ", ") + m.name;
  for (const FieldSpec& field : fields) {
    const auto member = std::ranges::find_if(
        *members, [&](const ZipMember& m) { return m.name == field.name + ".npy" || m.name == field.name; });
    if (member == members->end()) {
      problems.push_back({path, "has no array " + escaped(field.name) + "; it has " + escaped(names),
                          "numpy.savez(\"data.npz\", " + escaped(field.name) + "=...)"});
      continue;
    }
    read.arrays.push_back(read_array(field, *bytes, *member, path, problems));
    read.places.push_back(path + ":" + member->name);
  }
  if (!problems.empty()) return problems;
  LeftOut left_out;
  for (const ZipMember& m : *members) {
    const std::string name = m.name.ends_with(".npy") ? m.name.substr(0, m.name.size() - 4) : m.name;
    if (std::ranges::find(fields, name, &FieldSpec::name) == fields.end())
      left_out.add("arrays that the model does not read", path + ":" + escaped(name));
  }
  read.text.notes = left_out.notes();
  return read;
}

Result<std::shared_ptr<const Dataset>> read_arrays(const std::string& path,
                                                   const std::vector<FieldSpec>& fields) {
  Result<ArrayFile> file = read_npz(path, fields);
  if (!file) return file.problems();
  file->text.where = [places = file->places](std::size_t field) { return places[field]; };
  return make_tensor_dataset(fields, std::move(file->arrays), file->text);
}

/// An NPY file as an NPZ file that has it as the only array.
Result<ArrayFile> read_npy(const std::string& path, const std::vector<FieldSpec>& fields) {
  if (fields.size() != 1) {
    std::string names;
    for (const FieldSpec& field : fields) names += (names.empty() ? "" : ", ") + field.name;
    return Problem{path, "is one array, the model reads " + names, "give an NPZ file with these arrays"};
  }
  const Result<std::string> bytes = read_regular_file(path, 64 * kGiB);
  if (!bytes) return bytes.problems();
  const Result<at::Tensor> array = npy_tensor(*bytes, path);
  if (!array) return array.problems();
  at::Tensor values = as_field(*array, fields.front());
  if (values.dim() == static_cast<std::int64_t>(fields.front().shape.size())) values = values.unsqueeze(0);
  return ArrayFile{.arrays = {values}, .places = {path}, .text = {.description = path}};
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

Result<JoinedArrays> join_array_files(const std::vector<std::string>& paths,
                                      const std::vector<FieldSpec>& fields) {
  JoinedArrays joined;
  std::vector<std::vector<at::Tensor>> parts(fields.size());
  TensorDatasetText text{.description = paths.front()};
  Problems problems;
  for (const std::string& path : paths) {
    Result<ArrayFile> file = path.ends_with(".npz") ? read_npz(path, fields) : read_npy(path, fields);
    if (!file) {
      append(problems, file.problems());
      continue;
    }
    file->text.where = [&](std::size_t field) { return file->places[field]; };
    // Each file by itself, so that a problem names it.
    const auto alone = make_tensor_dataset(fields, file->arrays, file->text);
    if (!alone) {
      append(problems, alone.problems());
      continue;
    }
    text.notes.insert(text.notes.end(), file->text.notes.begin(), file->text.notes.end());
    for (std::size_t f = 0; f < fields.size(); ++f) {
      const at::Tensor& array = file->arrays[f];
      if (!parts[f].empty() && parts[f].front().sizes().slice(1) != array.sizes().slice(1))
        problems.push_back({file->places[f], "has samples of another length than " + paths.front(),
                            "predict files of one length together"});
      parts[f].push_back(array);
    }
    const std::int64_t samples = (*alone)->size();
    for (std::int64_t i = 0; i < samples; ++i)
      joined.names.push_back(samples == 1 ? path : path + "[" + std::to_string(i) + "]");
  }
  if (!problems.empty()) return problems;
  std::vector<at::Tensor> arrays;
  for (const auto& of_field : parts) arrays.push_back(at::cat(of_field));
  auto dataset = make_tensor_dataset(fields, std::move(arrays), text);
  if (!dataset) return dataset.problems();
  joined.dataset = *dataset;
  return joined;
}

}  // namespace millrace
