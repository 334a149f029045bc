#include "driver/cli/flag_target.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "driver/cli/other_words.h"
#include "runtime/base/json.h"
#include "runtime/base/numbers.h"
#include "runtime/base/quantities.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

std::string in_quotes(std::string_view text) {
  return "'" + std::string(text) + "'";
}

/// 4194304 -> "4MiB".
std::string written(Bytes bytes) {
  for (const auto& [unit, size] : {std::pair{"GiB", kGiB}, {"MiB", kMiB}, {"KiB", kKiB}}) {
    if (bytes >= size && bytes % size == 0) return std::to_string(bytes / size) + unit;
  }
  return std::to_string(bytes) + "B";
}

}  // namespace

Result<std::size_t> choice_from(std::string_view text, std::string_view what,
                                const std::vector<std::string>& names) {
  std::string all;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return i;
    all += (all.empty() ? "" : ", ") + names[i];
  }
  const std::string_view other = other_value(text, names);
  if (!other.empty())
    return Problem{"", "unknown " + std::string(what) + " " + in_quotes(text),
                   "here it is " + in_quotes(other)};
  const std::optional<std::string> near = nearest_name(text, names);
  return Problem{"", "unknown " + std::string(what) + " " + in_quotes(text),
                 near ? "did you mean '" + *near + "'?" : "one of: " + all};
}

Result<std::vector<std::size_t>> choices_from(std::string_view text, std::string_view what,
                                              const std::vector<std::string>& names) {
  std::vector<std::size_t> places;
  for (const std::string& word : split(text, ',')) {
    const Result<std::size_t> place = choice_from(word, what, names);
    if (!place) return place.problems();
    if (std::ranges::find(places, *place) == places.end()) places.push_back(*place);
  }
  return places;
}

std::optional<std::string> scalar_text(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::String:
      return value.as_string();
    case Json::Kind::Bool:
      return value.as_bool() ? "true" : "false";
    case Json::Kind::Int:
    case Json::Kind::Double:
      return value.dump();
    default:
      return std::nullopt;
  }
}

namespace into {

Target number(double& member, double minimum, double maximum) {
  return target_of(
      member, [=](const std::string& text) { return number_from(text, minimum, maximum); },
      shortest_text(member));
}

Target number(std::optional<double>& member, double minimum, double maximum) {
  return target_of(
      member, [=](const std::string& text) { return number_from(text, minimum, maximum); }, "");
}

Target bytes(Bytes& member) {
  return target_of(
      member, [](const std::string& text) { return bytes_from(text); }, written(member));
}

Target bytes(std::optional<Bytes>& member) {
  return target_of(
      member, [](const std::string& text) { return bytes_from(text); }, "");
}

Target duration(std::chrono::milliseconds& member, double minimum_s, double maximum_s) {
  return target_of(
      member,
      [=](const std::string& text) -> Result<std::chrono::milliseconds> {
        const Result<double> seconds = number_from(text, minimum_s, maximum_s);
        if (!seconds) return seconds.problems();
        return std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1000));
      },
      shortest_text(static_cast<double>(member.count()) / 1000));
}

Target text(std::string& member) {
  return target_of(
      member, [](const std::string& word) { return Result<std::string>(word); }, member);
}

Target text(std::optional<std::string>& member) {
  return target_of(
      member, [](const std::string& word) { return Result<std::string>(word); }, "");
}

Target svg_file(std::optional<std::string>& member) {
  return target_of(
      member,
      [](const std::string& word) -> Result<std::string> {
        const std::filesystem::path path = word;
        if (path.extension().empty() || path.extension() == ".svg") return word;
        return Problem{"", "the picture is SVG, and '" + escaped(word) + "' is named as something else",
                       "give " + std::filesystem::path(path).replace_extension(".svg").string()};
      },
      "");
}

Target texts(std::vector<std::string>& member) {
  return {[&member](const std::vector<std::string>& words) -> std::optional<Problem> {
            member = words;
            return std::nullopt;
          },
          {}};
}

Target list(std::vector<std::string>& member) {
  std::string all;
  for (const std::string& word : member) all += (all.empty() ? "" : ",") + word;
  return target_of(
      member, [](const std::string& word) { return Result<std::vector<std::string>>(words_of(word, ',')); },
      all);
}

Target numbers(std::vector<double>& member) {
  std::string all;
  for (double value : member) all += (all.empty() ? "" : ",") + shortest_text(value);
  return target_of(
      member, [](const std::string& text) { return numbers_from(text); }, all);
}

Target on(bool& member) {
  return {[&member](const std::vector<std::string>&) -> std::optional<Problem> {
            member = true;
            return std::nullopt;
          },
          {}};
}

Target off(bool& member) {
  return {[&member](const std::vector<std::string>&) -> std::optional<Problem> {
            member = false;
            return std::nullopt;
          },
          {}};
}

}  // namespace into

}  // namespace millrace
