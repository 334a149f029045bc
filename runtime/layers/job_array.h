// Layers and heads of a job array: B trainings of one form, run as one. Each edge of the model is B tensors,
// one for each job, which may lie in one storage. So neither a kernel over all jobs nor a loop over the jobs
// copies anything, whatever the layout. Between two kernels the B tensors can be one tensor (JobTensors).
// Source of the idea: HFTA (MLSys'21, arXiv 2102.02344).
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

/// Returns `tensors` of equal sizes as one tensor with a leading dimension. It is a view if they lie at equal
/// distances in one storage (distance 0: all are the same tensor), else a copy.
at::Tensor stacked(std::span<const at::Tensor> tensors);
/// Appends the B views of `stacked` [B, ...] to `to`.
void append_unstacked(const at::Tensor& stacked, std::vector<at::Tensor>& to);
/// The tensors of all jobs at one place of the model: `per_job` tensors of each job, job after job. Each of
/// these comes in one of two forms. Apart: every job has its own tensor. Together: the first job's tensor is
/// that of all jobs, [B, ...], and the other jobs' tensors are undefined. Kernels over jobs hand tensors on
/// together; loops over jobs take them apart. A view: the tensors outlive it. Thread-safe.
class JobTensors {
 public:
  JobTensors(std::span<const at::Tensor> all, std::size_t per_job) : all_(all), per_job_(per_job) {}

  /// Tells whether the i-th tensor of a job is together with that of the other jobs.
  bool is_together(std::size_t i) const {
    return all_.size() > per_job_ && all_[i].defined() && !all_[per_job_ + i].defined();
  }
  std::vector<char> which_together() const;  ///< is_together() of each i
  /// Returns the i-th tensor of all jobs, [B, ...]. If they are apart it is stacked().
  at::Tensor of_all_jobs(std::size_t i) const;
  std::vector<at::Tensor> of_all_jobs() const;  ///< for each i
  /// Returns every tensor in its job's own place. `room` holds the tensors if some came together.
  std::span<const at::Tensor> apart(std::vector<at::Tensor>& room) const;

 private:
  std::span<const at::Tensor> all_;
  std::size_t per_job_;
};

/// One row of `--explain`.
struct KernelChoice {
  std::string layer, kind, inputs;
  bool fused = false;
  /// Seconds of forward and backward, the fastest of a few. 0: not measured. Both 0: an earlier run chose.
  double loop_s = 0, fused_s = 0;
};

/// Returns the clock that kernels are chosen by. With one intra-op thread it is the CPU time of the calling
/// thread, which other programs disturb less than the host's time. With several it is the host's time.
Clock& choosing_clock();

/// The kernels that were chosen for the layers of arrays of one size, by layer and shapes. Thread-safe: ranks
/// of one process share it.
class KernelChoices {
 public:
  /// `clock` must outlive the object.
  KernelChoices(ArrayKernels mode, Clock& clock) : mode_(mode), clock_(clock) {}
  ArrayKernels mode() const { return mode_; }
  Clock& clock() const { return clock_; }
  /// Returns the choice that was made under `key` (a hash of layer and shapes); nullopt: none yet.
  std::optional<bool> find(std::uint64_t key) const;
  void add(std::uint64_t key, KernelChoice choice);
  /// Returns the choice that an earlier run made under `key`; nullopt: none is known. It stands for a
  /// measurement.
  std::optional<bool> recalled(std::uint64_t key) const;
  void recall(const std::string& layer, std::uint64_t key, bool fused);
  std::vector<KernelChoice> all() const;  ///< in the order in which they were made
  /// Returns keys and choices by layer, those of an earlier run included. A checkpoint keeps them.
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
/// of job 1, and so on. An input that the jobs share comes B times. The outputs of a job have the shapes of
/// its own layer. With `kernels` false it always runs job by job.
LayerPtr job_layer(std::string name, std::vector<LayerPtr> jobs, std::shared_ptr<KernelChoices> choices,
                   bool kernels);
/// Makes the head of B jobs. Its sums are those of job 0 with its weight, then those of job 1, and so on.
HeadPtr job_head(std::vector<HeadPtr> jobs, std::shared_ptr<KernelChoices> choices);
/// Returns the heads that `head` was made of by job_head(); empty: `head` is not such a head.
std::span<const HeadPtr> jobs_of(const Head& head);

/// Returns for example "job3/".
std::string job_prefix(int job);

}  // namespace millrace
