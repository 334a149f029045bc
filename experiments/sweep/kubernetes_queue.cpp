#include <algorithm>
#include <filesystem>

#include "driver/hosts/program_answer.h"
#include "experiments/sweep/own_queues.h"
#include "runtime/base/files.h"
#include "runtime/base/numbers.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kDeadline{60};
constexpr int kGraceSeconds = 30;  // from a stop to the end of a pod: time for a checkpoint

bool takes(const JobSpec& job) {
  return job.hosts.list.empty();
}

Status check(const JobSpec& job) {
  if (job.hosts.container.image.empty())
    return Problem{"job", "on: kubernetes without hosts needs the image that has millrace",
                   "for example container: mill:1"};
  std::error_code ignored;
  const std::string here = fs::current_path(ignored).string() + "/";
  for (const std::string& mount : job.hosts.container.mounts) {
    const std::vector<std::string> parts = split(mount, ':');
    if (here.starts_with(parts.front() + "/") && parts.size() == 1) return Ok{};
  }
  return Problem{"job", "no mount has this folder, in which the runs of the sweep write: " + here,
                 "a folder that all nodes share, under the same path, for example mounts: [/shared]"};
}

/// A run is one pod, so its ranks share what the pod has.
Json resources_of(const JobSpec& job) {
  const std::string* threads = job.find("threads");
  const int cores = job.ranks * (threads ? number_of<int>(*threads).value_or(1) : 1);
  Json resources = Json::object({{"requests", Json::object({{"cpu", cores}})}});
  if (const std::string* device = job.find("device"); device && *device == "cuda")
    resources["limits"] = Json::object({{"nvidia.com/gpu", job.ranks}});
  return resources;
}

/// The pod, but for its command.
Json pod_of(const JobSpec& job, const std::string& script) {
  std::error_code ignored;
  Json mounts = Json::array(), volumes = Json::array(), variables = Json::array(), command = Json::array(),
       containers = Json::array();
  const auto add = [&](const std::string& name, const std::string& inside, const char* kind, Json volume) {
    mounts.push_back(Json::object({{"name", name}, {"mountPath", inside}}));
    volumes.push_back(Json::object({{"name", name}, {kind, std::move(volume)}}));
  };
  add("shared-memory", "/dev/shm", "emptyDir", Json::object({{"medium", "Memory"}}));
  for (std::size_t i = 0; i < job.hosts.container.mounts.size(); ++i) {
    const std::vector<std::string> parts = split(job.hosts.container.mounts[i], ':');
    add("mount-" + std::to_string(i), parts.size() > 1 ? parts[1] : parts.front(), "hostPath",
        Json::object({{"path", parts.front()}}));
  }
  for (const auto& [name, value] : job.environment)
    variables.push_back(Json::object({{"name", name}, {"value", value}}));
  for (const std::string& word : {std::string("sh"), std::string("-c"), script}) command.push_back(word);
  containers.push_back(Json::object({{"name", "run"},
                                     {"image", job.hosts.container.image},
                                     {"workingDir", fs::current_path(ignored).string()},
                                     {"command", std::move(command)},
                                     {"env", std::move(variables)},
                                     {"resources", resources_of(job)},
                                     {"volumeMounts", std::move(mounts)}}));
  return Json::object({{"restartPolicy", "Never"},
                       {"terminationGracePeriodSeconds", kGraceSeconds},
                       {"containers", std::move(containers)},
                       {"volumes", std::move(volumes)}});
}

std::string requests(const JobSpec& job) {
  return pod_of(job, "").dump();
}

std::vector<std::string> launch() {
  return {"millrace", "launch"};  // of the image
}

Result<std::string> submit(const JobSpec& job, int tasks, const std::string& script,
                           const std::string& folder) {
  const std::string name = "sweep-" + new_run_id();
  // One that fails is not run again, and ends no other (backoffLimitPerIndex: Kubernetes 1.29).
  const Json manifest =
      Json::object({{"apiVersion", "batch/v1"},
                    {"kind", "Job"},
                    {"metadata", Json::object({{"name", name}})},
                    {"spec", Json::object({{"completionMode", "Indexed"},
                                           {"completions", tasks},
                                           {"parallelism", tasks},
                                           {"backoffLimitPerIndex", 0},
                                           {"template", Json::object({{"spec", pod_of(job, script)}})}})}});
  const std::string path = (fs::path(folder) / "array.job.json").string();
  if (const Status written = write_file_atomically(path, manifest.dump(1) + "\n"); !written)
    return written.problems();
  const Result<std::string> answer = answer_of({"kubectl", "create", "-f", path}, kDeadline);
  if (!answer) return answer.problems();
  return name;
}

const Json* at(const Json* json, std::initializer_list<const char*> path) {
  for (const char* key : path) json = json && json->is_object() ? json->find(key) : nullptr;
  return json;
}

std::string text_at(const Json* json, std::initializer_list<const char*> path) {
  const Json* found = at(json, path);
  return found && found->is_string() ? found->as_string() : "";
}

/// A pod that waits for what will not come.
bool never_starts(const std::string& reason) {
  constexpr const char* kReasons[] = {"ErrImagePull",         "ImagePullBackOff",
                                      "InvalidImageName",     "CreateContainerConfigError",
                                      "CreateContainerError", "RunContainerError"};
  return std::ranges::any_of(kReasons, [&](const char* known) { return reason == known; });
}

std::optional<TaskRecord> record_of(const Json& pod) {
  const std::optional<int> task =
      number_of<int>(text_at(&pod, {"metadata", "annotations", "batch.kubernetes.io/job-completion-index"}));
  if (!task) return std::nullopt;
  const std::string phase = text_at(&pod, {"status", "phase"});
  TaskRecord record{.task = *task,
                    .is_running = phase == "Running",
                    .is_over = phase == "Succeeded" || phase == "Failed",
                    .reason = text_at(&pod, {"status", "reason"})};
  const Json* statuses = at(&pod, {"status", "containerStatuses"});
  const Json* container =
      statuses && statuses->is_array() && !statuses->items().empty() ? &statuses->items().front() : nullptr;
  const Json* code = at(container, {"state", "terminated", "exitCode"});
  if (code && code->is_number()) record.exit_code = static_cast<int>(code->as_double());
  if (text_at(container, {"state", "terminated", "reason"}) == "OOMKilled") record.reason = "OOMKilled";
  if (const std::string waits = text_at(container, {"state", "waiting", "reason"}); never_starts(waits)) {
    record.is_over = true;
    record.reason = waits + " " + text_at(container, {"state", "waiting", "message"});
  }
  if (record.is_over && phase != "Succeeded" && record.exit_code == 0) record.exit_code = 1;
  return record;
}

Result<std::vector<TaskRecord>> ask(const std::string& array) {
  const Result<std::string> answer = answer_of(
      {"kubectl", "get", "pods", "-l", "batch.kubernetes.io/job-name=" + array, "-o", "json"}, kDeadline);
  if (!answer) return answer.problems();
  const Result<Json> pods = parse_json(*answer, "kubectl get pods");
  if (!pods) return pods.problems();
  const Json* items = at(&*pods, {"items"});
  if (!items || !items->is_array()) return Problem{"kubectl get pods", "answered without items", {}};
  std::vector<TaskRecord> records;
  for (const Json& pod : items->items())
    if (std::optional<TaskRecord> record = record_of(pod)) records.push_back(*std::move(record));
  return records;
}

void stop(const std::string& array, bool at_once) {
  const int grace = at_once ? 0 : kGraceSeconds;
  (void)answer_of({"kubectl", "delete", "job", array, "--wait=false", "--ignore-not-found",
                   "--grace-period=" + std::to_string(grace)},
                  kDeadline);
}

}  // namespace

const BatchQueue kKubernetesQueue{
    "kubernetes", "Kubernetes", takes,
    check,        requests,     "JOB_COMPLETION_INDEX",
    launch,       "local",      submit,
    ask,          stop,         [](const std::string& array) { stop(array, false); }};

}  // namespace millrace
