// `millrace translate --ranks N` as the user types it: starts the ranks on this host. LibTorch-free.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/plan/plan.h"

namespace millrace {

struct TranslateFlags;  // driver/flags/translate_spec.h

/// The ranks that translate: `ranks` processes. Each run of `stages` processes holds one model.
struct TranslateRanks {
  std::optional<Plan> plan;  ///< of --plan
  int stages = 1, ranks = 1;
};
/// Reads the plan. Problems: it cannot be read; numbers that do not go together.
Result<TranslateRanks> translate_ranks(const TranslateFlags& flags);

/// True if these are arguments of `translate` for several ranks, and this process is no rank of a job: the
/// caller must start them.
bool starts_translate_ranks(const std::vector<std::string>& args);

/// Starts the ranks and ends all when one fails. 0; 2 for what cannot start; the first failing rank's code.
int launch_translate(const std::vector<std::string>& args);

}  // namespace millrace
