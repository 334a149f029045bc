#include <algorithm>

#include "data/files/file_writer.h"
#include "models/archive/exported_program.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr const char* kAgain =
    "export it again: torch.export.save(torch.export.export(model.train(), ...), \"m.pt2\")";
constexpr Bytes kLargestText = 512 * kMiB;

const char* const kTypeNames[] = {"unknown",   "uint8",      "int8",    "int16",   "int32",
                                  "int64",     "float16",    "float32", "float64", "complex32",
                                  "complex64", "complex128", "bool",    "bfloat16"};

}  // namespace

std::int64_t element_bytes(std::int64_t scalar_type) {
  static constexpr int kBytes[] = {0, 1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 2};
  return scalar_type >= 0 && scalar_type < 14 ? kBytes[scalar_type] : 0;
}

std::string scalar_type_name(std::int64_t scalar_type) {
  return scalar_type >= 0 && scalar_type < 14 ? kTypeNames[scalar_type]
                                              : "type " + std::to_string(scalar_type);
}

Result<std::shared_ptr<const ExportedArchive>> ExportedArchive::open(const std::string& path) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped) return mapped.problems();
  if (mapped->bytes().empty()) return Problem{path, "is empty", kAgain};
  std::shared_ptr<ExportedArchive> archive(new ExportedArchive);
  archive->name_ = path;
  archive->mapped_ = *std::move(mapped);
  archive->bytes_ = archive->mapped_.bytes();
  if (Status read = archive->read(); !read) return read.problems();
  return std::shared_ptr<const ExportedArchive>(std::move(archive));
}

Result<std::shared_ptr<const ExportedArchive>> ExportedArchive::parse(std::string_view bytes,
                                                                      const std::string& name) {
  std::shared_ptr<ExportedArchive> archive(new ExportedArchive);
  archive->name_ = name;
  archive->bytes_ = bytes;
  if (Status read = archive->read(); !read) return read.problems();
  return std::shared_ptr<const ExportedArchive>(std::move(archive));
}

std::string_view ExportedArchive::member(const std::string& name) const {
  const ZipMember& found = *by_name_.at(name);
  if (const auto unpacked = unpacked_.find(name); unpacked != unpacked_.end()) return unpacked->second;
  return bytes_.substr(found.data_offset, found.bytes);
}

Status ExportedArchive::read() {
  Result<std::vector<ZipMember>> members = parse_zip(bytes_, name_);
  if (!members) {
    Problems problems = members.problems();
    for (Problem& problem : problems) problem.hint = std::string("the file may be cut off; else ") + kAgain;
    return problems;
  }
  members_ = *std::move(members);
  constexpr std::string_view kProgram = "models/model.json";
  std::string folder;
  const ZipMember* program = nullptr;
  Bytes unpacked_bytes = 0;
  for (const ZipMember& m : members_) {
    if (!by_name_.emplace(m.name, &m).second)
      return Problem{name_, "has two members " + escaped(m.name), kAgain};
    if (m.name == kProgram || m.name.ends_with("/" + std::string(kProgram))) {
      program = &m;
      folder = m.name.substr(0, m.name.size() - kProgram.size());
    }
    if (m.name.ends_with("serialized_exported_program.json"))
      return Problem{name_, "is in the form of torch 2.8 and before", "export it again with torch 2.11"};
  }
  if (!program)
    return Problem{name_, "holds no exported program (models/model.json)",
                   std::string("a file of torch.save or torch.jit.save is none: ") + kAgain};
  if (const auto order = by_name_.find(folder + "byteorder");
      order != by_name_.end() && !order->second->deflated && member(folder + "byteorder") != "little")
    return Problem{name_, "is of a big-endian machine", "export it on a little-endian one"};
  for (const ZipMember& m : members_) {
    std::string& into = unpacked_[m.name];
    if (m.deflated && (unpacked_bytes += static_cast<Bytes>(m.bytes)) > kGiB)
      return Problem{name_, "claims to unpack to more than 1 GiB: PyTorch packs nothing", kAgain};
    const Result<std::string_view> content = zip_member(bytes_, m, into, name_, kGiB);
    if (!content) return content.problems();
    if (!m.deflated) unpacked_.erase(m.name);
  }
  if (static_cast<Bytes>(program->bytes) > kLargestText)
    return Problem{name_, "has a graph of " + std::to_string(program->bytes) + " bytes", {}};
  Result<ExportedProgram> parsed = parse_exported_program(member(program->name), name_ + ":" + program->name);
  if (!parsed) return parsed.problems();
  program_ = *std::move(parsed);
  for (const char* part : {"weights", "constants"}) {
    const std::string at = folder + "data/" + part + "/";
    if (Status stored = read_stored(at, at + "model_" + part + "_config.json"); !stored) return stored;
  }
  Problems missing;
  for (const ExportedInput& input : program_.inputs) {
    if (input.kind != ExportedInput::Kind::User && !program_.stored.contains(input.target))
      missing.push_back({name_, "has no values of " + escaped(input.target), kAgain});
  }
  return missing.empty() ? Status(Ok{}) : Status(missing);
}

Status ExportedArchive::read_stored(const std::string& folder, const std::string& config) {
  if (!by_name_.contains(config)) return Problem{name_, "lacks " + escaped(config), kAgain};
  const Result<Json> json = parse_json(member(config), name_ + ":" + config);
  if (!json) return json.problems();
  const Json* entries = json->find("config");
  if (!entries || !entries->is_object()) return Problem{name_ + ":" + config, "lists no tensors", kAgain};
  for (const auto& [target, entry] : entries->members()) {
    const auto wrong = [&, &target = target, &entry = entry](const std::string& what) {
      return Problem{entry.where(), escaped(target) + " " + what, kAgain};
    };
    StoredTensor stored;
    const Json *path = entry.find("path_name"), *meta = entry.find("tensor_meta"),
               *pickled = entry.find("use_pickle");
    if (pickled && pickled->kind() == Json::Kind::Bool && pickled->as_bool())
      return wrong("is stored as a Python object");
    if (!path || !path->is_string() || !meta || !meta->is_object()) return wrong("is not described");
    const Json *type = meta->find("dtype"), *grad = meta->find("requires_grad");
    if (type && type->kind() == Json::Kind::Int) stored.scalar_type = type->as_int();
    stored.requires_grad = grad && grad->kind() == Json::Kind::Bool && grad->as_bool();
    stored.member = folder + path->as_string();
    const auto number = [](const Json* j) -> std::int64_t {
      const Json* found = j ? j->find("as_int") : nullptr;
      return found && found->kind() == Json::Kind::Int ? found->as_int() : -1;
    };
    stored.offset = number(meta->find("storage_offset"));
    for (auto [key, into] : {std::pair{"sizes", &stored.sizes}, {"strides", &stored.strides}}) {
      const Json* list = meta->find(key);
      if (!list || !list->is_array()) return wrong("is not described");
      for (const Json& one : list->items()) into->push_back(number(&one));
    }
    const std::int64_t width = element_bytes(stored.scalar_type);
    if (width == 0) return wrong("is of " + scalar_type_name(stored.scalar_type));
    if (!by_name_.contains(stored.member))
      return wrong("lies in " + escaped(stored.member) + ", which is not there");
    const std::string_view storage = member(stored.member);
    // Finds the last element that the tensor reaches. An empty tensor reaches none.
    std::int64_t last = stored.offset, bytes = 0;
    bool valid = stored.sizes.size() == stored.strides.size() && stored.offset >= 0, empty = false;
    for (std::size_t d = 0; valid && d < stored.sizes.size(); ++d) {
      std::int64_t reach = 0;
      valid = stored.sizes[d] >= 0 && stored.strides[d] >= 0;
      empty = empty || stored.sizes[d] == 0;
      valid = valid &&
              !__builtin_mul_overflow(std::max<std::int64_t>(stored.sizes[d] - 1, 0), stored.strides[d],
                                      &reach) &&
              !__builtin_add_overflow(last, reach, &last);
    }
    valid = valid && !__builtin_add_overflow(last, std::int64_t{1}, &bytes) &&
            !__builtin_mul_overflow(bytes, width, &bytes);
    if (!valid || (!empty && bytes > static_cast<std::int64_t>(storage.size())))
      return wrong("does not fit into its " + std::to_string(storage.size()) + " bytes");
    storages_.emplace(stored.member, storage);
    if (!program_.stored.emplace(target, std::move(stored)).second) return wrong("is stored twice");
  }
  return Ok{};
}

void ExportedArchive::write_with(const std::string& path,
                                 const std::map<std::string, std::string>& replaced) const {
  FileWriter file(path);
  ZipWriter zip(file);
  for (const ZipMember& m : members_) {
    if (m.name.ends_with(kEagerStep)) continue;
    const auto found = replaced.find(m.name);
    const std::string_view content = found == replaced.end() ? member(m.name) : found->second;
    MILLRACE_CHECK(content.size() == m.bytes, m.name);
    zip.begin(m.name, m.deflated ? ZipWriter::Packing::Deflated : ZipWriter::Packing::Stored);
    zip.write(content);
    zip.end();
  }
  zip.finish();
  file.commit(Durability::Synced);
}

}  // namespace millrace
