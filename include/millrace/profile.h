/// \file
/// Measuring a model layer by layer.
#pragma once

#include "runtime/profile/profile_options.h"
#include "runtime/profile/profiler.h"
