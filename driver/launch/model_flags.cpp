#include "driver/launch/model_flags.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "driver/hosts/program_answer.h"
#include "driver/hosts/program_paths.h"

namespace millrace {
namespace {

constexpr std::chrono::seconds kAnswerDeadline{30};
constexpr std::size_t kMostNamed = 4;

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

/// "mlp: ", "all but mlp: ", or nothing where all models take it.
std::string takers_text(const Models& models, const std::vector<std::string>& takers) {
  if (takers.size() == models.size()) return "";
  std::vector<std::string> others;
  for (const ModelDescription& model : models) {
    if (std::ranges::find(takers, model.name) == takers.end()) others.push_back(model.name);
  }
  if (others.size() < takers.size() && others.size() <= kMostNamed) return "All but " + joined(others) + ": ";
  return joined(takers) + ": ";
}

/// One flag for all options of this name.
Flag flag_of(const Models& models, const std::string& name) {
  std::map<std::string, std::vector<std::string>> takers_of_text;  // what is said -> by which models
  std::vector<std::string> texts, fallbacks;
  Flag flag{.name = name, .group = "Model"};
  for (const ModelDescription& model : models) {
    const ModelOption* option = model.find(name);
    if (!option) continue;
    flag.value = option->value;
    if (std::ranges::find(fallbacks, option->fallback) == fallbacks.end())
      fallbacks.push_back(option->fallback);
    auto& takers = takers_of_text[option->help];
    if (takers.empty()) texts.push_back(option->help);
    takers.push_back(model.name);
  }
  flag.brief = texts.front();
  for (const std::string& text : texts)
    flag.help += (flag.help.empty() ? "" : " ") + takers_text(models, takers_of_text[text]) + text;
  flag.target.fallback = joined(fallbacks);  // shown only: a model that is not told takes its own
  return flag;
}

}  // namespace

CommandSpec with_model_options(CommandSpec spec, const Models& models, GivenOptions& given) {
  const auto place = std::ranges::find(spec.flags, "model", &Flag::name);
  MILLRACE_CHECK(place != spec.flags.end());
  const bool has_gradients = spec.command != "evaluate" && spec.command != "predict";
  std::vector<std::string> names, options;
  for (const ModelDescription& model : models) {
    names.push_back(model.name);
    for (const ModelOption& option : model.options) {
      const bool takes = has_gradients || !option.of_gradients;
      if (takes && std::ranges::find(options, option.name) == options.end()) options.push_back(option.name);
    }
  }
  place->brief = place->help;
  place->choices = names;
  place->help = joined(names) + ". `millrace models` says more.";
  std::vector<Flag> flags;
  for (const std::string& name : options) {
    flags.push_back(flag_of(models, name));
    flags.back().target.read = [&given, name](const std::vector<std::string>& words) {
      given.push_back({.name = name, .text = words.back()});
      return std::optional<Problem>();  // checked against the model that is chosen
    };
  }
  spec.flags.insert(place + 1, flags.begin(), flags.end());
  return spec;
}

std::string any_worker() {
  for (const ComputeDevice device : {ComputeDevice::Cpu, ComputeDevice::Cuda}) {
    const std::string path = worker_path(device);
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

Result<Models> models_of_worker(const std::string& worker) {
  if (worker.empty())
    return Problem{worker_path(ComputeDevice::Cpu), "is missing: it is the program that knows the models",
                   worker_hint(ComputeDevice::Cpu)};
  const Result<std::string> answer = answer_of({worker, "models", "--format=json"}, kAnswerDeadline);
  if (!answer) {
    const std::string& what = answer.problems().front().what;
    return Problem{worker, "did not list its models (`" + worker + " models`): " + what,
                   what.find("bad_alloc") != std::string::npos
                       ? "it gets too little memory: `ulimit -v` says how much it may have"
                       : "is it of this version? MILLRACE_WORKER or --worker names another"};
  }
  const Result<Json> json = parse_json(*answer, worker + " models");
  if (!json) return json.problems();
  return models_from(*json);
}

}  // namespace millrace
