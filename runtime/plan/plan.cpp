#include "runtime/plan/plan.h"

#include <algorithm>
#include <set>

#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/plan/fingerprint.h"
#include "runtime/plan/limits.h"
#include "runtime/plan/plan_rounds.h"

namespace millrace {
namespace {

constexpr const char* kFormat = "millrace-plan-1";
PlanStage stage_from(const Json& json, Problems& problems) {
  ObjectReader in(json, problems);
  PlanStage stage{.layers = in.strings("layers"),
                  .recompute = in.boolean("recompute", false),
                  .forward_s = in.within("forward_s", 0, kMostStepSeconds, 0),
                  .backward_s = in.within("backward_s", 0, kMostStepSeconds, 0),
                  .parameter_bytes = in.size("parameter_bytes", 0)};
  // A prediction; one that means "more than any limit" saturates.
  stage.peak_bytes = in.integer("peak_bytes", 0);
  if (stage.peak_bytes < 0) in.problem("peak_bytes", "is negative");
  if (const Json* ranks = in.array("ranks")) {
    for (const Json& rank : ranks->items()) {
      if (rank.kind() != Json::Kind::Int) {
        problems.push_back({rank.where(), "a rank must be an integer", {}});
      } else if (rank.as_int() < 0 || rank.as_int() >= kMostFileRanks) {
        problems.push_back({rank.where(),
                            "rank " + std::to_string(rank.as_int()) + " is not from 0 to " +
                                std::to_string(kMostFileRanks - 1),
                            {}});
      } else {
        stage.ranks.emplace_back(static_cast<int>(rank.as_int()));
      }
    }
  }
  in.finish();
  return stage;
}

Json to_json_value(const PlanStage& stage) {
  Json layers = Json::array(), ranks = Json::array();
  for (const std::string& layer : stage.layers) layers.push_back(layer);
  for (RankId rank : stage.ranks) ranks.push_back(rank.value);
  return Json::object({{"ranks", ranks},
                       {"recompute", stage.recompute},
                       {"forward_s", stage.forward_s},
                       {"backward_s", stage.backward_s},
                       {"parameter_bytes", stage.parameter_bytes},
                       {"peak_bytes", stage.peak_bytes},
                       {"layers", layers}});
}

PlannedFor planned_for_from(const Json& json, Problems& problems) {
  ObjectReader in(json, problems);
  PlannedFor planned{.precision = in.string("precision"),
                     .microbatch = in.whole("microbatch", 1, kMostFileSamples),
                     .origin = {.processor = in.string("processor", ""), .date = in.string("profiled", "")}};
  if (const Json* lengths = in.optional_array("lengths")) {
    for (const Json& item : lengths->items()) {
      ObjectReader range(item, problems);
      planned.lengths.push_back({.dimension = range.string("dimension"),
                                 .least = range.size("least", 0),
                                 .most = range.size("most", 0),
                                 .mean = range.within("mean", 0, double(kMostStoredBytes), 0)});
      range.finish();
    }
  }
  if (const Json* hosts = in.optional_array("hosts")) {
    for (const Json& host : hosts->items()) {
      if (host.is_string())
        planned.hosts.push_back(host.as_string());
      else
        problems.push_back({host.where(), "is no name of a host", "NAME:DEVICES"});
    }
  }
  in.finish();
  return planned;
}

Json to_json_value(const PlannedFor& planned) {
  Json json = Json::object({{"precision", planned.precision}, {"microbatch", planned.microbatch}});
  Json lengths = Json::array(), hosts = Json::array();
  for (const LengthRange& range : planned.lengths)
    lengths.push_back(Json::object({{"dimension", range.dimension},
                                    {"least", range.least},
                                    {"most", range.most},
                                    {"mean", range.mean}}));
  for (const std::string& host : planned.hosts) hosts.push_back(host);
  if (!planned.lengths.empty()) json["lengths"] = std::move(lengths);
  if (!planned.hosts.empty()) json["hosts"] = std::move(hosts);
  if (!planned.origin.processor.empty()) json["processor"] = planned.origin.processor;
  if (!planned.origin.date.empty()) json["profiled"] = planned.origin.date;
  return json;
}

/// Returns the keyword of plan files: "flush" for one weight version at the end of a step, "stash" for
/// several.
const char* versions_of(ScheduleKind kind) {
  return is_asynchronous(kind) ? "stash" : "flush";
}

}  // namespace

int Plan::num_ranks() const {
  std::set<RankId> ranks;
  for (const PlanStage& stage : stages) ranks.insert(stage.ranks.begin(), stage.ranks.end());
  return static_cast<int>(ranks.size());
}

Result<Plan> Plan::parse(std::string_view text, const std::string& name) {
  Result<Json> json = parse_json(text, name);
  if (!json) return json.problems();
  Problems problems;
  ObjectReader in(*json, problems);
  if (const std::string format = in.string("format", kFormat); format != kFormat) {
    in.problem("format", "is '" + format + "', expected '" + std::string(kFormat) + "'",
               "make plans with `millrace plan`");
  }
  Plan plan{.model = in.string("model")};
  const std::string schedule = in.string("schedule");
  const Result<ScheduleKind> kind = parse_schedule_kind(schedule, "schedule");
  const bool known = kind.has_value();
  if (known)
    plan.schedule = *kind;
  else if (!schedule.empty())
    in.problem("schedule", kind.problems()[0].what, kind.problems()[0].hint);
  const std::string expected = versions_of(plan.schedule), versions = in.string("versions", expected);
  if (versions != "stash" && versions != "flush")
    in.problem("versions", "is '" + versions + "', expected flush or stash");
  else if (versions != expected && known)
    in.problem("versions", "schedule " + to_string(plan.schedule) + " does not go with versions " + versions,
               "use " + expected);
  plan.microbatches = in.whole("microbatches", 1, kMostFileMicrobatches);
  plan.arrays = in.whole("arrays", 1, kMostFileArrays, 1);
  if (const Json* rounds = in.optional_array("rounds")) plan.rounds = rounds_from(*rounds, problems);
  if (const Json* stages = in.array("stages")) {
    for (const Json& stage : stages->items()) plan.stages.push_back(stage_from(stage, problems));
  }
  if (const Json* crossings = in.optional_array("crossings")) {
    for (const Json& item : crossings->items()) {
      ObjectReader c(item, problems);
      plan.crossings.push_back({StageId(c.whole("from", 0, kMostFileRanks)),
                                StageId(c.whole("to", 0, kMostFileRanks)), c.size("bytes", 0)});
      const auto& made = plan.crossings.back();
      if (made.from.value < 0 || made.to.value <= made.from.value || made.to.value >= plan.num_stages())
        c.problem("to", "must be a later stage of the plan");
      c.finish();
    }
  }
  plan.predicted_step_s = in.within("predicted_step_s", 0, kMostStepSeconds, 0);
  plan.predicted_run_step_s = in.within("predicted_run_step_s", 0, kMostStepSeconds, 0);
  plan.predicted_spread = in.within("predicted_spread", 0, 1e6, 0);
  plan.planner = in.string("planner", "");
  plan.graph_fingerprint = in.string("graph_fingerprint", "");
  plan.cluster_fingerprint = in.string("cluster_fingerprint", "");
  if (const Json* planned = in.optional_object("planned_for"))
    plan.planned_for = planned_for_from(*planned, problems);
  in.finish();
  if (problems.empty()) {
    for (Problem& problem : validate(plan)) {
      problem.where = name + (problem.where.empty() ? "" : ": " + problem.where);
      problems.push_back(problem);
    }
  }
  if (!problems.empty()) return problems;
  return plan;
}

Result<Plan> Plan::load(const std::string& path) {
  Result<std::string> text = read_file(path);
  if (!text) return text.problems();
  return parse(*text, path);
}

std::string Plan::to_json() const {
  Json stage_list = Json::array(), crossing_list = Json::array();
  for (const PlanStage& stage : stages) stage_list.push_back(to_json_value(stage));
  for (const PlanCrossing& c : crossings)
    crossing_list.push_back(Json::object({{"from", c.from.value}, {"to", c.to.value}, {"bytes", c.bytes}}));
  Json json = Json::object({{"format", kFormat},
                            {"model", model},
                            {"schedule", to_string(schedule)},
                            {"versions", versions_of(schedule)},
                            {"microbatches", microbatches},
                            {"predicted_step_s", predicted_step_s}});
  if (arrays > 1) json["arrays"] = arrays;
  if (!rounds.empty()) json["rounds"] = rounds_json(rounds);
  if (predicted_run_step_s > 0) json["predicted_run_step_s"] = predicted_run_step_s;
  if (predicted_spread > 0) json["predicted_spread"] = predicted_spread;
  json["stages"] = std::move(stage_list);
  json["crossings"] = std::move(crossing_list);
  json["planner"] = planner;
  json["graph_fingerprint"] = graph_fingerprint;
  json["cluster_fingerprint"] = cluster_fingerprint;
  if (planned_for.microbatch > 0) json["planned_for"] = to_json_value(planned_for);
  return json.dump(1) + "\n";
}

Status Plan::save(const std::string& path) const {
  return write_file_atomically(path, to_json());
}
std::string Plan::fingerprint() const {
  return fingerprint_of(to_json());
}

Plan uniform_plan(const std::string& model, const std::vector<std::string>& layers, int stages, int replicas,
                  int microbatches, ScheduleKind schedule, int chunks) {
  Plan plan{.model = model, .schedule = schedule, .microbatches = microbatches, .planner = "uniform"};
  const std::size_t count = layers.size();
  const int places = std::max(1, stages / std::max(1, chunks));
  for (int s = 0; s < stages; ++s) {
    PlanStage& stage = plan.stages.emplace_back();
    stage.layers.assign(layers.begin() + static_cast<std::ptrdiff_t>(count * s / stages),
                        layers.begin() + static_cast<std::ptrdiff_t>(count * (s + 1) / stages));
    const int place = chunks == 2 && is_v_shaped(schedule) ? std::min(s, stages - 1 - s) : s % places;
    for (int r = 0; r < replicas; ++r) stage.ranks.emplace_back(place * replicas + r);
  }
  return plan;
}

}  // namespace millrace
