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
#include "runtime/stage/flat_blocks.h"
#include "runtime/stage/gradient_reducer.h"
#include "runtime/stage/layer_runner.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {
namespace {

// Layers are timed as in a step of several microbatches, in which copies of the weights are worth making.
constexpr int kMicrobatchesOfStep = 8;

/// Seconds of one quantity, one for each repetition.
using Samples = std::vector<double>;

struct LayerSamples {
  Samples forward, backward_input, backward_weight;
};

/// The times of one of the measured microbatches.
struct BatchSamples {
  Samples forward, loss, backward;  ///< sums over all layers
  std::vector<LayerSamples> layers;
};

std::int64_t elements_of(const Shape& shape) {
  std::int64_t elements = 1;
  for (std::int64_t d : shape) elements *= d;
  return elements;
}

Bytes bytes_of(const TensorSpec& spec) {
  return static_cast<Bytes>(c10::elementSize(spec.dtype)) * elements_of(spec.shape);
}

/// Tells whether a layer, or one that it calls, keeps data other than tensors, e.g. autograd's graph.
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

/// Returns the bytes of those storages of `tensors` that are not among `seen`, and adds them to it.
Bytes unseen_bytes(const std::vector<at::Tensor>& tensors, std::set<const void*>& seen) {
  Bytes bytes = 0;
  for (const at::Tensor& t : tensors)
    if (t.defined() && seen.insert(t.storage().data()).second)
      bytes += static_cast<Bytes>(t.storage().nbytes());
  return bytes;
}

/// By layer, for each tensor that it reads: 1 if it keeps the tensor and an earlier layer counts it.
using KeptInputs = std::vector<std::vector<char>>;

constexpr Bytes kBucketBytes = 4 * kMiB;  // ExecutorOptions::bucket_bytes

/// The time that work takes. Where ranks share cores it is their processor time, divided by a thread's share
/// of a core: in real time others run in between, for slices as long as a layer.
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

/// Lets ranks that share cores take turns within a pass, like the stages of a pipeline. A rank goes on with
/// the next part of the layers when the one before it has sent a message as large as the part's input.
class CoreTurns {
 public:
  /// All ranks make the same passes. `ranks` must outlive it.
  CoreTurns(Communicator& ranks, std::size_t num_layers) : ranks_(ranks), num_layers_(num_layers) {}

  /// Calls for each layer of a forward, in order.
  void before_forward(std::size_t layer, Bytes input_bytes) {
    if (layer == 0 || part_of(layer) != part_of(layer - 1)) exchange(input_bytes);
  }
  /// Calls for each layer of a backward, the last one first.
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

/// Runs one microbatch through the whole model as one stage, by the program that training runs.
class Pass final : private LayerObserver {
 public:
  Pass(const StageLayout& layout, ParameterStore& store, const ProfileOptions& options,
       const WorkClock& clock, Device& device)
      : saved_bytes(layout.model.layers.size()),
        saved_output_bytes(layout.model.layers.size()),
        saved_input_bytes(layout.model.layers.size()),
        between_bytes(layout.model.layers.size()),
        workspace_bytes(layout.model.layers.size()),
        input_workspace_bytes(layout.model.layers.size()),
        weight_workspace_bytes(layout.model.layers.size()),
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
  /// `output_bytes` by layer. `core_turns`, if there are any, are part of the pass.
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

  /// Returns the seconds of a pass as training runs it, without a look at single layers. With `replicas` it
  /// is the last pass of a step among them, which adds up the gradients.
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

  /// Returns the bytes of the gradients that a pass gives, those of rows that it did not read included.
  Bytes gradient_bytes() const {
    std::int64_t elements = 0;
    for (std::size_t i = 0; i < program_.steps.size(); ++i) {
      if (program_.steps[i].frozen) continue;
      const auto [begin, end] = store_.gradient_ranges(static_cast<int>(i)).front();
      elements += (end - begin) * store_.jobs();
    }
    return elements * static_cast<Bytes>(store_.flat_gradient().element_size());
  }

  /// Measures what is kept between the halves of a backward (between_bytes).
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

  std::vector<Bytes> saved_bytes, saved_output_bytes, saved_input_bytes, between_bytes, workspace_bytes,
      input_workspace_bytes, weight_workspace_bytes;
  KeptInputs keeps_counted;

 private:
  void forward(const Batch& batch) {
    slot_.clear();
    slot_.values.resize(program_.num_places);
    memory_of_place_.assign(static_cast<std::size_t>(program_.num_places), nullptr);
    slot_.gradients.resize(program_.num_places);
    for (const auto& [field, place] : program_.fields) slot_.values[place] = batch.fields[field];
    runner_.forward(slot_, 0, store_.current(), LayerRunner::Run::Train);
  }

  /// Adds the seconds of a pass as training runs it, on the device's clock. A device that works while the
  /// host goes on is slower where the host waits after each layer.
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

  /// Stands for the sum over replicas but adds nothing. Batch normalisation then computes as it does among
  /// replicas. The planner prices the messages that they exchange.
  struct NoReplicas final : ReplicaSum {
    void add_up_(const at::Tensor&, const char*) override {}
  };

  /// The inputs of a layer that are still there.
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
    // The gradient that came in was there before, and counts as the layer's.
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
      // Autograd's graph does not say which tensors it keeps. So all that the forward left in memory counts,
      // its outputs included.
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

  /// Tells whether a layer keeps a tensor until its backward. Autograd's graph does not say, so it may.
  bool keeps(std::size_t step, const void* memory) const {
    const Saved& saved = slot_.saved[step];
    return keeps_graph(saved) || std::ranges::any_of(kept_by(saved), [&](const at::Tensor& t) {
             return t.storage().data() == memory;
           });
  }

  /// Counts what the heads keep, and work with, as the last layer's. It is freed before that layer's
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
  std::vector<const void*> memory_of_place_;  ///< of what the layers made; null: of a field
  std::vector<at::Tensor> of_heads_;          ///< what they keep until their backward
  Bytes saved_of_heads_ = 0, head_workspace_ = 0;
  std::vector<Bytes> growth_;  ///< by layer: bytes in memory after its forward less those before
};

/// Times what adding up gradients over replicas adds to a pass. A pass with sums and one without follow each
/// other, so that a slow moment of the machine counts in both.
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
      // The first sums take memory for messages.
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

/// Times updates of three sorts, one after the other: in place, with the version before kept, and in place
/// after the norm of the gradient.
class Updates {
 public:
  Updates(ParameterStore& store, std::size_t num_layers, const RuleOptions& rule, const WorkClock& clock,
          Device& device)
      : store_(store), num_layers_(num_layers), clock_(clock), device_(device) {
    for (int job = 0; job < store.jobs(); ++job)
      rules_.push_back(make_update_rule(rule, store.jobs() > 1 ? store.job(job) : store));
  }

  enum { InPlace, Kept, AfterNorm, kSorts };

  /// Takes the gradients that passes have left as those of the updates that follow.
  void take_gradients() {
    sparse_ = rules_.size() == 1 && rules_[0]->updates_touched(store_.flat_weights());
    if (sparse_) touched_ = store_.touched();
  }

  /// Does one update with a rate of 0. The weights stay as they are, and so do the times of layers.
  void update() {
    const int sort = done_ % kSorts;
    // The first update of each sort touches fresh memory and does not count; in a run, an update takes the
    // memory of an older version.
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
  /// Lets the passes that follow begin without gradients, as they do after an update.
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
      // The place of a layer ends with padding, which is no parameter.
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
  /// Makes the copies of the new weights too: their time counts as the update's, and not as the next pass's.
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
  bool sparse_ = false;             ///< updates pass over rows that were not read
  std::vector<FlatRange> touched_;  ///< by the passes, if `sparse_`
  Samples in_place_, kept_, norm_;
};

/// Returns the median of the passes from `first` on; 0 if there are none, as for a layer without weights.
double middle(const Samples& samples, std::size_t first = 0) {
  if (samples.size() <= first) return 0;
  return median(Samples(samples.begin() + static_cast<std::ptrdiff_t>(first), samples.end()));
}

/// The seconds of one of the microbatches.
struct BatchSeconds {
  double loss = 0;
  std::vector<LayerSeconds> layers;
  double total() const {
    double sum = loss;
    for (const LayerSeconds& s : layers) sum += s.forward + s.backward_input + s.backward_weight;
    return sum;
  }
  void operator+=(const BatchSeconds& more) {
    loss += more.loss;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      layers[i].forward += more.layers[i].forward;
      layers[i].backward_input += more.layers[i].backward_input;
      layers[i].backward_weight += more.layers[i].backward_weight;
    }
  }
};

/// Returns medians over the passes from `first` on. The medians of layers do not add up to the median of a
/// pass: between layers memory is freed and tensors are handed over, and a GPU is waited for after each layer
/// (Pass::add_whole). So layers are scaled to add up to the whole.
BatchSeconds seconds_of(const BatchSamples& batch, std::size_t first = 0) {
  BatchSeconds seconds{.loss = middle(batch.loss, first), .layers = {}};
  double forward = 0, backward = 0;
  for (const LayerSamples& of : batch.layers) {
    const LayerSeconds& s = seconds.layers.emplace_back(LayerSeconds{
        middle(of.forward, first), middle(of.backward_input, first), middle(of.backward_weight, first)});
    forward += s.forward;
    backward += s.backward_input + s.backward_weight;
  }
  const double of_forward = forward > 0 ? middle(batch.forward, first) / forward : 1,
               of_backward = backward > 0 ? middle(batch.backward, first) / backward : 1;
  for (LayerSeconds& s : seconds.layers) {
    s.forward *= of_forward;
    s.backward_input *= of_backward;
    s.backward_weight *= of_backward;
  }
  return seconds;
}

/// Samples by turn, then by microbatch. A model without turns has one entry.
using TurnSamples = std::vector<std::vector<BatchSamples>>;

/// Returns the seconds of each microbatch, all turns together.
std::vector<BatchSeconds> seconds_of_each(const TurnSamples& turns, std::size_t first = 0) {
  std::vector<BatchSeconds> each;
  for (const BatchSamples& batch : turns.front()) each.push_back(seconds_of(batch, first));
  for (std::size_t t = 1; t < turns.size(); ++t) {
    for (std::size_t b = 0; b < each.size(); ++b) each[b] += seconds_of(turns[t][b], first);
  }
  return each;
}

/// Returns the mean of `of(batch)` over the microbatches.
template <class Of>
double mean(const std::vector<BatchSeconds>& batches, Of of) {
  double sum = 0;
  for (const BatchSeconds& batch : batches) sum += of(batch);
  return sum / static_cast<double>(batches.size());
}

/// Returns the bytes of each tensor for a microbatch of `extent`, by index in StageLayout::tensors.
std::vector<Bytes> tensor_bytes(const StageLayout& layout, const BatchExtent& extent) {
  std::vector<Bytes> bytes;
  std::vector<Shape> shapes = tensor_shapes(layout, extent);
  for (std::size_t t = 0; t < shapes.size(); ++t)
    bytes.push_back(bytes_of({.shape = std::move(shapes[t]), .dtype = layout.tensors[t].spec.dtype}));
  return bytes;
}

/// Returns the bytes that each layer makes. `tensors` has the bytes of each tensor.
std::vector<Bytes> output_bytes(const StageLayout& layout, const std::vector<Bytes>& tensors) {
  std::vector<Bytes> bytes;
  for (const auto& made : layout.makes) {
    Bytes& sum = bytes.emplace_back();
    for (int t : made) sum += tensors[t];
  }
  return bytes;
}

/// Returns the bytes of the fields that each layer reads, by name. Those of the heads count with the last
/// layer.
std::vector<std::map<std::string, Bytes>> fields_of(const StageLayout& layout,
                                                    const std::vector<Bytes>& tensors) {
  std::vector<std::map<std::string, Bytes>> fields(layout.reads.size());
  const auto add = [&](std::map<std::string, Bytes>& into, const std::vector<int>& all) {
    for (const int t : all)
      if (layout.tensors[t].field >= 0) into[layout.tensors[t].name] = tensors[t];
  };
  for (std::size_t l = 0; l < fields.size(); ++l) add(fields[l], layout.reads[l]);
  for (const std::vector<int>& head : layout.head_reads) add(fields.back(), head);
  return fields;
}

Bytes sum_of(const std::map<std::string, Bytes>& fields) {
  Bytes sum = 0;
  for (const auto& [name, bytes] : fields) sum += bytes;
  return sum;
}

/// Returns the layer that owns parameters of `layer`; empty: it owns all of them.
std::string owner_of(const NamedLayer& layer, const LayeredModel& model) {
  if (layer.tied.empty()) return {};
  const std::optional<ParameterPlace> place = find_parameter(model, layer.tied.front().second);
  return place ? model.layers[place->layer].name : std::string();
}

/// Tells whether layer `l` reads `tensor` in a turn (`there`), and whether its gradient comes back (`back`).
struct InTurn {
  bool there = false, back = false;
};
InTurn in_turn(const StageLayout& turn, std::size_t l, const std::string& tensor) {
  for (const int t : turn.reads[l]) {
    const ModelTensor& read = turn.tensors[t];
    if (read.name == tensor) return {.there = true, .back = read.wants_gradient};
  }
  return {};
}

/// Merges what the layers keep in each turn.
KeptInputs kept_inputs(const std::vector<std::unique_ptr<Pass>>& passes) {
  KeptInputs kept = passes.front()->keeps_counted;
  for (const auto& pass : passes) {
    for (std::size_t l = 0; l < kept.size(); ++l)
      std::ranges::transform(kept[l], pass->keeps_counted[l], kept[l].begin(), std::logical_or<>());
  }
  return kept;
}

/// Returns the bytes that go over a border between two layers: the mean over the microbatches, and each
/// microbatch's if lengths differ. If `turn` is given, they are those that go there and back in that turn. In
/// a job array the tensors "NAME@0", "NAME@1", ... are one edge.
std::vector<LayerEdge> edges_of(const StageLayout& layout, const std::vector<Bytes>& mean,
                                const std::vector<std::vector<Bytes>>& of_each, const KeptInputs& kept,
                                const StageLayout* turn = nullptr) {
  const bool array = layout.model.jobs() > 1;
  std::vector<LayerEdge> edges;
  for (std::size_t l = 0; l < layout.reads.size(); ++l) {
    const auto first = std::ssize(edges);
    std::set<int> read;
    for (std::size_t input = 0; input < layout.reads[l].size(); ++input) {
      const int t = layout.reads[l][input];
      const ModelTensor& tensor = layout.tensors[t];
      if (tensor.layer < 0 || !read.insert(t).second) continue;
      LayerEdge edge{tensor.layer, static_cast<int>(l),
                     array ? tensor.name.substr(0, tensor.name.rfind('@')) : tensor.name, mean[t]};
      if (!of_each.empty()) edge.of_microbatches = of_each[t];
      edge.kept_bytes = kept[l][input] != 0 ? edge.bytes : 0;
      if (turn != nullptr) {
        const InTurn ways = in_turn(*turn, l, tensor.name);
        edge.gradient_bytes = ways.back ? edge.bytes : 0;
        if (!ways.there) edge.bytes = 0;
      }
      const auto known = std::find_if(edges.begin() + first, edges.end(), [&](const LayerEdge& e) {
        return array && e.producer == edge.producer && e.tensor == edge.tensor;
      });
      if (known == edges.end()) {
        edges.push_back(std::move(edge));
        continue;
      }
      known->bytes += edge.bytes;
      // If the jobs' tensors came together, the first job's is all of them.
      if (*known->kept_bytes > 0 || *edge.kept_bytes > 0) known->kept_bytes = known->bytes;
      if (edge.gradient_bytes) *known->gradient_bytes += *edge.gradient_bytes;
      for (std::size_t m = 0; m < edge.of_microbatches.size(); ++m)
        known->of_microbatches[m] += edge.of_microbatches[m];
    }
  }
  return edges;
}

/// Returns half the distance between the slowest and the fastest block, as a share of the median.
double spread_of(const Samples& totals) {
  const auto [least, most] = std::minmax_element(totals.begin(), totals.end());
  const double middle = median(totals);
  return middle > 0 ? (*most - *least) / 2 / middle : 0;
}

/// Returns Measured::jitter of passes, `repetitions` of which are a block.
double jitter_of(const TurnSamples& turns, std::size_t repetitions) {
  std::vector<double> ratios;  // logarithms, of any two passes of a block
  const auto add = [&](const Samples& passes) {
    for (std::size_t i = 0; i < passes.size(); ++i) {
      const std::size_t end = std::min(passes.size(), (i / repetitions + 1) * repetitions);
      for (std::size_t j = i + 1; j < end; ++j)
        if (passes[i] > 0 && passes[j] > 0) ratios.push_back(std::abs(std::log(passes[i] / passes[j])));
    }
  };
  for (const std::vector<BatchSamples>& turn : turns) {
    for (const BatchSamples& batch : turn) {
      add(batch.forward);
      add(batch.backward);
    }
  }
  // The logarithm of two draws' ratio is normal with sigma sqrt(2). Half of all draws of a normal lie within
  // 0.6745 of its sigma. The work of other programs in some of the passes moves a median little.
  return median(ratios) / (0.6745 * std::numbers::sqrt2);
}

/// Returns the part of `whole`, the graph of all turns, that one turn costs.
LayerGraph turn_of(const LayerGraph& whole, const StageLayout& turn, const std::string& name,
                   const std::vector<BatchSamples>& samples, const Pass& pass) {
  LayerGraph graph = whole;
  graph.turn = name;
  graph.turns.clear();
  graph.dimensions.clear();
  graph.microbatches.clear();
  std::vector<BatchSeconds> each;
  for (const BatchSamples& batch : samples) each.push_back(seconds_of(batch));
  graph.loss_s = mean(each, [](const BatchSeconds& batch) { return batch.loss; });
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    LayerNode& node = graph.nodes[i];
    const auto seconds = [&](double LayerSeconds::*phase) {
      return mean(each, [&](const BatchSeconds& batch) { return batch.layers[i].*phase; });
    };
    node.forward_s = seconds(&LayerSeconds::forward);
    node.backward_input_s = seconds(&LayerSeconds::backward_input);
    node.backward_weight_s = seconds(&LayerSeconds::backward_weight);
    if (turn.model.layers[i].frozen) node.parameter_bytes = node.untouched_bytes = 0;
    node.saved_bytes = pass.saved_bytes[i];
    node.saved_output_bytes = pass.saved_output_bytes[i];
    node.saved_input_bytes = pass.saved_input_bytes[i];
    node.between_bytes = pass.between_bytes[i];
    node.workspace_bytes = pass.workspace_bytes[i];
    node.input_workspace_bytes = pass.input_workspace_bytes[i];
    node.weight_workspace_bytes = pass.weight_workspace_bytes[i];
    node.of_microbatches.clear();
  }
  return graph;
}

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

/// Returns the layouts of all turns; for a model without turns the layout itself.
std::vector<const StageLayout*> turns_of(const StageLayout& layout) {
  std::vector<const StageLayout*> turns;
  for (const StageLayout& turn : layout.turns) turns.push_back(&turn);
  if (turns.empty()) turns.push_back(&layout);
  return turns;
}

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
  const ProfileBatches::One& longest = batches.longest ? *batches.longest : batches.timed.back();

  const std::vector<const StageLayout*> turns = turns_of(layout);
  const int warmups = std::max(1, options.warmup);
  const auto num_batches = static_cast<std::int64_t>(batches.timed.size());
  std::int64_t passed = 0;
  const auto pass_is_done = [&] {
    // The 1 stands for the pass that tries kernels.
    const std::int64_t timed = std::int64_t{options.blocks} * options.repetitions + 1;
    const std::int64_t with_sums = options.replicas ? options.blocks * 2 * Sums::kPairs : 0;
    if (options.progress)
      options.progress(++passed, (timed * num_batches + with_sums + warmups) * std::ssize(turns));
  };
  std::vector<std::unique_ptr<Pass>> passes;  // by turn
  for (const StageLayout* turn : turns) {
    passes.push_back(std::make_unique<Pass>(*turn, store, options, work_clock, device));
    const std::vector<Bytes> longest_bytes = output_bytes(*turn, tensor_bytes(*turn, longest.extent));
    for (int i = 0; i < warmups; ++i) {
      passes.back()->run(longest.batch, nullptr, longest_bytes);
      pass_is_done();
    }
    passes.back()->run_halves(longest.batch);
  }
  TurnSamples samples(turns.size(), std::vector<BatchSamples>(batches.timed.size()));
  for (auto& of_turn : samples) {
    for (BatchSamples& of : of_turn) of.layers.resize(model.layers.size());
  }
  Updates updates(store, model.layers.size(), options.rule, work_clock, device);
  BatchSamples uncounted;
  uncounted.layers.resize(model.layers.size());
  const auto time_updates = [&] {
    passes.back()->run(batches.timed.front().batch, &uncounted);
    updates.take_gradients();
    for (int i = 0; i < 2 * Updates::kSorts; ++i) updates.update();
  };
  // Kernels are tried at the first microbatch of a size (linear_kernels.h), so these passes do not count.
  for (const ProfileBatches::One& one : batches.timed) {
    for (const auto& pass : passes) {
      pass->run(one.batch, &uncounted);
      pass_is_done();
    }
  }
  std::optional<CoreTurns> core_turns;
  if (options.replicas && options.core_share < 1) core_turns.emplace(*options.replicas, model.layers.size());
  std::optional<Sums> sums;
  if (options.replicas) sums.emplace(passes, *options.replicas);
  Samples totals;
  for (int block = 0; block < options.blocks; ++block) {
    if (options.before_block) options.before_block();
    const std::size_t first = samples.front().front().loss.size();
    for (int i = 0; i < options.repetitions; ++i) {
      for (std::size_t b = 0; b < batches.timed.size(); ++b) {
        for (std::size_t t = 0; t < passes.size(); ++t) {
          passes[t]->run(batches.timed[b].batch, &samples[t][b], {}, core_turns ? &*core_turns : nullptr);
          pass_is_done();
        }
      }
    }
    time_updates();
    if (sums) {
      sums->measure(batches.timed.front().batch, pass_is_done);
      updates.forget_gradients();  // those of other ranks touched other rows
    }
    double total = 0;
    for (const BatchSeconds& batch : seconds_of_each(samples, first)) total += batch.total();
    totals.push_back(total);
  }
  while (!updates.enough()) time_updates();

  LayerGraph graph{.model = model.name,
                   .microbatch = options.microbatch,
                   .device = device.name(),
                   .precision = to_string(options.precision),
                   .sync_batch_norm = options.sync_batch_norm};
  std::vector<Bytes> mean_bytes(layout.tensors.size(), 0);
  std::vector<std::vector<Bytes>> bytes_of_each(layout.tensors.size());  // by tensor
  for (const ProfileBatches::One& one : batches.timed) {
    const std::vector<Bytes> bytes = tensor_bytes(layout, one.extent);
    for (std::size_t t = 0; t < bytes.size(); ++t) {
      mean_bytes[t] += bytes[t];
      bytes_of_each[t].push_back(bytes[t]);
    }
  }
  for (Bytes& bytes : mean_bytes) bytes /= static_cast<Bytes>(batches.timed.size());
  const std::vector<BatchSeconds> each = seconds_of_each(samples);
  const std::vector<Bytes> mean_outputs = output_bytes(layout, mean_bytes);
  // Batches that are loaded ahead wait in the host's memory.
  const bool batches_wait_on_device = device.identity().empty();
  using Fields = std::vector<std::map<std::string, Bytes>>;
  const Fields fields = batches_wait_on_device ? fields_of(layout, tensor_bytes(layout, longest.extent))
                                               : Fields(model.layers.size());
  if (!model.dimensions.empty()) {
    for (const Dimension& dimension : model.dimensions) graph.dimensions.push_back(dimension.name);
    for (std::size_t b = 0; b < each.size(); ++b)
      graph.microbatches.push_back({batches.timed[b].extent.lengths, each[b].total(), each[b].loss});
  }
  const bool lengths_differ = graph.microbatches.size() > 1;
  graph.loss_s = mean(each, [](const BatchSeconds& batch) { return batch.loss; });
  const auto most = [&](std::vector<Bytes> Pass::*bytes, std::size_t layer) {
    Bytes result = 0;
    for (const auto& pass : passes) result = std::max(result, (*pass.*bytes)[layer]);
    return result;
  };
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const NamedLayer& layer = model.layers[i];
    const auto seconds = [&](double LayerSeconds::*phase) {
      return mean(each, [&](const BatchSeconds& batch) { return batch.layers[i].*phase; });
    };
    Bytes parameter_bytes = 0, tied_bytes = 0;
    for (const ParameterSpec& spec : layer.layer->parameters()) {
      if (spec.is_buffer) continue;
      (layer.is_tied(spec) ? tied_bytes : parameter_bytes) += bytes_of({.shape = spec.shape});
    }
    graph.nodes.push_back({.name = layer.name,
                           .kind = layer.layer->kind(),
                           .forward_s = seconds(&LayerSeconds::forward),
                           .backward_input_s = seconds(&LayerSeconds::backward_input),
                           .backward_weight_s = seconds(&LayerSeconds::backward_weight),
                           .parameter_bytes = parameter_bytes,
                           .lowered_bytes = store.bytes_of_copies(static_cast<int>(i)) + tied_bytes,
                           .field_bytes = sum_of(fields[i]),
                           .fields = fields[i],
                           .activation_bytes = mean_outputs[i],
                           .saved_bytes = most(&Pass::saved_bytes, i),
                           .saved_output_bytes = most(&Pass::saved_output_bytes, i),
                           .saved_input_bytes = most(&Pass::saved_input_bytes, i),
                           .between_bytes = most(&Pass::between_bytes, i),
                           .tied_to = owner_of(layer, model),
                           .tied_bytes = tied_bytes,
                           .workspace_bytes = most(&Pass::workspace_bytes, i),
                           .input_workspace_bytes = most(&Pass::input_workspace_bytes, i),
                           .weight_workspace_bytes = most(&Pass::weight_workspace_bytes, i)});
    if (lengths_differ)
      for (const BatchSeconds& batch : each) graph.nodes.back().of_microbatches.push_back(batch.layers[i]);
  }
  const KeptInputs kept = kept_inputs(passes);
  graph.edges =
      edges_of(layout, mean_bytes, lengths_differ ? bytes_of_each : std::vector<std::vector<Bytes>>(), kept);
  updates.write_to(graph);
  if (sums) graph.sum_s_per_byte = sums->seconds_per_byte();
  graph.jobs = model.jobs();
  graph.measured = {.ranks = 1,
                    .blocks = options.blocks,
                    .spread = spread_of(totals),
                    .jitter = jitter_of(samples, static_cast<std::size_t>(options.repetitions))};
  std::vector<LayerGraph> of_turns;
  for (std::size_t t = 0; t < layout.turns.size(); ++t) {
    of_turns.push_back(turn_of(graph, layout.turns[t], model.turns[t].name, samples[t], *passes[t]));
    of_turns.back().edges = edges_of(layout, mean_bytes, {}, kept, turns[t]);
    const Fields read = fields_of(*turns[t], tensor_bytes(*turns[t], longest.extent));
    for (std::size_t i = 0; i < read.size(); ++i) {
      LayerNode& node = of_turns.back().nodes[i];
      if (!batches_wait_on_device) continue;
      node.fields = read[i];
      node.field_bytes = sum_of(read[i]);
    }
  }
  graph.turns = std::move(of_turns);
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
