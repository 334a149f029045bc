#include "runtime/plan/model_options.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>

#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

using Kind = ModelOption::Kind;
constexpr std::pair<Kind, const char*> kKinds[] = {{Kind::Integer, "integer"}, {Kind::Number, "number"},
                                                   {Kind::Choice, "choice"},   {Kind::Integers, "integers"},
                                                   {Kind::Sizes, "sizes"},     {Kind::Text, "text"},
                                                   {Kind::Path, "path"}};

/// Returns nothing if the text is not a list of integers.
std::optional<std::vector<std::int64_t>> parsed_list(const std::string& text) {
  std::vector<std::int64_t> values;
  for (const std::string& one : split(text, ',')) {
    const auto value = number_of<std::int64_t>(one);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  return values;
}

std::string joined(const std::vector<std::int64_t>& values) {
  std::string text;
  for (const std::int64_t value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}

std::string shown(double number) {
  const bool whole = std::floor(number) == number && std::abs(number) < 1e15;
  return whole ? std::to_string(static_cast<std::int64_t>(number)) : Json(number).dump();
}

std::string name_of(Kind kind) {
  return std::ranges::find(kKinds, kind, &std::pair<Kind, const char*>::first)->second;
}

bool is_choice(const ModelOption& option, const std::string& text) {
  return text.find('|') == std::string::npos &&
         ("|" + option.value + "|").find("|" + text + "|") != std::string::npos;
}

/// Returns the error of a value; nothing if the value is valid.
std::optional<Problem> problem_of(const ModelOption& option, const std::string& text,
                                  const std::string& where) {
  const std::string range = "expected from " + shown(option.minimum) + " to " + shown(option.maximum);
  const auto outside = [&](double value) -> std::optional<Problem> {
    if (value >= option.minimum && value <= option.maximum) return std::nullopt;
    return Problem{where, text + " is out of range", range};
  };
  switch (option.kind) {
    case Kind::Integer:
      if (const auto value = number_of<std::int64_t>(text)) return outside(static_cast<double>(*value));
      return Problem{where, "'" + text + "' is not an integer", range};
    case Kind::Number:
      if (const auto value = number_of<double>(text); value && std::isfinite(*value)) return outside(*value);
      return Problem{where, "'" + text + "' is not a number", range};
    case Kind::Integers:
    case Kind::Sizes: {
      const bool rising = option.kind == Kind::Integers;
      const auto values = parsed_list(text);
      if (!values || (rising && !std::ranges::is_sorted(*values, std::ranges::less_equal())))
        return Problem{where, "'" + text + "' is no list of " + (rising ? "rising " : "") + "integers",
                       "for example " + option.fallback};
      for (const std::int64_t value : *values) {
        if (auto problem = outside(static_cast<double>(value))) return problem;
      }
      return std::nullopt;
    }
    case Kind::Choice:
      if (is_choice(option, text)) return std::nullopt;
      return Problem{where, "'" + text + "' is not one of " + option.value, {}};
    case Kind::Text:
      if (text.find_first_of("\r\n") == std::string::npos) return std::nullopt;
      return Problem{where, "'" + escaped(text) + "' has a line end", "give one line"};
    case Kind::Path: {
      std::error_code error;
      if (text.empty() || std::filesystem::exists(text, error)) return std::nullopt;
      return Problem{where,
                     "'" + escaped(text) + "' is not there" + (error ? " (" + error.message() + ")" : ""),
                     "give the path of a file or folder that exists"};
    }
  }
  return std::nullopt;
}

Problem unknown_option(const ModelDescription& model, const GivenOption& given, const std::string& where) {
  std::vector<std::string> names;
  std::string all;
  for (const ModelOption& option : model.options) {
    names.push_back(option.name);
    all += (all.empty() ? "--" : ", --") + option.name;
  }
  const auto near = nearest_name(given.name, names);
  if (model.name == kExportedModels && (given.name == "image-size" || given.name == "classes"))
    return {where, "is not an option of an exported model, whose sizes are those of its export",
            "leave it out"};
  return {
      where, "is not an option of " + model.name,
      (near ? "did you mean --" + *near + "? " : "") + model.name + " takes " + (all.empty() ? "none" : all)};
}

std::string canonical(const ModelOption& option, const std::string& text) {
  if (option.kind == Kind::Integer) return std::to_string(*number_of<std::int64_t>(text));
  if (option.kind == Kind::Integers || option.kind == Kind::Sizes) return joined(*parsed_list(text));
  return option.kind == Kind::Number ? Json(*number_of<double>(text)).dump() : text;
}

}  // namespace

ModelOption integer_option(std::string name, std::int64_t fallback, OptionRange<std::int64_t> range,
                           std::string help, std::string value) {
  return {.name = std::move(name),
          .kind = Kind::Integer,
          .value = std::move(value),
          .fallback = std::to_string(fallback),
          .minimum = static_cast<double>(range.minimum),
          .maximum = static_cast<double>(range.maximum),
          .help = std::move(help)};
}

ModelOption number_option(std::string name, double fallback, OptionRange<double> range, std::string help,
                          std::string value) {
  return {.name = std::move(name),
          .kind = Kind::Number,
          .value = std::move(value),
          .fallback = shown(fallback),
          .minimum = range.minimum,
          .maximum = range.maximum,
          .help = std::move(help)};
}

ModelOption choice_option(std::string name, std::string fallback, const std::vector<std::string>& choices,
                          std::string help) {
  std::string value;
  for (const std::string& choice : choices) value += (value.empty() ? "" : "|") + choice;
  return {.name = std::move(name),
          .kind = Kind::Choice,
          .value = std::move(value),
          .fallback = std::move(fallback),
          .help = std::move(help)};
}

ModelOption integers_option(std::string name, const std::vector<std::int64_t>& fallback,
                            OptionRange<std::int64_t> range, std::string help, std::string value) {
  return {.name = std::move(name),
          .kind = Kind::Integers,
          .value = std::move(value),
          .fallback = joined(fallback),
          .minimum = static_cast<double>(range.minimum),
          .maximum = static_cast<double>(range.maximum),
          .help = std::move(help)};
}

ModelOption sizes_option(std::string name, const std::vector<std::int64_t>& fallback,
                         OptionRange<std::int64_t> range, std::string help, std::string value) {
  ModelOption option = integers_option(std::move(name), fallback, range, std::move(help), std::move(value));
  option.kind = ModelOption::Kind::Sizes;
  return option;
}

ModelOption text_option(std::string name, std::string fallback, std::string help, std::string value) {
  return {.name = std::move(name),
          .kind = Kind::Text,
          .value = std::move(value),
          .fallback = std::move(fallback),
          .help = std::move(help)};
}

ModelOption path_option(std::string name, std::string fallback, std::string help, std::string value) {
  ModelOption option = text_option(std::move(name), std::move(fallback), std::move(help), std::move(value));
  option.kind = Kind::Path;
  return option;
}

ModelOption recorded(ModelOption option) {
  option.recorded = true;
  return option;
}

const ModelOption* ModelDescription::find(std::string_view option) const {
  const auto found = std::ranges::find(options, option, &ModelOption::name);
  return found == options.end() ? nullptr : &*found;
}

const std::string& ModelOptions::text(std::string_view name) const {
  const auto found = values_.find(name);
  MILLRACE_CHECK(found != values_.end(), "the model describes no option " << name);
  return found->second;
}

std::int64_t ModelOptions::integer(std::string_view name) const {
  const auto value = number_of<std::int64_t>(text(name));
  MILLRACE_CHECK(value, "option " << name << " is no integer");
  return *value;
}

double ModelOptions::number(std::string_view name) const {
  const auto value = number_of<double>(text(name));
  MILLRACE_CHECK(value, "option " << name << " is no number");
  return *value;
}

std::vector<std::int64_t> ModelOptions::integers(std::string_view name) const {
  const auto values = parsed_list(text(name));
  MILLRACE_CHECK(values, "option " << name << " is no list of integers");
  return *values;
}

Result<ModelOptions> options_for(const ModelDescription& model, const GivenOptions& given) {
  Problems problems;
  ModelOptions options;
  for (const ModelOption& option : model.options) options.values_[option.name] = option.fallback;
  for (const GivenOption& one : given) {
    const std::string where = one.where.empty() ? "--" + one.name : one.where;
    const ModelOption* option = model.find(one.name);
    if (!option) {
      problems.push_back(unknown_option(model, one, where));
    } else if (auto problem = problem_of(*option, one.text, where)) {
      problems.push_back(*std::move(problem));
    } else {
      options.values_[one.name] = one.text;
    }
  }
  if (!problems.empty()) return problems;
  return options;
}

std::vector<std::pair<std::string, std::string>> recorded_values(const ModelDescription& model,
                                                                 const ModelOptions& options) {
  std::vector<std::pair<std::string, std::string>> values;
  for (const ModelOption& option : model.options) {
    if (option.recorded) values.emplace_back(option.name, canonical(option, options.text(option.name)));
  }
  return values;
}

Result<ModelDescription> find_model(const std::vector<ModelDescription>& models, const std::string& name) {
  const auto found = std::ranges::find(models, name, &ModelDescription::name);
  if (found != models.end()) return *found;
  if (const auto exported = std::ranges::find(models, kExportedModels, &ModelDescription::name);
      exported != models.end() && name.ends_with(".pt2"))
    return *exported;
  std::vector<std::string> names;
  std::string all;
  for (const ModelDescription& model : models) {
    names.push_back(model.name);
    all += (all.empty() ? "" : ", ") + model.name;
  }
  const auto near = nearest_name(name, names);
  return Problem{"--model", "unknown model '" + name + "'",
                 near ? "did you mean '" + *near + "'? Known: " + all : "known: " + all};
}

Problems validate(const std::vector<ModelDescription>& models) {
  Problems problems;
  std::set<std::string> names;
  std::map<std::string, const ModelOption*> options;
  for (const ModelDescription& model : models) {
    const std::string where = "model " + model.name;
    if (!names.insert(model.name).second) problems.push_back({where, "is there twice", {}});
    std::set<std::string> own;
    for (const ModelOption& option : model.options) {
      if (!own.insert(option.name).second)
        problems.push_back({where, "has option " + option.name + " twice", {}});
      // A path is checked when it is used, not when the program starts.
      if (option.kind != Kind::Path) {
        if (const auto wrong = problem_of(option, option.fallback, where)) problems.push_back(*wrong);
      }
      const auto [other, is_new] = options.emplace(option.name, &option);
      if (!is_new && (other->second->kind != option.kind || other->second->value != option.value))
        problems.push_back({where, "option " + option.name + " is of another kind in another model", {}});
    }
  }
  return problems;
}

Json to_json(const std::vector<ModelDescription>& models) {
  Json list = Json::array();
  for (const ModelDescription& model : models) {
    Json options = Json::array();
    for (const ModelOption& option : model.options) {
      options.push_back(Json::object({{"name", option.name},
                                      {"kind", name_of(option.kind)},
                                      {"value", option.value},
                                      {"default", option.fallback},
                                      {"minimum", option.minimum},
                                      {"maximum", option.maximum},
                                      {"help", option.help},
                                      {"recorded", option.recorded},
                                      {"of_gradients", option.of_gradients}}));
    }
    list.push_back(Json::object({{"name", model.name}, {"summary", model.summary}, {"options", options}}));
  }
  return Json::object({{"format", "millrace-models-1"}, {"models", list}});
}

Result<std::vector<ModelDescription>> models_from(const Json& json) {
  Problems problems;
  std::vector<ModelDescription> models;
  ObjectReader in(json, problems);
  in.string("format");
  const Json* list = in.array("models");
  in.finish();
  if (!problems.empty()) return problems;
  for (const Json& entry : list->items()) {
    ObjectReader model(entry, problems);
    models.push_back({.name = model.string("name"), .summary = model.string("summary")});
    const Json* options = model.array("options");
    model.finish();
    if (!options) continue;
    for (const Json& one : options->items()) {
      ObjectReader option(one, problems);
      const std::string kind = option.string("kind");
      const auto known = std::ranges::find(kKinds, kind, &std::pair<Kind, const char*>::second);
      if (known == std::end(kKinds)) option.problem("kind", "'" + kind + "' is no kind of option");
      models.back().options.push_back({.name = option.string("name"),
                                       .kind = known == std::end(kKinds) ? Kind::Choice : known->first,
                                       .value = option.string("value"),
                                       .fallback = option.string("default"),
                                       .minimum = option.number("minimum"),
                                       .maximum = option.number("maximum"),
                                       .help = option.string("help"),
                                       .recorded = option.boolean("recorded", false),
                                       .of_gradients = option.boolean("of_gradients", false)});
      option.finish();
    }
  }
  if (!problems.empty()) return problems;
  return models;
}

}  // namespace millrace
