#include "runtime/profile/profiler.h"
#include "runtime/train/trainable.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <optional>
#include <set>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "runtime/base/all_reduce_route.h"
#include "runtime/base/error.h"
#include "runtime/base/median.h"
#include "runtime/device/host_memory.h"
#include "runtime/profile/profile_graph.h"
#include "runtime/stage/flat_blocks.h"
#include "runtime/stage/gradient_reducer.h"
#include "runtime/stage/layer_runner.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {
namespace {

// Layers are timed as in a step of several microbatches, for which copies of the weights pay off.
constexpr int kMicrobatchesOfStep = 8;

/// Returns whether a layer, or one that it calls, keeps data other than tensors, e.g. autograd's graph.
bool keeps_graph(const Saved& saved) {
  return saved.extra || std::ranges::any_of(saved.inner, keeps_graph);
}

/// Adds the tensors that a layer keeps, and those of the layers that it calls.
void append_kept(const Saved& saved, std::vector<at::Tensor>& all) {
  for (const at::Tensor& t : saved.tensors)
    if (t.defined()) all.push_back(t);
  for (const Saved& inner : saved.inner) append_kept(inner, all);
}
std::vector<at::Tensor> kept_by(const Saved& saved) {
  std::vector<at::Tensor> all;
  append_kept(saved, all);
  return all;
}

/// Returns the bytes of those storages of `tensors` that are not in `seen`, and adds them to it.
Bytes unseen_bytes(const std::vector<at::Tensor>& tensors, std::set<const void*>& seen) {
  Bytes bytes = 0;
  for (const at::Tensor& t : tensors)
    if (t.defined() && seen.insert(t.storage().data()).second)
      bytes += static_cast<Bytes>(t.storage().nbytes());
  return bytes;
}

constexpr Bytes kBucketBytes = 4 * kMiB;  // ExecutorOptions::bucket_bytes

/// Measures work. If ranks share cores, it is their processor time, divided by a thread's share of a core:
/// real time would include other ranks' time slices, which are as long as a layer.
class WorkClock {
 public:
  /// `core_share` is Measured::core_share.
  WorkClock(const Clock& clock, double core_share)
      : clock_(clock), share_of_threads_(core_share < 1 ? core_share * at::get_num_threads() : 0) {}
  TimePoint now() const {
    if (share_of_threads_ == 0) return clock_.now();
    return TimePoint(duration_of(process_cpu_seconds() / share_of_threads_));
  }

 private:
  const Clock& clock_;
  const double share_of_threads_;  // 0: real time
};

/// Makes ranks that share cores alternate within a pass, like the stages of a pipeline. A rank starts its
/// next part of the layers when the previous rank has sent a message as large as the part's input.
class CoreTurns {
 public:
  /// All ranks make the same passes. `ranks` must outlive it.
  CoreTurns(Communicator& ranks, std::size_t num_layers) : ranks_(ranks), num_layers_(num_layers) {}

  /// Must be called for each layer of a forward, in order.
  void before_forward(std::size_t layer, Bytes input_bytes) {
    if (layer == 0 || part_of(layer) != part_of(layer - 1)) exchange(input_bytes);
  }
  /// Must be called for each layer of a backward, the last one first.
  void before_backward(std::size_t layer, Bytes gradient_bytes) {
    if (layer + 1 == num_layers_ || part_of(layer) != part_of(layer + 1)) exchange(gradient_bytes);
  }

 private:
  std::size_t part_of(std::size_t layer) const {
    return layer * static_cast<std::size_t>(ranks_.size()) / num_layers_;
  }

  void exchange(Bytes bytes) {
    const at::Tensor out = at::zeros({bytes}, at::kByte), in = at::empty({bytes}, at::kByte);
    const int me = ranks_.rank().value, size = ranks_.size();
    const std::array<Transfer, 2> messages{
        Transfer{Direction::Send, RankId((me + 1) % size), tag_, out, "a turn on the core"},
        Transfer{Direction::Receive, RankId((me + size - 1) % size), tag_, in, "a turn on the core"}};
    ++tag_;
    ranks_.exchange(messages)->wait();
  }

  Communicator& ranks_;
  const std::size_t num_layers_;
  std::uint64_t tag_ = 0;
};

/// Runs one microbatch through the whole model as one stage, with the same program as training.
class Pass final : public PassBytes, private LayerObserver {
 public:
  Pass(const StageLayout& layout, ParameterStore& store, const ProfileOptions& options,
       const WorkClock& clock, Device& device)
      : PassBytes(layout.model.layers.size()),
        program_(compile_stage(layout, StageId(0))),
        runner_(program_, store, std::vector(static_cast<std::size_t>(store.jobs()), options.seed)),
        store_(store),
        clock_(clock),
        device_(device),
        growth_(layout.model.layers.size()) {
    runner_.set_observer(this);
    if (options.sync_batch_norm) runner_.set_replicas(&alone_);
  }

  /// Runs a pass. Times are added to `counted`. If it is null, memory is measured instead, with
  /// `output_bytes` by layer. `core_turns`, if not null, are part of the pass.
  void run(const Batch& batch, BatchSamples* counted, std::span<const Bytes> output_bytes = {},
           CoreTurns* core_turns = nullptr) {
    counted_ = counted;
    core_turns_ = core_turns;
    output_bytes_ = output_bytes;
    const TimePoint start = clock_.now();
    forward(batch);
    const TimePoint after_forward = clock_.now();
    run_heads();
    device_.synchronize();
    const TimePoint after_loss = clock_.now();
    if (!counted) measure_saved();
    const TimePoint middle = clock_.now();
    slot_.values.assign(slot_.values.size(), {});
    runner_.backward_layer_by_layer(slot_, store_.current());
    if (!counted) return add_heads();
    if (!device_.where().is_cpu()) return add_whole(batch, *counted);
    counted->forward.push_back(Seconds(after_forward - start).count());
    counted->loss.push_back(Seconds(after_loss - after_forward).count());
    counted->backward.push_back(Seconds(clock_.now() - middle).count());
  }

  /// Returns the seconds of a pass as in training, without timing single layers. With `replicas` it is the
  /// last pass of a step among them, which sums the gradients.
  double plain_seconds(const Batch& batch, Communicator* replicas = nullptr) {
    BatchSamples not_asked;
    counted_ = &not_asked;
    runner_.set_observer(nullptr);
    GradientReducer reducer(store_, replicas, program_, kBucketBytes);
    const TimePoint start = clock_.now();
    forward(batch);
    run_heads();
    slot_.values.assign(slot_.values.size(), {});
    runner_.backward(slot_, store_.current(), [&](int layer) { reducer.ready(layer); });
    reducer.finish();
    device_.synchronize();
    const double seconds = Seconds(clock_.now() - start).count();
    runner_.set_observer(this);
    return seconds;
  }

  /// Returns the bytes of a pass's gradients, including rows that it did not read.
  Bytes gradient_bytes() const {
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      if (program_.steps[i].frozen) continue;
      const auto [begin, end] = store_.gradient_ranges(static_cast<int>(i)).front();
      elements += (end - begin) * store_.jobs();
    }
    return elements * static_cast<Bytes>(store_.flat_gradient().element_size());
  }

  /// Measures the bytes kept between the halves of a backward (between_bytes).
  void run_halves(const Batch& batch) {
    BatchSamples not_asked;
    counted_ = &not_asked;
    runner_.set_observer(nullptr);
    forward(batch);
    run_heads();
    slot_.values.assign(slot_.values.size(), {});
    runner_.backward_input(slot_, store_.current());
    measure_between();
    runner_.backward_weight(slot_, [](int) {});
    runner_.set_observer(this);
  }

 private:
  void forward(const Batch& batch) {
    slot_.clear();
    slot_.values.resize(program_.num_places);
    memory_of_place_.assign(static_cast<std::size_t>(program_.num_places), nullptr);
    slot_.gradients.resize(program_.num_places);
    for (const auto& [field, place] : program_.fields) slot_.values[place] = batch.fields[field];
    runner_.forward(slot_, 0, store_.current(), LayerRunner::Run::Train);
  }

  /// Adds the seconds of a pass as in training, on the device's clock. An asynchronous device is slower if
  /// the host waits after each layer.
  void add_whole(const Batch& batch, BatchSamples& samples) {
    runner_.set_observer(nullptr);
    const auto start = device_.mark();
    forward(batch);
    const auto after_forward = device_.mark();
    run_heads();
    const auto after_loss = device_.mark();
    slot_.values.assign(slot_.values.size(), {});
    runner_.backward(slot_, store_.current(), [](int) {});
    const auto end = device_.mark();
    end->wait();
    samples.forward.push_back(after_forward->seconds_since(*start));
    samples.loss.push_back(after_loss->seconds_since(*after_forward));
    samples.backward.push_back(end->seconds_since(*after_loss));
    runner_.set_observer(this);
  }

  /// Replaces the sum over replicas but adds nothing. Batch normalisation then computes as it does with
  /// replicas. The planner prices the messages that they exchange.
  struct NoReplicas final : ReplicaSum {
    void add_up_(const at::Tensor&, const char*) override {}
  };

  /// Returns the bytes of a layer's inputs that are still allocated.
  Bytes input_bytes(std::size_t step) const {
    Bytes bytes = 0;
    for (const int place : program_.steps[step].inputs)
      if (slot_.values[place].defined()) bytes += static_cast<Bytes>(slot_.values[place].nbytes());
    return bytes;
  }

  void before(Phase phase, std::size_t step) override {
    if (!counted_) {
      memory_before_half_ = device_.memory().current;
      if (phase != Phase::BackwardWeight) memory_before_ = memory_before_half_;
      if (phase != Phase::Forward) device_.reset_peak_memory();
    }
    if (core_turns_ && phase == Phase::Forward) core_turns_->before_forward(step, input_bytes(step));
    if (core_turns_ && phase == Phase::BackwardInput) core_turns_->before_backward(step, input_bytes(step));
    start_ = clock_.now();
  }

  void after(Phase phase, std::size_t step) override {
    device_.synchronize();
    if (counted_) {
      LayerSamples& s = counted_->layers[step];
      Samples& into = phase == Phase::Forward         ? s.forward
                      : phase == Phase::BackwardInput ? s.backward_input
                                                      : s.backward_weight;
      into.push_back(Seconds(clock_.now() - start_).count());
      return;
    }
    if (phase == Phase::Forward) {
      growth_[step] = device_.memory().current - memory_before_;
      for (const int place : program_.steps[step].outputs)
        if (slot_.values[place].defined()) memory_of_place_[place] = slot_.values[place].storage().data();
    }
    if (phase == Phase::Forward) return;
    const Bytes peak = device_.memory().peak;
    // The received gradient was allocated before, and counts as the layer's.
    const Bytes of_both = peak - memory_before_ + output_bytes_[step];
    if (phase == Phase::BackwardInput) {
      workspace_bytes[step] = input_workspace_bytes[step] = of_both;
    } else {
      workspace_bytes[step] = std::max(workspace_bytes[step], of_both);
      weight_workspace_bytes[step] = peak - memory_before_half_;
    }
  }

  void run_heads() {
    std::vector<double> sums(program_.num_sums, 0.0);
    for (const HeadStep& head : program_.heads) {
      const std::vector<at::Tensor> inputs = runner_.inputs_of(slot_, head);
      Saved saved;
      if (inputs[0].device().is_cpu())
        head.head->forward(inputs, &saved, std::span(sums).subspan(head.sums, head.num_sums));
      else
        head.head->forward_on_device(inputs, &saved);
      const std::span<const bool> needs(reinterpret_cast<const bool*>(head.needs.data()), head.needs.size());
      if (!counted_) {
        memory_before_ = device_.memory().current;
        device_.reset_peak_memory();
      }
      runner_.add_gradients(slot_, head, head.head->backward(saved, {}, needs));
      if (counted_) continue;
      head_workspace_ = std::max(head_workspace_, device_.memory().peak - memory_before_);
      append_kept(saved, of_heads_);
    }
  }

  /// Measures the bytes that a microbatch keeps until its backward. Each storage counts at the first layer
  /// that keeps it; weights do not count.
  void measure_saved() {
    std::set<const void*> seen = weights();
    keeps_counted.assign(program_.steps.size(), {});
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      for (const int place : program_.steps[i].inputs)
        keeps_counted[i].push_back(keeps(i, memory_of_place_[place]) &&
                                   seen.contains(memory_of_place_[place]));
      saved_output_bytes[i] = kept_of(program_.steps[i].outputs, i, seen);
      saved_input_bytes[i] = kept_of(program_.steps[i].inputs, i, seen);
      saved_bytes[i] = unseen_bytes(kept_by(slot_.saved[i]), seen);
      // Autograd's graph does not reveal which tensors it keeps. All memory that the forward left allocated
      // counts, including its outputs.
      if (keeps_graph(slot_.saved[i])) saved_bytes[i] = std::max<Bytes>(saved_bytes[i], growth_[i]);
    }
    saved_of_heads_ = unseen_bytes(std::exchange(of_heads_, {}), seen);
  }

  /// Returns the bytes of those tensors in `places` that a layer keeps and that are not among `seen`.
  Bytes kept_of(const std::vector<int>& places, std::size_t step, const std::set<const void*>& seen) const {
    std::set<const void*> memory;
    for (const int place : places) memory.insert(memory_of_place_[place]);
    Bytes bytes = 0;
    for (const at::Tensor& t : kept_by(slot_.saved[step])) {
      const void* const at = t.storage().data();
      if (!seen.contains(at) && memory.erase(at) > 0) bytes += static_cast<Bytes>(t.storage().nbytes());
    }
    return bytes;
  }

  /// Measures the bytes that a microbatch keeps between the gradients of the inputs and those of the weights.
  /// Each storage counts at the first layer that keeps it. Autograd's graph keeps what it kept before.
  void measure_between() {
    std::set<const void*> seen = weights();
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      const Saved& saved = slot_.saved[i];
      between_bytes[i] = (keeps_graph(saved) ? saved_bytes[i] : 0) + unseen_bytes(kept_by(saved), seen) +
                         unseen_bytes(slot_.output_gradients[i], seen);
    }
  }

  std::set<const void*> weights() const {
    std::set<const void*> found;
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      for (const at::Tensor& p : store_.current_parameters(static_cast<int>(i)))
        found.insert(p.storage().data());
    }
    return found;
  }

  /// Returns whether a layer keeps a tensor until its backward. With autograd's graph this is unknown, so it
  /// may.
  bool keeps(std::size_t step, const void* memory) const {
    const Saved& saved = slot_.saved[step];
    return keeps_graph(saved) || std::ranges::any_of(kept_by(saved), [&](const at::Tensor& t) {
             return t.storage().data() == memory;
           });
  }

  /// Counts the heads' saved bytes and workspace as the last layer's. They are freed before that layer's
  /// backward.
  void add_heads() {
    if (saved_bytes.empty()) return;
    saved_bytes.back() += saved_of_heads_;
    for (std::vector<Bytes>* workspace : {&workspace_bytes, &input_workspace_bytes})
      workspace->back() = std::max(workspace->back() - saved_of_heads_, head_workspace_);
  }

  NoReplicas alone_;
  StageProgram program_;
  LayerRunner runner_;
  ParameterStore& store_;
  const WorkClock clock_;
  Device& device_;
  BatchSamples* counted_ = nullptr;
  CoreTurns* core_turns_ = nullptr;
  TimePoint start_{};
  std::int64_t memory_before_ = 0;       ///< a forward or a backward
  std::int64_t memory_before_half_ = 0;  ///< a half of a backward
  LayerSlot slot_;
  std::span<const Bytes> output_bytes_;       ///< by layer
  std::vector<const void*> memory_of_place_;  ///< memory of the layers' outputs; null: of a field
  std::vector<at::Tensor> of_heads_;          ///< tensors that the heads keep until their backward
  Bytes saved_of_heads_ = 0, head_workspace_ = 0;
  std::vector<Bytes> growth_;  ///< by layer: bytes in memory after its forward less those before
};

/// Times the extra cost of summing gradients over replicas in a pass. A pass with sums and one without are
/// consecutive, so that a slow period of the machine affects both.
class Sums {
 public:
  /// `passes`, by turn, and `replicas` must outlive it.
  Sums(const std::vector<std::unique_ptr<Pass>>& passes, Communicator& replicas)
      : passes_(passes), replicas_(replicas) {
    const std::vector<int> one_host(static_cast<std::size_t>(replicas.size()), 0);
    for (const auto& pass : passes) {
      const Bytes bytes = pass->gradient_bytes();
      added_ +=
          added_bytes(all_reduce_route(one_host, std::min(bytes, kBucketBytes)).way, replicas.size(), bytes);
    }
  }

  /// Runs the pairs of a block. `pass_is_done` is called after each pass.
  void measure(const Batch& batch, const std::function<void()>& pass_is_done) {
    for (int i = 0; i < kPairs; ++i) {
      double seconds = 0;
      for (const auto& pass : passes_) {
        seconds += pass->plain_seconds(batch, &replicas_);
        pass_is_done();
        seconds -= pass->plain_seconds(batch);
        pass_is_done();
      }
      // The first sums allocate memory for messages.
      if (!std::exchange(is_first_, false)) seconds_.push_back(seconds);
    }
  }

  static constexpr int kPairs = 2;

  /// Returns LayerGraph::sum_s_per_byte.
  double seconds_per_byte() const {
    return added_ > 0 && !seconds_.empty() ? std::max(0., median(seconds_)) / double(added_) : 0;
  }

 private:
  const std::vector<std::unique_ptr<Pass>>& passes_;
  Communicator& replicas_;
  Bytes added_ = 0;  // by each rank in a step
  bool is_first_ = true;
  Samples seconds_;
};

/// Times updates of three kinds in sequence: in place, with the previous version kept, and in place after the
/// norm of the gradient.
class Updates {
 public:
  Updates(ParameterStore& store, std::size_t num_layers, const RuleOptions& rule, const WorkClock& clock,
          Device& device)
      : store_(store), num_layers_(num_layers), clock_(clock), device_(device) {
    for (int job = 0; job < store.jobs(); ++job)
      rules_.push_back(make_update_rule(rule, store.jobs() > 1 ? store.job(job) : store));
  }

  enum { InPlace, Kept, AfterNorm, kSorts };

  /// Takes the gradients of the passes for the following updates.
  void take_gradients() {
    sparse_ = rules_.size() == 1 && rules_[0]->updates_touched(store_.flat_weights());
    if (sparse_) touched_ = store_.touched();
  }

  /// Does one update with a rate of 0, which keeps the weights, and hence the times of layers, unchanged.
  void update() {
    const int sort = done_ % kSorts;
    // The first update of each kind touches fresh memory and does not count; in a run, an update reuses an
    // older version's memory.
    const bool counts = done_++ >= kSorts;
    const MicrobatchId holder(done_);
    if (sort == AfterNorm) {
      const double seconds = timed([&] { square_sums_by_slot(store_, store_.flat_gradient()); });
      if (counts) norm_.push_back(seconds);
    }
    if (sort == Kept) store_.pin(holder);
    const double seconds = timed([&] {
      publish(
          [&](const at::Tensor& weights, const at::Tensor& gradient) {
            std::vector<UpdateRule::Update> updates;
            for (int job = 0; job < store_.jobs(); ++job) {
              updates.push_back(JobRule{rules_[job].get(), job}.update(store_, weights, gradient, {}));
              if (sparse_) updates.back().touched = &touched_;
            }
            UpdateRule::apply_all_(updates);
          },
          sparse_ ? &touched_ : nullptr);
    });
    if (sort == Kept) store_.release(holder);
    if (counts && sort != AfterNorm) (sort == Kept ? kept_ : in_place_).push_back(seconds);
  }
  /// Makes the following passes start without gradients, as after an update.
  void forget_gradients() {
    publish([](const at::Tensor&, const at::Tensor&) {}, nullptr);
  }
  bool enough() const { return std::min({in_place_.size(), kept_.size(), norm_.size()}) >= 3; }

  void write_to(LayerGraph& graph) const {
    const double bytes = double(store_.flat_weights().nbytes());
    if (bytes <= 0) return;
    Bytes untouched = 0;
    for (std::size_t layer = 0; sparse_ && layer < num_layers_; ++layer) {
      LayerNode& node = graph.nodes[layer];
      // A layer's range ends with padding, which is not a parameter.
      node.untouched_bytes = std::min(untouched_bytes(static_cast<int>(layer)), node.parameter_bytes);
      untouched += node.untouched_bytes;
    }
    graph.update_s_per_byte = median(in_place_) / std::max(1.0, bytes - double(untouched));
    graph.update_copy_s_per_byte = std::max(0.0, median(kept_) - median(in_place_)) / bytes;
    graph.norm_s_per_byte = median(norm_) / bytes;
    for (const auto& rule : rules_) {
      for (const auto& [name, tensor] : rule->state())
        graph.rule_state_bytes += static_cast<Bytes>(tensor.nbytes());
    }
  }

 private:
  /// Also makes the copies of the new weights: their time counts as the update's, not as the next pass's.
  void publish(const std::function<void(at::Tensor, const at::Tensor&)>& update,
               const std::vector<FlatRange>* touched) {
    store_.publish(update, touched);
    for (std::size_t layer = 0; layer < num_layers_; ++layer)
      store_.current_parameters(static_cast<int>(layer));
  }
  Bytes untouched_bytes(int layer) const {
    const auto [begin, end] = store_.gradient_ranges(layer).front();
    std::int64_t elements = end - begin;
    for (const FlatRange range : touched_)
      elements -= std::max<std::int64_t>(0, std::min(range.end, end) - std::max(range.begin, begin));
    return elements * static_cast<Bytes>(store_.flat_weights().element_size());
  }
  template <class Work>
  double timed(Work&& work) {
    const TimePoint start = clock_.now();
    work();
    device_.synchronize();
    return Seconds(clock_.now() - start).count();
  }

  ParameterStore& store_;
  std::size_t num_layers_;
  std::vector<std::unique_ptr<UpdateRule>> rules_;  // by job
  const WorkClock clock_;
  Device& device_;
  int done_ = 0;
  bool sparse_ = false;             ///< updates skip rows that were not read
  std::vector<FlatRange> touched_;  ///< by the passes, if `sparse_`
  Samples in_place_, kept_, norm_;
};

StageLayout layout_or_throw(const LayeredModel& model, const ProfileOptions& options) {
  const Plan whole = uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB);
  Result<StageLayout> made = make_layout(model, whole, options.microbatch, options.precision);
  if (!made) throw ConfigError(to_string(made.problems()));
  refuse(untrainable_layers(*made, {options.sync_batch_norm}));
  return *std::move(made);
}

ParameterStore store_of(const StageLayout& layout, const ProfileOptions& options, Device& device) {
  ParameterStore store(layout, StageId(0),
                       std::vector(static_cast<std::size_t>(layout.model.jobs()), options.seed),
                       device.where());
  store.make_copies(layout, StageId(0), kMicrobatchesOfStep);
  return store;
}

/// The passes of all turns over the measured microbatches.
class TimedPasses {
 public:
  /// All references must outlive it. `batches` has at least one.
  TimedPasses(const StageLayout& layout, ParameterStore& store, const ProfileOptions& options,
              const WorkClock& clock, Device& device, const ProfileBatches& batches)
      : turns_(turns_of(layout)),
        options_(options),
        batches_(batches),
        samples_(turns_.size(), std::vector<BatchSamples>(batches.timed.size())) {
    for (const StageLayout* turn : turns_)
      passes_.push_back(std::make_unique<Pass>(*turn, store, options, clock, device));
    const std::size_t layers = layout.model.layers.size();
    for (auto& of_turn : samples_)
      for (BatchSamples& of : of_turn) of.layers.resize(layers);
    uncounted_.layers.resize(layers);
    if (options.replicas && options.core_share < 1) core_turns_.emplace(*options.replicas, layers);
  }

  void warm_up() {
    const ProfileBatches::One& longest = longest_of(batches_);
    for (std::size_t t = 0; t < turns_.size(); ++t) {
      const std::vector<Bytes> longest_bytes =
          output_bytes(*turns_[t], tensor_bytes(*turns_[t], longest.extent));
      for (int i = 0; i < warmups(); ++i) {
        passes_[t]->run(longest.batch, nullptr, longest_bytes);
        count();
      }
      passes_[t]->run_halves(longest.batch);
    }
  }

  /// Kernels are tried on the first microbatch of a size (linear_kernels.h), so these passes do not count.
  void choose_kernels() {
    for (const ProfileBatches::One& one : batches_.timed) {
      for (const auto& pass : passes_) {
        pass->run(one.batch, &uncounted_);
        count();
      }
    }
  }

  void run_block() {
    for (int i = 0; i < options_.repetitions; ++i) {
      for (std::size_t b = 0; b < batches_.timed.size(); ++b) {
        for (std::size_t t = 0; t < passes_.size(); ++t) {
          passes_[t]->run(batches_.timed[b].batch, &samples_[t][b], {},
                          core_turns_ ? &*core_turns_ : nullptr);
          count();
        }
      }
    }
  }

  void run_uncounted() { passes_.back()->run(batches_.timed.front().batch, &uncounted_); }

  /// Reports one more pass.
  void count() {
    // The 1 is the pass that tries kernels.
    const std::int64_t timed = std::int64_t{options_.blocks} * options_.repetitions + 1;
    const std::int64_t with_sums = options_.replicas ? options_.blocks * 2 * Sums::kPairs : 0;
    if (options_.progress)
      options_.progress(++passed_,
                        (timed * std::ssize(batches_.timed) + with_sums + warmups()) * std::ssize(turns_));
  }

  const std::vector<std::unique_ptr<Pass>>& of_turns() const { return passes_; }
  const TurnSamples& samples() const { return samples_; }
  std::vector<const PassBytes*> bytes() const {
    std::vector<const PassBytes*> all;
    for (const auto& pass : passes_) all.push_back(pass.get());
    return all;
  }

 private:
  int warmups() const { return std::max(1, options_.warmup); }

  const std::vector<const StageLayout*> turns_;
  const ProfileOptions& options_;
  const ProfileBatches& batches_;
  std::vector<std::unique_ptr<Pass>> passes_;  ///< by turn
  TurnSamples samples_;
  BatchSamples uncounted_;
  std::optional<CoreTurns> core_turns_;
  std::int64_t passed_ = 0;
};

}  // namespace

Batch random_batch(const LayeredModel& model, const BatchExtent& extent, Device& device) {
  Batch batch;
  for (const FieldSpec& field : model.fields) {
    const Shape shape = field_shape(field, extent);
    at::Tensor value;
    if (at::isFloatingType(field.dtype))
      value = at::randn(shape, at::TensorOptions(field.dtype));
    else
      value = at::randint(std::max<std::int64_t>(2, field.limit ? field.limit : 2), shape,
                          at::TensorOptions(field.dtype));
    batch.fields.push_back(device.upload(std::move(value)));
  }
  return batch;
}

ProfileBatches spread_batches(const LayeredModel& model, BatchSource& source, std::int64_t steps,
                              int microbatches_per_step, int count, Device& device) {
  const std::int64_t per_step = microbatches_per_step;
  const auto elements_at = [&](std::int64_t position) {
    const BatchExtent extent = source.extent(position);
    std::int64_t elements = 0;
    for (const FieldSpec& field : model.fields) elements += elements_of(field_shape(field, extent));
    return elements;
  };
  struct Step {
    std::int64_t elements = 0, first = 0;
  };
  std::vector<Step> all;
  std::int64_t longest = 0, most = -1;
  for (std::int64_t s = 0; s < steps; ++s) {
    Step& step = all.emplace_back(Step{.first = s * per_step});
    for (std::int64_t m = 0; m < per_step; ++m) {
      const std::int64_t elements = elements_at(step.first + m);
      step.elements += elements;
      if (elements > most) most = elements, longest = step.first + m;
    }
  }
  std::ranges::stable_sort(all, {}, &Step::elements);
  const auto one = [&](std::int64_t position) {
    source.seek(position);
    ProfileBatches::One made{.extent = source.extent(position), .batch = source.get(position)};
    for (at::Tensor& field : made.batch.fields) field = device.upload(std::move(field));
    return made;
  };
  ProfileBatches batches;
  const std::int64_t chosen = std::min(steps, (count + per_step - 1) / per_step);
  for (std::int64_t i = 0; i < chosen; ++i) {
    const Step& step = all[(2 * i + 1) * steps / (2 * chosen)];
    for (std::int64_t m = 0; m < per_step; ++m) batches.timed.push_back(one(step.first + m));
  }
  if (steps > 0) batches.longest = one(longest);
  return batches;
}

LayerGraph profile_model(const LayeredModel& model, const ProfileOptions& options, Clock& clock,
                         Device& device, ProfileBatches batches) {
  at::NoGradGuard no_grad;
  const WorkClock work_clock(clock, options.core_share);
  const StageLayout layout = layout_or_throw(model, options);
  ParameterStore store = store_of(layout, options, device);
  if (batches.timed.empty())
    batches.timed.push_back({layout.nominal, random_batch(model, layout.nominal, device)});
  TimedPasses passes(layout, store, options, work_clock, device, batches);
  passes.warm_up();
  passes.choose_kernels();
  Updates updates(store, model.layers.size(), options.rule, work_clock, device);
  const auto time_updates = [&] {
    passes.run_uncounted();
    updates.take_gradients();
    for (int i = 0; i < 2 * Updates::kSorts; ++i) updates.update();
  };
  std::optional<Sums> sums;
  if (options.replicas) sums.emplace(passes.of_turns(), *options.replicas);
  for (int block = 0; block < options.blocks; ++block) {
    if (options.before_block) options.before_block();
    passes.run_block();
    time_updates();
    if (!sums) continue;
    sums->measure(batches.timed.front().batch, [&] { passes.count(); });
    updates.forget_gradients();  // other ranks' gradients touched other rows
  }
  while (!updates.enough()) time_updates();
  const ProfileMeasurements measured{
      model,        options,          layout,         store,
      batches,      passes.samples(), passes.bytes(), device.identity().empty(),
      device.name()};
  LayerGraph graph = graph_of(measured);
  updates.write_to(graph);
  if (sums) graph.sum_s_per_byte = sums->seconds_per_byte();
  add_turns(graph, measured);
  return graph;
}

double microbatch_seconds(const LayeredModel& model, const ProfileOptions& options, Clock& clock,
                          Device& device, const BetweenMicrobatches& between) {
  constexpr std::int64_t kMostOthers = 1 << 28;  // bytes; no cache holds more for one core
  constexpr double kShort = 2e-3;                // seconds; a shorter pass is repeated ten times as often
  at::NoGradGuard no_grad;
  const StageLayout layout = layout_or_throw(model, options);
  ParameterStore store = store_of(layout, options, device);
  const Batch batch = random_batch(model, layout.nominal, device);
  std::vector<std::unique_ptr<Pass>> passes;  // by turn
  for (const StageLayout* turn : turns_of(layout))
    passes.push_back(std::make_unique<Pass>(*turn, store, options, WorkClock(clock, 1), device));
  const at::Tensor weights = store.flat_weights(), gradient = store.flat_gradient();
  std::vector<at::Tensor> states;
  for (int i = 0; i < between.rule_states; ++i) states.push_back(at::zeros_like(weights));
  const auto of_a_job = static_cast<std::int64_t>(weights.nbytes()) / model.jobs();
  const std::int64_t of_others = (2 + between.rule_states) * between.other_jobs * of_a_job;
  at::Tensor others = at::zeros({std::min(kMostOthers, of_others)}, at::TensorOptions(at::kByte));
  double least = 0;
  const int few = std::max(1, options.repetitions);
  for (int i = 0; i <= (least > kShort ? few : 10 * few); ++i) {
    others.add_(1);
    double seconds = 0;
    for (const auto& pass : passes) seconds += pass->plain_seconds(batch);
    const TimePoint start = clock.now();
    for (at::Tensor& state : states) state.add_(gradient);
    weights.mul_(1);
    gradient.zero_();
    device.synchronize();
    seconds += Seconds(clock.now() - start).count() / between.microbatches;
    if (i > 0) least = i == 1 ? seconds : std::min(least, seconds);
  }
  return least;
}

}  // namespace millrace
