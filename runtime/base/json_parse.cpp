// Strict JSON (RFC 8259) with positions, on nlohmann's SAX parser. The parser reports events without
// positions. A value's position is the first byte after the previous token that is neither a space nor a
// separator. The iterator that the parser reads from counts how far it has read. Duplicate keys, depth, the
// number of values and the range of numbers are checked here.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "runtime/base/byte_order_mark.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

/// Iterates over a text; the read position is kept outside, because the parser copies its iterators.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** furthest_;
};

bool is_of_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '+' || c == '.';
}

/// Builds the value. The parser calls its functions, and stops if one returns false.
class Reader {
 public:
  Reader(std::string_view text, const std::string& name, const ReadLimits& limits)
      : text_(text), name_(name), limits_(limits), furthest_(text.data()) {}

  Result<Json> read() {
    const CountingIterator first(text_.data(), &furthest_), last(text_.data() + text_.size(), &furthest_);
    if (nlohmann::json::sax_parse(first, last, this)) return std::move(root_);
    return Problem{place(problem_at_), problem_, {}};
  }

  // ---- called by the parser ----
  bool null() { return add(Json()); }
  bool boolean(bool value) { return add(Json(value)); }
  bool string(std::string& value) { return add(Json(std::move(value))); }
  bool binary(nlohmann::json::binary_t&) { return false; }  // not in JSON
  bool number_integer(std::int64_t value) { return add(Json(value), Last::Number); }
  bool number_unsigned(std::uint64_t value) {
    if (value > static_cast<std::uint64_t>(INT64_MAX)) return too_large();
    return add(Json(static_cast<std::int64_t>(value)), Last::Number);
  }
  bool number_float(double, const std::string& digits) {
    if (digits.find_first_of(".eE") == std::string::npos) return too_large();
    double value = 0;
    if (std::from_chars(digits.data(), digits.data() + digits.size(), value).ec != std::errc()) {
      end_ = read_so_far(Last::Number);
      return fail(end_, "number " + digits + " is out of range");
    }
    return add(Json(value), Last::Number);
  }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    const std::size_t start = next_token();
    if (!open_.back().keys.insert(name).second) return fail(start, "key '" + name + "' appears twice");
    open_.back().key = std::move(name);
    end_ = read_so_far(Last::Other);
    return true;
  }
  bool parse_error(std::size_t bytes_read, const std::string&, const nlohmann::json::exception& error) {
    const std::size_t at = std::min(bytes_read == 0 ? 0 : bytes_read - 1, text_.size());
    return explain(at, error.what());
  }

 private:
  enum class Last { Number, Other };
  struct Open {
    Json value;
    std::string key;  ///< key of the next member
    std::unordered_set<std::string> keys;
  };

  bool fail(std::size_t at, std::string what) {
    problem_at_ = at;
    problem_ = std::move(what);
    return false;
  }
  bool too_large() {
    const std::size_t start = next_token();
    end_ = read_so_far(Last::Number);
    return fail(end_, "integer " + std::string(text_.substr(start, end_ - start)) + " does not fit 64 bits");
  }

  /// Returns the number of bytes that the parser has read. The parser detects the end of a number only at the
  /// following byte.
  std::size_t read_so_far(Last last) const {
    const auto read = static_cast<std::size_t>(furthest_ - text_.data());
    return last == Last::Number && !std::isdigit(static_cast<unsigned char>(text_[read - 1])) ? read - 1
                                                                                              : read;
  }

  std::size_t next_token() {
    return end_ = std::min(text_.find_first_not_of(" \n\t\r,:", end_), text_.size());
  }

  /// Starts a value: records its position, and checks its depth and the number of values.
  bool begin(Json& value) {
    const std::size_t start = next_token();
    const std::size_t depth = open_.size();
    if (depth > static_cast<std::size_t>(std::max(0, limits_.depth)))
      return fail(start, "nested deeper than " + std::to_string(limits_.depth) + " levels");
    if (++count_ > limits_.nodes)
      return fail(start, "more than " + std::to_string(limits_.nodes) + " values");
    value.set_where(place(start));
    return true;
  }

  bool add(Json value, Last last = Last::Other) {
    if (!begin(value)) return false;
    end_ = read_so_far(last);
    hand_up(std::move(value));
    return true;
  }

  bool open(Json value) {
    if (!begin(value)) return false;
    end_ = read_so_far(Last::Other);
    open_.push_back({std::move(value), {}, {}});
    return true;
  }

  bool close() {
    end_ = read_so_far(Last::Other);
    Json value = std::move(open_.back().value);
    open_.pop_back();
    hand_up(std::move(value));
    return true;
  }

  void hand_up(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (Open& parent = open_.back(); parent.value.is_object()) {
      parent.value.append_member(std::move(parent.key), std::move(value));
    } else {
      parent.value.push_back(std::move(value));
    }
  }

  /// Rewrites the parser's message: "... - unexpected ']'; expected '[', '{', or a literal".
  bool explain(std::size_t at, std::string_view message) {
    const auto between = [&](std::string_view from, std::string_view to) {
      const std::size_t begin = message.find(from);
      if (begin == std::string_view::npos) return std::string();
      const std::string_view rest = message.substr(begin + from.size());
      return std::string(rest.substr(0, rest.find(to)));
    };
    if (const std::string digits = between("number overflow parsing '", "'"); !digits.empty())
      return fail(at + 1, "number " + digits + " is out of range");
    if (const std::string what = between("invalid string: ", "; last read");
        !what.empty() && at < text_.size())
      return fail(at, what + " inside a string");
    std::string expected = between("; expected ", "; last read");
    if (message.find("object key") != std::string_view::npos) expected = "a key in double quotes";
    if (expected.empty() || expected.starts_with("'[', '{'")) expected = "a value";
    if (message.find("invalid string") != std::string_view::npos)
      return fail(at, "the text ends inside a string");
    if (message.find("unexpected end of input") != std::string_view::npos)
      return fail(at, "the text ends, expected " + expected);
    if (expected == "end of input")
      return fail(std::min(at, next_token()), "text after the end of the value");
    return fail_at_word(std::min(at, text_.size() - 1), expected);
  }

  /// Reports an error at the unexpected word; the parser may be anywhere inside it.
  bool fail_at_word(std::size_t at, const std::string& expected) {
    std::size_t first = at, last = at;
    if (text_[at] == '"') first = at = next_token();
    while (first > 0 && is_of_word(text_[at]) && is_of_word(text_[first - 1])) --first;
    while (last < text_.size() && is_of_word(text_[last])) ++last;
    if (last <= first) last = first + 1;
    return fail(first,
                "found '" + std::string(text_.substr(first, last - first)) + "', expected " + expected);
  }

  std::string place(std::size_t position) {
    // Positions are requested in ascending order, except by errors: count on from the last one.
    if (position < counted_) counted_ = 0, line_ = 1, line_start_ = 0;
    for (; counted_ < position && counted_ < text_.size(); ++counted_) {
      if (text_[counted_] == '\n') ++line_, line_start_ = counted_ + 1;
    }
    return name_ + ":" + std::to_string(line_) + ":" + std::to_string(position - line_start_ + 1);
  }

  std::string_view text_;
  const std::string& name_;
  const ReadLimits& limits_;
  const char* furthest_;
  std::size_t end_ = 0;  ///< end of the previous token
  std::size_t count_ = 0;
  std::vector<Open> open_;
  Json root_;
  std::string problem_;
  std::size_t problem_at_ = 0;
  std::size_t counted_ = 0, line_ = 1, line_start_ = 0;
};

}  // namespace

Result<Json> parse_json(std::string_view text, const std::string& name, const ReadLimits& limits) {
  if (text.size() > limits.bytes)
    return Problem{name, "is larger than " + std::to_string(limits.bytes) + " bytes", {}};
  return Reader(without_mark(text), name, limits).read();
}

}  // namespace millrace
