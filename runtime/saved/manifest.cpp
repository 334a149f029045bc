#include "runtime/saved/manifest.h"

#include <limits>

#include "runtime/base/json_number.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

Json json_of(const AveragingState& averaging) {
  Json losses = Json::array();
  for (double loss : averaging.losses) losses.push_back(loss);
  return Json::object({{"losses", losses}, {"from", averaging.from}, {"evaluated", averaging.evaluated}});
}

Json json_of(const LossScaleState& state) {
  return Json::object({{"scale", state.scale},
                       {"since_growth", state.since_growth},
                       {"skipped", state.skipped},
                       {"skipped_in_a_row", state.skipped_in_a_row}});
}

/// Reads a count. A count below `least` is an error.
std::int64_t count(ObjectReader& in, const char* key, std::int64_t least = 0) {
  const std::int64_t value = in.integer(key);
  if (value < least)
    in.problem(key, "'" + std::string(key) + "' is " + std::to_string(value) + ", expected at least " +
                        std::to_string(least));
  return value;
}

/// Reads a number, finite or not.
double any_number(ObjectReader& in, const char* key) {
  const Json* value = in.any(key);
  const std::optional<double> number = value ? number_in(*value) : std::nullopt;
  if (!number)
    in.problem(key, "'" + std::string(key) + "' is not a number",
               "expected a number, \"NaN\", \"Infinity\" or \"-Infinity\"");
  return number.value_or(0);
}

LossScaleState loss_scale_from(const Json& json, Problems& problems) {
  ObjectReader in(json, problems);
  LossScaleState state{.scale = any_number(in, "scale"),
                       .since_growth = count(in, "since_growth"),
                       .skipped = count(in, "skipped"),
                       .skipped_in_a_row = count(in, "skipped_in_a_row")};
  in.finish();
  if (!(state.scale > 0)) problems.push_back({json.where(), "a scale must be above 0", {}});
  return state;
}

/// Reads a job's AveragingState. `step` is the job's own step count. If `evaluated` is absent, all
/// evaluations up to that step have been recorded.
AveragingState averaging_from(const Json& json, std::int64_t step, Problems& problems) {
  ObjectReader in(json, problems);
  AveragingState state;
  if (const Json* losses = in.array("losses")) {
    for (const Json& loss : losses->items())  // "none" in older manifests
      state.losses.push_back(number_in(loss).value_or(std::numeric_limits<double>::quiet_NaN()));
  }
  state.from = count(in, "from", -1);
  state.evaluated = in.integer("evaluated", step);
  in.finish();
  return state;
}

BestSoFar best_from(const Json& json, Problems& problems) {
  ObjectReader in(json, problems);
  BestSoFar best{.metric = in.string("metric"),
                 .value = any_number(in, "value"),
                 .step = count(in, "step", -1),
                 .since = count(in, "since")};
  in.finish();
  return best;
}

JobProgress progress_from(const Json& json, const CheckpointInfo& array, Problems& problems) {
  ObjectReader in(json, problems);
  JobProgress job{.step = count(in, "step"),
                  .position = count(in, "position"),
                  .updates = count(in, "updates"),
                  .is_new = in.boolean("new", false)};
  if (const Json* averaging = in.optional_object("averaging"))
    job.averaging = averaging_from(*averaging, job.step, problems);
  if (const Json* scale = in.optional_object("loss_scale"))
    job.loss_scale = loss_scale_from(*scale, problems);
  in.finish();
  if (job.step > array.step || job.position > array.position)
    problems.push_back({json.where(), "a job is at most as far as its array", {}});
  return job;
}

}  // namespace

Json manifest_of(const CheckpointInfo& info, const std::vector<ShardEntry>& shards) {
  Json files = Json::array(), settings = Json::object();
  for (const auto& [file, digest] : shards)
    files.push_back(Json::object({{"file", file}, {"bytes", digest.bytes}, {"xxh3_128", digest.hash.hex()}}));
  for (const auto& [key, value] : info.settings) settings[key] = value;
  Json manifest = Json::object({{"format", kCheckpointFormat},
                                {"run", info.run},
                                {"parent", info.parent},
                                {"model", info.model},
                                {"step", info.step},
                                {"position", info.position},
                                {"updates", info.updates},
                                {"plan", info.plan_fingerprint},
                                {"settings", settings}});
  if (info.loss_scale) manifest["loss_scale"] = json_of(*info.loss_scale);
  if (info.averaging) manifest["averaging"] = json_of(*info.averaging);
  if (!info.tied.empty()) {
    Json tied = Json::object();
    for (const auto& [name, saved] : info.tied) tied[name] = saved;
    manifest["tied"] = tied;
  }
  if (!info.best.empty()) {
    Json best = Json::array();
    for (const BestSoFar& one : info.best)
      if (one.step >= 0 || one.since > 0)
        best.push_back(Json::object(
            {{"metric", one.metric}, {"value", one.value}, {"step", one.step}, {"since", one.since}}));
    manifest["best"] = best;
  }
  if (info.lacks_evaluation) manifest["lacks_evaluation"] = true;
  if (!info.jobs.empty()) {
    Json jobs = Json::array();
    for (const JobProgress& job : info.jobs) {
      Json one = Json::object({{"step", job.step}, {"position", job.position}, {"updates", job.updates}});
      if (job.is_new) one["new"] = true;
      if (job.averaging) one["averaging"] = json_of(*job.averaging);
      if (job.loss_scale) one["loss_scale"] = json_of(*job.loss_scale);
      jobs.push_back(std::move(one));
    }
    manifest["jobs"] = jobs;
  }
  manifest["shards"] = files;
  return manifest;
}

Result<CheckpointInfo> read_info(const ManifestHead& manifest) {
  const Json& json = manifest.json;
  Problems problems;
  CheckpointInfo info;
  ObjectReader in(json, problems);
  in.string("format");
  info = {.run = in.string("run"),
          .parent = in.string("parent"),
          .model = in.string("model"),
          .step = count(in, "step"),
          .position = count(in, "position"),
          .updates = count(in, "updates"),
          .plan_fingerprint = in.string("plan")};
  const Json* settings = in.object("settings");
  if (const Json* scale = in.optional_object("loss_scale"))
    info.loss_scale = loss_scale_from(*scale, problems);
  if (const Json* averaging = in.optional_object("averaging"))
    info.averaging = averaging_from(*averaging, info.step, problems);
  if (const Json* tied = in.optional_object("tied")) {
    for (const auto& [name, saved] : tied->members())
      info.tied.emplace_back(name, saved.is_string() ? saved.as_string() : "");
  }
  if (const Json* best = in.optional_array("best")) {
    for (const Json& one : best->items()) info.best.push_back(best_from(one, problems));
  }
  info.lacks_evaluation = in.boolean("lacks_evaluation", false);
  if (const Json* jobs = in.optional_array("jobs")) {
    for (const Json& job : jobs->items()) info.jobs.push_back(progress_from(job, info, problems));
  }
  in.array("shards");
  in.string("sha256");
  in.finish();
  if (!problems.empty()) return problems;
  for (const auto& [key, value] : settings->members())
    info.settings.emplace_back(key, value.is_string() ? value.as_string() : value.dump());
  const Json* jobs = settings->find("jobs");
  const std::size_t listed = info.jobs.size();
  if (listed > 0 && !(jobs && jobs->is_string() && jobs->as_string() == std::to_string(listed)))
    return Problem{json.where(), "jobs are listed that the settings do not have", {}};
  return info;
}

Result<OpenedStep> open_saved_step(const fs::path& folder, Shards shards) {
  Result<ManifestHead> head = read_manifest_head(folder);
  if (!head) return head.problems();
  Result<CheckpointInfo> info = read_info(*head);
  if (!info) return info.problems();
  OpenedStep step{.head = *std::move(head), .info = *std::move(info), .shards = {}};
  Problems problems;
  for (const ShardEntry& shard : step.head.shards) {
    const fs::path path = folder / shard.file;
    std::error_code error;
    const auto bytes = fs::file_size(path, error);
    if (error && shards == Shards::OfThisHost) continue;
    if (error) {
      problems.push_back({path.string(), "is missing: " + error.message(), {}});
    } else if (static_cast<std::int64_t>(bytes) != shard.digest.bytes) {
      problems.push_back(
          {path.string(),
           "has " + std::to_string(bytes) + " bytes, the manifest says " + std::to_string(shard.digest.bytes),
           "the checkpoint is incomplete; use an older one"});
    } else if (Result<TensorFile> file = TensorFile::open(path.string()); file) {
      step.shards.push_back(*std::move(file));
    } else {
      append(problems, file.problems());
    }
  }
  if (!problems.empty()) return problems;
  return step;
}

}  // namespace millrace
