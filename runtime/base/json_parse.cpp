// Strict JSON (RFC 8259) with positions. Depth, size and node count are bounded before anything is built.
#include <charconv>
#include <cstdint>
#include <unordered_set>

#include "runtime/base/json.h"

namespace millrace {
namespace {

struct ParseError {
  std::size_t position;
  std::string what;
};

class Parser {
 public:
  Parser(std::string_view text, const std::string& name, const ReadLimits& limits)
      : text_(text), name_(name), limits_(limits) {}

  Json document() {
    Json json = value(0);
    skip_space();
    if (at_ != text_.size()) fail("text after the end of the value");
    return json;
  }

  std::string place(std::size_t position) {
    // Positions are asked for in ascending order, except by errors: count on from the last one.
    if (position < counted_) counted_ = 0, line_ = 1, line_start_ = 0;
    for (; counted_ < position && counted_ < text_.size(); ++counted_) {
      if (text_[counted_] == '\n') ++line_, line_start_ = counted_ + 1;
    }
    return name_ + ":" + std::to_string(line_) + ":" + std::to_string(position - line_start_ + 1);
  }

 private:
  [[noreturn]] void fail(std::string what) { throw ParseError{at_, std::move(what)}; }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  void expect(char c) {
    skip_space();
    if (at_ >= text_.size()) fail(std::string("the text ends, expected '") + c + "'");
    if (text_[at_] != c) fail(std::string("found '") + text_[at_] + "', expected '" + c + "'");
    ++at_;
  }

  Json value(int depth) {
    if (depth > limits_.depth) fail("nested deeper than " + std::to_string(limits_.depth) + " levels");
    if (++nodes_ > limits_.nodes) fail("more than " + std::to_string(limits_.nodes) + " values");
    skip_space();
    if (at_ >= text_.size()) fail("the text ends, expected a value");
    const std::string where = place(at_);
    Json json;
    switch (text_[at_]) {
      case '{':
        json = object(depth);
        break;
      case '[':
        json = array(depth);
        break;
      case '"':
        json = Json(string());
        break;
      default:
        json = scalar();
    }
    json.set_where(where);
    return json;
  }

  Json object(int depth) {
    Json json = Json::object();
    std::unordered_set<std::string> keys;
    std::vector<Json::Member> members;
    expect('{');
    skip_space();
    if (peek() == '}') return ++at_, json;
    for (;;) {
      skip_space();
      const std::size_t start = at_;
      if (peek() != '"') fail("expected a key in double quotes");
      std::string key = string();
      if (!keys.insert(key).second) throw ParseError{start, "key '" + key + "' appears twice"};
      expect(':');
      members.emplace_back(std::move(key), value(depth + 1));
      skip_space();
      if (peek() == '}') break;
      expect(',');
    }
    ++at_;
    for (auto& [key, member] : members) json.append_member(std::move(key), std::move(member));
    return json;
  }

  Json array(int depth) {
    Json json = Json::array();
    expect('[');
    skip_space();
    if (peek() == ']') return ++at_, json;
    for (;;) {
      json.push_back(value(depth + 1));
      skip_space();
      if (peek() == ']') break;
      expect(',');
    }
    ++at_;
    return json;
  }

  unsigned hex4() {
    if (at_ + 4 > text_.size()) fail("incomplete \\u escape");
    unsigned value = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + at_ + 4, value, 16);
    if (error != std::errc() || end != text_.data() + at_ + 4) fail("bad \\u escape");
    at_ += 4;
    return value;
  }

  void append_code_point(unsigned c, std::string& out) {
    if (c < 0x80)
      out += static_cast<char>(c);
    else if (c < 0x800)
      (out += static_cast<char>(0xC0 | c >> 6)) += static_cast<char>(0x80 | (c & 0x3F));
    else if (c < 0x10000)
      ((out += static_cast<char>(0xE0 | c >> 12)) += static_cast<char>(0x80 | (c >> 6 & 0x3F))) +=
          static_cast<char>(0x80 | (c & 0x3F));
    else
      (((out += static_cast<char>(0xF0 | c >> 18)) += static_cast<char>(0x80 | (c >> 12 & 0x3F))) +=
       static_cast<char>(0x80 | (c >> 6 & 0x3F))) += static_cast<char>(0x80 | (c & 0x3F));
  }

  void escape(std::string& out) {
    const char c = peek();
    ++at_;
    switch (c) {
      case '"':
      case '\\':
      case '/':
        out += c;
        return;
      case 'b':
        out += '\b';
        return;
      case 'f':
        out += '\f';
        return;
      case 'n':
        out += '\n';
        return;
      case 'r':
        out += '\r';
        return;
      case 't':
        out += '\t';
        return;
      case 'u': {
        unsigned code = hex4();
        if (code >= 0xD800 && code <= 0xDBFF) {
          if (text_.substr(at_, 2) != "\\u") fail("unpaired surrogate");
          at_ += 2;
          const unsigned low = hex4();
          if (low < 0xDC00 || low > 0xDFFF) fail("unpaired surrogate");
          code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        } else if (code >= 0xDC00 && code <= 0xDFFF) {
          fail("unpaired surrogate");
        }
        return append_code_point(code, out);
      }
      default:
        --at_;
        fail("unknown escape in a string");
    }
  }

  std::string string() {
    ++at_;  // the opening quote
    std::string out;
    for (;;) {
      if (at_ >= text_.size()) fail("the text ends inside a string");
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < 0x20) fail("control character inside a string");
      ++at_;
      if (c == '"') return out;
      if (c == '\\')
        escape(out);
      else
        out += c;
    }
  }

  Json scalar() {
    const std::size_t start = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '-' ||
                                  text_[at_] == '+' || text_[at_] == '.'))
      ++at_;
    const std::string_view word = text_.substr(start, at_ - start);
    if (word == "null") return Json();
    if (word == "true") return Json(true);
    if (word == "false") return Json(false);
    if (is_number(word)) return number(word);
    at_ = start;
    fail(word.empty() ? std::string("found '") + text_[at_] + "', expected a value"
                      : "found '" + std::string(word) + "', expected a value");
  }

  static bool is_number(std::string_view w) {
    std::size_t i = 0;
    const auto digits = [&] {
      const std::size_t start = i;
      while (i < w.size() && w[i] >= '0' && w[i] <= '9') ++i;
      return i > start;
    };
    if (i < w.size() && w[i] == '-') ++i;
    const std::size_t first = i;
    if (!digits() || (w[first] == '0' && i > first + 1)) return false;
    if (i < w.size() && w[i] == '.' && (++i, !digits())) return false;
    if (i < w.size() && (w[i] == 'e' || w[i] == 'E')) {
      ++i;
      if (i < w.size() && (w[i] == '+' || w[i] == '-')) ++i;
      if (!digits()) return false;
    }
    return i == w.size();
  }

  Json number(std::string_view word) {
    const char *begin = word.data(), *end = begin + word.size();
    if (word.find_first_of(".eE") == std::string_view::npos) {
      std::int64_t integer = 0;
      if (std::from_chars(begin, end, integer).ec == std::errc()) return Json(integer);
      fail("integer " + std::string(word) + " does not fit 64 bits");
    }
    double value = 0;
    if (std::from_chars(begin, end, value).ec != std::errc())
      fail("number " + std::string(word) + " is out of range");
    return Json(value);
  }

  std::string_view text_;
  const std::string& name_;
  const ReadLimits& limits_;
  std::size_t at_ = 0, nodes_ = 0;
  std::size_t counted_ = 0, line_ = 1, line_start_ = 0;
};

}  // namespace

Result<Json> parse_json(std::string_view text, const std::string& name, const ReadLimits& limits) {
  if (text.size() > limits.bytes)
    return Problem{name, "is larger than " + std::to_string(limits.bytes) + " bytes", {}};
  Parser parser(text, name, limits);
  try {
    return parser.document();
  } catch (const ParseError& error) {
    return Problem{parser.place(error.position), error.what, {}};
  }
}

}  // namespace millrace
