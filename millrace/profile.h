/// \file
/// Measuring a model layer by layer.
#pragma once

#include "runtime/train/profile_options.h"
#include "runtime/train/profiler.h"
