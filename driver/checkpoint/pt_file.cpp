#include "driver/checkpoint/pt_file.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "data/files/zip.h"
#include "driver/checkpoint/own_process.h"
#include "runtime/base/mapped_file.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

using Kind = PickleValue::Kind;
constexpr std::size_t kMostOffers = 20;  // dicts that a message names
constexpr std::size_t kDeepestOffer = 4;

/// The members of an archive by their names below its one folder, which is called as the file was. A file of
/// PyTorch before 1.6 has the same parts one after the other.
class Archive {
 public:
  static Result<Archive> of(std::string_view bytes, const std::string& path) {
    if (bytes.starts_with(kLegacyMagic)) return of_legacy(bytes.substr(kLegacyMagic.size()), path);
    Result<std::vector<ZipMember>> members = parse_zip(bytes, path);
    if (!members) return members.problems();
    Archive archive;
    archive.bytes_ = bytes;
    archive.path_ = path;
    for (ZipMember& member : *members) {
      const std::string below = member.name.substr(member.name.find('/') + 1);
      if (!archive.members_.emplace(below, std::move(member)).second)
        return Problem{path, "has " + escaped(below) + " twice", kStateDictHint};
    }
    return archive;
  }

  /// Reads the protocol's number, a dict about the machine, the object and the list of its storages' keys,
  /// each a pickle; then the storages: the number of elements in 8 bytes, and the elements.
  static Result<Archive> of_legacy(std::string_view rest, const std::string& path) {
    Archive archive;
    archive.path_ = path;
    Problems problems;
    const auto next = [&](const char* what, OtherClasses others) {
      Result<Pickle> pickle =
          Pickle::read(rest.substr(0, kMostPickleBytes), path + " (" + what + ")", others);
      if (pickle)
        rest.remove_prefix(pickle->bytes());
      else
        append(problems, pickle.problems());
      return pickle;
    };
    const Result<Pickle> protocol = next("protocol", OtherClasses::Refused);
    const Result<Pickle> machine = next("machine", OtherClasses::Refused);
    if (!problems.empty()) return problems;
    if (protocol->root().kind != Kind::Int || protocol->root().number != kLegacyProtocol)
      return Problem{path, "is of an unknown protocol of torch.save", kStateDictHint};
    const PickleValue* little = machine->root().find("little_endian");
    if (!little || little->number != 1) return archive.other_order();
    archive.object_ = rest.substr(0, kMostPickleBytes);
    const Result<Pickle> object = next("object", OtherClasses::Kept);
    const Result<Pickle> keys = next("keys", OtherClasses::Refused);
    if (!problems.empty()) return problems;
    const Problem damaged{path, "ends inside a storage, or names one that its tensors do not have",
                          "the file is damaged"};
    for (const PickleValue* key : keys->root().items) {
      const auto type = object->storages().find(key->text);
      std::uint64_t bytes = 0;
      if (type == object->storages().end() || rest.size() < sizeof bytes) return damaged;
      std::memcpy(&bytes, rest.data(), sizeof bytes);
      rest.remove_prefix(sizeof bytes);
      if (__builtin_mul_overflow(bytes, bytes_of(type->second), &bytes) || bytes > rest.size())
        return damaged;
      archive.storages_[key->text] = rest.substr(0, bytes);
      rest.remove_prefix(bytes);
    }
    return archive;
  }

  /// The bytes of a member, which is not packed.
  Result<std::string_view> member(const std::string& name) const {
    const auto found = members_.find(name);
    if (found == members_.end()) return Problem{path_, "has no " + escaped(name), kStateDictHint};
    if (found->second.deflated)
      return Problem{path_, escaped(name) + " is packed, as torch.save never does", kStateDictHint};
    std::string unused;
    return zip_member(bytes_, found->second, unused, path_);
  }

  Result<Pickle> pickle(OtherClasses others) const {
    if (!object_.empty()) return Pickle::read(object_, path_ + " (object)", others);
    if (members_.contains("byteorder")) {
      const Result<std::string_view> order = member("byteorder");
      if (!order) return order.problems();
      if (*order != "little") return other_order();
    }
    const Result<std::string_view> data = member("data.pkl");
    if (!data) return data.problems();
    return Pickle::read(*data, path_ + " (data.pkl)", others);
  }

  /// The tensor that a value of the pickle stands for. `name` is for messages.
  Result<SavedTensor> tensor(const PickleValue& value, const std::string& name) {
    if (value.kind != Kind::Tensor) return Problem{path_, escaped(name) + " is no tensor", kStateDictHint};
    if (!value.contiguous)
      return Problem{path_, escaped(name) + " is not contiguous: .contiguous() makes it so", kStateDictHint};
    const PickleValue& storage = *value.storage;
    auto bytes = storages_.find(storage.text);
    if (bytes == storages_.end()) {
      const Result<std::string_view> found = member("data/" + storage.text);
      if (!found) return found.problems();
      bytes = storages_.emplace(storage.text, *found).first;
    }
    // The reader has made sure that the tensor lies in its storage.
    const std::size_t of_one = bytes_of(storage.type);
    if (static_cast<std::uint64_t>(storage.number) > bytes->second.size() / of_one)
      return Problem{path_, escaped(name) + " needs more bytes than its storage has", "the file is damaged"};
    const TensorShape shape{name, storage.type, value.shape};
    return SavedTensor{shape,
                       bytes->second.substr(static_cast<std::size_t>(value.offset) * of_one, shape.bytes())};
  }

 private:
  static constexpr std::int64_t kLegacyProtocol = 1001;
  Problem other_order() const {
    return {path_, "has another order of bytes than this machine", kStateDictHint};
  }
  std::string_view bytes_;
  std::string path_;
  std::map<std::string, ZipMember> members_;
  std::string_view object_;                           ///< the pickle in a file of before PyTorch 1.6
  std::map<std::string, std::string_view> storages_;  // those that were looked at: their sums are right
};

/// Finds dicts that hold tensors, at most kDeepestOffer below the top.
std::vector<KeyOffer> dicts_in(const PickleValue& root) {
  std::vector<KeyOffer> offers;
  if (root.kind != Kind::Dict) return offers;
  std::set<const PickleValue*> seen{&root};
  std::vector<std::pair<std::string, const PickleValue*>> level{{"", &root}};
  for (std::size_t depth = 0; depth < kDeepestOffer && !level.empty(); ++depth) {
    std::vector<std::pair<std::string, const PickleValue*>> below;
    for (const auto& [path, dict] : level) {
      for (std::size_t i = 0; i < dict->items.size(); i += 2) {
        const PickleValue &key = *dict->items[i], &value = *dict->items[i + 1];
        if (key.kind != Kind::Text || value.kind != Kind::Dict || !seen.insert(&value).second) continue;
        below.emplace_back(path + (path.empty() ? "" : "/") + key.text, &value);
        std::size_t tensors = 0;
        for (std::size_t j = 1; j < value.items.size(); j += 2)
          tensors += value.items[j]->kind == Kind::Tensor ? 1 : 0;
        if (tensors > 0 && offers.size() < kMostOffers) offers.push_back({below.back().first, tensors});
      }
    }
    level = std::move(below);
  }
  return offers;
}

Result<SavedTensors> tensors_of(Archive& archive, const std::string& path, const std::string& key) {
  const Result<Pickle> pickle = archive.pickle(key.empty() ? OtherClasses::Refused : OtherClasses::Kept);
  if (!pickle) {
    const Result<Pickle> whole = archive.pickle(OtherClasses::Kept);
    const std::vector<KeyOffer> offers =
        whole && key.empty() ? dicts_in(whole->root()) : std::vector<KeyOffer>();
    return offers.empty() ? pickle.problems()
                          : Problems{no_such_dict(path, pickle.problems().front().what, offers)};
  }
  const PickleValue* dict = &pickle->root();
  for (const std::string& part : parts_of_key(key)) {
    dict = dict->kind == Kind::Dict ? dict->find(part) : nullptr;
    if (!dict) return no_such_dict(path, "has no key " + escaped(key), dicts_in(pickle->root()));
  }
  if (dict->kind != Kind::Dict)
    return no_such_dict(path, "holds no dict of tensors" + (key.empty() ? "" : " at " + escaped(key)),
                        dicts_in(pickle->root()));
  SavedTensors all{.path = path};
  for (std::size_t i = 0; i < dict->items.size(); i += 2) {
    const PickleValue &name = *dict->items[i], &value = *dict->items[i + 1];
    if (name.kind != Kind::Text) return Problem{path, "has a key that is no text", kStateDictHint};
    if (value.kind != Kind::Tensor)
      return no_such_dict(path, escaped(name.text) + " is no tensor", dicts_in(pickle->root()));
    Result<SavedTensor> tensor = archive.tensor(value, name.text);
    if (!tensor) return tensor.problems();
    if (!all.tensors.emplace(name.text, *std::move(tensor)).second)
      return Problem{path, escaped(name.text) + " is there twice", kStateDictHint};
  }
  return all;
}

// ---- what the reader's process tells this one: numbers of 8 bytes, texts behind their lengths

void put(std::string& to, std::uint64_t number) {
  to.append(reinterpret_cast<const char*>(&number), sizeof number);
}
void put(std::string& to, std::string_view text) {
  put(to, std::uint64_t{text.size()});
  to += text;
}

/// The tensors of the file, or the problems.
std::string told(const Result<SavedTensors>& found, std::string_view bytes) {
  std::string text;
  put(text, std::uint64_t{found ? 1U : 0U});
  if (!found) {
    for (const Problem& problem : found.problems())
      for (const std::string* part : {&problem.where, &problem.what, &problem.hint}) put(text, *part);
    return text;
  }
  for (const auto& [name, tensor] : found->tensors) {
    put(text, name);
    put(text, static_cast<std::uint64_t>(tensor.shape.type));
    put(text, std::uint64_t{tensor.shape.shape.size()});
    for (const std::int64_t size : tensor.shape.shape) put(text, static_cast<std::uint64_t>(size));
    put(text,
        tensor.elements.empty() ? 0 : static_cast<std::uint64_t>(tensor.elements.data() - bytes.data()));
  }
  return text;
}

/// Takes what `told` made. The reader may have been made to tell anything, so nothing is believed. It throws
/// a Problem.
class Told {
 public:
  Told(std::string_view text, std::string_view file, const std::string& path)
      : text_(text), file_(file), path_(path) {}

  Result<SavedTensors> all() {
    if (number() == 0) {
      Problems problems;
      while (!text_.empty()) {
        Problem& problem = problems.emplace_back();
        for (std::string* part : {&problem.where, &problem.what, &problem.hint}) *part = text();
      }
      check(!problems.empty());
      return problems;
    }
    SavedTensors all{.path = path_};
    while (!text_.empty()) {
      SavedTensor one = tensor();
      const std::string name = one.shape.name;
      check(all.tensors.emplace(name, std::move(one)).second);
    }
    return all;
  }

 private:
  void check(bool right) const {
    if (!right) throw Problem{path_, "made its reader tell nonsense", "the file was made to do harm"};
  }
  std::string_view take(std::uint64_t bytes) {
    check(bytes <= text_.size());
    const std::string_view taken = text_.substr(0, bytes);
    text_.remove_prefix(bytes);
    return taken;
  }
  std::uint64_t number() {
    std::uint64_t number = 0;
    std::memcpy(&number, take(sizeof number).data(), sizeof number);
    return number;
  }
  std::string text() { return std::string(take(number())); }
  SavedTensor tensor() {
    SavedTensor one{.shape = {.name = text(), .type = ElementType::F32, .shape = {}}, .elements = {}};
    const std::uint64_t type = number();
    check(type < names_of(ElementType()).size());
    one.shape.type = static_cast<ElementType>(type);
    std::uint64_t bytes = bytes_of(one.shape.type);
    bool is_empty = false;
    for (std::uint64_t left = number(); left > 0; --left) {
      one.shape.shape.push_back(static_cast<std::int64_t>(number()));
      check(one.shape.shape.back() >= 0);
      const auto size = static_cast<std::uint64_t>(one.shape.shape.back());
      is_empty = is_empty || size == 0;
      if (size > 0) check(!__builtin_mul_overflow(bytes, size, &bytes));
    }
    if (is_empty) bytes = 0;
    const std::uint64_t offset = number();
    check(offset <= file_.size() && bytes <= file_.size() - offset);
    one.elements = file_.substr(offset, bytes);
    return one;
  }

  std::string_view text_, file_;
  const std::string& path_;
};

/// A minute, and more for the sums of large files.
ProcessLimits limits_of(std::string_view file) {
  constexpr std::size_t kSlow = 20'000'000;  // bytes a second
  ProcessLimits limits;
  limits.processor += std::chrono::seconds(file.size() / kSlow);
  limits.deadline = 5 * limits.processor;
  return limits;
}

}  // namespace

bool is_pt_file(const std::string& path) {
  char begin[16] = {};
  std::ifstream(path, std::ios::binary).read(begin, sizeof begin);
  return is_torch_save({begin, sizeof begin});
}

Result<SavedTensors> open_pt_file(const std::string& path, const std::string& key) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped) return mapped.problems();
  const auto file = std::make_shared<MappedFile>(*std::move(mapped));
  const std::string_view bytes = file->bytes();
  const Result<std::string> answer =
      in_own_process([&] { return told(tensors_in(bytes, path, key), bytes); }, limits_of(bytes), path);
  if (!answer) return answer.problems();
  try {
    Result<SavedTensors> all = Told(*answer, bytes, path).all();
    if (all) all->owners.push_back(file);
    return all;
  } catch (const Problem& problem) {
    return problem;
  }
}

Result<SavedTensors> tensors_in(std::string_view bytes, const std::string& path, const std::string& key) {
  Result<Archive> archive = Archive::of(bytes, path);
  return archive ? tensors_of(*archive, path, key) : archive.problems();
}

Result<std::vector<SavedTensor>> tensors_of_archive(std::string_view bytes, const std::string& where) {
  Result<Archive> archive = Archive::of(bytes, where);
  if (!archive) return archive.problems();
  const Result<Pickle> pickle = archive->pickle(OtherClasses::Refused);
  if (!pickle) return pickle.problems();
  std::vector<SavedTensor> all;
  std::set<const PickleValue*> seen;
  std::vector<const PickleValue*> left{&pickle->root()};  // the next one is the last
  while (!left.empty()) {
    const PickleValue& value = *left.back();
    left.pop_back();
    if (value.kind == Kind::Tensor) {
      Result<SavedTensor> tensor = archive->tensor(value, "tensor " + std::to_string(all.size()));
      if (!tensor) return tensor.problems();
      all.push_back(*std::move(tensor));
    } else if (seen.insert(&value).second) {
      left.insert(left.end(), value.items.rbegin(), value.items.rend());
    }
  }
  return all;
}

std::vector<std::string> parts_of_key(const std::string& key) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; !key.empty() && at <= key.size();) {
    const std::size_t end = std::min(key.find('/', at), key.size());
    parts.push_back(key.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

Problem no_such_dict(const std::string& path, const std::string& what, const std::vector<KeyOffer>& offers) {
  if (offers.empty()) return {path, what, kStateDictHint};
  std::string text = what + "; dicts of tensors in it:";
  for (const KeyOffer& offer : offers)
    text += (&offer == &offers.front() ? " " : ", ") + escaped(offer.key) + " (" +
            std::to_string(offer.tensors) + ")";
  return {path, text, "`checkpoint import --key " + escaped(offers.front().key) + "` takes one of them"};
}

}  // namespace millrace
