// Command lines: one description gives parsing, --help and its test. LibTorch-free.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace millrace {

/// One flag. `value` names the value ("FILE", "N", "F"); empty: a switch; several words ("A B"): takes as
/// many values, read with `strings`. Dashes and underscores are the same.
struct Flag {
  std::string name;  ///< long name without dashes, e.g. "batch-size"
  char short_name = 0;
  std::string value;
  std::string help;      ///< one or more sentences with unit
  std::string fallback;  ///< shown as default; used when absent
  bool required = false;
  std::string group;        ///< heading in --help ("" = "Options")
  bool repeatable = false;  ///< may be given more than once: read it with `strings`
};

struct CommandSpec {
  std::string program = "millrace";
  std::string command;  ///< "plan"
  std::string summary;
  std::vector<std::string> positionals;  ///< names, all required; a last one "DIR..." stands for one or more
  std::vector<Flag> flags;               ///< --help, and --format where `prints_results`, are added
  std::vector<std::string> examples;     ///< full command lines
};

/// The parsed command line. Typed getters collect problems in `problems()` ("--lr: '0.5x' is not a number").
/// An absent flag without a fallback reads as "", as no numbers, or as the allowed number nearest to 0.
class Arguments {
 public:
  bool has(std::string_view flag) const;  ///< given by the user
  std::string string(std::string_view flag) const;
  std::int64_t integer(std::string_view flag, std::int64_t minimum, std::int64_t maximum);
  double number(std::string_view flag, double minimum, double maximum);
  bool boolean(std::string_view flag) const;                      ///< switch given
  Bytes bytes(std::string_view flag);                             ///< "16e9", "8GiB", "500MB", "123"
  std::vector<double> numbers(std::string_view flag);             ///< comma-separated
  std::vector<std::string> strings(std::string_view flag) const;  ///< each time it was given, in order
  const std::vector<std::string>& positionals() const { return positionals_; }
  bool wants_help() const { return help_; }
  const Problems& problems() const { return problems_; }

 private:
  friend Result<Arguments> parse_arguments(const CommandSpec&, const std::vector<std::string>&);
  std::vector<std::pair<std::string, std::string>> values_;  // flag name -> text (defaults included)
  std::vector<std::string> given_;
  std::vector<std::string> positionals_;
  Problems problems_;
  bool help_ = false;
};

/// Problems: unknown flag (nearest as hint), missing value, flag twice, missing required flag, too many
/// positionals. `--help` wins over all of them.
Result<Arguments> parse_arguments(const CommandSpec& spec, const std::vector<std::string>& args);
/// Grouped, with defaults, value names and examples; at most 100 columns.
std::string help_text(const CommandSpec& spec);

}  // namespace millrace
