#include "driver/cli.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "runtime/base/json.h"
#include "runtime/plan/quantities.h"

namespace millrace {
namespace {

constexpr std::size_t kColumns = 100;    // of --help
constexpr std::size_t kHelpColumn = 34;  // where a flag's text starts

constexpr char kHardSpace = '\x1f';  // a space where no line is broken

// ---- numbers: full consumption, no hexadecimal, no nan
// ------------------------------------------------------

template <class Number>
bool parse_whole(std::string_view text, Number& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc{} && stop == end && !text.empty();
}

bool parse_finite(std::string_view text, double& value) {
  return parse_whole(text, value) && std::isfinite(value);
}

std::string shown(double number) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, number);
  return error == std::errc{} ? std::string(text, end) : "?";
}

std::string shown(std::int64_t number) {
  return std::to_string(number);
}

template <class Number>
std::string range_text(Number minimum, Number maximum) {
  const bool open = maximum == std::numeric_limits<Number>::max() ||
                    (std::numeric_limits<Number>::has_infinity && maximum > Number(1e300));
  return open ? "at least " + shown(minimum) : "from " + shown(minimum) + " to " + shown(maximum);
}

// ---- parsing
// ------------------------------------------------------------------------------------------------

std::string with_dashes(std::string_view name) {
  std::string result(name);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

bool looks_like_flag(std::string_view text) {
  double number = 0;
  return text.size() > 1 && text[0] == '-' && !parse_finite(text, number);
}

/// One pass over the arguments; collects everything that is wrong.
class Parser {
 public:
  Parser(const CommandSpec& spec, const std::vector<std::string>& args) : spec_(spec), args_(args) {}

  void run() {
    while (next_ < args_.size()) {
      const std::string& text = args_[next_++];
      if (text == "--") {
        positionals.insert(positionals.end(), args_.begin() + static_cast<std::ptrdiff_t>(next_),
                           args_.end());
        break;
      }
      if (text.rfind("--", 0) == 0) {
        long_flag(text);
      } else if (looks_like_flag(text)) {
        short_flag(text);
      } else {
        positionals.push_back(text);
      }
    }
    check_positionals();
    check_required();
  }

  std::vector<std::pair<std::string, std::string>> given;  // in the order of the command line
  std::vector<std::string> positionals;
  Problems problems;
  bool help = false;

 private:
  void long_flag(const std::string& text) {
    const std::size_t equals = text.find('=');
    const std::string name = with_dashes(std::string_view(text).substr(2, equals - 2));
    if (name == "help") {
      help = true;
      return;
    }
    const Flag* flag = find([&](const Flag& f) { return f.name == name; });
    if (!flag) return unknown("--" + name, name, equals != std::string::npos);
    const bool attached = equals != std::string::npos;
    take(*flag, attached, attached ? text.substr(equals + 1) : "");
  }

  void short_flag(const std::string& text) {
    const Flag* flag = find([&](const Flag& f) { return f.short_name == text[1]; });
    if (!flag && text == "-h") {
      help = true;
      return;
    }
    if (!flag) return unknown(text.substr(0, 2), text.substr(1), text.size() > 2);
    std::string value = text.substr(2);
    const bool attached = !value.empty();
    if (attached && value.front() == '=') value.erase(0, 1);
    take(*flag, attached, std::move(value));
  }

  void take(const Flag& flag, bool attached, std::string value) {
    const std::string where = "--" + flag.name;
    const bool twice =
        std::any_of(given.begin(), given.end(), [&](const auto& g) { return g.first == flag.name; });
    if (twice && !flag.repeatable) problems.push_back({where, "is given twice", "keep one of them"});
    if (flag.value.empty() && attached)
      problems.push_back({where, "is a switch and takes no value, got '" + value + "'", {}});
    const bool one = flag.value.empty() || attached;
    if (one) given.emplace_back(flag.name, std::move(value));
    const auto words = flag.value.empty() ? 1 : 1 + std::count(flag.value.begin(), flag.value.end(), ' ');
    for (auto taken = one ? 1 : 0; taken < words; ++taken) {
      if (next_ == args_.size() || looks_like_flag(args_[next_])) {
        problems.push_back({where, "needs a value (" + flag.value + ")",
                            "a value that starts with a dash is written " + where + "=VALUE"});
        return;
      }
      given.emplace_back(flag.name, args_[next_++]);
    }
  }

  void unknown(const std::string& where, const std::string& name, bool attached) {
    std::vector<std::string> names{"help"};
    for (const Flag& flag : spec_.flags) names.push_back(flag.name);
    const std::optional<std::string> nearest = nearest_name(name, names);
    const std::string all = spec_.program + (spec_.command.empty() ? "" : " " + spec_.command) + " --help";
    problems.push_back({where, "is not a flag of this command",
                        nearest ? "did you mean --" + *nearest + "?" : "`" + all + "` lists the flags"});
    // The value of a misspelt flag is no argument of its own.
    const Flag* meant = nearest ? find([&](const Flag& f) { return f.name == *nearest; }) : nullptr;
    if (meant && !meant->value.empty() && !attached && next_ < args_.size() && !looks_like_flag(args_[next_]))
      ++next_;
  }

  void check_positionals() {
    const bool many = !spec_.positionals.empty() && spec_.positionals.back().ends_with("...");
    for (std::size_t i = spec_.positionals.size(); i < positionals.size() && !many; ++i) {
      problems.push_back(
          {"'" + positionals[i] + "'", "is one argument too many", "quote a value that has spaces"});
    }
    for (std::size_t i = positionals.size(); i < spec_.positionals.size(); ++i) {
      problems.push_back({spec_.positionals[i], "is missing", example_hint()});
    }
  }

  void check_required() {
    for (const Flag& flag : spec_.flags) {
      const bool present =
          std::any_of(given.begin(), given.end(), [&](const auto& g) { return g.first == flag.name; });
      if (flag.required && !present) problems.push_back({"--" + flag.name, "is required", example_hint()});
    }
  }

  std::string example_hint() const {
    return spec_.examples.empty() ? "" : "for example `" + spec_.examples.front() + "`";
  }

  template <class Predicate>
  const Flag* find(Predicate matches) const {
    const auto found = std::find_if(spec_.flags.begin(), spec_.flags.end(), matches);
    return found == spec_.flags.end() ? nullptr : &*found;
  }

  const CommandSpec& spec_;
  const std::vector<std::string>& args_;
  std::size_t next_ = 0;
};

// ---- help
// ---------------------------------------------------------------------------------------------------

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  std::size_t start = 0;
  while (start < text.size()) {
    const std::size_t end = std::min(text.find(' ', start), text.size());
    if (end > start) words.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return words;
}

/// Appends `text` broken at spaces; the cursor stands at column `at`, further lines are indented by `indent`
/// and broken lines end with `tail` (" \" in examples).
void append_wrapped(std::string& out, const std::string& text, std::size_t at, std::size_t indent,
                    std::string_view tail = {}) {
  bool first = true;
  for (const std::string& word : words_of(text)) {
    if (!first && at + 1 + word.size() + tail.size() > kColumns) {
      out += tail;
      out += '\n' + std::string(indent, ' ');
      at = indent;
    } else if (!first) {
      out += ' ';
      ++at;
    }
    out += word;
    std::replace(out.end() - static_cast<std::ptrdiff_t>(word.size()), out.end(), kHardSpace, ' ');
    at += word.size();
    first = false;
  }
  out += '\n';
}

void append_flag(std::string& out, const Flag& flag) {
  std::string head = flag.short_name ? std::string("  -") + flag.short_name + ", " : std::string(6, ' ');
  head += "--" + flag.name + (flag.value.empty() ? "" : " " + flag.value);
  if (head.size() + 2 > kHelpColumn) {
    out += head + '\n' + std::string(kHelpColumn, ' ');
  } else {
    out += head + std::string(kHelpColumn - head.size(), ' ');
  }
  std::string text = flag.help;
  if (flag.required) text += " Required.";
  if (flag.repeatable) text += " May be repeated.";
  if (!flag.fallback.empty()) text += std::string(" [default:") + kHardSpace + flag.fallback + "]";
  append_wrapped(out, text, kHelpColumn, kHelpColumn);
}

std::vector<std::string> groups_of(const std::vector<Flag>& flags) {
  std::vector<std::string> groups;
  for (const Flag& flag : flags) {
    if (std::find(groups.begin(), groups.end(), flag.group) == groups.end()) groups.push_back(flag.group);
  }
  return groups;
}

}  // namespace

// ---- Arguments
// ----------------------------------------------------------------------------------------------

bool Arguments::has(std::string_view flag) const {
  return std::find(given_.begin(), given_.end(), flag) != given_.end();
}

std::string Arguments::string(std::string_view flag) const {
  const auto found =
      std::find_if(values_.begin(), values_.end(), [&](const auto& v) { return v.first == flag; });
  MILLRACE_CHECK(found != values_.end(), "the command has no flag --" << flag);
  return found->second;
}

std::vector<std::string> Arguments::strings(std::string_view flag) const {
  std::vector<std::string> result;
  for (const auto& [name, text] : values_) {
    if (name == flag && !(text.empty() && !has(flag))) result.push_back(text);
  }
  return result;
}

std::int64_t Arguments::integer(std::string_view flag, std::int64_t minimum, std::int64_t maximum) {
  const std::string text = string(flag);
  std::int64_t value = std::clamp<std::int64_t>(0, minimum, maximum);
  if (text.empty() && !has(flag)) return value;
  std::int64_t parsed = 0;
  if (!parse_whole(text, parsed)) {
    problems_.push_back({"--" + std::string(flag), "'" + text + "' is not an integer",
                         "expected " + range_text(minimum, maximum)});
  } else if (parsed < minimum || parsed > maximum) {
    problems_.push_back(
        {"--" + std::string(flag), text + " is out of range", "expected " + range_text(minimum, maximum)});
  } else {
    value = parsed;
  }
  return value;
}

double Arguments::number(std::string_view flag, double minimum, double maximum) {
  const std::string text = string(flag);
  double value = std::clamp(0.0, minimum, maximum);
  if (text.empty() && !has(flag)) return value;
  double parsed = 0;
  if (!parse_finite(text, parsed)) {
    problems_.push_back({"--" + std::string(flag), "'" + text + "' is not a number",
                         "expected " + range_text(minimum, maximum)});
  } else if (parsed < minimum || parsed > maximum) {
    problems_.push_back(
        {"--" + std::string(flag), text + " is out of range", "expected " + range_text(minimum, maximum)});
  } else {
    value = parsed;
  }
  return value;
}

bool Arguments::boolean(std::string_view flag) const {
  (void)string(flag);  // checks that the command has it
  return has(flag);
}

Bytes Arguments::bytes(std::string_view flag) {
  const std::string text = string(flag);
  Bytes value = 0;
  if (text.empty() && !has(flag)) return value;
  if (const std::optional<Bytes> parsed = parse_bytes(text)) {
    value = *parsed;
  } else {
    problems_.push_back(
        {"--" + std::string(flag), "'" + text + "' is not a size", "for example 16e9, 500MB or 8GiB"});
  }
  return value;
}

std::vector<double> Arguments::numbers(std::string_view flag) {
  const std::string text = string(flag);
  std::vector<double> result;
  if (text.empty() && !has(flag)) return result;
  std::size_t start = 0;
  while (start <= text.size()) {
    const std::size_t end = std::min(text.find(',', start), text.size());
    double value = 0;
    if (!parse_finite(std::string_view(text).substr(start, end - start), value)) {
      problems_.push_back(
          {"--" + std::string(flag), "'" + text + "' is not a list of numbers", "for example 8,2"});
      return {};
    }
    result.push_back(value);
    start = end + 1;
  }
  return result;
}

Result<Arguments> parse_arguments(const CommandSpec& spec, const std::vector<std::string>& args) {
  Parser parser(spec, args);
  parser.run();
  Arguments result;
  result.help_ = parser.help;
  if (!parser.help && !parser.problems.empty()) return parser.problems;
  result.positionals_ = std::move(parser.positionals);
  for (const auto& [name, value] : parser.given) result.given_.push_back(name);
  result.values_ = std::move(parser.given);
  for (const Flag& flag : spec.flags) {
    if (!result.has(flag.name)) result.values_.emplace_back(flag.name, flag.fallback);
  }
  return result;
}

std::string help_text(const CommandSpec& spec) {
  const std::string name = spec.program + (spec.command.empty() ? "" : " " + spec.command);
  std::string out = name + ": ";
  append_wrapped(out, spec.summary, out.size(), 2);
  std::string usage = "Usage: " + name + " [FLAGS]";
  for (const std::string& positional : spec.positionals) usage += " " + positional;
  out += "\n" + usage + "\n";
  std::vector<Flag> flags = spec.flags;
  flags.push_back({.name = "help", .short_name = 'h', .help = "Print this text."});
  for (const std::string& group : groups_of(flags)) {
    out += "\n" + (group.empty() ? std::string("Options") : group) + ":\n";
    for (const Flag& flag : flags) {
      if (flag.group == group) append_flag(out, flag);
    }
  }
  if (!spec.examples.empty()) out += "\nExamples:\n";
  for (const std::string& example : spec.examples) {
    out += "  ";
    append_wrapped(out, example, 2, 6, " \\");
  }
  return out;
}

}  // namespace millrace
