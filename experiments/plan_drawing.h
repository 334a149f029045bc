// A plan as a picture: stages as boxes, the tensors between them as arrows.
#pragma once

#include <string>

#include "runtime/base/units.h"
#include "runtime/plan/plan.h"

namespace millrace {

/// A self-contained <svg>; text is escaped, colours come from the page's CSS variables.
std::string plan_svg(const Plan& plan);

/// "1.50 MiB", "12 B".
std::string bytes_text(Bytes bytes);
/// "ranks 0-2", "ranks 0, 4, 5", "rank 3".
std::string ranks_text(const std::vector<RankId>& ranks);
/// Four significant digits in the unit that fits: "1.234 s", "12.34 ms", "5.6 us".
std::string duration_text(double seconds);

}  // namespace millrace
