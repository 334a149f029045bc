/// \file
/// Models: the description that the engine runs, a chain that writes it down, the options that a model adds
/// to the command line, and the models that come with millrace.
#pragma once

#include "models/chain.h"
#include "models/model.h"
#include "models/registry.h"
#include "runtime/plan/model_options.h"
#include "runtime/stage/batch.h"
#include "runtime/stage/layered_model.h"
#include "runtime/stage/turns.h"
