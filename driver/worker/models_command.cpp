// `millrace models`: what the registry has.
#include <algorithm>
#include <cstdio>

#include "driver/cli/command_support.h"
#include "driver/worker/eager_step.h"
#include "driver/worker/worker_options.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

/// `name`: as given, which is a file for an exported model.
int print_model(const ModelDescription& model, const std::string& name, const Additions& own) {
  const Result<LayeredModel> made = make_model(name, {}, own.models);
  if (!made) return report_problems(made.problems(), ExitCode::Usage);
  std::printf("%s: %s\n%lld parameters in %zu layers\n", name.c_str(), model.summary.c_str(),
              static_cast<long long>(made->num_parameters()), made->layers.size());
  for (const ModelOption& option : model.options) {
    std::printf("  --%s %s  %s [default: %s]\n", option.name.c_str(), option.value.c_str(),
                option.help.c_str(), option.fallback.c_str());
  }
  if (const Status same = check_eager_step(name, {}); !same)
    return report_problems(same.problems(), ExitCode::Usage);
  return 0;
}

void print_list(const Models& models) {
  std::size_t width = 0;
  for (const ModelDescription& model : models) width = std::max(width, model.name.size());
  for (const ModelDescription& model : models)
    std::printf("%-*s  %s\n", static_cast<int>(width), model.name.c_str(), model.summary.c_str());
}

}  // namespace

int models_command(const std::vector<std::string>& args, const Additions& own) {
  return guarded([&] {
    ModelsFlags flags;
    const CommandSpec spec = models_spec(flags);
    const Result<Arguments> arguments = parse_arguments(spec, args);
    if (!arguments) return report_problems(arguments.problems(), ExitCode::Usage);
    if (arguments->wants_help()) return print_help(spec, *arguments);
    if (!arguments->problems().empty()) return report_problems(arguments->problems(), ExitCode::Usage);
    Models models = model_descriptions(own.models);
    if (!flags.model.empty()) {
      const Result<ModelDescription> one = find_model(models, flags.model);
      if (!one) return report_problems(one.problems(), ExitCode::Usage);
      models = {*one};
    }
    if (flags.format == OutputFormat::Json) {
      std::printf("%s\n", to_json(models).dump(1).c_str());
    } else if (!flags.model.empty()) {
      return print_model(models.front(), flags.model, own);
    } else {
      print_list(models);
    }
    return 0;
  });
}

}  // namespace millrace
