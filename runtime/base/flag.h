// Describes a setting: its flag, the member of an Options struct that it is bound to, its type and range, and
// what it decides in a run. Command lines, job files, --help, checkpoints and job arrays read it.
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

/// Reads the words of a flag, all of them at once. The struct that it writes must outlive it.
struct Target {
  /// Problem: what is wrong with them; its `where` is left empty.
  std::function<std::optional<Problem>(const std::vector<std::string>& words)> read = {};
  std::string fallback = {};  ///< what the member held, as the flag would be written; empty: nothing
  std::vector<std::string> names = {};  ///< the words that it takes, where these are known
};

// ---- text to values (more of them in runtime/base/text_values.h)
// -------------------------------------------------------------------------------------------------

/// Place in `names`; Problem: unknown `what`, with the nearest name.
Result<std::size_t> choice_from(std::string_view text, std::string_view what,
                                const std::vector<std::string>& names);
/// Returns the places in `names` of the words of a comma-separated list. Each place comes once, in the
/// list's order.
Result<std::vector<std::size_t>> choices_from(std::string_view text, std::string_view what,
                                              const std::vector<std::string>& names);

/// A scalar of a YAML or JSON file as the text of a flag; nothing for null, lists and mappings.
std::optional<std::string> scalar_text(const Json& value);

/// "A|B|C" of an enum: the form of a flag's value.
template <Named Enum>
std::string choices_of() {
  std::string text;
  for (const std::string& name : all_names<Enum>()) text += (text.empty() ? "" : "|") + name;
  return text;
}

// ---- targets
// ---------------------------------------------------------------------------------------------------

/// Any type, by a function from text to Result<T>.
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
Target bytes(Bytes& member);  ///< as bytes_from
Target bytes(std::optional<Bytes>& member);
/// Written in seconds.
Target duration(std::chrono::milliseconds& member, double minimum_s, double maximum_s);
Target text(std::string& member);
Target text(std::optional<std::string>& member);
/// A file that is written as SVG: a name that ends in something else (.png) is a Problem.
Target svg_file(std::optional<std::string>& member);
Target texts(std::vector<std::string>& member);  ///< each time the flag was given
Target list(std::vector<std::string>& member);   ///< comma-separated, empty words left out
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
Target on(bool& member);   ///< of a switch
Target off(bool& member);  ///< of a switch that turns something off

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

/// Some of the names of an enum, comma-separated, each once.
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

/// A type with a parser of its own: text to Result<T>.
template <class T, class Parse>
Target parsed(T& member, Parse parse, std::string fallback = {}) {
  return target_of(member, std::move(parse), std::move(fallback));
}

}  // namespace into

/// What the value of a flag decides in a run. Every flag of `train` has an answer (a test).
enum class Decides {
  Nothing,    ///< neither numbers nor where ranks wait for each other
  Rounding,   ///< other bits of the same mathematics
  Results,    ///< what the run computes: a run that resumes must have the same
  Plan,       ///< the plan, which all ranks must have alike; any plan gives the same results
  Meetings,   ///< where ranks wait for each other: all ranks must have the same value
  GivenByAll  ///< all ranks must have a value, or none
};
/// What an emulated device, which computes no values, makes of a flag.
enum class Emulated {
  Runs,     ///< it takes it as any device does
  LeftOut,  ///< `emulate` leaves it out of the job; `train --device emulated` refuses it
  Refused   ///< a job with it means nothing else without it
};

/// One flag. `value` names the value ("FILE", "N", "F"); empty: a switch; several words ("A B"): takes as
/// many values. Dashes and underscores are the same.
/// `target` is the member of an Options struct that the value is for: parse_arguments writes it, with its
/// type and range checked, if the flag is given; else the member keeps what it has, which is the default of
/// --help:
///   flag("Training", "steps", "N", "Updates.", into::integer(options.steps, 0, 1000))
struct Flag {
  std::string name;  ///< long name without dashes, e.g. "batch-size"
  char short_name = 0;
  std::string value;
  std::string help;  ///< one or more sentences with unit
  bool required = false;
  std::string group;        ///< heading in --help ("" = "Options")
  bool repeatable = false;  ///< may be given more than once (into::texts)
  Target target = {};
  std::string brief = {};                 ///< what the short help says instead of `help`; empty: the same
  std::vector<std::string> choices = {};  ///< values that a shell may complete; empty: those of "a|b|c"
  std::vector<std::string> aliases = {};  ///< further names, as other tools call it
  // -- of the flags of a run: see results(), meetings() and deciding()
  std::optional<Decides> decides = {};  ///< empty: nobody has specified it
  std::string recorded = {};            ///< the value as checkpoints record it; empty: they do not
  bool per_job = false;                 ///< the jobs of an array may differ in it
  Emulated emulated = Emulated::Runs;

  /// The flag decides what a run computes. Checkpoints record `text`; empty: the usual value, or another
  /// setting has it.
  Flag results(std::string text) &&;
  Flag meetings() &&;      ///< it decides where ranks wait for each other: all must have the same value
  Flag given_by_all() &&;  ///< all ranks must have a value, or none
  Flag each_job() &&;
  Flag also_called(std::string alias) &&;
  Flag needs_values(Emulated without = Emulated::LeftOut) &&;
};
/// Returns the name of the flag that has the alias `word`; other words are returned as they are.
std::string name_of_alias(const std::vector<Flag>& flags, const std::string& word);
/// The flags with the same answer in all. Results: what they decide is recorded by another name or by the
/// data.
std::vector<Flag> deciding(Decides what, std::vector<Flag> flags);
/// Appends one list to another.
void append(std::vector<Flag>& flags, std::vector<Flag> more);
/// The recorded texts of `flags` by their names.
std::vector<std::pair<std::string, std::string>> recorded(const std::vector<Flag>& flags);
/// A number as checkpoints record it ("0.1", "2.0"); empty where it is the usual one.
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
