#include "runtime/plan/plan_rounds.h"

#include "runtime/plan/limits.h"

namespace millrace {
namespace {

std::string counted(int count, const std::string& what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

/// "4 in 2 arrays".
std::string text_of(const PlanRound& round) {
  return std::to_string(round.jobs) + " in " + counted(round.arrays, "array");
}

}  // namespace

std::vector<int> PlanRound::sizes() const {
  std::vector<int> sizes;
  for (int array = 0; array < arrays; ++array) sizes.push_back(jobs / arrays + (array < jobs % arrays));
  return sizes;
}

int Plan::num_jobs() const {
  int jobs = 0;
  for (const PlanRound& round : rounds) jobs += round.jobs;
  return jobs;
}

Plan Plan::of_round(std::size_t round) const {
  Plan plan = *this;
  const PlanRound& own = rounds.at(round);
  plan.rounds.clear();
  plan.arrays = own.arrays;
  if (own.predicted_step_s != predicted_step_s) plan.predicted_run_step_s = 0;
  plan.predicted_step_s = own.predicted_step_s;
  return plan;
}

std::vector<PlanRound> rounds_from(const Json& list, Problems& problems) {
  std::vector<PlanRound> rounds;
  for (const Json& item : list.items()) {
    ObjectReader in(item, problems);
    rounds.push_back({.jobs = in.whole("jobs", 1, kMostFileArrays),
                      .arrays = in.whole("arrays", 1, kMostFileArrays, 1),
                      .predicted_step_s = in.within("predicted_step_s", 0, kMostStepSeconds, 0)});
    in.finish();
  }
  if (rounds.empty()) problems.push_back({list.where(), "has no rounds", "leave `rounds` out for any jobs"});
  return rounds;
}

Json rounds_json(const std::vector<PlanRound>& rounds) {
  Json list = Json::array();
  for (const PlanRound& round : rounds)
    list.push_back(Json::object(
        {{"jobs", round.jobs}, {"arrays", round.arrays}, {"predicted_step_s", round.predicted_step_s}}));
  return list;
}

Problems round_problems(const Plan& plan) {
  Problems problems;
  for (std::size_t r = 0; r < plan.rounds.size(); ++r) {
    const PlanRound& round = plan.rounds[r];
    const std::string where = "round " + std::to_string(r);
    if (round.arrays < 1 || round.jobs < round.arrays)
      problems.push_back({where,
                          "divides " + counted(round.jobs, "job") + " into " + counted(round.arrays, "array"),
                          "every array has a job at least"});
    if (round.arrays > plan.arrays || (r == 0 && round.arrays != plan.arrays))
      problems.push_back(
          {where, "has " + counted(round.arrays, "array") + ", the plan " + std::to_string(plan.arrays),
           "the first round has the plan's arrays, no other has more"});
  }
  return problems;
}

std::string jobs_of_rounds(const std::vector<PlanRound>& rounds, std::size_t most) {
  std::string text;
  for (std::size_t r = 0; r < rounds.size() && r < most; ++r)
    text += (r == 0 ? "" : ", ") + std::to_string(rounds[r].jobs);
  return rounds.size() > most ? text + ", ..." : text;
}

std::string rounds_text(const std::vector<PlanRound>& rounds) {
  int jobs = 0;
  for (const PlanRound& round : rounds) jobs += round.jobs;
  std::string text = counted(jobs, "job") + " in " + counted(static_cast<int>(rounds.size()), "round") + ":";
  for (std::size_t r = 0; r < rounds.size();) {
    std::size_t end = r;
    const auto same = [&](const PlanRound& other) {
      return other.jobs == rounds[r].jobs && other.arrays == rounds[r].arrays;
    };
    while (end < rounds.size() && same(rounds[end])) ++end;
    text += (r > 0 ? ", then " : " ") +
            (end - r > 1 ? std::to_string(end - r) + " times " + text_of(rounds[r]) : text_of(rounds[r]));
    r = end;
  }
  return text;
}

}  // namespace millrace
