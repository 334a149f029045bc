/// \file
/// Models: the description that the engine runs, a chain that writes it down, the options that a model adds
/// to the command line, and the models that come with millrace.
#pragma once

#include "models/chain.h"
#include "models/model.h"
#include "models/registry.h"
#include "runtime/model/batch.h"
#include "runtime/model/layered_model.h"
#include "runtime/model/turns.h"
#include "runtime/plan/model_options.h"
