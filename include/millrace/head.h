/// \file
/// Heads: what a model ends in, its loss and its other sums.
#pragma once

#include "runtime/layers/head.h"
