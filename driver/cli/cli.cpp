#include "driver/cli/cli.h"

#include <algorithm>
#include <limits>

#define CXXOPTS_NO_REGEX true  // patterns would be compiled before main, and walk long values recursively
#include <cxxopts.hpp>

#include "driver/cli/home_path.h"
#include "driver/cli/other_words.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr std::size_t kColumns = 100;    // of --help
constexpr std::size_t kHelpColumn = 34;  // where a flag's text starts

constexpr double kMostDouble = std::numeric_limits<double>::max();
/// A run's folder. `report DIR` is `report --run DIR`, and `status --run DIR` is `status DIR`.
constexpr char kRun[] = "run";
constexpr char kHardSpace = '\x1f';  // a space where no line is broken

std::string with_dashes(std::string_view name) {
  std::string result(name);
  std::replace(result.begin(), result.end(), '_', '-');
  return result;
}

bool looks_like_flag(std::string_view text) {
  return text.size() > 1 && text[0] == '-' && !number_from(text, -kMostDouble, kMostDouble);
}

std::size_t words_taken(const Flag& flag) {
  return flag.value.empty() ? 0 : split(flag.value, ' ').size();
}

// ---- parsing
// ------------------------------------------------------------------------------------------------

/// A flag as it stands on the command line: "--batch_size=4", "-b4", "--batch-size".
struct WrittenFlag {
  explicit WrittenFlag(const std::string& text) {
    if (text.starts_with("--")) {
      const std::size_t equals = text.find('=');
      name = with_dashes(std::string_view(text).substr(2, equals - 2));
      word = "--" + name;
      if (equals != std::string::npos) attached = text.substr(equals + 1);
    } else {
      name = text.substr(1);
      word = text.substr(0, 2);
      if (text.size() > 2) attached = text.substr(text[2] == '=' ? 3 : 2);
    }
  }

  std::string word;  ///< "--batch-size", "-b"
  std::string name;
  std::optional<std::string> attached;
};

/// cxxopts knows the flags and takes their values, one flag at a time: it would stop at the first error, keep
/// the last of a repeated flag, take the next flag as a value, cut values at commas and numbers at the first
/// letter.
class KnownFlags {
 public:
  explicit KnownFlags(const CommandSpec& spec) : options_(spec.program) {
    bool help_has_letter = true;
    for (const Flag& flag : spec.flags) {
      add(flag.short_name, flag.name, !flag.value.empty());
      help_has_letter = help_has_letter && flag.short_name != 'h';
    }
    add(help_has_letter ? 'h' : '\0', "help", false);
  }

  struct Match {
    std::string name;   ///< the long one
    std::string value;  ///< empty of a switch
  };
  /// Nothing: no such flag, or it needs a value and none is given.
  std::optional<Match> match(std::string word, std::optional<std::string> value) {
    std::string program = "millrace";
    std::vector<char*> arguments{program.data(), word.data()};
    if (value) arguments.push_back(value->data());
    int count = static_cast<int>(arguments.size());
    char** first = arguments.data();
    try {
      const auto found = options_.parse(count, first).arguments();
      if (found.empty()) return std::nullopt;
      return Match{found.front().key(), found.front().value()};
    } catch (const std::exception&) {  // its classes have other names in each version
      return std::nullopt;
    }
  }

 private:
  void add(char letter, const std::string& name, bool takes_value) {
    auto value = cxxopts::value<std::string>();
    if (!takes_value) value->implicit_value("");
    options_.add_options()((letter ? std::string{letter, ','} : std::string()) + name, "", value);
  }

  cxxopts::Options options_;
};

/// One pass over the arguments; collects everything that is wrong.
class Parser {
 public:
  Parser(const CommandSpec& spec, const std::vector<std::string>& args, UnknownFlags unknown)
      : spec_(spec),
        args_(args),
        unknown_(unknown),
        known_(spec),
        bare_(spec.command == "models" ? "model" : kRun) {}

  void run() {
    while (next_ < args_.size()) {
      const std::string& text = args_[next_++];
      if (text == "--") {
        positionals.insert(positionals.end(), args_.begin() + static_cast<std::ptrdiff_t>(next_),
                           args_.end());
        break;
      }
      if (text.starts_with("--") || looks_like_flag(text)) {
        flag(WrittenFlag(text));
      } else if (spec_.positionals.empty() && find([&](const Flag& f) { return f.name == bare_; }) &&
                 !is_given(bare_)) {
        given.emplace_back(bare_, with_home(text));
      } else {
        positionals.push_back(with_home(text));
      }
    }
    check_positionals();
    check_required();
  }

  std::vector<std::pair<std::string, std::string>> given;  // in the order of the command line
  std::vector<std::string> positionals;
  std::vector<std::string> left;
  Problems problems;
  bool help = false;
  std::string help_topic;

 private:
  bool is_given(std::string_view name) const {
    return std::any_of(given.begin(), given.end(), [&](const auto& g) { return g.first == name; });
  }

  bool has_value_next() const { return next_ < args_.size() && !looks_like_flag(args_[next_]); }

  void flag(WrittenFlag written) {
    if (const std::string name = name_of_alias(spec_.flags, written.name); name != written.name)
      written.word = "--" + (written.name = name);
    std::optional<std::string> value = written.attached;
    if (!value && has_value_next()) value = args_[next_];
    const auto match = known_.match(written.word, value);
    if (match && match->name == "help") return take_help(written);
    const Flag* flag = find([&](const Flag& f) {
      return match ? f.name == match->name
                   : "--" + f.name == written.word || std::string{'-', f.short_name} == written.word;
    });
    if (!flag) return unknown(written);
    take(*flag, written, match ? match->value : "");
  }

  void take_help(const WrittenFlag& written) {
    help = true;
    if (written.attached)
      help_topic = *written.attached;
    else if (positionals.empty() && has_value_next())
      help_topic = args_[next_++];
  }

  void take(const Flag& flag, const WrittenFlag& written, std::string value) {
    const std::string where = "--" + flag.name;
    if (is_given(flag.name) && !flag.repeatable)
      problems.push_back({where, "is given twice", "keep one of them"});
    if (flag.value.empty()) {
      if (written.attached)
        problems.push_back({where, "is a switch and takes no value, got '" + *written.attached + "'", {}});
      given.emplace_back(flag.name, "");
      return;
    }
    for (std::size_t taken = 0; taken < words_taken(flag); ++taken) {
      const bool attached = taken == 0 && written.attached;
      if (!attached && !has_value_next()) {
        problems.push_back({where, "needs a value (" + flag.value + ")",
                            "a value that starts with a dash is written " + where + "=VALUE"});
        return;
      }
      if (taken > 0) value = args_[next_];
      if (!attached) ++next_;
      given.emplace_back(flag.name, with_home(value));
    }
  }

  void unknown(const WrittenFlag& written) {
    if (unknown_ == UnknownFlags::Leave) {
      left.push_back(written.name);
      if (!written.attached && has_value_next()) ++next_;
      return;
    }
    if (written.name == kRun && spec_.positionals == std::vector<std::string>{"DIR"} &&
        (written.attached || has_value_next())) {
      positionals.push_back(with_home(written.attached ? *written.attached : args_[next_++]));
      return;
    }
    const OtherWord* other = other_word(written.name, spec_.flags);
    const std::optional<std::string> nearest =
        other ? std::optional<std::string>(other->here) : nearest_name(written.name, names());
    problems.push_back({written.word, "is not a flag of this command",
                        other     ? hint_of(*other, "--")
                        : nearest ? "did you mean --" + *nearest + "?"
                                  : "`" + name_of(spec_) + " --help all` lists the flags"});
    // The value of a misspelt flag is no argument of its own.
    const Flag* meant = nearest ? find([&](const Flag& f) { return f.name == *nearest; }) : nullptr;
    if (meant && !meant->value.empty() && !written.attached && has_value_next()) ++next_;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all{"help"};
    for (const Flag& flag : spec_.flags) all.push_back(flag.name);
    return all;
  }

  void check_positionals() {
    const bool many = !spec_.positionals.empty() && spec_.positionals.back().ends_with("...");
    for (std::size_t i = spec_.positionals.size(); i < positionals.size() && !many; ++i) {
      problems.push_back({"'" + positionals[i] + "'", "is one argument too many",
                          spec_.positionals.empty()
                              ? "values follow their flags: `" + name_of(spec_) + " --help` lists them"
                              : "quote a value that has spaces"});
    }
    for (std::size_t i = positionals.size(); i < spec_.positionals.size(); ++i) {
      problems.push_back({spec_.positionals[i], "is missing", example_hint()});
    }
  }

  void check_required() {
    for (const Flag& flag : spec_.flags) {
      if (flag.required && !is_given(flag.name))
        problems.push_back({"--" + flag.name, "is required", example_hint()});
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
  UnknownFlags unknown_;
  KnownFlags known_;
  const std::string bare_;  // the flag whose name may be left out before its value
  std::size_t next_ = 0;
};

// ---- help
// ---------------------------------------------------------------------------------------------------

/// Appends `text` broken at spaces; the cursor stands at column `at`, further lines are indented by `indent`
/// and broken lines end with `tail` (" \" in examples).
void append_wrapped(std::string& out, const std::string& text, std::size_t at, std::size_t indent,
                    std::string_view tail = {}) {
  bool first = true;
  for (const std::string& word : words_of(text, ' ')) {
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

/// Brief: as the short help says it.
enum class Length { Brief, Whole };

void append_flag(std::string& out, const Flag& flag, Length length) {
  std::string head = flag.short_name ? std::string("  -") + flag.short_name + ", " : std::string(6, ' ');
  head += "--" + flag.name + (flag.value.empty() ? "" : " " + flag.value);
  if (head.size() + 2 > kHelpColumn) {
    out += head + '\n' + std::string(kHelpColumn, ' ');
  } else {
    out += head + std::string(kHelpColumn - head.size(), ' ');
  }
  std::string text = length == Length::Brief && !flag.brief.empty() ? flag.brief : flag.help;
  if (flag.required) text += " Required.";
  if (flag.repeatable) text += " May be repeated.";
  if (!flag.required && !flag.target.fallback.empty())
    text += std::string(" [default:") + kHardSpace + flag.target.fallback + "]";
  append_wrapped(out, text, kHelpColumn, kHelpColumn);
}

std::vector<std::string> groups_of(const std::vector<Flag>& flags) {
  std::vector<std::string> groups;
  for (const Flag& flag : flags) {
    if (std::find(groups.begin(), groups.end(), flag.group) == groups.end()) groups.push_back(flag.group);
  }
  return groups;
}

std::string heading_of(const std::string& group) {
  return group.empty() ? "Options" : group;
}

/// A heading or a flag as it is compared: "Job array" is job-array, "--lr" is lr.
std::string topic_of(std::string text) {
  text.erase(0, std::min(text.find_first_not_of('-'), text.size()));
  for (char& c : text) {
    if (c == ' ' || c == '_') c = '-';
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

std::vector<Flag> flags_with_help(const CommandSpec& spec) {
  std::vector<Flag> flags = spec.flags;
  const bool is_short = !spec.first.empty();
  flags.push_back({.name = "help",
                   .short_name = 'h',
                   .value = is_short ? "[TOPIC]" : "",
                   .help = is_short
                               ? "Print the flags of a first use, or of a TOPIC: all, a heading as below, "
                                 "or a flag."
                               : "Print this text."});
  return flags;
}

std::string help_head(const CommandSpec& spec) {
  const std::string name = name_of(spec);
  std::string out = name + ": ";
  append_wrapped(out, spec.summary, out.size(), 2);
  std::string usage = "Usage: " + name + " [FLAGS]";
  for (const std::string& positional : spec.positionals) usage += " " + positional;
  return out + "\n" + usage + "\n";
}

void append_groups(std::string& out, const std::vector<Flag>& flags, Length length) {
  for (const std::string& group : groups_of(flags)) {
    out += "\n" + heading_of(group) + ":\n";
    for (const Flag& flag : flags) {
      if (flag.group == group) append_flag(out, flag, length);
    }
  }
}

void append_examples(std::string& out, const CommandSpec& spec) {
  if (!spec.examples.empty()) out += "\nExamples:\n";
  for (const std::string& example : spec.examples) {
    out += "  ";
    append_wrapped(out, example, 2, 6, " \\");
  }
}

std::string whole_help(const CommandSpec& spec) {
  std::string out = help_head(spec);
  append_groups(out, flags_with_help(spec), Length::Whole);
  append_examples(out, spec);
  return out;
}

std::string short_help(const CommandSpec& spec) {
  const std::vector<Flag> all = flags_with_help(spec);
  std::vector<Flag> flags;
  for (const Flag& flag : all) {
    const bool shown =
        flag.name == "help" || std::find(spec.first.begin(), spec.first.end(), flag.name) != spec.first.end();
    if (shown) flags.push_back(flag);
  }
  std::string out = help_head(spec);
  append_groups(out, flags, Length::Brief);
  append_examples(out, spec);
  std::string more = std::to_string(all.size() - flags.size()) + " more flags: `" + name_of(spec) +
                     " --help all`, or `--help TOPIC` with one of";
  const char* before = " ";
  for (const std::string& topic : help_topics(spec)) more += before + topic, before = ", ";
  out += '\n';
  append_wrapped(out, more + ".", 0, 2);
  return out;
}

/// Those of this heading, else the one of this name, else those of the heading that begins so.
std::vector<Flag> flags_about(const CommandSpec& spec, const std::string& topic) {
  const std::vector<Flag> all = flags_with_help(spec);
  const auto those = [&](auto is_it) {
    std::vector<Flag> flags;
    std::copy_if(all.begin(), all.end(), std::back_inserter(flags), is_it);
    return flags;
  };
  const auto heading = [](const Flag& flag) { return topic_of(heading_of(flag.group)); };
  std::vector<Flag> flags = those([&](const Flag& flag) { return heading(flag) == topic; });
  if (flags.empty()) flags = those([&](const Flag& flag) { return flag.name == topic; });
  if (flags.empty()) flags = those([&](const Flag& flag) { return heading(flag).starts_with(topic); });
  return flags;
}

}  // namespace

std::string name_of(const CommandSpec& spec) {
  return spec.program + (spec.command.empty() ? "" : " " + spec.command);
}

std::string wrapped(const std::string& text, std::size_t at, std::size_t indent) {
  std::string out;
  append_wrapped(out, text, at, indent);
  return out;
}

std::vector<std::string> help_topics(const CommandSpec& spec) {
  std::vector<std::string> topics;
  for (const std::string& group : groups_of(spec.flags)) topics.push_back(topic_of(heading_of(group)));
  return topics;
}

// ---- Arguments
// ----------------------------------------------------------------------------------------------

bool Arguments::has(std::string_view flag) const {
  return std::find(given_.begin(), given_.end(), flag) != given_.end();
}

std::optional<Problem> read_value(const Flag& flag, const std::vector<std::string>& words) {
  return flag.target.read ? flag.target.read(words) : std::nullopt;
}

CommandSpec without_targets(CommandSpec spec) {
  for (Flag& flag : spec.flags) flag.target.read = {};
  return spec;
}

Result<Arguments> parse_arguments(const CommandSpec& spec, const std::vector<std::string>& args,
                                  UnknownFlags unknown) {
  Parser parser(spec, args, unknown);
  parser.run();
  Arguments result;
  result.help_ = parser.help;
  result.help_topic_ = parser.help_topic;
  if (!parser.help && !parser.problems.empty()) return parser.problems;
  result.positionals_ = std::move(parser.positionals);
  result.left_ = std::move(parser.left);
  for (const auto& [name, value] : parser.given) result.given_.push_back(name);
  for (const Flag& flag : spec.flags) {
    std::vector<std::string> words;
    for (const auto& [name, value] : parser.given) {
      if (name == flag.name) words.push_back(value);
    }
    if (words.empty()) continue;
    if (std::optional<Problem> wrong = read_value(flag, words); wrong && !result.help_) {
      wrong->where = "--" + flag.name;
      result.problems_.push_back(*std::move(wrong));
    }
  }
  return result;
}

std::string help_text(const CommandSpec& spec) {
  return spec.first.empty() ? whole_help(spec) : short_help(spec);
}

Result<std::string> help_text(const CommandSpec& spec, const std::string& topic) {
  if (topic.empty()) return help_text(spec);
  const std::string name = topic_of(topic);
  if (name == kHelpAll) return whole_help(spec);
  const std::vector<Flag> flags = name.empty() ? std::vector<Flag>() : flags_about(spec, name);
  if (flags.empty()) {
    const OtherWord* other = other_word(name, spec.flags);
    std::string topics = kHelpAll;
    for (const std::string& one : help_topics(spec)) topics += ", " + one;
    return Problem{name_of(spec) + " --help", "'" + topic + "' is no heading and no flag",
                   other ? hint_of(*other, "--") : topics + ", or the name of a flag"};
  }
  std::string out = help_head(spec);
  append_groups(out, flags, Length::Whole);
  return out;
}

}  // namespace millrace
