// YAML through yaml-cpp's event interface, which shows duplicate keys, aliases and positions that its node
// interface hides (first duplicate wins, aliases explode; measured with 0.7.0).
#include <yaml-cpp/yaml.h>

#include <yaml-cpp/eventhandler.h>

#include <charconv>
#include <cmath>
#include <sstream>
#include <unordered_set>
#include <utility>

#include "runtime/base/json.h"

namespace millrace {
namespace {

struct Rejected {
  YAML::Mark mark;
  std::string what;
};

Json plain_scalar(const std::string& text) {
  if (text.empty() || text == "null" || text == "Null" || text == "NULL" || text == "~") return Json();
  // YAML 1.2, section 10.3.2; Python's writers emit True.
  if (text == "true" || text == "True" || text == "TRUE") return Json(true);
  if (text == "false" || text == "False" || text == "FALSE") return Json(false);
  const char *begin = text.data(), *end = begin + text.size();
  const std::size_t digits = text[0] == '-';
  const bool octal_like = text.size() > digits + 1 && text[digits] == '0' &&
                          std::isdigit(static_cast<unsigned char>(text[digits + 1]));
  if (!octal_like &&
      (std::isdigit(static_cast<unsigned char>(text[0])) || text[0] == '-' || text[0] == '.')) {
    std::int64_t integer = 0;
    if (auto r = std::from_chars(begin, end, integer); r.ec == std::errc() && r.ptr == end)
      return Json(integer);
    double number = 0;
    if (auto r = std::from_chars(begin, end, number);
        r.ec == std::errc() && r.ptr == end && std::isfinite(number)) {
      Json json(number);
      json.set_written(text);
      return json;
    }
  }
  return Json(text);
}

class Builder final : public YAML::EventHandler {
 public:
  Builder(std::string name, const ReadLimits& limits) : name_(std::move(name)), limits_(limits) {}

  Json root;

  std::string place(const YAML::Mark& mark) const {
    return name_ + ":" + std::to_string(mark.line + 1) + ":" + std::to_string(mark.column + 1);
  }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override { add(mark, anchor, Json(), ""); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Rejected{mark, "aliases (*name) are not accepted"};
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    // "!" marks a quoted scalar, "?" a plain one.
    if (tag != "!" && tag != "?" && !tag.empty()) throw Rejected{mark, "tag '" + tag + "' is not accepted"};
    add(mark, anchor, tag == "!" ? Json(value) : plain_scalar(value), value);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, anchor, Json::array());
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, anchor, Json::object());
  }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    Json value;
    YAML::Mark mark;
    bool expects_key = false;
    std::string key;
    std::unordered_set<std::string> keys;
  };

  void count(const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (anchor) throw Rejected{mark, "anchors (&name) are not accepted"};
    if (++nodes_ > limits_.nodes)
      throw Rejected{mark, "more than " + std::to_string(limits_.nodes) + " values"};
  }

  void add(const YAML::Mark& mark, YAML::anchor_t anchor, Json value, const std::string& text) {
    count(mark, anchor);
    if (!stack_.empty() && stack_.back().expects_key) {
      Level& level = stack_.back();
      if (text == "<<") throw Rejected{mark, "merge keys (<<) are not accepted"};
      if (!level.keys.insert(text).second) throw Rejected{mark, "key '" + text + "' appears twice"};
      level.key = text;
      level.expects_key = false;
      return;
    }
    value.set_where(place(mark));
    put(std::move(value));
  }

  void open(const YAML::Mark& mark, YAML::anchor_t anchor, Json value) {
    count(mark, anchor);
    if (!stack_.empty() && stack_.back().expects_key) throw Rejected{mark, "a key must be a plain word"};
    if (static_cast<int>(stack_.size()) >= limits_.depth)
      throw Rejected{mark, "nested deeper than " + std::to_string(limits_.depth) + " levels"};
    value.set_where(place(mark));
    const bool is_object = value.is_object();
    stack_.push_back({.value = std::move(value), .mark = mark, .expects_key = is_object});
  }

  void close() {
    Json value = std::move(stack_.back().value);
    stack_.pop_back();
    put(std::move(value));
  }

  void put(Json value) {
    if (stack_.empty()) {
      root = std::move(value);
      return;
    }
    Level& level = stack_.back();
    if (level.value.is_array()) {
      level.value.push_back(std::move(value));
    } else {
      level.value.append_member(std::move(level.key), std::move(value));
      level.expects_key = true;
    }
  }

  std::string name_;
  const ReadLimits& limits_;
  std::vector<Level> stack_;
  std::size_t nodes_ = 0;
};

}  // namespace

Result<Json> parse_yaml(std::string_view text, const std::string& name, const ReadLimits& limits) {
  if (text.size() > limits.bytes)
    return Problem{name, "is larger than " + std::to_string(limits.bytes) + " bytes", {}};
  std::istringstream stream{std::string(text)};
  Builder builder(name, limits);
  try {
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return Problem{name, "is empty", "expected one YAML document"};
    const Json root = builder.root;
    if (parser.HandleNextDocument(builder))
      return Problem{name, "holds several YAML documents, expected one", "remove the '---' lines"};
    return root;
  } catch (const Rejected& rejected) {
    return Problem{builder.place(rejected.mark), rejected.what, {}};
  } catch (const YAML::Exception& error) {
    const bool tab = error.msg.find("tab") != std::string::npos;
    return Problem{builder.place(error.mark), error.msg, tab ? "YAML is indented with spaces" : ""};
  }
}

}  // namespace millrace
