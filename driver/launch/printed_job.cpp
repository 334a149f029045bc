#include "driver/launch/printed_job.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "driver/launch/batch_job.h"
#include "driver/launch/host_launch.h"
#include "driver/launch/shell_words.h"
#include "runtime/base/files.h"
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

/// What a manifest says, whatever its kind.
struct Manifest {
  std::string name;
  std::string image;
  std::string output_dir;
  int ranks = 1;
  bool gpus = false;
  Words command;
  NamedValues variables;
  std::vector<std::pair<std::string, std::string>> inputs;  ///< the key in the ConfigMap, the file here
  std::vector<std::pair<std::string, std::string>> mounts;  ///< the host's path, the path inside
};

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

Result<Manifest> manifest_of(const JobSpec& job) {
  Manifest manifest{.name = object_name(job.name), .image = job.hosts.container.image, .output_dir = {}};
  if (manifest.image.empty())
    return Problem{"--print", "a manifest needs the image that has millrace", "--container IMAGE"};
  manifest.ranks = job.ranks;
  manifest.gpus = job.find("device") && *job.find("device") == "cuda";
  std::error_code error;
  manifest.output_dir =
      fs::path(job.output_dir).is_absolute() ? job.output_dir : "/millrace/" + job.output_dir;
  manifest.variables = variables_of(job);
  manifest.command = rank_command(job);
  Problems problems;
  Bytes bytes = 0;
  for (const AgentInput& input : inputs_of(manifest.command, job.output_dir)) {
    if (!fs::is_regular_file(input.path, error)) continue;  // a folder: a mount of the job
    const std::string key =
        std::to_string(manifest.inputs.size()) + "-" + fs::path(input.path).filename().string();
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
  for (const std::string& mount : job.hosts.container.mounts) {
    const Words parts = split(mount, ':');
    manifest.mounts.emplace_back(parts.front(), parts.size() > 1 ? parts[1] : parts.front());
  }
  if (!problems.empty()) return problems;
  return manifest;
}

/// The inputs and the volume of the output folder, in front of the job.
std::string shared_objects(const Manifest& m) {
  Yaml yaml;
  yaml.line(0, "apiVersion: v1")
      .line(0, "kind: ConfigMap")
      .line(0, "metadata:")
      .line(1, "name: " + m.name + "-inputs");
  yaml.line(0, m.inputs.empty() ? "data: {}" : "data:");
  for (const auto& [key, content] : m.inputs) yaml.line(1, Json(key).dump() + ": " + Json(content).dump());
  yaml.line(0, "---");
  yaml.line(0,
            "# Logs, results and checkpoints of all ranks: a class of storage that several nodes can write.");
  yaml.line(0, "apiVersion: v1").line(0, "kind: PersistentVolumeClaim").line(0, "metadata:");
  yaml.line(1, "name: " + m.name + "-output").line(0, "spec:").line(1, "accessModes: [ReadWriteMany]");
  yaml.line(1, "resources:").line(2, "requests:").line(3, "storage: 10Gi").line(0, "---");
  return yaml.text();
}

/// The pod of a rank. Its number is the index of the pod in its Job.
std::string pod_spec(const Manifest& m, int indent, const std::string& container, const std::string& master,
                     bool with_command) {
  Yaml yaml(indent);
  yaml.line(0, "restartPolicy: Never").line(0, "containers:").line(0, "- name: " + container);
  yaml.line(1, "image: " + Json(m.image).dump());
  if (with_command) {
    yaml.line(1, "command:");
    for (const std::string& word : m.command) yaml.line(1, "- " + Json(word).dump());
  }
  yaml.line(1, "env:");
  yaml.line(1, "- name: RANK").line(2, "valueFrom:").line(3, "fieldRef:");
  yaml.line(4, "fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']");
  NamedValues variables = m.variables;
  for (const auto& [name, value] : NamedValues{{"WORLD_SIZE", std::to_string(m.ranks)},
                                               {"LOCAL_RANK", "0"},
                                               {"LOCAL_WORLD_SIZE", "1"},
                                               {"MASTER_ADDR", master},
                                               {"MASTER_PORT", std::to_string(kPort)}})
    variables.emplace_back(name, value);
  for (const auto& [name, value] : variables)
    yaml.line(1, "- name: " + Json(name).dump()).line(2, "value: " + Json(value).dump());
  if (m.gpus) yaml.line(1, "resources:").line(2, "limits:").line(3, "nvidia.com/gpu: 1");
  yaml.line(1, "volumeMounts:");
  const auto mount = [&](const std::string& name, const std::string& path) {
    yaml.line(1, "- name: " + name).line(2, "mountPath: " + Json(path).dump());
  };
  mount("inputs", kInputs);
  mount("output", m.output_dir);
  mount("shared-memory", "/dev/shm");
  for (std::size_t i = 0; i < m.mounts.size(); ++i) mount("mount-" + std::to_string(i), m.mounts[i].second);
  yaml.line(0, "volumes:");
  yaml.line(0, "- name: inputs").line(1, "configMap:").line(2, "name: " + m.name + "-inputs");
  yaml.line(0, "- name: output")
      .line(1, "persistentVolumeClaim:")
      .line(2, "claimName: " + m.name + "-output");
  yaml.line(0, "- name: shared-memory").line(1, "emptyDir:").line(2, "medium: Memory");
  for (std::size_t i = 0; i < m.mounts.size(); ++i)
    yaml.line(0, "- name: mount-" + std::to_string(i))
        .line(1, "hostPath:")
        .line(2, "path: " + Json(m.mounts[i].first).dump());
  return yaml.text();
}

/// One Job with a pod for each rank, in a JobSet, which gives each pod a name that others resolve.
std::string job_set_spec(const Manifest& m, int indent, const std::string& role, const std::string& label,
                         const std::string& pod) {
  Yaml yaml(indent);
  yaml.line(0, "replicatedJobs:").line(0, "- name: " + role);
  if (label.empty()) yaml.line(1, "replicas: 1");
  yaml.line(1, "template:");
  if (!label.empty()) yaml.line(2, "metadata:").line(3, "labels:").line(4, label);
  yaml.line(2, "spec:");
  yaml.line(3, "parallelism: " + std::to_string(m.ranks)).line(3, "completions: " + std::to_string(m.ranks));
  yaml.line(3, "completionMode: Indexed").line(3, "backoffLimit: 0");
  yaml.line(3, "template:").line(4, "spec:");
  return yaml.text() + pod;
}

Result<std::string> for_job_set(const JobSpec& job) {
  const Result<Manifest> m = manifest_of(job);
  if (!m) return m.problems();
  Yaml yaml;
  yaml.line(0, "apiVersion: jobset.x-k8s.io/v1alpha2").line(0, "kind: JobSet").line(0, "metadata:");
  yaml.line(1, "name: " + m->name).line(0, "spec:");
  yaml.line(1, "network:").line(2, "enableDNSHostnames: true").line(2, "publishNotReadyAddresses: true");
  yaml.line(1, "failurePolicy:").line(2, "maxRestarts: 0");
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
  runtime.line(1, "mlPolicy:").line(2, "numNodes: " + std::to_string(m->ranks));
  runtime.line(1, "template:").line(2, "spec:");
  const std::string master = m->name + "-node-0-0." + m->name;
  const std::string pod = pod_spec(*m, 16, "node", master, false);
  Yaml train;
  train.line(0, "---").line(0, "apiVersion: trainer.kubeflow.org/v1alpha1").line(0, "kind: TrainJob");
  train.line(0, "metadata:").line(1, "name: " + m->name).line(0, "spec:");
  train.line(1, "runtimeRef:").line(2, "apiGroup: trainer.kubeflow.org").line(2, "kind: TrainingRuntime");
  train.line(2, "name: " + m->name).line(1, "trainer:").line(2, "numNodes: " + std::to_string(m->ranks));
  train.line(2, "image: " + Json(m->image).dump()).line(2, "command:");
  for (const std::string& word : m->command) train.line(2, "- " + Json(word).dump());
  return shared_objects(*m) + runtime.text() +
         job_set_spec(*m, 6, "node", "trainer.kubeflow.org/trainjob-ancestor-step: trainer", pod) +
         train.text();
}

}  // namespace

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
