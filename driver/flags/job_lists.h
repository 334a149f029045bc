// Flags with a value for each job of a job array: `--lr 0.1 0.2 0.3 --seed 1 2 3 --fused`. LibTorch-free.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/cli/cli.h"
#include "runtime/base/result.h"

namespace millrace {

inline constexpr std::size_t kMostJobs = 1024;

/// A command line taken apart: one for each job, without lists.
struct JobLists {
  std::vector<std::vector<std::string>> args;  ///< by job; at least one
  /// Flags that were given a list, without dashes, with a value for each job.
  std::vector<std::pair<std::string, std::vector<std::string>>> lists;

  bool is_array() const { return args.size() > 1; }
  bool has(const std::string& flag) const;
};

/// Returns whether a flag of `train` may differ between the jobs of an array: numbers of the rule and of the
/// rate, seeds, steps, and the options of models, whose shapes are compared later.
bool may_differ(const std::string& flag);

/// Returns `values` with commas between, where `flag` takes several values in one text ("N[,N...]"); else
/// nothing.
std::optional<std::string> as_one_text(const Flag& flag, const std::vector<std::string>& values);

/// `spec`: of `train`, with the options of models. Without --fused there is one job, as given. Problems:
/// lists of different lengths, a flag that cannot differ within an array, lists without --fused, --jobs that
/// is no number or not the lists' length.
Result<JobLists> take_job_lists(const CommandSpec& spec, const std::vector<std::string>& args);

}  // namespace millrace
