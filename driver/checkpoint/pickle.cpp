#include "driver/checkpoint/pickle.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr std::size_t kMostValues = 2'000'000;
constexpr std::size_t kMostTextBytes = std::size_t{256} << 20;  // a pickle repeats a text in two bytes
constexpr std::size_t kMostDimensions = 64;                     // PyTorch's own limit

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

/// The classes and functions whose results are known without calling them.
constexpr const char* kOrderedDict = "collections OrderedDict";
constexpr const char* kTensor = "torch._utils _rebuild_tensor_v2";
constexpr const char* kOldTensor = "torch._utils _rebuild_tensor";  // until PyTorch 0.3
// One with attributes of Python's: (kTensor, kTensorType, arguments, attributes).
constexpr const char* kTensorOfType = "torch._tensor _rebuild_from_type_v2";
constexpr const char* kTensorType = "torch Tensor";
constexpr const char* kParameter = "torch._utils _rebuild_parameter";
constexpr const char* kOldParameter = "torch.nn.parameter Parameter";  // likewise: a new object of a tensor
constexpr const char* kSize = "torch Size";

}  // namespace

/// Makes the values. It throws a Problem.
class Pickle::Reader {
 public:
  Reader(std::string_view bytes, std::string where, OtherClasses others)
      : bytes_(bytes), where_(std::move(where)), others_(others) {}

  PickleValue& read();
  std::size_t bytes() const { return at_; }
  const std::map<std::string, ElementType>& storages() const { return storages_; }

 private:
  using Kind = PickleValue::Kind;

  [[noreturn]] void fail(const std::string& what) const {
    throw Problem{where_, what + " (byte " + std::to_string(at_) + ")", kStateDictHint};
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
  void set_text(PickleValue& value, std::string_view text) {
    text_bytes_ += text.size();
    if (text_bytes_ > kMostTextBytes) fail("repeats texts, to more than 256 MiB");
    value.text = text;
  }
  void push_text(std::string_view text) {
    PickleValue& value = make(Kind::Text);
    set_text(value, text);
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
  void push_object(const PickleValue& of);
  /// Adds to the value on top. What goes into an Object is dropped.
  void add_items(Kind kind, const char* what, const std::vector<PickleValue*>& items) {
    if (!stack_.empty() && stack_.back()->kind == Kind::Object) return;
    PickleValue& value = pop(kind, what);
    value.items.insert(value.items.end(), items.begin(), items.end());
    push(value);
  }
  void reduce();
  void build();
  PickleValue& tensor(const PickleValue& arguments);
  PickleValue& item(const PickleValue& tuple, std::size_t i, Kind kind, const char* what) const {
    if (i >= tuple.items.size() || tuple.items[i]->kind != kind)
      fail(std::string("has something else where ") + what + " belongs");
    return *tuple.items[i];
  }
  std::vector<std::int64_t> sizes(const PickleValue& tuple) const {
    // A pickle repeats a tuple in two bytes, and each would be copied here.
    if (tuple.items.size() > kMostDimensions) fail("has a tensor of too many dimensions");
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
  OtherClasses others_;
  std::size_t at_ = 0;
  std::deque<PickleValue> values_;  // all of them; a deque leaves them where they are
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;
  std::map<std::uint64_t, PickleValue*> memo_;
  std::map<std::string, ElementType> storages_;
  std::size_t text_bytes_ = 0;
};

PickleValue& Pickle::Reader::read() {
  for (;;) {
    const auto op = static_cast<unsigned char>(take(1)[0]);
    switch (op) {
      case 0x80:  // PROTO
        if (const std::uint64_t protocol = number(1); protocol < 2 || protocol > 5)
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
      case 0x88:    // NEWTRUE
      case 0x89: {  // NEWFALSE
        PickleValue& value = make(Kind::Plain);
        value.number = op == 0x88 ? 1 : 0;
        push(value);
        break;
      }
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
      case 0x8d:  // BINUNICODE8
        push_text(take(number(8)));
        break;
      case 'B':  // BINBYTES
        take(number(4));
        push(make(Kind::Plain));
        break;
      case 'C':  // SHORT_BINBYTES
        take(number(1));
        push(make(Kind::Plain));
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
        push(make(Kind::List));
        break;
      case 'a':
        add_items(Kind::List, "a list", {&pop()});
        break;
      case 'e':
        add_items(Kind::List, "a list", pop_to_mark());
        break;
      case 0x8f:  // EMPTY_SET
        push(make(Kind::Plain));
        break;
      case 0x90:  // ADDITEMS
        pop_to_mark();
        break;
      case 0x91:  // FROZENSET
        pop_to_mark();
        push(make(Kind::Plain));
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
      case 0x81: {  // NEWOBJ
        const PickleValue &arguments = pop(Kind::Tuple, "a tuple of arguments"), &of = pop();
        if (of.text == kOldParameter)
          push(item(arguments, 0, Kind::Tensor, "a tensor"));
        else
          push_object(of);
        break;
      }
      case 'b':
        build();
        break;
      default:
        fail("has opcode " + std::to_string(op) + ", which no state_dict has");
    }
  }
}

void Pickle::Reader::push_global(const std::string& name) {
  const bool is_storage = std::ranges::any_of(
      kStorages, [&](const StorageType& s) { return name == std::string("torch ") + s.name; });
  if (others_ == OtherClasses::Refused && !is_storage && name != kOrderedDict && name != kTensor &&
      name != kOldTensor && name != kTensorOfType && name != kTensorType && name != kParameter &&
      name != kOldParameter)
    fail("needs " + escaped(name) + ", which is refused: only tensors and dicts are read");
  PickleValue& value = make(Kind::Global);
  set_text(value, name);
  push(value);
}

void Pickle::Reader::add_to_dict(const std::vector<PickleValue*>& items) {
  if (items.size() % 2 != 0) fail("has a key without a value");
  add_items(Kind::Dict, "a dict", items);
}

void Pickle::Reader::push_object(const PickleValue& of) {
  if (others_ == OtherClasses::Refused) fail("calls " + escaped(of.text) + " in an unknown way");
  PickleValue& value = make(Kind::Object);
  set_text(value, of.text);
  push(value);
}

/// Attributes, which an OrderedDict of PyTorch has, too, and a parameter of old ones.
void Pickle::Reader::build() {
  const PickleValue& state = pop();
  if (stack_.empty() || (stack_.back()->kind != Kind::Dict && stack_.back()->kind != Kind::Object &&
                         stack_.back()->kind != Kind::Tensor))
    fail("gives attributes to no dict");
  if (stack_.back()->kind == Kind::Object) stack_.back()->state = &state;
}

/// ('storage', torch.FloatStorage, key, device, elements); before PyTorch 1.6 with a sixth value, which is
/// None unless the storage is a part of another one.
void Pickle::Reader::push_storage() {
  const PickleValue& id = pop(Kind::Tuple, "a storage");
  const bool is_older = id.items.size() == 6 && id.items[5]->kind == Kind::Plain;
  if ((id.items.size() != 5 && !is_older) || item(id, 0, Kind::Text, "a storage").text != "storage")
    fail("refers to something that is no storage");
  const std::string& type = item(id, 1, Kind::Global, "the type of a storage").text;
  const auto* known = std::ranges::find_if(
      kStorages, [&](const StorageType& s) { return type == std::string("torch ") + s.name; });
  if (known == std::end(kStorages)) {
    if (others_ == OtherClasses::Refused) fail("has a storage of type " + escaped(type));
    return push(make(Kind::Plain));
  }
  PickleValue& value = make(Kind::Storage);
  value.type = known->type;
  set_text(value, item(id, 2, Kind::Text, "the key of a storage").text);
  value.number = item(id, 4, Kind::Int, "the size of a storage").number;
  if (const auto [same, is_new] = storages_.try_emplace(value.text, value.type);
      !is_new && same->second != value.type)
    fail("has a storage of two types");
  push(value);
}

void Pickle::Reader::reduce() {
  const PickleValue &arguments = pop(Kind::Tuple, "a tuple of arguments"), &function = pop();
  if (function.kind == Kind::Global) {
    if (function.text == kOrderedDict && arguments.items.empty()) return push(make(Kind::Dict));
    if (function.text == kSize) return push(item(arguments, 0, Kind::Tuple, "a shape"));
    const bool of_storage = !arguments.items.empty() && arguments.items[0]->kind == Kind::Storage;
    const bool of_tensors = function.text == kTensor || function.text == kOldTensor;
    if (of_tensors && (of_storage || others_ == OtherClasses::Refused)) return push(tensor(arguments));
    if (function.text == kTensorOfType && item(arguments, 0, Kind::Global, "a function").text == kTensor &&
        item(arguments, 1, Kind::Global, "a type").text == kTensorType)
      return push(tensor(item(arguments, 2, Kind::Tuple, "a tuple of arguments")));
    const bool of_tensor = !arguments.items.empty() && arguments.items[0]->kind == Kind::Tensor;
    if (function.text == kParameter && of_tensor) return push(*arguments.items[0]);
  }
  push_object(function);
}

/// (storage, offset, shape, strides, ...)
PickleValue& Pickle::Reader::tensor(const PickleValue& arguments) {
  const PickleValue& storage = item(arguments, 0, Kind::Storage, "a storage");
  PickleValue& value = make(Kind::Tensor);
  value.storage = &storage;
  value.offset = item(arguments, 1, Kind::Int, "an offset").number;
  value.shape = sizes(item(arguments, 2, Kind::Tuple, "a shape"));
  const std::vector<std::int64_t> strides = sizes(item(arguments, 3, Kind::Tuple, "strides"));
  if (strides.size() != value.shape.size()) fail("has a tensor with other strides than dimensions");
  std::int64_t elements = 1;
  for (std::size_t d = value.shape.size(); d-- > 0;) {
    if (value.shape[d] > 1 && strides[d] != elements) value.contiguous = false;
    if (__builtin_mul_overflow(elements, value.shape[d], &elements))
      fail("has a tensor of too many elements");
  }
  std::int64_t end = 0;
  if (value.offset < 0 || __builtin_add_overflow(value.offset, elements, &end) || end > storage.number)
    fail("has a tensor beyond the end of its storage");
  return value;
}

const PickleValue* PickleValue::find(std::string_view key) const {
  const PickleValue* dict = kind == Kind::Object ? state : this;
  if (!dict || dict->kind != Kind::Dict) return nullptr;
  for (std::size_t i = 0; i < dict->items.size(); i += 2) {
    if (dict->items[i]->kind == Kind::Text && dict->items[i]->text == key) return dict->items[i + 1];
  }
  return nullptr;
}

Pickle::Pickle() = default;
Pickle::Pickle(Pickle&&) noexcept = default;
Pickle& Pickle::operator=(Pickle&&) noexcept = default;
Pickle::~Pickle() = default;

std::size_t Pickle::bytes() const {
  return reader_->bytes();
}
const std::map<std::string, ElementType>& Pickle::storages() const {
  return reader_->storages();
}

Result<Pickle> Pickle::read(std::string_view bytes, const std::string& where, OtherClasses others) {
  if (bytes.size() > kMostPickleBytes)
    return Problem{where,
                   "has a pickle of " + std::to_string(bytes.size()) + " bytes, at most " +
                       std::to_string(kMostPickleBytes) + " are read",
                   kStateDictHint};
  Pickle pickle;
  pickle.reader_ = std::make_unique<Reader>(bytes, where, others);
  try {
    pickle.root_ = &pickle.reader_->read();
  } catch (const Problem& problem) {
    return problem;
  }
  return pickle;
}

}  // namespace millrace
