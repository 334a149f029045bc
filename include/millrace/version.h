/// \file
/// The version of millrace: MILLRACE_VERSION, and its three numbers.
#pragma once

#include "runtime/base/version.h"
