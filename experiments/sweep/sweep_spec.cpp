#include "experiments/sweep/sweep_spec.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "experiments/sweep/partition.h"
#include "runtime/base/flag.h"

namespace millrace {
namespace {

constexpr int kMostJobs = 100'000;
constexpr int kMostRepeats = 10'000;
constexpr int kMostSteps = 1'000'000'000;

std::int64_t read_memory(ObjectReader& in, const char* key) {
  const Json* value = in.any(key);
  if (!value) return 0;
  const std::optional<std::string> text = scalar_text(*value);
  const Result<Bytes> bytes = bytes_from(text ? *text : "");
  if (bytes) return *bytes;
  const Problem& problem = bytes.problems().front();
  in.problem(key, std::string(key) + ": " + problem.what, problem.hint);
  return 0;
}

MeasureSpec read_measure(const Json& json, int num_jobs, Problems& problems) {
  MeasureSpec m;
  ObjectReader in(json, problems);
  m.epochs = in.whole("epochs", 1, 1'000'000, m.epochs);
  m.iterations = in.whole("iterations", 1, kMostSteps, static_cast<int>(m.iterations));
  m.warmup_epochs = in.whole("warmup_epochs", 0, 1'000'000, m.warmup_epochs);
  m.repeats = in.whole("repeats", 1, kMostRepeats, m.repeats);
  m.fused_sizes = in.whole("fused_sizes", 2, 1000, m.fused_sizes);
  m.concurrent_sizes = in.whole("concurrent_sizes", 2, 1000, m.concurrent_sizes);
  m.most = in.whole("most", 1, kMostJobs, std::max(1, num_jobs));
  m.dry_epochs = in.whole("dry_epochs", 1, 1'000'000, 0);
  if (!in.has("dry_epochs")) m.dry_epochs = 0;
  m.dry_iterations = in.whole("dry_iterations", 1, kMostSteps, static_cast<int>(m.dry_iterations));
  m.dry_repeats = in.has("dry_repeats") ? in.whole("dry_repeats", 1, kMostRepeats) : 0;
  m.memory = read_memory(in, "memory");
  if (const Json* sizes = in.optional_array("sizes")) {
    std::set<int> seen;
    for (const Json& size : sizes->items()) {
      if (size.kind() != Json::Kind::Int || size.as_int() < 1 || size.as_int() > num_jobs)
        problems.push_back(
            {size.where(),
             "sizes: expected integers from 1 to the number of jobs (" + std::to_string(num_jobs) + ")",
             {}});
      else
        seen.insert(static_cast<int>(size.as_int()));
    }
    m.sizes.assign(seen.begin(), seen.end());
    if (sizes->size() == 0)
      in.problem("sizes", "sizes is empty", "leave it out: the largest B is found by dry runs");
  }
  if (m.most > num_jobs && problems.empty())
    in.problem("most", "most is more than the number of jobs (" + std::to_string(num_jobs) + ")", {});
  if (m.warmup_epochs >= m.epochs)
    in.problem(in.has("warmup_epochs") ? "warmup_epochs" : "epochs",
               "no epoch is left: " + std::to_string(m.warmup_epochs) + " of " + std::to_string(m.epochs) +
                   " warm up",
               "give more epochs");
  in.finish();
  return m;
}

/// {profile: FILE, ranks: N, memory: SIZE}
SweepPlanSpec read_plan(const Json& json, const std::string& file, Problems& problems) {
  SweepPlanSpec plan;
  ObjectReader in(json, problems);
  plan.profile = in.string("profile");
  std::error_code ignored;
  const auto beside = std::filesystem::path(file).parent_path() / plan.profile;
  if (!std::filesystem::exists(plan.profile, ignored) && std::filesystem::exists(beside, ignored))
    plan.profile = beside.string();
  plan.ranks = in.whole("ranks", 1, 1024, 1);
  plan.memory = read_memory(in, "memory");
  in.finish();
  return plan;
}

std::vector<SweepMode> read_modes(ObjectReader& in, Problems& problems) {
  const Json* list = in.optional_array("modes");
  if (!list) return {SweepMode::Serial};
  std::vector<SweepMode> modes;
  for (const Json& item : list->items()) {
    const Result<std::size_t> mode =
        choice_from(item.is_string() ? item.as_string() : item.dump(), "mode", all_names<SweepMode>());
    if (!mode) {
      for (Problem problem : mode.problems()) {
        problem.where = item.where();
        problems.push_back(std::move(problem));
      }
    } else if (std::ranges::find(modes, static_cast<SweepMode>(*mode)) == modes.end()) {
      modes.push_back(static_cast<SweepMode>(*mode));
    }
  }
  if (list->size() == 0) in.problem("modes", "modes is empty", "serial, concurrent, fused");
  return modes;
}

}  // namespace

bool SweepSpec::has(SweepMode mode) const {
  return std::ranges::find(modes, mode) != modes.end();
}

Problems infusible_problems(const Varied& varied) {
  Problems problems;
  const auto check = [&](const std::string& flag, const std::string& where) {
    if (!is_fusible(flag))
      problems.push_back(
          {where, flag + " cannot differ between the jobs of an array: it decides shapes or what runs",
           "leave fused out of modes, or set it in the job; `millrace tune` makes an array for "
           "each of its values"});
  };
  for (const Varied::Values& one : varied.lists) check(one.flag, one.values.front().where);
  for (const Varied::Values& one : varied.grid) check(one.flag, one.values.front().where);
  for (const Sampled& one : varied.sample) check(one.flag, one.where);
  return problems;
}

Result<SweepSpec> load_sweep(const std::string& path) {
  const Result<Json> json = read_swept_file(path, "a sweep");
  if (!json) return json.problems();
  Problems problems;
  ObjectReader in(*json, problems);
  SweepSpec spec;
  spec.read_head(in, path);
  spec.modes = read_modes(in, problems);
  spec.varied = read_varied(in.any("lists"), in.any("grid"), in.any("sample"), problems);
  const auto combinations =
      static_cast<int>(std::min<std::size_t>(spec.varied.combinations(), kMostJobs + 1));
  if (combinations > kMostJobs)
    problems.push_back({path, "more than " + std::to_string(kMostJobs) + " jobs", "sample some of them"});
  if (in.has("jobs")) {
    spec.num_jobs = in.whole("jobs", 1, kMostJobs);
    if (combinations > 0 && spec.num_jobs != combinations)
      in.problem("jobs",
                 "jobs is " + std::to_string(spec.num_jobs) + ", lists and grid make " +
                     std::to_string(combinations),
                 "leave jobs out");
  } else {
    spec.num_jobs = std::max(1, combinations);
    if (combinations == 0)
      problems.push_back(
          {path, spec.varied.sample.empty() ? "nothing varies" : "does not say how many jobs are drawn",
           spec.varied.sample.empty() ? "give lists, grid or sample" : "add e.g. `jobs: 8`"});
  }
  spec.at_once = in.whole("at_once", 1, kMostJobs, 1);
  if (!in.has("at_once")) spec.at_once = 0;
  spec.array = in.whole("array", 1, kMostJobs, 1);
  if (!in.has("array")) spec.array = 0;
  if (const Json* plan = in.optional_object("plan")) spec.plan_from = read_plan(*plan, path, problems);
  if (spec.plan_from && spec.array > 0)
    in.problem("array", "array and plan both divide the jobs", "leave one of them out");
  spec.results = in.boolean("results", true);
  if (const Json* measure = in.any("measure")) {
    spec.measures = true;
    spec.measure = read_measure(measure->is_null() ? Json::object() : *measure, spec.num_jobs, problems);
  }
  if (in.has("unfused")) spec.unfused = in.strings("unfused");
  const auto needs = [&](const char* key, SweepMode mode) {
    if (in.has(key) && !spec.modes.empty() && !spec.has(mode))
      in.problem(key, std::string(key) + " says nothing without mode " + to_string(mode), "leave it out");
  };
  needs("at_once", SweepMode::Concurrent);
  needs("array", SweepMode::Fused);
  needs("plan", SweepMode::Fused);
  needs("unfused", SweepMode::Fused);
  if (in.has("unfused") && !spec.measures)
    in.problem("unfused", "unfused is a curve that is measured, and there is no measure section", {});
  if (!spec.results && !spec.measures)
    problems.push_back({path, "there is nothing to do", "results: true, or a measure section"});
  if (spec.has(SweepMode::Fused)) append(problems, infusible_problems(spec.varied));
  spec.read_job(
      in, spec.varied, [&] { return spec.num_jobs; }, spec.has(SweepMode::Fused), "sweep", problems);
  in.finish();
  if (!problems.empty()) return problems;
  if (spec.plan_from) {
    Result<SweepPlan> plan =
        plan_sweep(*spec.plan_from, spec.job, all_settings(spec.varied, spec.seed, spec.num_jobs));
    if (!plan) return plan.problems();
    spec.plan = *std::move(plan);
  }
  spec.set_identity(*json);
  return spec;
}

}  // namespace millrace
