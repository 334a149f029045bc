#include "driver/launch/printed_job.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "data/files/data_kinds.h"
#include "driver/flags/compute_specs.h"
#include "driver/launch/batch_job.h"
#include "driver/launch/host_launch.h"
#include "driver/launch/shell_words.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/numbers.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr int kPort = 29500;                   // torchrun's
constexpr Bytes kMostInputBytes = 900 * kKiB;  // a ConfigMap holds 1 MiB

using Words = std::vector<std::string>;
using NamedValues = std::vector<std::pair<std::string, std::string>>;

Words rank_command(const JobSpec& job) {
  Words words = train_arguments(job);
  words.insert(words.begin(), job.worker.empty() ? (job.find("device") && *job.find("device") == "cuda"
                                                        ? "millrace-worker-cuda"
                                                        : "millrace-worker")
                                                 : job.worker);
  return words;
}

/// The variables of every rank, but for those that say which rank it is.
NamedValues variables_of(const JobSpec& job) {
  NamedValues variables = job.environment;
  const std::string* threads = job.find("threads");
  if (std::ranges::none_of(variables, [](const auto& v) { return v.first == "OMP_NUM_THREADS"; }))
    variables.emplace_back("OMP_NUM_THREADS", threads ? *threads : "1");
  return variables;
}

/// The job's hosts; "HOST" stands for the only one of a job that names none.
std::vector<HostEntry> hosts_of(const JobSpec& job) {
  if (!job.hosts.entries.empty()) return job.hosts.entries;
  return {HostEntry{.user = "", .name = "localhost", .slots = job.ranks}};
}

std::vector<int> counts_of(const JobSpec& job) {
  return job.hosts.entries.empty() ? std::vector<int>{job.ranks} : job.hosts.ranks;
}

Result<std::string> for_torchrun(const JobSpec& job) {
  const std::vector<HostEntry> hosts = hosts_of(job);
  const std::vector<int> counts = counts_of(job);
  if (std::ranges::any_of(counts, [&](int count) { return count != counts.front(); }))
    return Problem{"--print torchrun", "needs as many ranks on each host as on the others",
                   "give hosts equal numbers, or print another form"};
  std::string text;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    Words words{"torchrun",
                "--no-python",
                "--nnodes=" + std::to_string(hosts.size()),
                "--node-rank=" + std::to_string(h),
                "--nproc-per-node=" + std::to_string(counts.front()),
                "--master-addr=" + hosts.front().name,
                "--master-port=" + std::to_string(kPort)};
    const Words rank = rank_command(job);
    words.insert(words.end(), rank.begin(), rank.end());
    std::string set;
    for (const auto& [name, value] : variables_of(job)) set += name + "=" + quoted(value) + " ";
    text += "# on " + hosts[h].name + "\n" + set + command_line(words) + "\n";
  }
  return text;
}

std::string for_mpi(const JobSpec& job) {
  std::string list;
  const std::vector<HostEntry> hosts = hosts_of(job);
  const std::vector<int> counts = counts_of(job);
  for (std::size_t h = 0; h < hosts.size(); ++h)
    list += (h ? "," : "") + hosts[h].name + ":" + std::to_string(counts[h]);
  Words words{"mpirun", "-n", std::to_string(job.ranks), "--host", list, "--bind-to", "none"};
  NamedValues variables = variables_of(job);
  variables.emplace_back("MASTER_ADDR", hosts.front().name);
  variables.emplace_back("MASTER_PORT", std::to_string(kPort));
  for (const auto& [name, value] : variables) words.insert(words.end(), {"-x", name + "=" + value});
  const Words rank = rank_command(job);
  words.insert(words.end(), rank.begin(), rank.end());
  return command_line(words) + "\n";
}

// ---- Kubernetes

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
  NamedValues variables;
  NamedValues secrets;  ///< variables that only the Secret may show
  NamedValues inputs;   ///< the key in the ConfigMap, the content of the file here
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
  for (const auto& [name, value] : job.hosts.kubernetes) {
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
  for (const auto& variable : variables_of(job))
    (is_secret(variable.first) ? manifest.secrets : manifest.variables).push_back(variable);
  manifest.command = rank_command(job);
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

void add_strings(Yaml& yaml, const std::string& field, const NamedValues& values) {
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
  NamedValues limits;
  if (!m.cpu.empty()) limits.emplace_back("cpu", m.cpu);
  if (!m.memory.empty()) limits.emplace_back("memory", m.memory);
  if (m.gpus) limits.emplace_back("nvidia.com/gpu", std::to_string(m.ranks_per_pod));
  NamedValues requests = limits;
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
  NamedValues variables = m.variables;
  for (const auto& [name, value] : NamedValues{{"WORLD_SIZE", std::to_string(m.ranks)},
                                               {"LOCAL_WORLD_SIZE", std::to_string(m.ranks_per_pod)},
                                               {"MASTER_ADDR", master},
                                               {"MASTER_PORT", std::to_string(kPort)}})
    variables.emplace_back(name, value);
  if (is_rank) variables.emplace_back("LOCAL_RANK", "0");
  for (const auto& [name, value] : variables)
    yaml.line(1, "- name: " + Json(name).dump()).line(2, "value: " + Json(value).dump());
  add_resources(
      yaml, m,
      std::ranges::find(variables, std::string("OMP_NUM_THREADS"), &NamedValues::value_type::first)->second);
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

Result<std::string> for_job_set(const JobSpec& job) {
  const Result<Manifest> m = manifest_of(job);
  if (!m) return m.problems();
  Yaml yaml;
  yaml.line(0, "apiVersion: jobset.x-k8s.io/v1alpha2").line(0, "kind: JobSet").line(0, "metadata:");
  yaml.line(1, "name: " + m->name).line(0, "spec:");
  const std::string master = m->name + "-ranks-0-0." + m->name;
  return shared_objects(*m) + yaml.text() +
         job_set_spec(*m, 2, "ranks", "", pod_spec(*m, 12, "rank", master, true));
}

Result<std::string> for_train_job(const JobSpec& job) {
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

}  // namespace

bool is_secret(std::string name) {
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return std::ranges::any_of(std::initializer_list<const char*>{"TOKEN", "KEY", "SECRET", "PASSWORD"},
                             [&](const char* part) { return name.find(part) != std::string::npos; });
}

Result<std::string> printed_job(const JobSpec& job, PrintedForm form, const Words& launch) {
  switch (form) {
    case PrintedForm::Slurm:
      return batch_script(job, launch);
    case PrintedForm::Torchrun:
      return for_torchrun(job);
    case PrintedForm::Mpi:
      return for_mpi(job);
    case PrintedForm::Kubernetes:
      return for_job_set(job);
    case PrintedForm::TrainJob:
      break;
  }
  return for_train_job(job);
}

}  // namespace millrace
