/// \file
/// Everything that is public, at once. See docs/your-model.md.
#pragma once

#include "millrace/data_set.h"
#include "millrace/head.h"
#include "millrace/layer.h"
#include "millrace/model.h"
#include "millrace/plan.h"
#include "millrace/profile.h"
#include "millrace/program.h"
#include "millrace/train.h"
#include "millrace/version.h"
