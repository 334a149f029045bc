// Small random damage to a schedule.
#pragma once

#include <string>

#include "runtime/base/random.h"
#include "runtime/schedule/schedule.h"

namespace millrace {

/// Changes one thing of `schedule`; says what. Empty if nothing could be changed this time.
inline std::string mutate(Schedule& schedule, const PipelineShape& shape, RandomStream& random) {
  const std::size_t rank = random.below(schedule.ranks.size());
  auto& list = schedule.ranks[rank];
  if (list.empty()) return "";
  const auto place = [&](const std::vector<Action>& of) {
    return static_cast<std::ptrdiff_t>(random.below(of.size()));
  };
  const auto i = place(list), j = place(list);
  Action& a = list[i];
  const std::string which = to_string(a) + " of rank " + std::to_string(rank);
  switch (random.below(12)) {
    case 0:
      list.erase(list.begin() + i);
      return "drop " + which;
    case 1:
      list.insert(list.begin() + j, Action(a));
      return "duplicate " + which;
    case 2:
      if (i + 1 == static_cast<std::ptrdiff_t>(list.size())) return "";
      std::swap(a, list[static_cast<std::size_t>(i) + 1]);
      return "swap with the next " + which;
    case 3:
      std::swap(a, list[j]);
      return "swap " + which;
    case 4: {
      const Action moved = a;
      list.erase(list.begin() + i);
      list.insert(list.begin() + std::min<std::ptrdiff_t>(j, static_cast<std::ptrdiff_t>(list.size())),
                  moved);
      return "move " + which;
    }
    case 5: {
      auto& other = schedule.ranks[random.below(schedule.ranks.size())];
      const Action moved = a;
      list.erase(list.begin() + i);
      other.insert(other.begin() + static_cast<std::ptrdiff_t>(random.below(other.size() + 1)), moved);
      return "move to another rank " + which;
    }
    case 6:
      a.microbatch = MicrobatchId(a.microbatch.value + (random.below(2) ? 1 : -1));
      return "other microbatch " + which;
    case 7:
      a.stage = StageId(a.stage.value + (random.below(2) ? 1 : -1));
      return "other stage " + which;
    case 8:
      a.op = static_cast<Op>(random.below(10));
      return "other operation " + which;
    case 9:
      if (!is_transfer(a.op)) return "";
      a.peer = RankId(static_cast<int>(random.below(schedule.ranks.size() + 1)));
      return "other peer " + which;
    case 10:
      if (!is_transfer(a.op)) return "";
      a.peer_stage =
          StageId(static_cast<int>(random.below(static_cast<std::uint64_t>(shape.num_stages()) + 1)));
      return "other peer stage " + which;
    default:
      std::reverse(list.begin() + std::min(i, j), list.begin() + std::max(i, j));
      return "reverse up to " + which;
  }
}

}  // namespace millrace
