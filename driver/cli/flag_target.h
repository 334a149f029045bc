// Binds a flag to a member of an Options struct, and checks its type and range. LibTorch-free.
#pragma once

#include <chrono>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
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
      "");
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

}  // namespace millrace
