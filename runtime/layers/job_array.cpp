#include "runtime/layers/job_array.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <typeinfo>
#include <utility>

#include <time.h>

#include <ATen/Parallel.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/random.h"
#include "runtime/base/units.h"
#include "runtime/layers/carrying_layer.h"
#include "runtime/layers/job_kernels.h"

namespace millrace {
namespace {

// A kernel must win by more than the measurement error. If a job's call takes longer than its launch, the
// kernel must win by more: in isolation, a layer finds other caches and layouts than between its neighbours.
constexpr double kGain = 0.97, kGainOfLongCalls = 0.85;
constexpr double kLongCall = 300e-6;  // seconds of forward and backward of one job
constexpr int kMeasurements = 3;
// Time that a job's call keeps each thread busy. Longer calls gain nothing from being combined. Kernels that
// only save launches are then not tried: a trial would take time, and memory for all jobs at once.
constexpr double kNotTried = 2e-3;

/// The clock of choosing_clock(), for one and for several intra-op threads.
class ChoosingClock final : public Clock {
 public:
  TimePoint now() const override {
    timespec time{};
    if (at::get_num_threads() > 1 || ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0)
      return steady_clock().now();
    return TimePoint(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
  }
  void sleep_until(TimePoint when) override { steady_clock().sleep_until(when); }
  bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, TimePoint until,
                  const std::function<bool()>& ready) override {
    return steady_clock().wait_until(lock, changed, until, ready);
  }
  void notify_all(std::condition_variable& changed) override { changed.notify_all(); }
};

/// Makes a view without the dispatcher: an array makes B views for every layer.
at::Tensor view_of(const at::Tensor& of, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                   std::int64_t offset) {
  at::Tensor view = at::detail::make_tensor<at::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(of.storage()),
                                                            of.key_set(), of.dtype());
  at::TensorImpl* impl = view.unsafeGetTensorImpl();
  impl->set_storage_offset(offset);
  impl->set_sizes_and_strides(sizes, strides);
  return view;
}

std::string text_of(std::span<const at::Tensor> inputs, std::size_t per_job, bool training) {
  std::ostringstream text;
  for (std::size_t i = 0; i < per_job; ++i) {
    const bool shared = inputs.size() > per_job && inputs[i].is_same(inputs[i + per_job]);
    text << (i ? " " : "") << inputs[i].sizes() << (shared ? " shared" : "");
  }
  if (!training) text << " evaluated";
  return text.str();
}

/// Returns a job's tensor as in its own run: dense and aligned. A part of an array's tensor may be aligned
/// differently, which may change a BLAS's order of summation.
at::Tensor as_own(const at::Tensor& t) {
  if (!t.defined()) return t;
  constexpr std::uintptr_t kAlignment = 64;  // bytes; the alignment of LibTorch's allocator and of ours
  const bool begins =
      !t.device().is_cpu() || reinterpret_cast<std::uintptr_t>(t.const_data_ptr()) % kAlignment == 0;
  return begins ? t.contiguous() : t.clone(at::MemoryFormat::Contiguous);
}

/// Stores the i-th tensors of all jobs, `whole` [B, ...], in `all`: together or apart (JobTensors).
void put(at::Tensor whole, std::vector<at::Tensor>& all, std::size_t i, bool as_one) {
  if (as_one) {
    all[i] = std::move(whole);
    return;
  }
  std::vector<at::Tensor> parts;
  parts.reserve(whole.size(0));
  append_unstacked(whole, parts);
  const std::size_t per_job = all.size() / parts.size();
  for (std::size_t b = 0; b < parts.size(); ++b) all[b * per_job + i] = std::move(parts[b]);
}

/// Prepares the data that a layer or head of an array keeps, if any. Saved::inner has the Saved of its
/// kernel, or one per job. Saved::numbers starts with 1 if the kernel runs. A 1 or 0 for each input of a job
/// follows: whether the input was together, so that its gradient may be too.
void keep_jobs(Saved* saved, bool fused, std::size_t jobs) {
  if (!saved) return;
  saved->numbers = {fused};
  saved->inner = std::vector<Saved>(fused ? 1 : jobs);
}
bool is_fused(const Saved& saved) {
  return saved.numbers.front() != 0;
}
void keep_together(Saved& saved, const std::vector<char>& which) {
  saved.numbers.insert(saved.numbers.end(), which.begin(), which.end());
}
bool came_together(const Saved& saved, std::size_t input) {
  return saved.numbers[1 + input] != 0;
}

/// Runs the jobs as additional samples of a layer that folds().
class FoldedJobs final : public Layer, public OneCall {
 public:
  explicit FoldedJobs(LayerPtr layer) : layer_(std::move(layer)) {}
  std::string kind() const override { return layer_->kind(); }
  Shape output_shape(std::span<const Shape> inputs) const override { return layer_->output_shape(inputs); }

  at::Tensor forward(std::span<const at::Tensor> inputs, std::span<const at::Tensor>, std::span<at::Tensor>,
                     const CallContext& context, Saved* saved) const override {
    Fold fold{.jobs = inputs[0].size(0), .samples_first = !layer_->draws() && lies_samples_first(inputs[0])};
    std::vector<at::Tensor> folded;
    for (const at::Tensor& input : inputs) folded.push_back(fold.together(input));
    if (saved) {
      saved->numbers = {fold.jobs, fold.samples_first};
      saved->inner = std::vector<Saved>(1);
    }
    return fold.apart(layer_->forward(folded, {}, {}, context, saved ? &saved->inner.front() : nullptr));
  }
  std::vector<at::Tensor> backward_input(const at::Tensor& grad, std::span<const at::Tensor>, Saved& saved,
                                         std::span<const bool> needs) const override {
    const Fold fold{.jobs = saved.numbers[0], .samples_first = saved.numbers[1] != 0};
    std::vector<at::Tensor> found =
        layer_->backward_input(fold.together(grad), {}, saved.inner.front(), needs);
    for (at::Tensor& one : found) {
      if (one.defined()) one = fold.apart(one);
    }
    return found;
  }

 private:
  /// Returns whether [B, N, ...] is stored as [N, B, ...], the layout of convolutions over all jobs.
  static bool lies_samples_first(const at::Tensor& x) {
    return !x.is_contiguous() && x.dim() > 1 && x.transpose(0, 1).is_contiguous();
  }
  struct Fold {
    std::int64_t jobs = 1;
    bool samples_first = false;
    at::Tensor together(const at::Tensor& x) const {
      const at::Tensor outer = samples_first ? x.transpose(0, 1) : x;
      Shape shape(outer.sizes().begin() + 1, outer.sizes().end());
      shape.front() *= outer.size(0);
      return outer.reshape(shape).contiguous();
    }
    at::Tensor apart(const at::Tensor& x) const {
      Shape shape = x.sizes().vec();
      shape.front() /= jobs;
      shape.insert(samples_first ? shape.begin() + 1 : shape.begin(), jobs);
      const at::Tensor outer = x.reshape(shape);
      return samples_first ? outer.transpose(0, 1) : outer;
    }
  };
  LayerPtr layer_;
};

class JobLayer : public MultiLayer {
 public:
  JobLayer(std::string name, std::vector<LayerPtr> jobs, std::shared_ptr<KernelChoices> choices, bool kernels)
      : name_(std::move(name)), jobs_(std::move(jobs)), choices_(std::move(choices)) {
    for (const LayerPtr& job : jobs_) multi_.push_back(dynamic_cast<const MultiLayer*>(job.get()));
    for (const ParameterSpec& spec : jobs_.front()->parameters()) ++(spec.is_buffer ? buffers_ : parameters_);
    const bool alike = std::ranges::all_of(jobs_, [&](const LayerPtr& job) {
      return typeid(*job) == typeid(*jobs_.front()) && job->like(*jobs_.front());
    });
    if (!kernels || !alike || choices_->mode() == ArrayKernels::Loop) return;
    kernel_ = jobs_.front()->over_jobs(static_cast<std::int64_t>(jobs_.size()));
    if (!kernel_ && jobs_.front()->folds() && !multi_.front())
      kernel_ = std::make_shared<FoldedJobs>(jobs_.front());
    one_call_ = dynamic_cast<const OneCall*>(kernel_.get()) != nullptr;
  }

  std::string kind() const override { return jobs_.front()->kind(); }
  bool draws() const override {
    return std::ranges::any_of(jobs_, [](const LayerPtr& job) { return job->draws(); });
  }
  CastPolicy cast_policy() const override { return jobs_.front()->cast_policy(); }
  std::vector<ParameterSpec> parameters() const override {
    std::vector<ParameterSpec> all;
    for (std::size_t b = 0; b < jobs_.size(); ++b) {
      for (ParameterSpec& spec : jobs_[b]->parameters()) {
        spec.job = static_cast<int>(b);
        spec.name = job_prefix(spec.job) + spec.name;
        for (std::string& also : spec.also) also = job_prefix(spec.job) + also;
        all.push_back(std::move(spec));
      }
    }
    return all;
  }
  std::vector<TensorSpec> outputs(std::span<const TensorSpec> inputs) const override {
    std::vector<TensorSpec> all;
    const std::size_t per_job = inputs.size() / jobs_.size();
    for (std::size_t b = 0; b < jobs_.size(); ++b) {
      for (TensorSpec& made : jobs_[b]->outputs(inputs.subspan(b * per_job, per_job)))
        all.push_back(std::move(made));
    }
    return all;
  }

  std::string training_problem(std::span<const Shape> inputs) const override {
    return jobs_.front()->training_problem(inputs.first(inputs.size() / jobs_.size()));
  }

  bool takes_together() const override { return kernel_ != nullptr; }

  std::vector<at::Tensor> forward_all(std::span<const at::Tensor> inputs,
                                      std::span<const at::Tensor> parameters, std::span<at::Tensor> buffers,
                                      const CallContext& context, Saved* saved) const override {
    const bool fused = choose(inputs, parameters, buffers, context, saved != nullptr);
    keep_jobs(saved, fused, jobs_.size());
    if (fused) return forward_fused(inputs, parameters, buffers, context, saved);
    std::vector<at::Tensor> room;
    return forward_loop(JobTensors(inputs, inputs.size() / jobs_.size()).apart(room), parameters, buffers,
                        context, saved);
  }

  std::vector<at::Tensor> backward_input_all(std::span<const at::Tensor> grads,
                                             std::span<const at::Tensor> parameters, Saved& saved,
                                             std::span<const bool> needs) const override {
    if (is_fused(saved)) return backward_input_fused(grads, parameters, saved, needs);
    std::vector<at::Tensor> room;
    return backward_input_loop(JobTensors(grads, grads.size() / jobs_.size()).apart(room), parameters, saved,
                               needs);
  }

  void backward_weight_all(std::span<const at::Tensor> grads, Saved& saved,
                           std::span<at::Tensor> sums) const override {
    if (parameters_ == 0) return;
    if (is_fused(saved)) return backward_weight_fused(JobTensors(grads, 1).of_all_jobs(0), saved, sums);
    std::vector<at::Tensor> room;
    const std::size_t made = grads.size() / jobs_.size();
    grads = JobTensors(grads, made).apart(room);
    std::vector<at::Tensor> dense(made);
    for (std::size_t b = 0; b < jobs_.size(); ++b) {
      for (std::size_t i = 0; i < made; ++i) dense[i] = as_own(grads[b * made + i]);
      const auto own = sums.subspan(b * parameters_, parameters_);
      if (multi_[b])
        multi_[b]->backward_weight_all(dense, saved.inner[b], own);
      else
        jobs_[b]->backward_weight(dense[0], saved.inner[b], own);
    }
  }

 protected:
  /// The arguments of one job's own layer.
  struct OneJob {
    std::span<const at::Tensor> inputs, parameters;
    const CallContext& context;
    Saved* saved;
  };
  std::span<const LayerPtr> jobs() const { return jobs_; }
  /// Returns the outputs of all jobs, each computed by forward(job, OneJob).
  template <typename Forward>
  std::vector<at::Tensor> forward_each(std::span<const at::Tensor> inputs,
                                       std::span<const at::Tensor> parameters, const CallContext& context,
                                       Saved* saved, Forward&& forward) const {
    std::vector<at::Tensor> outputs;
    const std::size_t per_job = inputs.size() / jobs_.size();
    std::vector<at::Tensor> dense(per_job);
    for (std::size_t b = 0; b < jobs_.size(); ++b) {
      for (std::size_t i = 0; i < per_job; ++i) dense[i] = as_own(inputs[b * per_job + i]);
      const CallContext own_context = context_of(b, context);
      for (at::Tensor& made : forward(b, OneJob{dense, parameters.subspan(b * parameters_, parameters_),
                                                own_context, saved ? &saved->inner[b] : nullptr}))
        outputs.push_back(std::move(made));
    }
    return outputs;
  }

 private:
  CallContext context_of(std::size_t job, const CallContext& context) const {
    CallContext own = context;
    own.job_seeds = {};
    own.together = {};
    if (!context.job_seeds.empty()) own.random_seed = context.job_seeds[job];
    return own;
  }

  std::vector<at::Tensor> forward_loop(std::span<const at::Tensor> inputs,
                                       std::span<const at::Tensor> parameters, std::span<at::Tensor> buffers,
                                       const CallContext& context, Saved* saved) const {
    return forward_each(inputs, parameters, context, saved, [&](std::size_t b, const OneJob& one) {
      const auto own = buffers.subspan(b * buffers_, buffers_);
      if (multi_[b]) return multi_[b]->forward_all(one.inputs, one.parameters, own, one.context, one.saved);
      return std::vector{jobs_[b]->forward(one.inputs, one.parameters, own, one.context, one.saved)};
    });
  }

  std::vector<at::Tensor> backward_input_loop(std::span<const at::Tensor> grads,
                                              std::span<const at::Tensor> parameters, Saved& saved,
                                              std::span<const bool> needs) const {
    std::vector<at::Tensor> inputs;
    inputs.reserve(needs.size());
    const std::size_t made = grads.size() / jobs_.size(), per_job = needs.size() / jobs_.size();
    std::vector<at::Tensor> dense(made);
    for (std::size_t b = 0; b < jobs_.size(); ++b) {
      for (std::size_t i = 0; i < made; ++i) dense[i] = as_own(grads[b * made + i]);
      const auto own = parameters.subspan(b * parameters_, parameters_);
      const auto own_needs = needs.subspan(b * per_job, per_job);
      std::vector<at::Tensor> found =
          multi_[b] ? multi_[b]->backward_input_all(dense, own, saved.inner[b], own_needs)
                    : jobs_[b]->backward_input(dense[0], own, saved.inner[b], own_needs);
      found.resize(per_job);
      for (at::Tensor& one : found) inputs.push_back(std::move(one));
    }
    return inputs;
  }

  /// Returns the parameters of all jobs together, or their gradients. They follow those of single jobs, if
  /// the store has them.
  template <typename Tensor>
  std::span<Tensor> behind(std::span<Tensor> parameters) const {
    return parameters.subspan(std::min(parameters.size(), jobs_.size() * parameters_));
  }
  std::span<const at::Tensor> of_all_jobs(std::span<const at::Tensor> parameters,
                                          std::vector<at::Tensor>& room) const {
    if (const auto there = behind(parameters); !there.empty()) return there;
    return room = JobTensors(parameters, parameters_).of_all_jobs();
  }
  /// Copies tensors back if a kernel wrote to a copy, because the jobs' tensors were not equally spaced.
  void put_back(std::span<const at::Tensor> whole, std::span<at::Tensor> of_jobs) const {
    for (std::size_t i = 0; i < whole.size(); ++i) {
      for (std::size_t b = 0; b < jobs_.size(); ++b) {
        at::Tensor& buffer = of_jobs[b * whole.size() + i];
        const at::Tensor now = whole[i].select(0, static_cast<std::int64_t>(b));
        if (now.data_ptr() != buffer.data_ptr()) buffer.copy_(now);
      }
    }
  }

  std::vector<at::Tensor> forward_fused(std::span<const at::Tensor> inputs,
                                        std::span<const at::Tensor> parameters, std::span<at::Tensor> buffers,
                                        const CallContext& context, Saved* saved) const {
    const std::size_t per_job = inputs.size() / jobs_.size();
    if (saved) keep_together(*saved, JobTensors(inputs, per_job).which_together());
    const std::vector<at::Tensor> whole = JobTensors(inputs, per_job).of_all_jobs();
    std::vector<at::Tensor> room, statistics = JobTensors(buffers, buffers_).of_all_jobs(),
                                  outputs(jobs_.size());
    at::Tensor made = kernel_->forward(whole, of_all_jobs(parameters, room), statistics, context,
                                       saved ? &saved->inner[0] : nullptr);
    put_back(statistics, buffers);
    put(std::move(made), outputs, 0, !context.together.empty() && context.together[0]);
    return outputs;
  }
  std::vector<at::Tensor> backward_input_fused(std::span<const at::Tensor> grads,
                                               std::span<const at::Tensor> parameters, Saved& saved,
                                               std::span<const bool> needs) const {
    const std::size_t per_job = needs.size() / jobs_.size();
    std::vector<at::Tensor> room, inputs(needs.size());
    std::vector<at::Tensor> found =
        kernel_->backward_input(JobTensors(grads, 1).of_all_jobs(0), of_all_jobs(parameters, room),
                                saved.inner[0], needs.first(per_job));
    for (std::size_t i = 0; i < found.size(); ++i)
      if (found[i].defined()) put(std::move(found[i]), inputs, i, came_together(saved, i));
    return inputs;
  }
  void backward_weight_fused(const at::Tensor& grad, Saved& saved, std::span<at::Tensor> sums) const {
    if (const auto there = behind(sums); !there.empty())
      return kernel_->backward_weight(grad, saved.inner[0], there);
    std::vector<at::Tensor> whole = JobTensors(sums, parameters_).of_all_jobs();
    const bool views = std::ranges::all_of(
        whole, [&](const at::Tensor& t) { return t.storage().is_alias_of(sums.front().storage()); });
    if (views || sums.front().numel() == 0) return kernel_->backward_weight(grad, saved.inner[0], whole);
    // The sums are clones, which put_back() copies back: stacked() may have copied some of them anyway.
    for (at::Tensor& sum : whole) sum = sum.clone();
    kernel_->backward_weight(grad, saved.inner[0], whole);
    put_back(whole, sums);
  }

  /// Returns whether the kernel runs instead of the loop. For the first training microbatch of these shapes,
  /// it measures both with the given tensors.
  bool choose(std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
              std::span<at::Tensor> buffers, const CallContext& context, bool saves) const {
    if (!kernel_ || context.replicas) return false;
    // Kernels over all jobs support one type. In a lower precision, the loop keeps each job's own rounding.
    if (std::ranges::any_of(inputs,
                            [](const at::Tensor& t) { return at::isReducedFloatingType(t.scalar_type()); }))
      return false;
    // On an accelerator, the cost of B small kernels is mostly launch overhead.
    if (choices_->mode() == ArrayKernels::Fused || !inputs.front().device().is_cpu()) return true;
    const std::size_t per_job = inputs.size() / jobs_.size();
    const std::uint64_t key = key_of(inputs, per_job, context.training);
    if (const std::optional<bool> known = choices_->find(key)) return *known;
    std::vector<at::Tensor> room;
    inputs = JobTensors(inputs, per_job).apart(room);
    KernelChoice choice{.layer = name_, .kind = kind(), .inputs = text_of(inputs, per_job, context.training)};
    if (const std::optional<bool> recalled = choices_->recalled(key)) {
      choice.fused = *recalled;
      choices_->add(key, choice);
      return choice.fused;
    }
    if (one_call_) {
      const double limit = kNotTried * static_cast<double>(jobs_.size()) * at::get_num_threads();
      for (int i = 0; i < 2; ++i) {
        choice.loop_s = seconds_of(Way::LoopIntoOneSum, inputs, parameters, buffers, context, saves);
        if (choice.loop_s < limit) break;
      }
      if (choice.loop_s >= limit) {
        choices_->add(key, choice);
        return false;
      }
    }
    for (int i = 0; i <= kMeasurements; ++i) {  // the first of each is warm-up and not counted
      for (const bool fused : {false, true}) {
        const double seconds =
            seconds_of(fused ? Way::Kernel : Way::Loop, inputs, parameters, buffers, context, saves);
        double& least = fused ? choice.fused_s : choice.loop_s;
        if (i > 0) least = i == 1 ? seconds : std::min(least, seconds);
      }
    }
    const bool long_calls = choice.loop_s > kLongCall * static_cast<double>(jobs_.size());
    choice.fused = choice.fused_s < (long_calls ? kGainOfLongCalls : kGain) * choice.loop_s;
    choices_->add(key, choice);
    return choice.fused;
  }

  /// The ways to compute all jobs. LoopIntoOneSum adds the weight gradients of all jobs into one buffer,
  /// which takes little memory.
  enum class Way { Loop, LoopIntoOneSum, Kernel };
  double seconds_of(Way way, std::span<const at::Tensor> inputs, std::span<const at::Tensor> parameters,
                    std::span<const at::Tensor> buffers, const CallContext& context, bool saves) const {
    const bool fused = way == Way::Kernel;
    std::vector<at::Tensor> statistics, sums;
    for (const at::Tensor& buffer : buffers) statistics.push_back(buffer.clone());
    if (saves && !parameters.empty()) {  // gradient sums share one storage, as in a stage
      std::int64_t of_job = 0, total = 0;
      for (const at::Tensor& p : parameters.first(parameters_)) of_job += p.numel();
      const std::int64_t all = of_job * static_cast<std::int64_t>(jobs_.size());
      const at::Tensor flat =
          at::zeros({way == Way::LoopIntoOneSum ? of_job : all}, parameters.front().options());
      for (const at::Tensor& p : parameters.first(jobs_.size() * parameters_)) {
        sums.push_back(
            flat.narrow(0, total % std::max<std::int64_t>(1, flat.numel()), p.numel()).view(p.sizes()));
        total += p.numel();
      }
    }
    Saved saved;
    Saved* const kept = saves ? &saved : nullptr;
    keep_jobs(kept, fused, jobs_.size());
    std::vector<char> needs;
    const std::size_t per_job = inputs.size() / jobs_.size();
    for (const at::Tensor& input : inputs) {  // an input that all jobs share is a field
      const bool shared = jobs_.size() > 1 &&
                          inputs[needs.size() % per_job].is_same(inputs[needs.size() % per_job + per_job]);
      needs.push_back(input.is_floating_point() && !shared);
    }
    const TimePoint start = choices_->clock().now();
    const std::vector<at::Tensor> outputs = fused
                                                ? forward_fused(inputs, parameters, statistics, context, kept)
                                                : forward_loop(inputs, parameters, statistics, context, kept);
    if (saves && outputs.front().is_floating_point()) {
      const std::span<const bool> wanted(reinterpret_cast<const bool*>(needs.data()), needs.size());
      backward_input_all(outputs, parameters, saved, wanted);
      backward_weight_all(outputs, saved, sums);
    }
    return Seconds(choices_->clock().now() - start).count();
  }
  std::uint64_t key_of(std::span<const at::Tensor> inputs, std::size_t per_job, bool training) const {
    std::uint64_t key = name_hash_ ^ static_cast<std::uint64_t>(training);
    const auto mix = [&](std::uint64_t value) { key = (key ^ value) * 0x100000001B3ULL; };  // FNV-1a's prime
    for (std::size_t i = 0; i < per_job; ++i) {
      mix(inputs.size() > per_job && inputs[i].is_same(inputs[i + per_job]));
      for (std::int64_t size : inputs[i].sizes().slice(JobTensors(inputs, per_job).is_together(i)))
        mix(static_cast<std::uint64_t>(size) + 1);
      mix(0);
    }
    return key;
  }

  std::string name_;
  std::uint64_t name_hash_ = derive_seed(0, name_);
  std::vector<LayerPtr> jobs_;
  std::vector<const MultiLayer*> multi_;  ///< by job: the layer as a MultiLayer, if it has several outputs
  std::shared_ptr<KernelChoices> choices_;
  LayerPtr kernel_;
  bool one_call_ = false;
  std::size_t parameters_ = 0, buffers_ = 0;  ///< numbers of parameters and buffers of one job
};

/// Runs layers that carry states job by job, each resuming from its own state: "job0/h", "job0/c", "job1/h",
/// ...
class CarryingJobs final : public JobLayer, public CarriesState {
 public:
  using JobLayer::JobLayer;
  bool takes_together() const override { return false; }

  std::vector<CarriedSpec> carried() const override {
    std::vector<CarriedSpec> all;
    for (std::size_t b = 0; b < jobs().size(); ++b) {
      for (CarriedSpec& spec : own(b).carried())
        all.push_back({job_prefix(static_cast<int>(b)) + spec.name, std::move(spec.row)});
    }
    return all;
  }
  std::vector<at::Tensor> forward_all_from(std::span<const at::Tensor> inputs,
                                           std::span<const at::Tensor> parameters,
                                           std::span<at::Tensor> state, const CallContext& context,
                                           Saved* saved) const override {
    const std::size_t of_job = state.size() / jobs().size();
    keep_jobs(saved, false, jobs().size());
    return forward_each(inputs, parameters, context, saved, [&](std::size_t b, const OneJob& one) {
      return own(b).forward_all_from(one.inputs, one.parameters, state.subspan(b * of_job, of_job),
                                     one.context, one.saved);
    });
  }

 private:
  const CarriesState& own(std::size_t job) const { return dynamic_cast<const CarriesState&>(*jobs()[job]); }
};

/// The collectors of the heads of B jobs.
class JobCollector final : public Collector {
 public:
  JobCollector(std::vector<std::unique_ptr<Collector>> jobs, std::size_t per_job)
      : jobs_(std::move(jobs)), per_job_(per_job) {}
  void add(std::span<const at::Tensor> inputs, std::span<double> sums) override {
    const std::size_t read = inputs.size() / jobs_.size();
    for (std::size_t b = 0; b < jobs_.size(); ++b)
      jobs_[b]->add(inputs.subspan(b * read, read), sums.subspan(b * per_job_, per_job_));
  }

 private:
  std::vector<std::unique_ptr<Collector>> jobs_;
  std::size_t per_job_;  ///< number of sums
};

class JobHead final : public Head {
 public:
  JobHead(std::vector<HeadPtr> jobs, std::shared_ptr<KernelChoices> choices)
      : jobs_(std::move(jobs)), per_job_(jobs_.front()->num_sums()) {
    const bool alike = std::ranges::all_of(jobs_, [&](const HeadPtr& job) {
      return typeid(*job) == typeid(*jobs_.front()) && job->like(*jobs_.front());
    });
    if (alike && choices->mode() != ArrayKernels::Loop)
      kernel_ = jobs_.front()->over_jobs(static_cast<std::int64_t>(jobs_.size()));
    most_elements_ =
        choices->mode() == ArrayKernels::Fused ? std::numeric_limits<std::int64_t>::max() : kMostHeadElements;
  }
  const std::vector<HeadPtr>& jobs() const { return jobs_; }
  std::string kind() const override { return jobs_.front()->kind(); }
  bool takes_together() const override { return kernel_ != nullptr; }
  std::string weight() const override { return jobs_.front()->weight(); }
  std::vector<std::string> metrics() const override {
    std::vector<std::string> names;
    for (std::size_t b = 0; b < jobs_.size(); ++b) {
      for (const std::string& name : jobs_[b]->metrics())
        names.push_back(job_prefix(static_cast<int>(b)) + name);
      names.push_back(job_prefix(static_cast<int>(b)) + "weight");
    }
    names.pop_back();  // the sum of weights has no name
    return names;
  }
  std::size_t num_counts() const override { return jobs_.size() * jobs_.front()->num_counts(); }
  void check(std::span<const TensorSpec> inputs) const override {
    const std::size_t per_job = inputs.size() / jobs_.size();
    for (std::size_t b = 0; b < jobs_.size(); ++b) jobs_[b]->check(inputs.subspan(b * per_job, per_job));
  }

  void forward(std::span<const at::Tensor> inputs, Saved* saved, std::span<double> sums) const override {
    const std::size_t read = inputs.size() / jobs_.size();
    const bool fused = fuses(inputs);
    keep_jobs(saved, fused, jobs_.size());
    if (fused) return kernel_->forward(whole(inputs, saved), saved ? &saved->inner[0] : nullptr, sums);
    std::vector<at::Tensor> room;
    inputs = JobTensors(inputs, read).apart(room);
    for (std::size_t b = 0; b < jobs_.size(); ++b)
      jobs_[b]->forward(dense(inputs.subspan(b * read, read)), saved ? &saved->inner[b] : nullptr,
                        sums.subspan(b * per_job_, per_job_));
  }
  std::unique_ptr<Collector> collector() const override {
    std::vector<std::unique_ptr<Collector>> of_jobs;
    for (const HeadPtr& job : jobs_) of_jobs.push_back(job->collector());
    if (!of_jobs.front()) return nullptr;
    return std::make_unique<JobCollector>(std::move(of_jobs), per_job_);
  }
  at::Tensor forward_on_device(std::span<const at::Tensor> inputs, Saved* saved) const override {
    const std::size_t read = inputs.size() / jobs_.size();
    const bool fused = fuses(inputs);
    keep_jobs(saved, fused, jobs_.size());
    if (fused) return kernel_->forward_on_device(whole(inputs, saved), saved ? &saved->inner[0] : nullptr);
    std::vector<at::Tensor> room, sums;
    inputs = JobTensors(inputs, read).apart(room);
    for (std::size_t b = 0; b < jobs_.size(); ++b)
      sums.push_back(jobs_[b]->forward_on_device(dense(inputs.subspan(b * read, read)),
                                                 saved ? &saved->inner[b] : nullptr));
    return at::stack(sums).view({-1});
  }
  std::vector<at::Tensor> backward(Saved& saved, LossScale scale,
                                   std::span<const bool> needs) const override {
    return backward_of_jobs(saved, std::vector<LossScale>(jobs_.size(), scale), needs);
  }
  std::vector<at::Tensor> backward_of_jobs(Saved& saved, std::span<const LossScale> scales,
                                           std::span<const bool> needs) const override {
    const std::size_t read = needs.size() / jobs_.size();
    std::vector<at::Tensor> grads(needs.size());
    if (is_fused(saved)) {
      std::vector<at::Tensor> found = kernel_->backward(saved.inner[0], scales[0], needs.first(read));
      for (std::size_t i = 0; i < found.size(); ++i) {
        if (!found[i].defined()) continue;
        // Loss scales are powers of two unless a flag sets others, so no rounding occurs.
        for (std::size_t b = 1; b < jobs_.size(); ++b)
          if (scales[b] != scales[0])
            found[i].select(0, static_cast<std::int64_t>(b)).mul_(scales[b].unit / scales[0].unit);
        put(std::move(found[i]), grads, i, came_together(saved, i));
      }
      return grads;
    }
    for (std::size_t b = 0; b < jobs_.size(); ++b) {
      std::vector<at::Tensor> found =
          jobs_[b]->backward(saved.inner[b], scales[b], needs.subspan(b * read, read));
      for (std::size_t i = 0; i < found.size(); ++i) grads[b * read + i] = std::move(found[i]);
    }
    return grads;
  }
  /// Returns the values of each job as "job0/loss" and so on. head_values() names them by metric.
  NamedValues values(std::span<const double> sums) const override {
    NamedValues all;
    for (std::size_t b = 0; b < jobs_.size(); ++b) {
      for (auto& [name, value] : jobs_[b]->values(sums.subspan(b * per_job_, per_job_)))
        all.emplace_back(job_prefix(static_cast<int>(b)) + name, value);
    }
    return all;
  }

 private:
  // The largest number of a job's scores for which the kernel is used. For larger scores, the copy costs more
  // than the saved calls. Smaller ones need no measurement: the kernel does the same arithmetic with fewer
  // calls.
  static constexpr std::int64_t kMostHeadElements = 1 << 14;
  bool fuses(std::span<const at::Tensor> inputs) const {
    if (!kernel_) return false;
    const std::size_t read = inputs.size() / jobs_.size();
    const std::int64_t of_jobs = JobTensors(inputs, read).is_together(0) ? inputs[0].size(0) : 1;
    return inputs[0].numel() / of_jobs <= most_elements_;
  }
  std::vector<at::Tensor> whole(std::span<const at::Tensor> inputs, Saved* saved) const {
    const std::size_t read = inputs.size() / jobs_.size();
    if (saved) keep_together(*saved, JobTensors(inputs, read).which_together());
    return JobTensors(inputs, read).of_all_jobs();
  }
  static std::vector<at::Tensor> dense(std::span<const at::Tensor> inputs) {
    std::vector<at::Tensor> result;
    for (const at::Tensor& input : inputs) result.push_back(input.contiguous());
    return result;
  }

  std::vector<HeadPtr> jobs_;
  std::size_t per_job_;
  HeadPtr kernel_;
  std::int64_t most_elements_ = 0;
};

}  // namespace

at::Tensor stacked(std::span<const at::Tensor> tensors) {
  const at::Tensor& first = tensors.front();
  const auto size = static_cast<std::int64_t>(tensors.size());
  const auto one_for_all = [&](const at::Tensor& t) { return t.is_same(first); };
  std::int64_t distance = 0;
  if (!std::ranges::all_of(tensors, one_for_all)) {
    distance = tensors[1].storage_offset() - first.storage_offset();
    bool even = distance >= 0;
    for (std::int64_t b = 1; even && b < size; ++b) {
      const at::Tensor& one = tensors[b];
      even = one.storage_offset() == first.storage_offset() + b * distance &&
             one.storage().unsafeGetStorageImpl() == first.storage().unsafeGetStorageImpl() &&
             one.sizes() == first.sizes() && one.strides() == first.strides();
    }
    if (!even) return at::stack(at::TensorList(tensors.data(), tensors.size()));
  }
  c10::SmallVector<std::int64_t, 6> sizes{size}, strides{distance};
  sizes.append(first.sizes().begin(), first.sizes().end());
  strides.append(first.strides().begin(), first.strides().end());
  return view_of(first, sizes, strides, first.storage_offset());
}

std::vector<char> JobTensors::which_together() const {
  std::vector<char> which(per_job_);
  for (std::size_t i = 0; i < per_job_; ++i) which[i] = is_together(i);
  return which;
}

at::Tensor JobTensors::of_all_jobs(std::size_t i) const {
  if (is_together(i)) return all_[i];
  std::vector<at::Tensor> of_jobs;
  of_jobs.reserve(all_.size() / per_job_);
  for (std::size_t at = i; at < all_.size(); at += per_job_) of_jobs.push_back(all_[at]);
  return stacked(of_jobs);
}

std::vector<at::Tensor> JobTensors::of_all_jobs() const {
  std::vector<at::Tensor> result;
  result.reserve(per_job_);
  for (std::size_t i = 0; i < per_job_; ++i) result.push_back(of_all_jobs(i));
  return result;
}

std::span<const at::Tensor> JobTensors::apart(std::vector<at::Tensor>& room) const {
  std::vector<at::Tensor> parts;
  for (std::size_t i = 0; i < per_job_; ++i) {
    if (!is_together(i)) continue;
    if (room.empty()) room.assign(all_.begin(), all_.end());
    parts.clear();
    append_unstacked(all_[i], parts);
    for (std::size_t b = 0; b < parts.size(); ++b) room[b * per_job_ + i] = std::move(parts[b]);
  }
  return room.empty() ? all_ : std::span<const at::Tensor>(room);
}

void append_unstacked(const at::Tensor& stacked, std::vector<at::Tensor>& to) {
  const auto sizes = stacked.sizes().slice(1), strides = stacked.strides().slice(1);
  for (std::int64_t b = 0; b < stacked.size(0); ++b)
    to.push_back(view_of(stacked, sizes, strides, stacked.storage_offset() + b * stacked.stride(0)));
}

std::optional<bool> KernelChoices::find(std::uint64_t key) const {
  std::lock_guard lock(mutex_);
  const auto found = places_.find(key);
  if (found == places_.end()) return std::nullopt;
  return made_[found->second].fused;
}

void KernelChoices::add(std::uint64_t key, KernelChoice choice) {
  std::lock_guard lock(mutex_);
  if (places_.emplace(key, made_.size()).second) made_.push_back(std::move(choice));
}

std::optional<bool> KernelChoices::recalled(std::uint64_t key) const {
  std::lock_guard lock(mutex_);
  for (const auto& [layer, choices] : recalled_) {
    if (const auto found = choices.find(key); found != choices.end()) return found->second;
  }
  return std::nullopt;
}

void KernelChoices::recall(const std::string& layer, std::uint64_t key, bool fused) {
  std::lock_guard lock(mutex_);
  recalled_[layer][key] = fused;
}

std::map<std::string, std::map<std::uint64_t, bool>> KernelChoices::by_layer() const {
  std::lock_guard lock(mutex_);
  auto all = recalled_;
  for (const auto& [key, place] : places_) all[made_[place].layer][key] = made_[place].fused;
  return all;
}

std::vector<KernelChoice> KernelChoices::all() const {
  std::lock_guard lock(mutex_);
  return made_;
}

Clock& choosing_clock() {
  static ChoosingClock clock;
  return clock;
}

LayerPtr job_layer(std::string name, std::vector<LayerPtr> jobs, std::shared_ptr<KernelChoices> choices,
                   bool kernels) {
  if (dynamic_cast<const CarriesState*>(jobs.front().get()))
    return std::make_shared<CarryingJobs>(std::move(name), std::move(jobs), std::move(choices), kernels);
  return std::make_shared<JobLayer>(std::move(name), std::move(jobs), std::move(choices), kernels);
}
HeadPtr job_head(std::vector<HeadPtr> jobs, std::shared_ptr<KernelChoices> choices) {
  return std::make_shared<JobHead>(std::move(jobs), std::move(choices));
}
std::span<const HeadPtr> jobs_of(const Head& head) {
  const auto* array = dynamic_cast<const JobHead*>(&head);
  return array ? std::span<const HeadPtr>(array->jobs()) : std::span<const HeadPtr>();
}

std::string job_prefix(int job) {
  return "job" + std::to_string(job) + "/";
}

}  // namespace millrace
