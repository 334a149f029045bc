// The models' own options as flags and keys. Nothing here knows one of them: they come from the registry, in
// the worker directly, elsewhere by asking the worker. LibTorch-free.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "driver/cli/cli.h"
#include "runtime/plan/model_options.h"

namespace millrace {

using Models = std::vector<ModelDescription>;

/// `spec` with the names of the models at --model, and behind it the options of all of them, each name once.
/// What the user gives of them is added to `given`, which must outlive the spec, for make_model.
CommandSpec with_model_options(CommandSpec spec, const Models& models, GivenOptions& given);

/// Asks for the models when a word could be a model's option. `worker` is the program that the job names;
/// empty: millrace's.
using AskForModels = std::function<Result<Models>(const std::string& worker)>;
/// The worker of any device, as all have the same models; empty: none can be started.
std::string any_worker();
/// Runs `worker models --format json` (a third of a second: it loads LibTorch). Problem: there is none that
/// can be started, or it gave no list within 30 s.
Result<Models> models_of_worker(const std::string& worker = any_worker());

}  // namespace millrace
