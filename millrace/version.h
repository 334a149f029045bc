/// \file
/// Which millrace this is: MILLRACE_VERSION, and its three numbers.
#pragma once

#include "runtime/base/version.h"
