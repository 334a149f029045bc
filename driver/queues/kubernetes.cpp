// Kubernetes: agents in pods that run (kubectl exec), runs as Indexed Jobs, and manifests.
#include <algorithm>
#include <cctype>
#include <filesystem>

#include "data/files/data_kinds.h"
#include "driver/flags/compute_specs.h"
#include "driver/hosts/program_answer.h"
#include "driver/queues/engine.h"
#include "driver/queues/shell_words.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/numbers.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"

namespace millrace {
namespace kubernetes {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

constexpr Bytes kMostInputBytes = 900 * kKiB;  // a ConfigMap holds 1 MiB
// Keys of `kubernetes`, in the order of messages.
constexpr const char* kPodKeys[] = {"ranks-per-pod", "cpu", "memory", "storage"};

Words over_kubectl(const AgentPlace& place) {
  return joined({place.client, "exec", "-i", place.host.name, "--"}, place.agent);
}

/// `memory: 16Gi` is a quantity of Kubernetes: digits and a unit.
Status check_option(const std::string& key, const std::string& value) {
  const bool is_quantity = !value.empty() && std::isdigit(static_cast<unsigned char>(value.front())) &&
                           std::ranges::all_of(value, [](char c) {
                             return std::isalnum(static_cast<unsigned char>(c)) || c == '.';
                           });
  if (std::ranges::find(kPodKeys, key) != std::end(kPodKeys) && is_quantity) return Ok{};
  return Problem{"", ": '" + escaped(value) + "' is no value of a pod",
                 "e.g. kubernetes: {ranks_per_pod: 4, cpu: 16, memory: 64Gi, storage: 100Gi}"};
}

// ---- The runs of a sweep

constexpr int kGraceSeconds = 30;  // from a stop to the end of a pod: time for a checkpoint

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

std::string array(const JobSpec& job, int tasks, const std::string& script, const std::string&) {
  // One that fails is not run again, and ends no other (backoffLimitPerIndex: Kubernetes 1.29).
  return Json::object({{"apiVersion", "batch/v1"},
                       {"kind", "Job"},
                       {"metadata", Json::object({{"name", "sweep-" + new_run_id()}})},
                       {"spec", Json::object({{"completionMode", "Indexed"},
                                              {"completions", tasks},
                                              {"parallelism", tasks},
                                              {"backoffLimitPerIndex", 0},
                                              {"template", Json::object({{"spec", pod_of(job, script)}})}})}})
             .dump(1) +
         "\n";
}

const Json* at(const Json* json, std::initializer_list<const char*> path) {
  for (const char* key : path) json = json && json->is_object() ? json->find(key) : nullptr;
  return json;
}

std::string text_at(const Json* json, std::initializer_list<const char*> path) {
  const Json* found = at(json, path);
  return found && found->is_string() ? found->as_string() : "";
}

Result<std::string> submit(const std::string& path) {
  const Result<Json> manifest = read_json(path);
  if (!manifest) return manifest.problems();
  const Result<std::string> answer = answer_of({"kubectl", "create", "-f", path}, kQueueDeadline);
  if (!answer) return answer.problems();
  return text_at(&*manifest, {"metadata", "name"});
}

/// A pod that waits for what will not come.
bool never_starts(const std::string& reason) {
  constexpr const char* kReasons[] = {"ErrImagePull",         "ImagePullBackOff",
                                      "InvalidImageName",     "CreateContainerConfigError",
                                      "CreateContainerError", "RunContainerError"};
  return std::ranges::any_of(kReasons, [&](const char* known) { return reason == known; });
}

std::optional<QueueRecord> record_of(const Json& pod) {
  const std::optional<int> task =
      number_of<int>(text_at(&pod, {"metadata", "annotations", "batch.kubernetes.io/job-completion-index"}));
  if (!task) return std::nullopt;
  const std::string phase = text_at(&pod, {"status", "phase"});
  QueueRecord record{.task = *task,
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

Result<std::vector<QueueRecord>> ask(const std::string& array, const fs::path&) {
  const Result<std::string> answer =
      answer_of({"kubectl", "get", "pods", "-l", "batch.kubernetes.io/job-name=" + array, "-o", "json"},
                kQueueDeadline);
  if (!answer) return answer.problems();
  const Result<Json> pods = parse_json(*answer, "kubectl get pods");
  if (!pods) return pods.problems();
  const Json* items = at(&*pods, {"items"});
  if (!items || !items->is_array()) return Problem{"kubectl get pods", "answered without items", {}};
  std::vector<QueueRecord> records;
  for (const Json& pod : items->items())
    if (std::optional<QueueRecord> record = record_of(pod)) records.push_back(*std::move(record));
  return records;
}

Status stop(const std::string& array, bool at_once) {
  const int grace = at_once ? 0 : kGraceSeconds;
  const Result<std::string> told =
      answer_of({"kubectl", "delete", "job", array, "--wait=false", "--ignore-not-found",
                 "--grace-period=" + std::to_string(grace)},
                kQueueDeadline);
  return told ? Status(Ok{}) : told.problems();
}

// ---- Manifests

/// Lines of YAML, each with its indentation.
class Yaml {
 public:
  explicit Yaml(int indent = 0) : indent_(indent) {}
  Yaml& line(int depth, const std::string& text) {
    text_ += std::string(static_cast<std::size_t>(indent_ + 2 * depth), ' ') + text + "\n";
    return *this;
  }
  const std::string& text() const { return text_; }

 private:
  int indent_;
  std::string text_;
};

/// A part of the host's disk in a pod.
struct PodMount {
  std::string host, pod;  ///< paths
  bool read_only = false;
};

/// The facts of a manifest, for each of its kinds.
struct Manifest {
  std::string name;
  std::string image;
  std::string output_dir;
  std::string cpu, memory, storage = "10Gi";  ///< quantities of Kubernetes; empty: not named
  int ranks = 1, ranks_per_pod = 1;
  int restarts = 0;
  bool gpus = false;
  Words command;  ///< of a rank
  NamedTexts variables;
  NamedTexts secrets;  ///< variables that only the Secret may show
  NamedTexts inputs;   ///< the key in the ConfigMap, the content of the file here
  std::vector<PodMount> mounts;
  Words uncovered;  ///< paths of data that no mount has

  int pods() const { return ranks / ranks_per_pod; }
};

/// Starts the ranks of a pod, passes SIGTERM on to them, and ends when all have ended. The exit code is that
/// of the first failed rank, where a rank that only lost its peer (5) counts last. A trap ends `wait` early.
constexpr const char* kRanksOfPod = R"(i=0 pids= code=0
trap 'told=1; kill -TERM $pids 2>/dev/null' TERM
while [ $i -lt $LOCAL_WORLD_SIZE ]; do
  RANK=$((POD_INDEX * LOCAL_WORLD_SIZE + i)) LOCAL_RANK=$i "$@" &
  pids="$pids $!" i=$((i + 1))
done
for pid in $pids; do
  one= told=1
  while [ "$told" ]; do
    told=
    wait $pid
    end=$?
    [ $end -eq 127 ] && [ "$one" ] || one=$end
  done
  if [ $one -ne 0 ] && { [ $code -eq 0 ] || [ $code -eq 5 ]; }; then code=$one; fi
done
exit $code
)";

/// Exit codes that another start does not change: the launcher's own restarts stop at them, too.
constexpr ExitCode kFinal[] = {ExitCode::Usage, ExitCode::InputData, ExitCode::Checkpoint, ExitCode::Numeric};

constexpr const char* kInputs = "/millrace/inputs";

/// A name as Kubernetes takes it: lower-case letters, digits and dashes.
std::string object_name(const std::string& name) {
  std::string result;
  for (char c : name) {
    const char low = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    result += std::isalnum(static_cast<unsigned char>(low)) ? low : '-';
  }
  result = result.substr(0, 40);
  while (!result.empty() && !std::isalnum(static_cast<unsigned char>(result.back()))) result.pop_back();
  if (result.empty() || !std::isalpha(static_cast<unsigned char>(result.front()))) result = "job-" + result;
  return result;
}

/// A key of a ConfigMap has these characters only, 253 of them at most. `number` makes it the only one.
std::string config_key(std::size_t number, const std::string& file) {
  std::string key = std::to_string(number) + "-" + file.substr(0, 200);
  for (char& c : key)
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  return key;
}

bool is_below(const std::string& path, const std::string& folder) {
  const fs::path relative =
      fs::path(path).lexically_normal().lexically_relative(fs::path(folder).lexically_normal());
  return !relative.empty() && *relative.begin() != "..";
}

Problems read_pod_options(const JobSpec& job, Manifest& m) {
  for (const auto& [name, value] : job.hosts.options_of("kubernetes")) {
    if (name == "ranks-per-pod")
      m.ranks_per_pod = number_of<int>(value).value_or(0);
    else
      (name == "cpu" ? m.cpu : name == "memory" ? m.memory : m.storage) = value;
  }
  if (m.ranks_per_pod > 0 && m.ranks % m.ranks_per_pod == 0) return {};
  return {
      {"kubernetes.ranks_per_pod",
       std::to_string(m.ranks_per_pod) + " does not divide the job's " + std::to_string(m.ranks) + " ranks",
       "give each pod as many"}};
}

/// Returns the job as pods run it: a restarted one resumes, and must not delete what it resumes from.
JobSpec resumable(JobSpec job) {
  if (job.restarts.most == 0) return job;
  std::erase_if(job.train, [](const auto& flag) { return flag.first == "overwrite"; });
  if (!job.find("resume")) job.train.emplace_back("resume", kResumeAuto);
  return job;
}

Result<Manifest> manifest_of(const JobSpec& given) {
  const JobSpec job = resumable(given);
  Manifest manifest{.name = object_name(job.name), .image = job.hosts.container.image, .output_dir = {}};
  if (manifest.image.empty())
    return Problem{"--print", "a manifest needs the image that has millrace", "--container IMAGE"};
  manifest.ranks = job.ranks;
  manifest.restarts = job.restarts.most;
  manifest.gpus = job.find("device") && *job.find("device") == "cuda";
  std::error_code error;
  manifest.output_dir =
      fs::path(job.output_dir).is_absolute() ? job.output_dir : "/millrace/" + job.output_dir;
  manifest.secrets.emplace_back("MILLRACE_TOKEN", new_run_id() + new_run_id());
  for (const auto& variable : printed_variables(job))
    (is_secret(variable.first) ? manifest.secrets : manifest.variables).push_back(variable);
  manifest.command = printed_command(job);
  for (const std::string& mount : job.hosts.container.mounts) {
    const Words parts = split(mount, ':');
    manifest.mounts.push_back({.host = parts.front(),
                               .pod = parts.size() > 1 ? parts[1] : parts.front(),
                               .read_only = parts.size() > 2 && parts[2] == "ro"});
  }
  const auto is_covered = [&](const std::string& path) {
    return std::ranges::any_of(manifest.mounts, [&](const PodMount& m) { return is_below(path, m.pod); });
  };
  Problems problems = read_pod_options(job, manifest);
  Bytes bytes = 0;
  std::vector<AgentInput> inputs = inputs_of(manifest.command, job.output_dir);
  if (const std::string* data = job.find("data"))  // it may be on the cluster only
    for (const std::string& path : paths_of_data(*data))
      if (std::ranges::find(inputs, path, &AgentInput::path) == inputs.end()) inputs.push_back({path});
  for (const AgentInput& input : inputs) {
    if (is_covered(input.path)) continue;
    if (!fs::is_regular_file(input.path, error)) {
      if (!is_below(input.path, manifest.output_dir)) manifest.uncovered.push_back(input.path);
      continue;
    }
    const std::string key = config_key(manifest.inputs.size(), fs::path(input.path).filename().string());
    const Result<std::string> content = read_regular_file(input.path);
    if (!content) {
      append(problems, content.problems());
      continue;
    }
    if (content->find('\0') != std::string::npos ||
        (bytes += static_cast<Bytes>(content->size())) > kMostInputBytes) {
      problems.push_back(
          {input.path, "is too large, or no text, for a ConfigMap", "put it on a volume: --mounts"});
      continue;
    }
    manifest.inputs.emplace_back(key, *content);
    for (std::string& word : manifest.command)
      if (word == input.path || word.ends_with("=" + input.path))
        word.replace(word.size() - input.path.size(), input.path.size(), std::string(kInputs) + "/" + key);
  }
  for (std::string& word : manifest.command)
    if (word == "--output-dir=" + job.output_dir) word = "--output-dir=" + manifest.output_dir;
  if (!problems.empty()) return problems;
  return manifest;
}

void add_strings(Yaml& yaml, const std::string& field, const NamedTexts& values) {
  yaml.line(0, field + (values.empty() ? ": {}" : ":"));
  for (const auto& [key, value] : values) yaml.line(1, Json(key).dump() + ": " + Json(value).dump());
}

/// The inputs, the secrets and the volume of the output folder, in front of the job.
std::string shared_objects(const Manifest& m) {
  Yaml yaml;
  for (const std::string& path : m.uncovered) {
    const std::string note = "no mount has " + escaped(path) + ": pods do not see it. Hint: mounts: [" +
                             escaped(fs::absolute(path).string()) + "], and the same path in the job";
    log_warning("--print: " + note);
    yaml.line(0, "# NOTE: " + note);
  }
  const auto head = [&](const std::string& kind, const std::string& name) {
    yaml.line(0, "apiVersion: v1").line(0, "kind: " + kind).line(0, "metadata:").line(1, "name: " + name);
  };
  head("ConfigMap", m.name + "-inputs");
  add_strings(yaml, "data", m.inputs);
  yaml.line(0, "---").line(0, "# A new token each time: only pods that know it join the job.");
  head("Secret", m.name + "-secrets");
  yaml.line(0, "type: Opaque");
  add_strings(yaml, "stringData", m.secrets);
  yaml.line(0, "---");
  yaml.line(0,
            "# Logs, results and checkpoints of all ranks: a class of storage that several nodes can write.");
  head("PersistentVolumeClaim", m.name + "-output");
  yaml.line(0, "spec:").line(1, "accessModes: [ReadWriteMany]");
  yaml.line(1, "resources:").line(2, "requests:").line(3, "storage: " + m.storage).line(0, "---");
  return yaml.text();
}

/// The words that a pod runs: a rank, or the shell that starts several.
Words pod_command(const Manifest& m) {
  Words words = m.command;
  if (m.ranks_per_pod > 1) words.insert(words.begin(), {"sh", "-c", kRanksOfPod, "sh"});
  return words;
}

/// Requests and limits. Values that the job names are both; the threads of its ranks are a request.
void add_resources(Yaml& yaml, const Manifest& m, const std::string& threads) {
  NamedTexts limits;
  if (!m.cpu.empty()) limits.emplace_back("cpu", m.cpu);
  if (!m.memory.empty()) limits.emplace_back("memory", m.memory);
  if (m.gpus) limits.emplace_back("nvidia.com/gpu", std::to_string(m.ranks_per_pod));
  NamedTexts requests = limits;
  const int cores = number_of<int>(threads).value_or(1) * m.ranks_per_pod;
  if (m.cpu.empty()) requests.insert(requests.begin(), {"cpu", std::to_string(cores)});
  yaml.line(1, "resources:");
  for (const auto& [field, values] : {std::pair("requests:", requests), {"limits:", limits}}) {
    if (!values.empty()) yaml.line(2, field);
    for (const auto& [name, value] : values) yaml.line(3, name + ": " + Json(value).dump());
  }
}

/// The pod of one rank or more. Its number is the index of the pod in its Job.
std::string pod_spec(const Manifest& m, int indent, const std::string& container, const std::string& master,
                     bool with_command) {
  Yaml yaml(indent);
  yaml.line(0, "restartPolicy: Never").line(0, "containers:").line(0, "- name: " + container);
  yaml.line(1, "image: " + Json(m.image).dump());
  if (with_command) {
    yaml.line(1, "command:");
    for (const std::string& word : pod_command(m)) yaml.line(1, "- " + Json(word).dump());
  }
  yaml.line(1, "env:");
  const bool is_rank = m.ranks_per_pod == 1;
  yaml.line(1, std::string("- name: ") + (is_rank ? "RANK" : "POD_INDEX"));
  yaml.line(2, "valueFrom:").line(3, "fieldRef:");
  yaml.line(4, "fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']");
  for (const auto& [name, value] : m.secrets) {
    yaml.line(1, "- name: " + Json(name).dump()).line(2, "valueFrom:").line(3, "secretKeyRef:");
    yaml.line(4, "name: " + m.name + "-secrets").line(4, "key: " + Json(name).dump());
  }
  NamedTexts variables = m.variables;
  for (const auto& [name, value] : NamedTexts{{"WORLD_SIZE", std::to_string(m.ranks)},
                                              {"LOCAL_WORLD_SIZE", std::to_string(m.ranks_per_pod)},
                                              {"MASTER_ADDR", master},
                                              {"MASTER_PORT", std::to_string(kPrintedPort)}})
    variables.emplace_back(name, value);
  if (is_rank) variables.emplace_back("LOCAL_RANK", "0");
  for (const auto& [name, value] : variables)
    yaml.line(1, "- name: " + Json(name).dump()).line(2, "value: " + Json(value).dump());
  add_resources(
      yaml, m,
      std::ranges::find(variables, std::string("OMP_NUM_THREADS"), &NamedTexts::value_type::first)->second);
  yaml.line(1, "volumeMounts:");
  const auto mount = [&](const std::string& name, const std::string& path) {
    yaml.line(1, "- name: " + name).line(2, "mountPath: " + Json(path).dump());
  };
  mount("inputs", kInputs);
  mount("output", m.output_dir);
  mount("shared-memory", "/dev/shm");
  for (std::size_t i = 0; i < m.mounts.size(); ++i) {
    mount("mount-" + std::to_string(i), m.mounts[i].pod);
    if (m.mounts[i].read_only) yaml.line(2, "readOnly: true");
  }
  yaml.line(0, "volumes:");
  yaml.line(0, "- name: inputs").line(1, "configMap:").line(2, "name: " + m.name + "-inputs");
  yaml.line(0, "- name: output")
      .line(1, "persistentVolumeClaim:")
      .line(2, "claimName: " + m.name + "-output");
  yaml.line(0, "- name: shared-memory").line(1, "emptyDir:").line(2, "medium: Memory");
  for (std::size_t i = 0; i < m.mounts.size(); ++i)
    yaml.line(0, "- name: mount-" + std::to_string(i))
        .line(1, "hostPath:")
        .line(2, "path: " + Json(m.mounts[i].host).dump());
  return yaml.text();
}

/// One Job with all pods, in a JobSet, which gives each pod a name that others resolve. A failed pod fails
/// the Job. The JobSet starts all anew when the old pods are gone, except after an exit code of kFinal.
std::string job_set_spec(const Manifest& m, int indent, const std::string& role, const std::string& label,
                         const std::string& pod) {
  Yaml yaml(indent);
  yaml.line(0, "network:").line(1, "enableDNSHostnames: true").line(1, "publishNotReadyAddresses: true");
  yaml.line(0, "failurePolicy:").line(1, "maxRestarts: " + std::to_string(m.restarts));
  if (m.restarts > 0) {
    yaml.line(1, "restartStrategy: BlockingRecreate").line(1, "rules:").line(1, "- name: final");
    yaml.line(2, "action: FailJobSet").line(2, "onJobFailureReasons: [PodFailurePolicy]");
  }
  yaml.line(0, "replicatedJobs:").line(0, "- name: " + role);
  if (label.empty()) yaml.line(1, "replicas: 1");
  yaml.line(1, "template:");
  if (!label.empty()) yaml.line(2, "metadata:").line(3, "labels:").line(4, label);
  yaml.line(2, "spec:");
  yaml.line(3, "parallelism: " + std::to_string(m.pods()))
      .line(3, "completions: " + std::to_string(m.pods()));
  yaml.line(3, "completionMode: Indexed").line(3, "backoffLimit: 0");
  if (m.restarts > 0) {
    std::string codes;
    for (const ExitCode code : kFinal)
      codes += (codes.empty() ? "" : ", ") + std::to_string(static_cast<int>(code));
    yaml.line(3, "podFailurePolicy:").line(4, "rules:").line(4, "- action: FailJob").line(5, "onExitCodes:");
    yaml.line(6, "operator: In").line(6, "values: [" + codes + "]");
  }
  yaml.line(3, "template:").line(4, "spec:");
  return yaml.text() + pod;
}

Result<std::string> for_job_set(const JobSpec& job, const Words&) {
  const Result<Manifest> m = manifest_of(job);
  if (!m) return m.problems();
  Yaml yaml;
  yaml.line(0, "apiVersion: jobset.x-k8s.io/v1alpha2").line(0, "kind: JobSet").line(0, "metadata:");
  yaml.line(1, "name: " + m->name).line(0, "spec:");
  const std::string master = m->name + "-ranks-0-0." + m->name;
  return shared_objects(*m) + yaml.text() +
         job_set_spec(*m, 2, "ranks", "", pod_spec(*m, 12, "rank", master, true));
}

Result<std::string> for_train_job(const JobSpec& job, const Words&) {
  const Result<Manifest> m = manifest_of(job);
  if (!m) return m.problems();
  Yaml runtime;
  runtime.line(0, "apiVersion: trainer.kubeflow.org/v1alpha1")
      .line(0, "kind: TrainingRuntime")
      .line(0, "metadata:");
  runtime.line(1, "name: " + m->name).line(0, "spec:");
  runtime.line(1, "mlPolicy:").line(2, "numNodes: " + std::to_string(m->pods()));
  runtime.line(1, "template:").line(2, "spec:");
  const std::string master = m->name + "-node-0-0." + m->name;
  const std::string pod = pod_spec(*m, 16, "node", master, false);
  Yaml train;
  train.line(0, "---").line(0, "apiVersion: trainer.kubeflow.org/v1alpha1").line(0, "kind: TrainJob");
  train.line(0, "metadata:").line(1, "name: " + m->name).line(0, "spec:");
  train.line(1, "runtimeRef:").line(2, "apiGroup: trainer.kubeflow.org").line(2, "kind: TrainingRuntime");
  train.line(2, "name: " + m->name).line(1, "trainer:").line(2, "numNodes: " + std::to_string(m->pods()));
  train.line(2, "image: " + Json(m->image).dump()).line(2, "command:");
  for (const std::string& word : pod_command(*m)) train.line(2, "- " + Json(word).dump());
  return shared_objects(*m) + runtime.text() +
         job_set_spec(*m, 6, "node", "trainer.kubeflow.org/trainjob-ancestor-step: trainer", pod) +
         train.text();
}

constexpr BatchQueue kQueue{.extension = "job.json",
                            .submit = submit,
                            .check = check,
                            .requests = requests,
                            .task = "$JOB_COMPLETION_INDEX",
                            .array = array,
                            .ask = ask,
                            .stop = stop,
                            .clean_up = [](const std::string& array) { (void)stop(array, false); }};
constexpr PrintedForm kForms[] = {{"kubernetes", for_job_set}, {"trainjob", for_train_job}};

}  // namespace
}  // namespace kubernetes

constinit const Engine kKubernetes{.name = "kubernetes",
                                   .title = "Kubernetes",
                                   .client = "kubectl",
                                   .through_shell = false,
                                   .shares_paths = false,
                                   .meets_by_name = false,
                                   .command = kubernetes::over_kubectl,
                                   .queue = &kubernetes::kQueue,
                                   .option = kubernetes::check_option,
                                   .forms = kubernetes::kForms};

}  // namespace millrace
