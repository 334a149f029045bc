#include "runtime/base/flag.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>

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

/// Returns the name among `names` for which other tools use `theirs`; empty: there is none.
std::string_view other_value(std::string_view theirs, const std::vector<std::string>& names) {
  static constexpr std::pair<std::string_view, std::string_view> kValues[] = {
      {"gpu", "cuda"},      {"nvidia", "cuda"},  {"fp16", "float16"},           {"half", "float16"},
      {"bf16", "bfloat16"}, {"fp32", "float32"}, {"single", "float32"},         {"float", "float32"},
      {"momentum", "sgd"},  {"nesterov", "sgd"}, {"cosine-annealing", "cosine"}};
  for (const auto& [other, here] : kValues)
    if (other == theirs && std::ranges::find(names, here) != names.end()) return here;
  return {};
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

Flag Flag::results(std::string text) && {
  decides = Decides::Results;
  recorded = std::move(text);
  return std::move(*this);
}

Flag Flag::meetings() && {
  decides = Decides::Meetings;
  return std::move(*this);
}

Flag Flag::given_by_all() && {
  decides = Decides::GivenByAll;
  return std::move(*this);
}

Flag Flag::each_job() && {
  per_job = true;
  return std::move(*this);
}

Flag Flag::needs_values(Emulated without) && {
  emulated = without;
  return std::move(*this);
}

Flag Flag::also_called(std::string alias) && {
  help += " Also: --" + alias + ".";
  aliases.push_back(std::move(alias));
  return std::move(*this);
}

std::string name_of_alias(const std::vector<Flag>& flags, const std::string& word) {
  for (const Flag& flag : flags)
    if (std::ranges::find(flag.aliases, word) != flag.aliases.end()) return flag.name;
  return word;
}

std::vector<Flag> deciding(Decides what, std::vector<Flag> flags) {
  for (Flag& flag : flags) flag.decides = what;
  return flags;
}

void append(std::vector<Flag>& flags, std::vector<Flag> more) {
  std::ranges::move(more, std::back_inserter(flags));
}

std::vector<std::pair<std::string, std::string>> recorded(const std::vector<Flag>& flags) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (const Flag& flag : flags)
    if (!flag.recorded.empty()) settings.emplace_back(flag.name, flag.recorded);
  return settings;
}

std::string unusual(double value, double usual) {
  return value == usual ? "" : Json(value).dump();
}

namespace into {

Target number(double& member, double minimum, double maximum) {
  return target_of(
      member, [=](const std::string& text) { return number_from(text, minimum, maximum); },
      shortest_text(member));
}

Target number(std::optional<double>& member, double minimum, double maximum) {
  return target_of(
      member, [=](const std::string& text) { return number_from(text, minimum, maximum); },
      member ? shortest_text(*member) : "");
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
          member ? "true" : ""};
}

Target off(bool& member) {
  return {[&member](const std::vector<std::string>&) -> std::optional<Problem> {
            member = false;
            return std::nullopt;
          },
          member ? "" : "true"};
}

}  // namespace into

}  // namespace millrace
