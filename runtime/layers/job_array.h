// Layers and heads of a job array: B trainings with the same structure, run as one. Each edge of the model is
// B tensors, one per job, which may share one storage. Neither a kernel over all jobs nor a loop over the
// jobs then copies anything, whatever the layout. Between two kernels the B tensors can be one tensor
// (JobTensors). Source of the idea: HFTA (MLSys'21, arXiv 2102.02344).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/array_kernels.h"
#include "runtime/base/clock.h"
#include "runtime/layers/head.h"
#include "runtime/layers/layer.h"

namespace millrace {

/// Returns `tensors` of equal sizes as one tensor with a leading dimension. It is a view if they are equally
/// spaced in one storage (distance 0: all are the same tensor), else a copy.
at::Tensor stacked(std::span<const at::Tensor> tensors);
/// Appends the B views of `stacked` [B, ...] to `to`.
void append_unstacked(const at::Tensor& stacked, std::vector<at::Tensor>& to);
/// The tensors of all jobs on one edge of the model: `per_job` tensors of each job, job after job. Each of
/// them has one of two forms. Apart: every job has its own tensor. Together: the first job's tensor contains
/// all jobs, [B, ...], and the other jobs' tensors are undefined. Kernels over jobs pass tensors together;
/// loops over jobs take them apart. A view: the tensors must outlive it. Thread-safe.
class JobTensors {
 public:
  JobTensors(std::span<const at::Tensor> all, std::size_t per_job) : all_(all), per_job_(per_job) {}

  /// Returns whether the i-th tensor of a job is together with those of the other jobs.
  bool is_together(std::size_t i) const {
    return all_.size() > per_job_ && all_[i].defined() && !all_[per_job_ + i].defined();
  }
  std::vector<char> which_together() const;  ///< is_together() of each i
  /// Returns the i-th tensor of all jobs, [B, ...]. If they are apart, it is stacked().
  at::Tensor of_all_jobs(std::size_t i) const;
  std::vector<at::Tensor> of_all_jobs() const;  ///< for each i
  /// Returns every job's tensors apart. `room` holds the tensors if some were together.
  std::span<const at::Tensor> apart(std::vector<at::Tensor>& room) const;

 private:
  std::span<const at::Tensor> all_;
  std::size_t per_job_;
};

/// One row of `--explain`.
struct KernelChoice {
  std::string layer, kind, inputs;
  bool fused = false;
  /// Seconds of forward and backward, the fastest of a few trials. 0: not measured. Both 0: recalled from an
  /// earlier run.
  double loop_s = 0, fused_s = 0;
};

/// Returns the clock that times kernel trials. With one intra-op thread it is the CPU time of the calling
/// thread, which other programs disturb less than the host's time. With several it is the host's time.
Clock& choosing_clock();

/// The chosen kernels for the layers of arrays of one size, by layer and shapes. Thread-safe: ranks of one
/// process share it.
class KernelChoices {
 public:
  /// `clock` must outlive the object.
  KernelChoices(ArrayKernels mode, Clock& clock) : mode_(mode), clock_(clock) {}
  ArrayKernels mode() const { return mode_; }
  Clock& clock() const { return clock_; }
  /// Returns the choice for `key` (a hash of layer and shapes); nullopt: none yet.
  std::optional<bool> find(std::uint64_t key) const;
  void add(std::uint64_t key, KernelChoice choice);
  /// Returns an earlier run's choice for `key`, which replaces a measurement; nullopt: unknown.
  std::optional<bool> recalled(std::uint64_t key) const;
  void recall(const std::string& layer, std::uint64_t key, bool fused);
  std::vector<KernelChoice> all() const;  ///< in the order of the choices
  /// Returns keys and choices by layer, including those of an earlier run. Checkpoints keep them.
  std::map<std::string, std::map<std::uint64_t, bool>> by_layer() const;

 private:
  ArrayKernels mode_;
  Clock& clock_;
  mutable std::mutex mutex_;  // guards the following members
  std::unordered_map<std::uint64_t, std::size_t> places_;
  std::vector<KernelChoice> made_;
  std::map<std::string, std::map<std::uint64_t, bool>> recalled_;  ///< by layer and key
};

/// Makes the layer `name` of B jobs. Inputs, parameters, buffers and outputs are those of job 0, then those
/// of job 1, and so on. An input that the jobs share occurs B times. The outputs of a job have the shapes of
/// its own layer. With `kernels` false it always runs job by job.
LayerPtr job_layer(std::string name, std::vector<LayerPtr> jobs, std::shared_ptr<KernelChoices> choices,
                   bool kernels);
/// Makes the head of B jobs. Its sums are those of job 0 including its weight, then those of job 1, and so
/// on.
HeadPtr job_head(std::vector<HeadPtr> jobs, std::shared_ptr<KernelChoices> choices);
/// Returns the heads that job_head() combined into `head`; empty if `head` is not from job_head().
std::span<const HeadPtr> jobs_of(const Head& head);

/// Returns for example "job3/".
std::string job_prefix(int job);

}  // namespace millrace
