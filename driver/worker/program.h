// The main of a program of one's own: millrace's commands, with models and data sets of its own beside
// millrace's.
#pragma once

#include <string>
#include <vector>

#include "data/loading/dataset.h"
#include "driver/worker/worker_options.h"
#include "models/model.h"

namespace millrace {

/// Runs one of the commands `models`, `profile`, `plan`, `simulate`, `train` and `launch` with every flag
/// that `millrace` has for it, and returns its exit code. `--model` finds own.models too and `--data` finds
/// own.datasets; their options are flags and keys of job files. The program is also its own worker: the ranks
/// that it launches, and those of `millrace launch --worker ./program job.yaml`, run it again.
///   int main(int argc, char** argv) { return millrace::run_program(argc, argv, {.models = {...}}); }
/// 2 with a message where own names are not unique, or an option has another kind than a model of millrace's
/// gives to its name.
int run_program(int argc, char** argv, const Additions& own, const Accelerator& accelerator = {});

}  // namespace millrace
