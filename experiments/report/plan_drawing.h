// A plan as a picture: stages as boxes, the tensors between them as arrows.
#pragma once

#include <string>

#include "runtime/base/quantities.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// A self-contained <svg> at most `width` pixels wide (one box at least): the boxes in lines of as many as
/// fit. Text is escaped, colours come from the page's CSS variables. `id`: of this picture within its page.
std::string plan_svg(const Plan& plan, int width = 1120, const std::string& id = "plan");

}  // namespace millrace
