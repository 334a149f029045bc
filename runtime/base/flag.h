// Describes a setting: its flag, the member of an Options struct that it is bound to, its type and range, and
// what it decides in a run. Command lines, job files, --help, checkpoints and job arrays use the description.
// LibTorch-free.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/choices.h"
#include "runtime/base/result.h"
#include "runtime/base/text_values.h"
#include "runtime/base/units.h"

namespace millrace {

class Json;

/// Parses all words of a flag at once. The struct that it writes must outlive it.
struct Target {
  /// Returns an error that describes the invalid words; its `where` is left empty.
  std::function<std::optional<Problem>(const std::vector<std::string>& words)> read = {};
  std::string fallback = {};  ///< the member's initial value, written as the flag's value; empty: none
  std::vector<std::string> names = {};  ///< the accepted words, where they are known
};

// ---- text to values (more of them in runtime/base/text_values.h)

/// Returns the index in `names`. Returns an error for an unknown `what`, with the nearest name.
Result<std::size_t> choice_from(std::string_view text, std::string_view what,
                                const std::vector<std::string>& names);
/// Returns the indices in `names` of the words of a comma-separated list. Each index occurs once, in the
/// list's order.
Result<std::vector<std::size_t>> choices_from(std::string_view text, std::string_view what,
                                              const std::vector<std::string>& names);

/// Returns a scalar of a YAML or JSON file as the text of a flag; nothing for null, lists and mappings.
std::optional<std::string> scalar_text(const Json& value);

/// Returns "A|B|C" for an enum: the form of a flag's value.
template <Named Enum>
std::string choices_of() {
  std::string text;
  for (const std::string& name : all_names<Enum>()) text += (text.empty() ? "" : "|") + name;
  return text;
}

// ---- targets

/// A target of any type, with a function from text to Result<T>.
template <class T, class Parse>
Target target_of(T& member, Parse parse, std::string fallback) {
  return {[&member, parse](const std::vector<std::string>& words) -> std::optional<Problem> {
            auto value = parse(words.back());
            if (!value) return value.problems().front();
            member = static_cast<T>(*std::move(value));
            return std::nullopt;
          },
          std::move(fallback)};
}

/// `into::integer(options.steps, 0, 1000)`. A member that is a std::optional has no default and stays empty
/// without the flag.
namespace into {

constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();

template <std::integral Int>
Target integer(Int& member, std::int64_t minimum, std::int64_t maximum = kAny) {
  return target_of(
      member, [=](const std::string& text) { return integer_from(text, minimum, maximum); },
      std::to_string(member));
}
template <std::integral Int>
Target integer(std::optional<Int>& member, std::int64_t minimum, std::int64_t maximum = kAny) {
  return target_of(
      member,
      [=](const std::string& text) -> Result<Int> {
        const Result<std::int64_t> value = integer_from(text, minimum, maximum);
        if (!value) return value.problems();
        return static_cast<Int>(*value);
      },
      member ? std::to_string(*member) : "");
}
Target number(double& member, double minimum, double maximum);
Target number(std::optional<double>& member, double minimum, double maximum);
Target bytes(Bytes& member);  ///< parsed as by bytes_from
Target bytes(std::optional<Bytes>& member);
/// Given in seconds.
Target duration(std::chrono::milliseconds& member, double minimum_s, double maximum_s);
Target text(std::string& member);
Target text(std::optional<std::string>& member);
/// An SVG file to write; a name with another extension (.png) is an error.
Target svg_file(std::optional<std::string>& member);
Target texts(std::vector<std::string>& member);  ///< one element for each use of the flag
Target list(std::vector<std::string>& member);   ///< comma-separated; empty words are dropped
Target numbers(std::vector<double>& member);     ///< comma-separated
template <std::integral Int>
Target integers(std::vector<Int>& member, std::int64_t minimum, std::int64_t maximum = kAny) {
  std::string all;
  for (Int value : member) all += (all.empty() ? "" : ",") + std::to_string(value);
  return target_of(
      member,
      [=](const std::string& text) -> Result<std::vector<Int>> {
        const Result<std::vector<std::int64_t>> values = integers_from(text, minimum, maximum);
        if (!values) return values.problems();
        return std::vector<Int>(values->begin(), values->end());
      },
      all);
}
Target on(bool& member);   ///< for a switch
Target off(bool& member);  ///< for a switch that disables something

/// One of the names of an enum (runtime/base/choices.h). `what` names it in messages: "unknown device 'gpu'".
template <Named Enum>
Target choice(Enum& member, std::string what) {
  Target target = target_of(
      member, [what](const std::string& text) { return choice_from(text, what, all_names<Enum>()); },
      to_string(member));
  target.names = all_names<Enum>();
  return target;
}

template <Named Enum>
Target choice(std::optional<Enum>& member, std::string what) {
  Target target = target_of(
      member,
      [what](const std::string& text) -> Result<Enum> {
        const Result<std::size_t> place = choice_from(text, what, all_names<Enum>());
        if (!place) return place.problems();
        return static_cast<Enum>(*place);
      },
      "");
  target.names = all_names<Enum>();
  return target;
}

/// Some of an enum's names, comma-separated, each at most once.
template <Named Enum>
Target choices(std::vector<Enum>& member, std::string what) {
  std::string all;
  for (Enum value : member) all += (all.empty() ? "" : ",") + to_string(value);
  return target_of(
      member,
      [what](const std::string& text) -> Result<std::vector<Enum>> {
        const Result<std::vector<std::size_t>> places = choices_from(text, what, all_names<Enum>());
        if (!places) return places.problems();
        std::vector<Enum> values;
        for (std::size_t place : *places) values.push_back(static_cast<Enum>(place));
        return values;
      },
      all);
}

/// A type with its own parser: text to Result<T>.
template <class T, class Parse>
Target parsed(T& member, Parse parse, std::string fallback = {}) {
  return target_of(member, std::move(parse), std::move(fallback));
}

}  // namespace into

/// What the value of a flag decides in a run. A test requires an answer for every flag of `train`.
enum class Decides {
  Nothing,    ///< neither numbers nor where ranks synchronize
  Rounding,   ///< rounding: different bits of the same mathematics
  Results,    ///< what the run computes: a resumed run must have the same value
  Plan,       ///< the plan, which all ranks must share; any plan gives the same results
  Meetings,   ///< where ranks synchronize: all ranks must have the same value
  GivenByAll  ///< all ranks must have a value, or none
};
/// How an emulated device, which computes no values, treats a flag.
enum class Emulated {
  Runs,     ///< accepted, as on any other device
  LeftOut,  ///< `emulate` drops it from the job; `train --device emulated` rejects it
  Refused   ///< rejected: without it the job would mean something else
};

/// One flag. `value` names the value ("FILE", "N", "F"); empty: a switch; several words ("A B"): as many
/// values. Dashes and underscores are equivalent.
/// `target` is bound to a member of an Options struct. If the flag is given, parse_arguments writes the
/// member and checks its type and range. Otherwise the member keeps its value, which is the default that
/// --help shows:
///   flag("Training", "steps", "N", "Updates.", into::integer(options.steps, 0, 1000))
struct Flag {
  std::string name;  ///< long name without dashes, e.g. "batch-size"
  char short_name = 0;
  std::string value;
  std::string help;  ///< one or more sentences, with the unit
  bool required = false;
  std::string group;        ///< heading in --help ("" = "Options")
  bool repeatable = false;  ///< may be given more than once (into::texts)
  Target target = {};
  std::string brief = {};                 ///< the text of the short help; empty: `help`
  std::vector<std::string> choices = {};  ///< values for shell completion; empty: those of "a|b|c"
  std::vector<std::string> aliases = {};  ///< further names, as in other tools
  // -- for the flags of a run: see results(), meetings() and deciding()
  std::optional<Decides> decides = {};  ///< empty: unspecified
  std::string recorded = {};            ///< the value as recorded in checkpoints; empty: not recorded
  bool per_job = false;                 ///< the jobs of an array may have different values
  Emulated emulated = Emulated::Runs;

  /// Marks a flag that decides what a run computes. Checkpoints record `text`. Empty: the value is the usual
  /// one, or another setting records it.
  Flag results(std::string text) &&;
  /// Marks a flag that decides where ranks synchronize: all must have the same value.
  Flag meetings() &&;
  Flag given_by_all() &&;  ///< all ranks must have a value, or none
  Flag each_job() &&;
  Flag also_called(std::string alias) &&;
  Flag needs_values(Emulated without = Emulated::LeftOut) &&;
};
/// Returns the name of the flag with the alias `word`; other words are returned unchanged.
std::string name_of_alias(const std::vector<Flag>& flags, const std::string& word);
/// Returns the flags, each marked with the decision `what`. With Results, another name or the data records
/// their values.
std::vector<Flag> deciding(Decides what, std::vector<Flag> flags);
/// Appends one list to another.
void append(std::vector<Flag>& flags, std::vector<Flag> more);
/// Returns the recorded texts of `flags` with their names.
std::vector<std::pair<std::string, std::string>> recorded(const std::vector<Flag>& flags);
/// Returns a number as checkpoints record it ("0.1", "2.0"); empty if it is the usual value.
std::string unusual(double value, double usual);

/// Returns a flag with a value: flag("Plan", "steps", "N", "Updates.", into::integer(options.steps, 0,
/// 1000)).
inline Flag flag(std::string group, std::string name, std::string value, std::string help, Target target,
                 char short_name = 0) {
  return {.name = std::move(name),
          .short_name = short_name,
          .value = std::move(value),
          .help = std::move(help),
          .group = std::move(group),
          .target = std::move(target)};
}
/// Returns a switch, which has no value.
inline Flag flag(std::string group, std::string name, std::string help, Target target) {
  return flag(std::move(group), std::move(name), "", std::move(help), std::move(target));
}

}  // namespace millrace
