#include "experiments/sweep/settings.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "driver/flags/train_flags.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr std::int64_t kMostInteger = std::int64_t{1} << 53;
constexpr std::size_t kMostCombinations = 1'000'000;

Problem no_width(const Json& json, const std::string& name) {
  return {json.where(), name + ": the distribution has no width: every draw would be the same",
          "set " + name + " in the job, or give two different bounds"};
}

/// Two numbers in ascending order.
std::optional<Problem> bounds_problem(const Json& json, const std::string& name, bool whole) {
  const auto is_bound = [&](const Json& item) {
    return whole ? item.kind() == Json::Kind::Int && std::abs(item.as_int()) <= kMostInteger
                 : item.is_number() && std::isfinite(item.as_double());
  };
  if (!json.is_array() || json.size() != 2 || !std::ranges::all_of(json.items(), is_bound))
    return Problem{json.where(), name + ": needs two " + (whole ? "integers" : "numbers"),
                   "for example " + std::string(whole ? "[10, 100]" : "[1e-4, 1e-2]")};
  const double low = json.items()[0].as_double(), high = json.items()[1].as_double();
  if (low == high) return no_width(json, name);
  if (low > high)
    return Problem{json.where(), name + ": the lower bound is above the upper one", "exchange them"};
  return std::nullopt;
}

std::optional<Varied::Values> values_of(const std::string& key, const Json& json, Problems& problems) {
  Varied::Values values{flag_name(key), {}};
  if (!json.is_array() || json.size() == 0) {
    problems.push_back(
        {json.where(), key + " needs a list of values", "for example " + key + ": [0.1, 0.2]"});
    return std::nullopt;
  }
  for (const Json& item : json.items()) {
    const std::optional<std::string> text = scalar_text(item);
    if (!text) {
      problems.push_back({item.where(), key + ": an entry is not one value", "lists hold numbers and words"});
      return std::nullopt;
    }
    values.values.push_back({values.flag, *text, item.where()});
  }
  return values;
}

/// Six digits: what people read is what is trained with.
std::string rounded(double value, double low, double high) {
  const Result<double> six = number_from(printed("%.6g", value), -HUGE_VAL, HUGE_VAL);
  return shortest_text(std::clamp(six ? *six : value, low, high));
}

/// Whether it has members to read; a Problem if it is something else.
bool is_mapping(const Json* json, const char* key, Problems& problems) {
  if (!json || json->is_null()) return false;
  if (json->is_object()) return true;
  problems.push_back({json->where(), std::string(key) + " is not a mapping of settings",
                      "for example " + std::string(key) + ": {lr: ...}"});
  return false;
}

}  // namespace

std::string flag_name(std::string key) {
  static const std::vector<Flag> flags = train_spec().flags;
  std::ranges::replace(key, '_', '-');
  return name_of_alias(flags, key);
}

Result<SettingDistribution> SettingDistribution::from(const Json& json, const std::string& name) {
  const std::string example = "for example " + name + ": {uniform: [0.1, 0.9]}";
  if (!json.is_object() || json.size() == 0)
    return Problem{json.where(), name + " needs a distribution", example};
  Problems problems;
  ObjectReader in(json, problems);
  SettingDistribution result;
  int kinds = 0;
  const auto bounds = [&](const char* key, Kind kind) {
    const Json* value = in.any(key);
    if (!value) return;
    ++kinds;
    result.kind_ = kind;
    if (auto problem = bounds_problem(*value, name, kind == Kind::Integers)) {
      problems.push_back(*problem);
      return;
    }
    result.low_ = value->items()[0].as_double();
    result.high_ = value->items()[1].as_double();
    if (kind == Kind::LogUniform && result.low_ <= 0)
      problems.push_back({value->where(), name + ": log_uniform needs bounds above 0", {}});
    if (kind == Kind::Integers) {
      result.first_ = value->items()[0].as_int();
      result.last_ = value->items()[1].as_int();
    }
  };
  bounds("uniform", Kind::Uniform);
  bounds("log_uniform", Kind::LogUniform);
  bounds("integers", Kind::Integers);
  if (in.has("step")) {
    result.step_ = in.whole("step", 1, 1 << 30);
    if (result.kind_ != Kind::Integers)
      in.problem("step", name + ": step belongs to integers", "leave it out");
    else if (result.step_ > result.last_ - result.first_)
      problems.push_back(no_width(json, name));
  }
  if (const Json* choices = in.any("choice")) {
    ++kinds;
    result.kind_ = Kind::Choice;
    if (const auto values = values_of(name, *choices, problems)) {
      for (const Setting& value : values->values) result.choices_.push_back(value.text);
      if (std::set<std::string>(result.choices_.begin(), result.choices_.end()).size() < 2)
        problems.push_back(no_width(*choices, name));
    }
  }
  in.finish();
  if (kinds != 1 && problems.empty())
    problems.push_back(
        {json.where(), name + " needs one of uniform, log_uniform, integers, choice", example});
  if (!problems.empty()) return problems;
  return result;
}

std::string SettingDistribution::draw(RandomStream& random) const {
  switch (kind_) {
    case Kind::Uniform:
      return rounded(random.uniform(low_, high_), low_, high_);
    case Kind::LogUniform:
      return rounded(std::exp(random.uniform(std::log(low_), std::log(high_))), low_, high_);
    case Kind::Integers: {
      const auto count = static_cast<std::uint64_t>((last_ - first_) / step_) + 1;
      return std::to_string(first_ + step_ * static_cast<std::int64_t>(random.below(count)));
    }
    case Kind::Choice:
      return choices_[random.below(choices_.size())];
  }
  return "";
}

std::vector<std::string> SettingDistribution::ends() const {
  if (kind_ == Kind::Choice) return choices_;
  if (kind_ == Kind::Integers) return {std::to_string(first_), std::to_string(last_)};
  return {shortest_text(low_), shortest_text(high_)};
}

std::vector<std::string> Varied::flags() const {
  std::vector<std::string> names;
  for (const Values& one : lists) names.push_back(one.flag);
  for (const Values& one : grid) names.push_back(one.flag);
  for (const Sampled& one : sample) names.push_back(one.flag);
  return names;
}

std::size_t Varied::combinations() const {
  if (lists.empty() && grid.empty()) return 0;
  std::size_t count = lists.empty() ? 1 : lists.front().values.size();
  for (const Values& one : grid) count *= one.values.size();
  return count;
}

Varied read_varied(const Json* lists, const Json* grid, const Json* sample, Problems& problems) {
  Varied varied;
  std::vector<std::pair<std::string, std::string>> seen;  // flag, where
  const auto is_new = [&](const std::string& flag, const std::string& where) {
    const auto found = std::ranges::find(seen, flag, &std::pair<std::string, std::string>::first);
    if (found != seen.end()) {
      problems.push_back({where, flag + " varies twice", "the first time is at " + found->second});
      return false;
    }
    seen.emplace_back(flag, where);
    return true;
  };
  const auto read_values = [&](const Json* json, const char* key, std::vector<Varied::Values>& into) {
    if (!is_mapping(json, key, problems)) return;
    for (const auto& [name, value] : json->members()) {
      auto values = values_of(name, value, problems);
      if (values && is_new(values->flag, value.where())) into.push_back(*std::move(values));
    }
  };
  read_values(lists, "lists", varied.lists);
  read_values(grid, "grid", varied.grid);
  for (const Varied::Values& one : varied.lists) {
    const Varied::Values& first = varied.lists.front();
    if (one.values.size() != first.values.size())
      problems.push_back({one.values.front().where,
                          one.flag + " has " + std::to_string(one.values.size()) + " values, " + first.flag +
                              " has " + std::to_string(first.values.size()),
                          "lists give one value each to a job; every combination: put them under grid"});
  }
  double combinations = varied.lists.empty() ? 1 : static_cast<double>(varied.lists.front().values.size());
  for (const Varied::Values& one : varied.grid) combinations *= static_cast<double>(one.values.size());
  if (combinations > kMostCombinations)
    problems.push_back({varied.grid.front().values.front().where,
                        "the grid has more than a million combinations", "sample some of them instead"});
  if (is_mapping(sample, "sample", problems)) {
    for (const auto& [name, value] : sample->members()) {
      const Result<SettingDistribution> distribution = SettingDistribution::from(value, name);
      if (!distribution)
        append(problems, distribution.problems());
      else if (is_new(flag_name(name), value.where()))
        varied.sample.push_back({flag_name(name), *distribution, value.where()});
    }
  }
  return varied;
}

JobSettings settings_of(const Varied& varied, std::uint64_t seed, std::size_t job) {
  JobSettings settings;
  std::size_t rest = job;
  std::vector<std::size_t> place(varied.grid.size());
  for (std::size_t i = varied.grid.size(); i-- > 0;) {
    place[i] = rest % varied.grid[i].values.size();
    rest /= varied.grid[i].values.size();
  }
  for (const Varied::Values& one : varied.lists) settings.push_back(one.values[rest % one.values.size()]);
  for (std::size_t i = 0; i < varied.grid.size(); ++i) settings.push_back(varied.grid[i].values[place[i]]);
  for (const Sampled& one : varied.sample) {
    RandomStream random(derive_seed(seed, "setting " + one.flag, job));
    settings.push_back({one.flag, one.distribution.draw(random), one.where});
  }
  return settings;
}

std::string settings_text(const JobSettings& settings) {
  std::string text;
  for (const Setting& one : settings) text += (text.empty() ? "" : " ") + one.flag + "=" + one.text;
  return text;
}

}  // namespace millrace
