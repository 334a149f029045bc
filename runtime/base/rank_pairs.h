#pragma once

#include <set>
#include <utility>

#include "runtime/base/ids.h"

namespace millrace {

/// Directions between ranks: the first rank of a pair sends to the second.
using RankPairs = std::set<std::pair<RankId, RankId>>;

}  // namespace millrace
