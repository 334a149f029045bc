#include "experiments/io/dlio/mlperf_storage.h"

#include <algorithm>
#include <cmath>

#include "experiments/io/dlio/dlio_output.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr int kSteps = 500, kMemories = 5, kRuns = 5;
constexpr double kReplicates = 0.05;

// These keys describe the storage and the host, not the training.
constexpr const char* kFree[] = {"dataset.data_folder",
                                 "dataset.num_files_train",
                                 "dataset.num_files_eval",
                                 "dataset.num_subfolders_train",
                                 "dataset.num_subfolders_eval",
                                 "dataset.keep_files",
                                 "dataset.generation_buffer_size",
                                 "storage.storage_root",
                                 "storage.storage_type",
                                 "reader.read_threads",
                                 "reader.computation_threads",
                                 "reader.transfer_size",
                                 "reader.prefetch_size",
                                 "reader.odirect",
                                 "reader.dont_use_mmap",
                                 "reader.pin_memory",
                                 "reader.multiprocessing_context",
                                 "train.seed",
                                 "workflow.generate_data",
                                 "workflow.train",
                                 "workflow.checkpoint",
                                 "output.folder",
                                 "output.log_file",
                                 "checkpoint.checkpoint_folder"};

std::string path_of(const std::string& override_word) {
  std::string path = override_word.substr(0, override_word.find('='));
  path.erase(0, std::min(path.find_first_not_of("+~"), path.size()));
  if (path.starts_with("workload.")) path.erase(0, 9);
  return path;
}

}  // namespace

std::vector<std::string> mlperf_workloads() {
  return {"unet3d_a100", "unet3d_h100", "resnet50_a100", "resnet50_h100", "cosmoflow_a100", "cosmoflow_h100"};
}

MlperfSize mlperf_size(const DlioConfig& config, int accelerators, int hosts, Bytes host_memory) {
  MlperfSize size;
  size.samples_for_steps = std::int64_t{kSteps} * config.reader.batch_size * accelerators;
  size.samples_for_memory =
      static_cast<std::int64_t>(std::ceil(static_cast<double>(hosts) * static_cast<double>(host_memory) *
                                          kMemories / config.dataset.record_length));
  size.samples = std::max(size.samples_for_steps, size.samples_for_memory);
  const std::int64_t each = config.dataset.num_samples_per_file;
  size.files = (size.samples + each - 1) / each;
  size.gib =
      static_cast<double>(size.files * each) * config.dataset.record_length / static_cast<double>(kGiB);
  return size;
}

std::vector<std::string> closed_violations(const DlioConfig& config) {
  std::vector<std::string> violations;
  const std::vector<std::string> closed = mlperf_workloads();
  if (std::find(closed.begin(), closed.end(), config.workload) == closed.end())
    violations.push_back("workload " + config.workload + " is no closed workload");
  for (const std::string& word : config.overrides) {
    const std::string path = path_of(word);
    if (std::find(std::begin(kFree), std::end(kFree), path) == std::end(kFree))
      violations.push_back("workload." + path + " may not be changed in a closed run");
  }
  return violations;
}

MlperfVerdict mlperf_verdict(const DlioConfig& config, const MlperfSize& size,
                             const std::vector<MlperfRun>& runs) {
  MlperfVerdict verdict{.reasons = closed_violations(config)};
  const auto fail = [&](std::string why) { verdict.reasons.push_back(std::move(why)); };
  if (config.samples(true) < size.samples)
    fail(printed(
        "the data have %lld samples, at least %lld are needed (%lld for 500 steps, %lld for five times the "
        "memory)",
        static_cast<long long>(config.samples(true)), static_cast<long long>(size.samples),
        static_cast<long long>(size.samples_for_steps), static_cast<long long>(size.samples_for_memory)));
  if (static_cast<int>(runs.size()) != kRuns)
    fail(printed("%zu measured runs, five are needed", runs.size()));
  double mean = 0;
  for (const MlperfRun& run : runs) mean += run.throughput / static_cast<double>(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (std::abs(runs[i].compute_error) > kMostComputeError)
      fail(printed("run %zu is invalid: its computation took %.1f %% %s than asked for, 1 %% is allowed",
                   i + 1, std::abs(runs[i].compute_error), runs[i].compute_error > 0 ? "longer" : "less"));
    if (runs[i].au < config.expected_au * 100)
      fail(printed("run %zu: utilisation %.2f %%, at least %.0f %% is needed", i + 1, runs[i].au,
                   config.expected_au * 100));
    if (std::abs(runs[i].throughput - mean) > kReplicates * mean)
      fail(printed("run %zu: %.2f samples/s is more than 5 %% from the mean %.2f", i + 1, runs[i].throughput,
                   mean));
  }
  verdict.passes = verdict.reasons.empty();
  return verdict;
}

}  // namespace millrace
