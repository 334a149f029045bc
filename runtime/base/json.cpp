// The Json value, its printer and the typed reader of objects. The parsers are json_parse.cpp and
// yaml_parse.cpp.
#include "runtime/base/json.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"

namespace millrace {

Json::Json(bool value) : kind_(Kind::Bool), bool_(value) {}
Json::Json(int value) : kind_(Kind::Int), int_(value) {}
Json::Json(std::int64_t value) : kind_(Kind::Int), int_(value) {}
Json::Json(double value) : kind_(Kind::Double), double_(value) {}
Json::Json(const char* value) : kind_(Kind::String), string_(value) {}
Json::Json(std::string value) : kind_(Kind::String), string_(std::move(value)) {}

Json Json::array() {
  Json json;
  json.kind_ = Kind::Array;
  return json;
}

Json Json::object() {
  Json json;
  json.kind_ = Kind::Object;
  return json;
}

Json Json::object(std::initializer_list<Member> members) {
  Json json = object();
  json.object_ = members;
  return json;
}

bool Json::as_bool() const {
  MILLRACE_CHECK(kind_ == Kind::Bool, where_);
  return bool_;
}
std::int64_t Json::as_int() const {
  MILLRACE_CHECK(kind_ == Kind::Int, where_);
  return int_;
}
double Json::as_double() const {
  MILLRACE_CHECK(is_number(), where_);
  return kind_ == Kind::Int ? double(int_) : double_;
}
const std::string& Json::as_string() const {
  MILLRACE_CHECK(kind_ == Kind::String, where_);
  return string_;
}
const Json::Array& Json::items() const {
  MILLRACE_CHECK(kind_ == Kind::Array, where_);
  return array_;
}
Json::Array& Json::items() {
  MILLRACE_CHECK(kind_ == Kind::Array, where_);
  return array_;
}
const Json::Object& Json::members() const {
  MILLRACE_CHECK(kind_ == Kind::Object, where_);
  return object_;
}

const Json* Json::find(std::string_view key) const {
  for (const Member& member : object_) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

Json& Json::operator[](std::string_view key) {
  if (kind_ == Kind::Null) kind_ = Kind::Object;
  MILLRACE_CHECK(kind_ == Kind::Object);
  for (Member& member : object_) {
    if (member.first == key) return member.second;
  }
  return object_.emplace_back(std::string(key), Json()).second;
}

void Json::push_back(Json value) {
  if (kind_ == Kind::Null) kind_ = Kind::Array;
  MILLRACE_CHECK(kind_ == Kind::Array);
  array_.push_back(std::move(value));
}

void Json::append_member(std::string key, Json value) {
  object_.emplace_back(std::move(key), std::move(value));
}

std::size_t Json::size() const {
  return kind_ == Kind::Array ? array_.size() : object_.size();
}

namespace {

void print_string(std::string_view s, std::string& out) {
  static const char* digits = "0123456789abcdef";
  out += '"';
  for (std::size_t i = 0; i < s.size();) {
    const unsigned char c = static_cast<unsigned char>(s[i]);
    const std::size_t length = utf8_length(s, i);
    if (length == 0) {
      out += "\xEF\xBF\xBD";
      ++i;
      continue;
    }
    if (c == '"' || c == '\\')
      (out += '\\') += static_cast<char>(c);
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if (c < 0x20)
      ((out += "\\u00") += digits[c >> 4]) += digits[c & 15];
    else
      out += s.substr(i, length);
    i += length;
  }
  out += '"';
}

void print_double(double value, std::string& out) {
  if (std::isnan(value))
    out += "\"NaN\"";
  else if (std::isinf(value))
    out += value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  else {
    const std::size_t begin = out.size();
    append_number(out, value);
    const std::string_view written = std::string_view(out).substr(begin);
    if (written.find_first_of(".en") == std::string_view::npos) out += ".0";  // stays a double when read back
  }
}

void print(const Json& json, int indent, int depth, std::string& out) {
  const auto line = [&](int d) {
    if (indent >= 0) (out += '\n').append(static_cast<std::size_t>(indent * d), ' ');
  };
  switch (json.kind()) {
    case Json::Kind::Null:
      out += "null";
      return;
    case Json::Kind::Bool:
      out += json.as_bool() ? "true" : "false";
      return;
    case Json::Kind::Int:
      out += std::to_string(json.as_int());
      return;
    case Json::Kind::Double:
      print_double(json.as_double(), out);
      return;
    case Json::Kind::String:
      print_string(json.as_string(), out);
      return;
    case Json::Kind::Array: {
      out += '[';
      bool first = true;
      for (const Json& item : json.items()) {
        if (!std::exchange(first, false)) out += ',';
        line(depth + 1);
        print(item, indent, depth + 1, out);
      }
      if (!first) line(depth);
      out += ']';
      return;
    }
    case Json::Kind::Object: {
      out += '{';
      bool first = true;
      for (const auto& [key, value] : json.members()) {
        if (!std::exchange(first, false)) out += ',';
        line(depth + 1);
        print_string(key, out);
        out += indent < 0 ? ":" : ": ";
        print(value, indent, depth + 1, out);
      }
      if (!first) line(depth);
      out += '}';
      return;
    }
  }
}

const char* name_of(Json::Kind kind) {
  switch (kind) {
    case Json::Kind::Null:
      return "null";
    case Json::Kind::Bool:
      return "true or false";
    case Json::Kind::Int:
      return "an integer";
    case Json::Kind::Double:
      return "a number";
    case Json::Kind::String:
      return "a string";
    case Json::Kind::Array:
      return "a list";
    case Json::Kind::Object:
      return "an object";
  }
  return "";
}

}  // namespace

std::string Json::dump(int indent) const {
  std::string out;
  print(*this, indent, 0, out);
  return out;
}

ObjectReader::ObjectReader(const Json& json, Problems& problems) : json_(json), problems_(problems) {
  if (!json.is_object())
    problems_.push_back(
        {json.where(), std::string("found ") + name_of(json.kind()) + ", expected an object", {}});
}

bool ObjectReader::has(std::string_view key) {
  known_.emplace_back(key);
  return json_.find(key) != nullptr;
}

const Json* ObjectReader::get(std::string_view key, Json::Kind kind, bool required) {
  known_.emplace_back(key);
  const Json* value = json_.find(key);
  if (!value) {
    if (required && json_.is_object())
      problems_.push_back({json_.where(), "key '" + std::string(key) + "' is missing",
                           std::string("expected ") + name_of(kind)});
    return nullptr;
  }
  const bool fits = value->kind() == kind || (kind == Json::Kind::Double && value->is_number());
  if (!fits) {
    problems_.push_back(
        {value->where(),
         "'" + std::string(key) + "' is " + name_of(value->kind()) + ", expected " + name_of(kind),
         {}});
    return nullptr;
  }
  return value;
}

std::string ObjectReader::string(std::string_view key) {
  const Json* value = get(key, Json::Kind::String, true);
  return value ? value->as_string() : "";
}
std::string ObjectReader::string(std::string_view key, std::string fallback) {
  const Json* value = get(key, Json::Kind::String, false);
  return value ? value->as_string() : fallback;
}
std::int64_t ObjectReader::integer(std::string_view key) {
  const Json* value = get(key, Json::Kind::Int, true);
  return value ? value->as_int() : 0;
}
std::int64_t ObjectReader::integer(std::string_view key, std::int64_t fallback) {
  const Json* value = get(key, Json::Kind::Int, false);
  return value ? value->as_int() : fallback;
}
double ObjectReader::number(std::string_view key) {
  const Json* value = get(key, Json::Kind::Double, true);
  return value ? value->as_double() : 0;
}
double ObjectReader::number(std::string_view key, double fallback) {
  const Json* value = get(key, Json::Kind::Double, false);
  return value ? value->as_double() : fallback;
}
namespace {

std::string number_text(double value) {
  return Json(value).dump();
}
std::string number_text(std::int64_t value) {
  return std::to_string(value);
}

/// Returns the value, or adds an error and returns the nearest bound.
template <class Number>
Number checked(ObjectReader& in, std::string_view key, Number value, Number minimum, Number maximum) {
  if (value >= minimum && value <= maximum) return value;
  in.problem(key, "'" + std::string(key) + "' is " + number_text(value) + ", expected " +
                      number_text(minimum) + " to " + number_text(maximum));
  return value > maximum ? maximum : minimum;
}

}  // namespace

int ObjectReader::whole(std::string_view key, int minimum, int maximum) {
  const Json* value = get(key, Json::Kind::Int, true);
  return value ? static_cast<int>(checked<std::int64_t>(*this, key, value->as_int(), minimum, maximum))
               : minimum;
}
int ObjectReader::whole(std::string_view key, int minimum, int maximum, int fallback) {
  const Json* value = get(key, Json::Kind::Int, false);
  return value ? static_cast<int>(checked<std::int64_t>(*this, key, value->as_int(), minimum, maximum))
               : fallback;
}
double ObjectReader::within(std::string_view key, double minimum, double maximum) {
  const Json* value = get(key, Json::Kind::Double, true);
  return value ? checked(*this, key, value->as_double(), minimum, maximum) : minimum;
}
double ObjectReader::within(std::string_view key, double minimum, double maximum, double fallback) {
  const Json* value = get(key, Json::Kind::Double, false);
  return value ? checked(*this, key, value->as_double(), minimum, maximum) : fallback;
}
std::int64_t ObjectReader::size(std::string_view key, std::int64_t fallback) {
  const Json* value = get(key, Json::Kind::Int, false);
  return value ? checked<std::int64_t>(*this, key, value->as_int(), 0, kMostStoredBytes) : fallback;
}
bool ObjectReader::boolean(std::string_view key, bool fallback) {
  const Json* value = get(key, Json::Kind::Bool, false);
  return value ? value->as_bool() : fallback;
}
const Json* ObjectReader::array(std::string_view key) {
  return get(key, Json::Kind::Array, true);
}
const Json* ObjectReader::optional_array(std::string_view key) {
  return get(key, Json::Kind::Array, false);
}
const Json* ObjectReader::object(std::string_view key) {
  return get(key, Json::Kind::Object, true);
}
const Json* ObjectReader::optional_object(std::string_view key) {
  return get(key, Json::Kind::Object, false);
}
const Json* ObjectReader::any(std::string_view key) {
  known_.emplace_back(key);
  return json_.find(key);
}

std::vector<std::string> ObjectReader::strings(std::string_view key) {
  std::vector<std::string> result;
  const Json* list = array(key);
  if (!list) return result;
  for (const Json& item : list->items()) {
    if (item.is_string())
      result.push_back(item.as_string());
    else
      problems_.push_back(
          {item.where(),
           "an entry of '" + std::string(key) + "' is " + name_of(item.kind()) + ", expected a string",
           {}});
  }
  return result;
}

void ObjectReader::problem(std::string_view key, std::string what, std::string hint) {
  const Json* value = json_.find(key);
  problems_.push_back({value ? value->where() : json_.where(), std::move(what), std::move(hint)});
}

void ObjectReader::finish() {
  if (!json_.is_object()) return;
  for (const auto& [key, value] : json_.members()) {
    if (std::ranges::find(known_, key) != known_.end()) continue;
    const auto near = nearest_name(key, known_);
    problems_.push_back(
        {value.where(), "unknown key '" + key + "'", near ? "did you mean '" + *near + "'?" : ""});
  }
}

namespace {
/// Makes "RandAugment" and "rand-augment" the same word.
std::string letters_of(std::string_view word) {
  std::string letters;
  for (const char c : word)
    if (c != '-' && c != '_') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}
}  // namespace

std::optional<std::string> nearest_name(std::string_view word, const std::vector<std::string>& names) {
  std::optional<std::string> best;
  const std::string letters = letters_of(word);
  for (const std::string& name : names)
    if (letters_of(name) == letters) return name;
  std::size_t best_distance = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& name : names) {
    std::vector<std::size_t> row(name.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      std::size_t diagonal = std::exchange(row[0], i);
      for (std::size_t j = 1; j < row.size(); ++j) {
        const std::size_t substituted = diagonal + (word[i - 1] != name[j - 1]);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = name;
    }
  }
  return best;
}

Result<Json> read_json(const std::string& path, const ReadLimits& limits) {
  Result<std::string> text = read_regular_file(path, static_cast<Bytes>(limits.bytes));
  if (!text) return text.problems();
  return parse_json(*text, path, limits);
}

Result<Json> read_yaml(const std::string& path, const ReadLimits& limits) {
  Result<std::string> text = read_file(path, static_cast<Bytes>(limits.bytes));
  if (!text) return text.problems();
  return parse_yaml(*text, path, limits);
}

}  // namespace millrace
