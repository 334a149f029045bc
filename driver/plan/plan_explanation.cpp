#include "driver/plan/plan_explanation.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/quantities.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

struct Term {
  const char* name;
  double StepBreakdown::*seconds;
};
constexpr Term kTerms[] = {{"compute", &StepBreakdown::compute_s}, {"imbalance", &StepBreakdown::imbalance_s},
                           {"bubble", &StepBreakdown::bubble_s},   {"update", &StepBreakdown::update_s},
                           {"reduce", &StepBreakdown::reduce_s},   {"transfer", &StepBreakdown::transfer_s},
                           {"lengths", &StepBreakdown::lengths_s}};

/// Nothing is said of lengths where all microbatches are alike.
bool is_shown(const Term& term, const StepBreakdown& parts) {
  return term.seconds != &StepBreakdown::lengths_s || parts.lengths_s != 0;
}

int stages_per_rank(const Plan& plan) {
  std::size_t places = 0;
  for (const PlanStage& stage : plan.stages) places += stage.ranks.size();
  return static_cast<int>(places) / std::max(1, plan.num_ranks());
}

double per_microbatch(const PlanCandidate& candidate) {
  return candidate.plan.predicted_step_s / candidate.plan.microbatches;
}

Json parts_json(const StepBreakdown& parts) {
  Json json = Json::object();
  json["step_s"] = parts.step_s;
  for (const Term& term : kTerms) {
    if (is_shown(term, parts)) json[std::string(term.name) + "_s"] = parts.*term.seconds;
  }
  return json;
}

Bytes largest_peak(const Plan& plan) {
  Bytes peak = 0;
  for (const PlanStage& stage : plan.stages) peak = std::max(peak, stage.peak_bytes);
  return peak;
}

ClusterSpec with_links(const ClusterSpec& cluster, double bandwidth, double latency) {
  ClusterSpec changed = cluster;
  for (ClusterLevel& level : changed.levels) {
    level.bandwidth *= bandwidth;
    level.latency_s *= latency;
  }
  const auto change = [&](ClusterLink& link) {
    link.bandwidth *= bandwidth;
    link.latency_s *= latency;
  };
  change(changed.network);
  for (ClusterHost& host : changed.hosts) change(host.link);
  for (HostLink& pair : changed.links) change(pair.link);
  for (RankLink& pair : changed.rank_links) change(pair.link);
  return changed;
}

bool same_stages(const Plan& a, const Plan& b) {
  if (a.schedule != b.schedule || a.microbatches != b.microbatches || a.num_stages() != b.num_stages())
    return false;
  for (int s = 0; s < a.num_stages(); ++s) {
    if (a.stages[s].layers != b.stages[s].layers || a.stages[s].ranks != b.stages[s].ranks) return false;
  }
  return true;
}

}  // namespace

std::string replicas_text(const Plan& plan) {
  std::string text;
  for (int s = 0; s < plan.num_stages() && s < 12; ++s) {
    text += (s == 0 ? "" : "-") + std::to_string(plan.stages[s].ranks.size());
  }
  return plan.num_stages() > 12 ? text + "-..." : text;
}

std::string spread_text(const Plan& plan) {
  const int chunks = stages_per_rank(plan);
  const std::string ranks = chunks == 1 ? " on " + replicas_text(plan) + " ranks, "
                                        : ", " + std::to_string(chunks) + " on each of " +
                                              std::to_string(plan.num_ranks()) + " ranks, ";
  return std::to_string(plan.num_stages()) + (plan.num_stages() == 1 ? " stage" : " stages") + ranks +
         to_string(plan.schedule) + ", " + std::to_string(plan.microbatches) + " microbatches";
}

std::string comparison_text(const PlannerAnswer& answer, const PlanCandidate& other) {
  const PlanCandidate own{answer.plan, answer.parts};
  std::string text =
      spread_text(other.plan) + printed(": %.3f ms, %+.1f %%", other.plan.predicted_step_s * 1e3,
                                        (per_microbatch(other) / per_microbatch(own) - 1) * 100);
  if (other.plan.microbatches != own.plan.microbatches) text += " a microbatch";
  std::vector<std::pair<double, const char*>> differences;
  for (const Term& term : kTerms) {
    const double difference =
        other.parts.*term.seconds / other.plan.microbatches * own.plan.microbatches - own.parts.*term.seconds;
    if (std::abs(difference) > 1e-4 * own.plan.predicted_step_s)
      differences.emplace_back(difference, term.name);
  }
  std::stable_sort(differences.begin(), differences.end(),
                   [](const auto& a, const auto& b) { return std::abs(a.first) > std::abs(b.first); });
  for (std::size_t i = 0; i < differences.size() && i < 3; ++i) {
    text += (i == 0 ? "; " : ", ") + std::string(differences[i].second) +
            printed(" %+.3f ms", differences[i].first * 1e3);
  }
  if (differences.empty()) text += "; the same within 0.01 %: the simpler one is taken";
  return text;
}

std::string lead_text(const PlannerAnswer& answer) {
  const double spread = answer.plan.predicted_spread;
  if (answer.others.empty() || spread <= 0) return "";
  int within = 0;
  for (const PlanCandidate& other : answer.others) {
    const double lead = per_microbatch(other) / per_microbatch({answer.plan, answer.parts}) - 1;
    within += lead < spread;
  }
  if (within == 0) return "";
  return "the lead over " +
         (within == 1 ? std::string("the runner-up is") : std::to_string(within) + " other ways is") +
         printed(" within the profile's spread of %.1f %%: measure them", spread * 100);
}

std::vector<Sensitivity> sensitivity(const PlannerAnswer& answer, const LayerGraph& graph,
                                     const ClusterSpec& cluster, const PlannerOptions& options) {
  std::vector<Sensitivity> result;
  const auto add = [&](const std::string& change, const ClusterSpec& changed, const PlannerOptions& tried) {
    Sensitivity made{.change = change};
    made.this_plan_s = predict(answer.plan, graph, changed, tried.costs).predicted_step_s;
    const Result<Plan> best = plan_layers(graph, changed, tried);
    if (best) {
      made.best_s = best->predicted_step_s / best->microbatches * answer.plan.microbatches;
      if (made.best_s > made.this_plan_s) {
        made.best_s = made.this_plan_s;  // where not every cut was searched
      } else if (!same_stages(*best, answer.plan)) {
        made.best_plan = spread_text(*best);
      }
    } else {
      made.best_plan = "nothing fits";
    }
    result.push_back(std::move(made));
  };
  add("links half as fast", with_links(cluster, 0.5, 1), options);
  add("links twice as fast", with_links(cluster, 2, 1), options);
  add("ten times the latency", with_links(cluster, 1, 10), options);
  PlannerOptions serial = options;
  serial.costs.reduce =
      options.costs.reduce == ReduceModel::Serial ? ReduceModel::Overlapped : ReduceModel::Serial;
  add(serial.costs.reduce == ReduceModel::Serial ? "all-reduce not overlapped" : "all-reduce overlapped",
      cluster, serial);
  return result;
}

std::string explanation_text(const PlannerAnswer& answer, const std::vector<Sensitivity>& changes) {
  const PlanSearch& search = answer.search;
  std::string text = "searched: ";
  text += search.every_cut ? "every cut (" + std::to_string(search.states) + " places)"
                           : "prefixes of " + std::to_string(search.spaces) + " orders (" +
                                 std::to_string(search.states) + " places each)";
  text += ", " + std::to_string(search.layouts) +
          (search.every_replication ? " layouts (all)" : " likely layouts") + ", " +
          std::to_string(search.simulated) + " plans simulated; " +
          (search.finished ? "the best of these is proved\n" : "a work limit was met: the best found\n");
  if (search.chunked > 0) {
    text += "also: balanced cuts of " + std::to_string(search.chunked) +
            " layouts with several stages per rank, the best improved step by step\n";
  }
  text += printed("step %.3f ms =", answer.plan.predicted_step_s * 1e3);
  bool first = true;
  for (const Term& term : kTerms) {
    if (!is_shown(term, answer.parts)) continue;
    text += std::string(first ? " " : " + ") + term.name + printed(" %.3f", answer.parts.*term.seconds * 1e3);
    first = false;
  }
  text += "\n";
  // On wide layouts no schedule comes near the bound, which then says nothing about the plan.
  constexpr double kFarOff = 1.5;
  if (search.floor_s > 0 && answer.plan.predicted_step_s <= kFarOff * search.floor_s) {
    text += printed("bound: no plan over these layouts takes less than %.3f ms (this one %.1f %% more)\n",
                    search.floor_s * 1e3, (answer.plan.predicted_step_s / search.floor_s - 1) * 100);
  }
  if (answer.others.empty()) text += "runner-up: none, there is no other way to spread the ranks\n";
  for (std::size_t i = 0; i < answer.others.size(); ++i) {
    text += (i == 0 ? "runner-up: " : "      then ") + comparison_text(answer, answer.others[i]) + "\n";
  }
  if (const std::string lead = lead_text(answer); !lead.empty()) text += lead + "\n";
  if (answer.ignoring_memory) {
    text += "without the memory limit: " + comparison_text(answer, *answer.ignoring_memory) + "; needs " +
            bytes_text(largest_peak(answer.ignoring_memory->plan)) + " on a rank\n";
  }
  for (const Sensitivity& s : changes) {
    text += printed("with %s: this plan %.3f ms, best %.3f ms", s.change.c_str(), s.this_plan_s * 1e3,
                    s.best_s * 1e3) +
            (s.best_plan.empty() ? " (the same plan)" : " (" + s.best_plan + ")") + "\n";
  }
  return text;
}

Json explanation_json(const PlannerAnswer& answer, const std::vector<Sensitivity>& changes) {
  const PlanSearch& search = answer.search;
  Json others = Json::array();
  for (const PlanCandidate& other : answer.others) {
    others.push_back(Json::object({{"spread", spread_text(other.plan)},
                                   {"predicted_step_s", other.plan.predicted_step_s},
                                   {"parts", parts_json(other.parts)},
                                   {"why", comparison_text(answer, other)}}));
  }
  Json sensitive = Json::array();
  for (const Sensitivity& s : changes) {
    sensitive.push_back(Json::object({{"change", s.change},
                                      {"this_plan_s", s.this_plan_s},
                                      {"best_s", s.best_s},
                                      {"best_plan", s.best_plan}}));
  }
  Json json = Json::object({{"every_cut", search.every_cut},
                            {"every_replication", search.every_replication},
                            {"finished", search.finished},
                            {"places", search.states},
                            {"layouts", search.layouts},
                            {"simulated", search.simulated},
                            {"floor_s", search.floor_s},
                            {"parts", parts_json(answer.parts)},
                            {"others", others},
                            {"sensitivity", sensitive}});
  if (answer.ignoring_memory) {
    json["ignoring_memory"] =
        Json::object({{"spread", spread_text(answer.ignoring_memory->plan)},
                      {"predicted_step_s", answer.ignoring_memory->plan.predicted_step_s},
                      {"peak_bytes", largest_peak(answer.ignoring_memory->plan)}});
  }
  return json;
}

std::string side_by_side(const std::vector<std::string>& names, const std::vector<PlanCandidate>& plans) {
  std::string text;
  const auto row = [&](const std::string& what, auto&& cell) {
    text += printed("%-24s", what.c_str());
    for (const PlanCandidate& plan : plans) text += printed(" %24s", std::string(cell(plan)).c_str());
    text += "\n";
  };
  const auto ms = [](double seconds) { return printed("%.3f", seconds * 1e3); };
  text += printed("%-24s", "");
  for (const std::string& name : names) {
    text += printed(" %24s", (name.size() > 24 ? "..." + name.substr(name.size() - 21) : name).c_str());
  }
  text += "\n";
  row("schedule", [](const PlanCandidate& p) { return to_string(p.plan.schedule); });
  row("microbatches", [](const PlanCandidate& p) { return std::to_string(p.plan.microbatches); });
  row("ranks of the stages", [](const PlanCandidate& p) { return replicas_text(p.plan); });
  row("step ms", [&](const PlanCandidate& p) { return ms(p.plan.predicted_step_s); });
  for (const Term& term : kTerms) {
    if (std::ranges::none_of(plans, [&](const PlanCandidate& p) { return is_shown(term, p.parts); }))
      continue;
    row(std::string("  ") + term.name + " ms",
        [&](const PlanCandidate& p) { return ms(p.parts.*term.seconds); });
  }
  row("step ms a microbatch", [&](const PlanCandidate& p) { return ms(per_microbatch(p)); });
  row("largest peak", [](const PlanCandidate& p) { return bytes_text(largest_peak(p.plan)); });
  row("sent for a microbatch", [](const PlanCandidate& p) {
    Bytes bytes = 0;
    for (const PlanCrossing& crossing : p.plan.crossings) bytes += 2 * crossing.bytes;
    return bytes_text(bytes);
  });
  int most = 0;
  for (const PlanCandidate& plan : plans) most = std::max(most, plan.plan.num_stages());
  for (int s = 0; s < most && s < 32; ++s) {
    row("stage " + std::to_string(s), [&](const PlanCandidate& p) {
      if (s >= p.plan.num_stages()) return std::string("-");
      const PlanStage& stage = p.plan.stages[s];
      return std::to_string(stage.layers.size()) + " layers, " + ms(stage.forward_s + stage.backward_s) +
             " ms";
    });
  }
  if (plans.size() == 2) {
    const double ratio = per_microbatch(plans[1]) / per_microbatch(plans[0]);
    text += printed("the %s takes %.2f times as long\n", ratio >= 1 ? "second" : "first",
                    ratio >= 1 ? ratio : 1 / ratio);
  }
  return text;
}

Json side_by_side_json(const std::vector<std::string>& names, const std::vector<PlanCandidate>& plans) {
  Json list = Json::array();
  for (std::size_t i = 0; i < plans.size(); ++i) {
    list.push_back(Json::object({{"file", names[i]},
                                 {"spread", spread_text(plans[i].plan)},
                                 {"predicted_step_s", plans[i].plan.predicted_step_s},
                                 {"per_microbatch_s", per_microbatch(plans[i])},
                                 {"peak_bytes", largest_peak(plans[i].plan)},
                                 {"parts", parts_json(plans[i].parts)}}));
  }
  return Json::object({{"plans", list}});
}

}  // namespace millrace
