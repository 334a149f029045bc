#include "runtime/train/job_steps.h"

#include <algorithm>
#include <utility>

namespace millrace {

JobSteps::JobSteps(std::vector<std::int64_t> wanted, bool end_together)
    : wanted_(std::move(wanted)),
      joined_(wanted_.size(), 0),
      ended_with_(wanted_.size()),
      end_together_(end_together) {}

void JobSteps::resume(std::int64_t start, std::span<const std::int64_t> own, std::span<const int> arrays) {
  start_ = start;
  for (std::size_t job = 0; job < size(); ++job) {
    joined_[job] = start - own[job];
    if (size() > 1 && !end_together_ && own[job] >= wanted_[job]) ended_with_[job] = own[job];
  }
  std::size_t first = 0;
  for (const int jobs : arrays) {
    const std::size_t end = first + static_cast<std::size_t>(jobs);
    std::int64_t of_others = 0;
    for (std::size_t job = end; job-- > first;)
      if (!ended_with_[job]) of_others = joined_[job];
    for (std::size_t job = first; job < end; ++job)
      if (ended_with_[job]) joined_[job] = of_others;
    first = end;
  }
}

std::int64_t JobSteps::own(std::size_t job, std::int64_t step) const {
  if (ended_with_[job]) return *ended_with_[job];
  const std::int64_t own = step - joined_[job];
  return end_together_ ? own : std::min(own, std::max(wanted_[job], start_ - joined_[job]));
}

bool JobSteps::has_ended(std::size_t job, std::int64_t step) const {
  return ended_with_[job] || (!end_together_ && step - joined_[job] >= wanted_[job]);
}

std::vector<char> JobSteps::ended_at(std::int64_t step) const {
  std::vector<char> ended;
  for (std::size_t job = 0; job < size(); ++job) ended.push_back(has_ended(job, step));
  if (std::ranges::find(ended, 1) == ended.end()) ended.clear();
  return ended;
}

std::int64_t JobSteps::last() const {
  std::int64_t last = 0;
  for (std::size_t job = 0; job < size(); ++job)
    if (!ended_with_[job]) last = std::max(last, end(job));
  return last;
}

bool JobSteps::apart() const {
  return std::ranges::any_of(joined_, [](std::int64_t at) { return at != 0; });
}

std::vector<std::int64_t> wanted_steps(const TrainOptions& options) {
  std::vector<std::int64_t> steps;
  for (const JobOptions& job : options.jobs) steps.push_back(job.steps.value_or(options.steps));
  return steps;
}

bool JobSteps::end_apart() const {
  return std::ranges::any_of(wanted_, [this](std::int64_t steps) { return steps != wanted_.front(); });
}

}  // namespace millrace
