// A plan as a picture: stages as boxes, the tensors between them as arrows.
#pragma once

#include <string>

#include "runtime/plan/plan.h"
#include "runtime/plan/quantities.h"

namespace millrace {

/// A self-contained <svg>; text is escaped, colours come from the page's CSS variables.
std::string plan_svg(const Plan& plan);

}  // namespace millrace
