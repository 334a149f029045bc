// Strict readers of JSON and YAML with one value type. Every value keeps its position in the text, for
// messages. The readers reject input that the underlying libraries accept: duplicate keys, deep nesting,
// aliases.
#pragma once

#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// A JSON/YAML value. Objects keep insertion order. Integers keep 64 bits. Value type.
class Json {
 public:
  enum class Kind { Null, Bool, Int, Double, String, Array, Object };
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;
  Json(std::nullptr_t) {}    // NOLINT
  Json(bool value);          // NOLINT
  Json(int value);           // NOLINT
  Json(std::int64_t value);  // NOLINT
  Json(double value);        // NOLINT
  Json(const char* value);   // NOLINT
  Json(std::string value);   // NOLINT
  static Json array();
  static Json object();
  static Json object(std::initializer_list<Member> members);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::Null; }
  bool is_number() const { return kind_ == Kind::Int || kind_ == Kind::Double; }
  bool is_string() const { return kind_ == Kind::String; }
  bool is_array() const { return kind_ == Kind::Array; }
  bool is_object() const { return kind_ == Kind::Object; }

  // The as_ functions throw InternalError for another kind; readers use ObjectReader instead.
  bool as_bool() const;
  std::int64_t as_int() const;
  double as_double() const;  ///< accepts Int too
  const std::string& as_string() const;
  /// Returns a number as it is written in the text ("1e9", "99999999999999999999"); empty if the program
  /// created the value.
  const std::string& written() const { return written_; }
  void set_written(std::string text) { written_ = std::move(text); }
  const Array& items() const;
  Array& items();
  const Object& members() const;

  const Json* find(std::string_view key) const;     ///< nullptr if absent or not an object
  Json& operator[](std::string_view key);           ///< inserts; makes a Null an Object
  void push_back(Json value);                       ///< makes a Null an Array
  void append_member(std::string key, Json value);  ///< the caller guarantees that the key is new
  std::size_t size() const;

  /// Returns the value's position in its text, `file:line:col`; empty if the program created the value.
  const std::string& where() const { return where_; }
  void set_where(std::string where) { where_ = std::move(where); }

  /// Returns the JSON text; with indent < 0 it is one line. Doubles are printed with the fewest digits that
  /// read back as the same number. NaN and Inf are printed as the strings "NaN", "Infinity", "-Infinity".
  /// Invalid UTF-8 becomes U+FFFD.
  std::string dump(int indent = -1) const;

 private:
  Kind kind_ = Kind::Null;
  bool bool_ = false;
  std::int64_t int_ = 0;
  double double_ = 0;
  std::string string_, written_;
  Array array_;
  Object object_;
  std::string where_;
};

struct ReadLimits {
  std::size_t bytes = 64u << 20;
  int depth = 64;
  std::size_t nodes = 4'000'000;
};

/// Strict RFC 8259: no duplicate keys, no trailing text, no NaN. Errors include `name:line:col`.
Result<Json> parse_json(std::string_view text, const std::string& name, const ReadLimits& limits = {});
Result<Json> read_json(const std::string& path, const ReadLimits& limits = {});

/// YAML 1.2 core subset, read with yaml-cpp. Duplicate keys, aliases, merge keys and multiple documents are
/// errors. Plain scalars become null/bool (true, True, TRUE)/int (decimal)/double/string as in YAML 1.2's
/// core schema.
Result<Json> parse_yaml(std::string_view text, const std::string& name, const ReadLimits& limits = {});
Result<Json> read_yaml(const std::string& path, const ReadLimits& limits = {});

/// Reads the members of one object with types and collects every problem, unknown keys included
/// (with the nearest known name).
///   ObjectReader in(json, problems);
///   options.lr = in.number("lr", 0.1);
///   in.finish();
class ObjectReader {
 public:
  ObjectReader(const Json& json, Problems& problems);
  bool has(std::string_view key);  ///< marks the key as known
  // A member with a default is optional. Without a default, an absent member is an error, and the result is a
  // zero value.
  std::string string(std::string_view key);
  std::string string(std::string_view key, std::string fallback);
  std::int64_t integer(std::string_view key);
  std::int64_t integer(std::string_view key, std::int64_t fallback);
  double number(std::string_view key);
  double number(std::string_view key, double fallback);
  // A value outside its range is an error, and the result is the nearest bound.
  int whole(std::string_view key, int minimum, int maximum);
  int whole(std::string_view key, int minimum, int maximum, int fallback);
  double within(std::string_view key, double minimum, double maximum);
  double within(std::string_view key, double minimum, double maximum, double fallback);
  std::int64_t size(std::string_view key, std::int64_t fallback);  ///< bytes: 0 to kMostStoredBytes
  bool boolean(std::string_view key, bool fallback);
  const Json* array(std::string_view key);  ///< required; if absent, returns nullptr and adds an error
  const Json* optional_array(std::string_view key);
  const Json* object(std::string_view key);
  const Json* optional_object(std::string_view key);
  const Json* any(std::string_view key);                   ///< nullptr if absent, without an error
  std::vector<std::string> strings(std::string_view key);  ///< required array of strings
  /// Adds an error at the key's position.
  void problem(std::string_view key, std::string what, std::string hint = {});
  void finish();  ///< adds one error for each unknown key

 private:
  const Json* get(std::string_view key, Json::Kind kind, bool required);
  const Json& json_;
  Problems& problems_;
  std::vector<std::string> known_;
};

/// The largest size in bytes that a file may specify (8 PiB). A double represents every such size exactly.
inline constexpr std::int64_t kMostStoredBytes = std::int64_t{1} << 53;

/// Returns the entry of `names` closest to `word` by edit distance, if `word` may be a typo of it.
std::optional<std::string> nearest_name(std::string_view word, const std::vector<std::string>& names);

}  // namespace millrace
