#include "driver/checkpoint/pt_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "data/files/zip.h"
#include "runtime/base/mapped_file.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

// A state_dict takes some 150 bytes for each tensor. Values take more memory than their text.
constexpr std::size_t kMostPickleBytes = std::size_t{16} << 20;
constexpr std::size_t kMostValues = 2'000'000;
constexpr const char* kHint =
    "in Python: torch.save(model.state_dict(), FILE), or write it with safetensors.torch.save_file";

struct StorageType {
  const char* name;
  ElementType type;
};
constexpr StorageType kStorages[] = {
    {"FloatStorage", ElementType::F32},       {"LongStorage", ElementType::I64},
    {"BoolStorage", ElementType::Bool},       {"IntStorage", ElementType::I32},
    {"ShortStorage", ElementType::I16},       {"CharStorage", ElementType::I8},
    {"ByteStorage", ElementType::U8},         {"DoubleStorage", ElementType::F64},
    {"HalfStorage", ElementType::F16},        {"BFloat16Storage", ElementType::BF16},
    {"ComplexFloatStorage", ElementType::C64}};

/// A value of a pickle. Values point at each other and belong to the reader, so that no nesting is too deep.
struct PickleValue {
  enum class Kind { Plain, Int, Text, Tuple, Dict, Global, Storage, Tensor };
  Kind kind = Kind::Plain;               ///< Plain: None, a bool, a float, a list: nobody asks for more
  std::int64_t number = 0;               ///< Int; of a Storage its elements
  std::string text;                      ///< Text; "module name" of a Global; key of a Storage
  std::vector<PickleValue*> items;       ///< Tuple; of a Dict key, value, key, value
  ElementType type = ElementType::F32;   ///< Storage
  const PickleValue* storage = nullptr;  ///< Tensor
  std::int64_t offset = 0;               ///< Tensor, in elements
  std::vector<std::int64_t> shape;       ///< Tensor
};

/// The classes and functions whose results are known without calling them.
constexpr const char* kOrderedDict = "collections OrderedDict";
constexpr const char* kTensor = "torch._utils _rebuild_tensor_v2";
constexpr const char* kParameter = "torch._utils _rebuild_parameter";

/// Reads a pickle of protocols 2 to 4 by the opcodes that state_dicts need. It throws a Problem.
class PickleReader {
 public:
  PickleReader(std::string_view bytes, std::string where) : bytes_(bytes), where_(std::move(where)) {}

  PickleValue& read();

 private:
  using Kind = PickleValue::Kind;

  [[noreturn]] void fail(const std::string& what) const {
    throw Problem{where_, what + " (byte " + std::to_string(at_) + ")", kHint};
  }
  std::string_view take(std::size_t bytes) {
    if (bytes > bytes_.size() - at_) fail("is cut off");
    at_ += bytes;
    return bytes_.substr(at_ - bytes, bytes);
  }
  /// A little-endian number of `bytes` bytes, without a sign.
  std::uint64_t number(std::size_t bytes) {
    const std::string_view text = take(bytes);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < bytes; ++i)
      value |= std::uint64_t{static_cast<unsigned char>(text[i])} << (8 * i);
    return value;
  }
  std::string line() {
    const std::size_t end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("is cut off");
    std::string text(bytes_.substr(at_, end - at_));
    at_ = end + 1;
    return text;
  }

  PickleValue& make(Kind kind) {
    if (values_.size() == kMostValues) fail("holds more than " + std::to_string(kMostValues) + " values");
    return values_.emplace_back(PickleValue{.kind = kind});
  }
  void push(PickleValue& value) { stack_.push_back(&value); }
  void push_int(std::int64_t number) {
    PickleValue& value = make(Kind::Int);
    value.number = number;
    push(value);
  }
  void push_text(std::string_view text) {
    PickleValue& value = make(Kind::Text);
    value.text = text;
    push(value);
  }
  PickleValue& pop() {
    if (stack_.empty() || (!marks_.empty() && marks_.back() == stack_.size()))
      fail("takes more than there is");
    PickleValue& value = *stack_.back();
    stack_.pop_back();
    return value;
  }
  PickleValue& pop(Kind kind, const char* what) {
    PickleValue& value = pop();
    if (value.kind != kind) fail(std::string("has something else where ") + what + " belongs");
    return value;
  }
  /// All values above the last mark.
  std::vector<PickleValue*> pop_to_mark() {
    if (marks_.empty()) fail("has no mark");
    std::vector<PickleValue*> items(stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back()),
                                    stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return items;
  }
  void push_tuple(std::vector<PickleValue*> items) {
    PickleValue& value = make(Kind::Tuple);
    value.items = std::move(items);
    push(value);
  }
  void push_tuple_of(std::size_t count) {
    std::vector<PickleValue*> items(count);
    for (std::size_t i = count; i-- > 0;) items[i] = &pop();
    push_tuple(std::move(items));
  }
  void push_global(const std::string& name);
  void add_to_dict(const std::vector<PickleValue*>& items);
  void remember(std::uint64_t index) {
    if (stack_.empty()) fail("takes more than there is");
    memo_[index] = stack_.back();
  }
  void recall(std::uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) fail("recalls what it has not told");
    push(*found->second);
  }
  void push_storage();
  void reduce();
  PickleValue& tensor(const PickleValue& arguments);
  PickleValue& item(const PickleValue& tuple, std::size_t i, Kind kind, const char* what) const {
    if (i >= tuple.items.size() || tuple.items[i]->kind != kind)
      fail(std::string("has something else where ") + what + " belongs");
    return *tuple.items[i];
  }
  std::vector<std::int64_t> sizes(const PickleValue& tuple) const {
    std::vector<std::int64_t> all;
    for (std::size_t i = 0; i < tuple.items.size(); ++i) {
      const std::int64_t size = item(tuple, i, Kind::Int, "a size").number;
      if (size < 0) fail("has a negative size");
      all.push_back(size);
    }
    return all;
  }

  std::string_view bytes_;
  std::string where_;
  std::size_t at_ = 0;
  std::deque<PickleValue> values_;  // all of them; a deque leaves them where they are
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;
  std::map<std::uint64_t, PickleValue*> memo_;
};

PickleValue& PickleReader::read() {
  for (;;) {
    const auto op = static_cast<unsigned char>(take(1)[0]);
    switch (op) {
      case 0x80:  // PROTO
        if (const std::uint64_t protocol = number(1); protocol < 2 || protocol > 4)
          fail("is a pickle of protocol " + std::to_string(protocol));
        break;
      case 0x95:  // FRAME
        take(8);
        break;
      case '.':  // STOP
        return pop();
      case '(':
        marks_.push_back(stack_.size());
        break;
      case 'N':
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        push(make(Kind::Plain));
        break;
      case 'G':  // BINFLOAT
        take(8);
        push(make(Kind::Plain));
        break;
      case 'K':
        push_int(static_cast<std::int64_t>(number(1)));
        break;
      case 'M':
        push_int(static_cast<std::int64_t>(number(2)));
        break;
      case 'J':
        push_int(static_cast<std::int32_t>(number(4)));
        break;
      case 0x8a: {  // LONG1: two's complement
        const std::uint64_t size = number(1);
        if (size > 8) fail("has a number of more than 64 bits");
        const std::uint64_t value = number(size);
        const auto shift = static_cast<int>(64 - 8 * size);
        push_int(size == 0 ? 0 : static_cast<std::int64_t>(value << shift) >> shift);
        break;
      }
      case 'X':
        push_text(take(number(4)));
        break;
      case 0x8c:  // SHORT_BINUNICODE
        push_text(take(number(1)));
        break;
      case ')':
        push_tuple({});
        break;
      case 't':
        push_tuple(pop_to_mark());
        break;
      case 0x85:  // TUPLE1
      case 0x86:
      case 0x87:
        push_tuple_of(op - 0x84u);
        break;
      case ']':
        push(make(Kind::Plain));
        break;
      case 'a':
        pop();
        break;
      case 'e':
        pop_to_mark();
        break;
      case '}':
        push(make(Kind::Dict));
        break;
      case 's': {
        PickleValue &value = pop(), &key = pop();
        add_to_dict({&key, &value});
        break;
      }
      case 'u':
        add_to_dict(pop_to_mark());
        break;
      case 'q':
        remember(number(1));
        break;
      case 'r':
        remember(number(4));
        break;
      case 0x94:  // MEMOIZE
        remember(memo_.size());
        break;
      case 'h':
        recall(number(1));
        break;
      case 'j':
        recall(number(4));
        break;
      case 'c': {
        const std::string module = line();
        push_global(module + " " + line());
        break;
      }
      case 0x93: {  // STACK_GLOBAL
        const std::string name = pop(Kind::Text, "a name").text, module = pop(Kind::Text, "a module").text;
        push_global(module + " " + name);
        break;
      }
      case 'Q':
        push_storage();
        break;
      case 'R':
        reduce();
        break;
      case 'b':  // BUILD: attributes, which an OrderedDict of PyTorch has
        pop();
        if (stack_.empty() || stack_.back()->kind != Kind::Dict) fail("gives attributes to no dict");
        break;
      default:
        fail("has opcode " + std::to_string(op) + ", which no state_dict has");
    }
  }
}

void PickleReader::push_global(const std::string& name) {
  const bool is_storage = std::ranges::any_of(
      kStorages, [&](const StorageType& s) { return name == std::string("torch ") + s.name; });
  if (!is_storage && name != kOrderedDict && name != kTensor && name != kParameter)
    fail("needs " + escaped(name) + ", which is refused: only tensors and dicts are read");
  PickleValue& value = make(Kind::Global);
  value.text = name;
  push(value);
}

void PickleReader::add_to_dict(const std::vector<PickleValue*>& items) {
  if (items.size() % 2 != 0) fail("has a key without a value");
  PickleValue& dict = pop(Kind::Dict, "a dict");
  dict.items.insert(dict.items.end(), items.begin(), items.end());
  push(dict);
}

/// ('storage', torch.FloatStorage, key, device, elements)
void PickleReader::push_storage() {
  const PickleValue& id = pop(Kind::Tuple, "a storage");
  if (id.items.size() != 5 || item(id, 0, Kind::Text, "a storage").text != "storage")
    fail("refers to something that is no storage");
  const std::string& type = item(id, 1, Kind::Global, "the type of a storage").text;
  const auto* known = std::ranges::find_if(
      kStorages, [&](const StorageType& s) { return type == std::string("torch ") + s.name; });
  if (known == std::end(kStorages)) fail("has a storage of type " + escaped(type));
  PickleValue& value = make(Kind::Storage);
  value.type = known->type;
  value.text = item(id, 2, Kind::Text, "the key of a storage").text;
  value.number = item(id, 4, Kind::Int, "the size of a storage").number;
  push(value);
}

void PickleReader::reduce() {
  const PickleValue& arguments = pop(Kind::Tuple, "a tuple of arguments");
  const PickleValue& function = pop(Kind::Global, "a function");
  if (function.text == kOrderedDict && arguments.items.empty()) return push(make(Kind::Dict));
  if (function.text == kTensor) return push(tensor(arguments));
  if (function.text == kParameter) return push(item(arguments, 0, Kind::Tensor, "the tensor of a parameter"));
  fail("calls " + escaped(function.text) + " in an unknown way");
}

/// (storage, offset, shape, strides, ...)
PickleValue& PickleReader::tensor(const PickleValue& arguments) {
  const PickleValue& storage = item(arguments, 0, Kind::Storage, "a storage");
  PickleValue& value = make(Kind::Tensor);
  value.storage = &storage;
  value.offset = item(arguments, 1, Kind::Int, "an offset").number;
  value.shape = sizes(item(arguments, 2, Kind::Tuple, "a shape"));
  const std::vector<std::int64_t> strides = sizes(item(arguments, 3, Kind::Tuple, "strides"));
  if (strides.size() != value.shape.size()) fail("has a tensor with other strides than dimensions");
  std::int64_t elements = 1;
  for (std::size_t d = value.shape.size(); d-- > 0;) {
    if (value.shape[d] > 1 && strides[d] != elements)
      fail("has a tensor that is not contiguous: .contiguous() makes it so");
    if (__builtin_mul_overflow(elements, value.shape[d], &elements))
      fail("has a tensor of too many elements");
  }
  std::int64_t end = 0;
  if (value.offset < 0 || __builtin_add_overflow(value.offset, elements, &end) || end > storage.number)
    fail("has a tensor beyond the end of its storage");
  return value;
}

/// An archive that is open.
struct PtFile {
  MappedFile file;
  std::map<std::string, const ZipMember*> members;  ///< by the name below the archive's folder
  std::vector<ZipMember> all;
};

/// The bytes of a member, which is not packed.
Result<std::string_view> member_of(const PtFile& pt, const std::string& member, const std::string& path) {
  const auto found = pt.members.find(member);
  if (found == pt.members.end()) return Problem{path, "has no " + escaped(member), kHint};
  if (found->second->deflated)
    return Problem{path, escaped(member) + " is packed, as torch.save never does", kHint};
  std::string unused;
  return zip_member(pt.file.bytes(), *found->second, unused, path);
}

Result<SavedTensors> tensors_of(std::shared_ptr<const PtFile> pt, const std::string& path) {
  if (pt->members.contains("byteorder")) {
    const Result<std::string_view> order = member_of(*pt, "byteorder", path);
    if (!order) return order.problems();
    if (*order != "little") return Problem{path, "has another order of bytes than this machine", kHint};
  }
  const Result<std::string_view> pickle = member_of(*pt, "data.pkl", path);
  if (!pickle) return pickle.problems();
  if (pickle->size() > kMostPickleBytes)
    return Problem{path,
                   "has a pickle of " + std::to_string(pickle->size()) + " bytes, at most " +
                       std::to_string(kMostPickleBytes) + " are read",
                   kHint};
  PickleReader reader(*pickle, path + " (data.pkl)");
  const PickleValue& root = reader.read();
  if (root.kind != PickleValue::Kind::Dict) return Problem{path, "holds no dict of tensors", kHint};
  SavedTensors all{.path = path};
  std::map<std::string, std::string_view> storages;
  for (std::size_t i = 0; i < root.items.size(); i += 2) {
    const PickleValue &key = *root.items[i], &value = *root.items[i + 1];
    if (key.kind != PickleValue::Kind::Text) return Problem{path, "has a key that is no text", kHint};
    const std::string name = escaped(key.text);
    if (value.kind != PickleValue::Kind::Tensor) return Problem{path, name + " is no tensor", kHint};
    const PickleValue& storage = *value.storage;
    auto bytes = storages.find(storage.text);
    if (bytes == storages.end()) {
      const Result<std::string_view> found = member_of(*pt, "data/" + storage.text, path);
      if (!found) return found.problems();
      bytes = storages.emplace(storage.text, *found).first;
    }
    // The reader has made sure that the tensor lies in its storage.
    const std::size_t of_one = bytes_of(storage.type);
    if (static_cast<std::uint64_t>(storage.number) > bytes->second.size() / of_one)
      return Problem{path, name + " needs more bytes than its storage has", "the file is damaged"};
    const TensorShape shape{key.text, storage.type, value.shape};
    const std::string_view elements =
        bytes->second.substr(static_cast<std::size_t>(value.offset) * of_one, shape.bytes());
    if (!all.tensors.emplace(key.text, SavedTensor{shape, elements}).second)
      return Problem{path, name + " is there twice", kHint};
  }
  all.owners.push_back(std::move(pt));
  return all;
}

}  // namespace

bool is_pt_file(const std::string& path) {
  char begin[9] = {};
  std::ifstream(path, std::ios::binary).read(begin, sizeof begin);
  // The length of a safetensors header may begin with the same letters. It is followed by the header.
  return std::string_view(begin, 4) == "PK\3\4" && begin[8] != '{';
}

Result<SavedTensors> open_pt_file(const std::string& path) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped) return mapped.problems();
  auto pt = std::make_shared<PtFile>();
  pt->file = *std::move(mapped);
  Result<std::vector<ZipMember>> members = parse_zip(pt->file.bytes(), path);
  if (!members) return members.problems();
  pt->all = *std::move(members);
  for (const ZipMember& member : pt->all) {
    // All stand in one folder, which is called as the file was.
    const std::string below = member.name.substr(member.name.find('/') + 1);
    if (!pt->members.emplace(below, &member).second)
      return Problem{path, "has " + escaped(below) + " twice", kHint};
  }
  try {
    return tensors_of(std::move(pt), path);
  } catch (const Problem& problem) {
    return problem;
  }
}

}  // namespace millrace
