#include "runtime/stage/stage_heads.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/error.h"
#include "runtime/device/device.h"
#include "runtime/device/failures.h"
#include "runtime/layers/soft_cross_entropy.h"

namespace millrace {

namespace {
void exchange_inputs(Communicator& replicas, Direction direction, RankId peer, std::uint64_t tag,
                     std::span<const at::Tensor> inputs) {
  std::vector<Transfer> transfers;
  for (const at::Tensor& input : inputs)
    transfers.push_back({.direction = direction,
                         .peer = peer,
                         .tag = tag++,
                         .tensor = input,
                         .what = "windows of an evaluation"});
  replicas.exchange(transfers)->wait();
}

/// Returns a tensor in the form that collectors expect: on the CPU, without a lower precision.
at::Tensor as_collected(const at::Tensor& t) {
  return to_host(t.is_floating_point() ? t.to(at::kFloat) : t).contiguous();
}
}  // namespace

StageHeads::StageHeads(const StageProgram& program, const StageLayout& layout, const LayerRunner& layers,
                       Communicator* replicas, int microbatches_per_update)
    : program_(program),
      layout_(layout),
      layers_(layers),
      replicas_(replicas),
      microbatches_per_update_(microbatches_per_update),
      uncollected_(program.heads.size()),
      sums_(program.num_sums, 0.0) {
  for (const HeadStep& head : program.heads) collectors_.push_back(head.head->collector());
}

/// On a device the sums stay there until they are requested: reading them would stall it at every microbatch.
void StageHeads::forward(LayerSlot& slot, bool training) {
  slot.heads.resize(program_.heads.size());
  for (std::size_t h = 0; h < program_.heads.size(); ++h) {
    const HeadStep& step = program_.heads[h];
    std::vector<at::Tensor> inputs = layers_.inputs_of(slot, step);
    if (!training && collectors_[h]) {
      std::ranges::transform(inputs, inputs.begin(), as_collected);
      if (replicas_)
        uncollected_[h][slot.microbatch.value] = std::move(inputs);
      else
        add_collected(h, inputs);
      continue;
    }
    Saved* saved = training ? &slot.heads[h] : nullptr;
    const auto begin = static_cast<std::int64_t>(step.sums), size = static_cast<std::int64_t>(step.num_sums);
    try {
      if (inputs[0].device().is_cpu()) {
        step.head->forward(inputs, saved, std::span(sums_).subspan(step.sums, step.num_sums));
        if (training && !std::isfinite(sums_[step.sums])) note_nonfinite(step, slot.microbatch);
        continue;
      }
      const at::Tensor sums = step.head->forward_on_device(inputs, saved);
      if (!sums_on_device_.defined())
        sums_on_device_ = at::zeros({static_cast<std::int64_t>(program_.num_sums)}, sums.options());
      sums_on_device_.narrow(0, begin, size).add_(sums);
    } catch (...) {
      rethrow_with("head " + step.named->name + ": ");
    }
  }
}

void StageHeads::add_collected(std::size_t head, std::span<const at::Tensor> inputs) {
  const HeadStep& step = program_.heads[head];
  try {
    collectors_[head]->add(inputs, std::span(sums_).subspan(step.sums, step.num_sums));
  } catch (...) {
    rethrow_with("head " + step.named->name + ": ");
  }
}

/// All messages are waited for here, so that the next call may reuse their numbers.
void StageHeads::collect_microbatches(std::int64_t from, std::int64_t to,
                                      const std::function<BatchExtent(MicrobatchId)>& extent_of) {
  if (!replicas_) return;
  std::uint64_t tag = 0;
  for (std::size_t h = 0; h < program_.heads.size(); ++h) {
    if (!collectors_[h]) continue;
    for (std::int64_t m = from; m < to; ++m, tag += program_.heads[h].inputs.size()) {
      const auto owner = static_cast<int>(m % replicas_->size()), own = replicas_->rank().value;
      if (own != 0 && own != owner) continue;
      if (own == 0 && owner != 0) {
        add_collected(h, receive_inputs(static_cast<int>(h), RankId(owner), tag, extent_of(MicrobatchId(m))));
        continue;
      }
      const auto inputs = uncollected_[h].extract(m).mapped();
      if (own == 0)
        add_collected(h, inputs);
      else
        exchange_inputs(*replicas_, Direction::Send, RankId(0), tag, inputs);
    }
  }
}

std::vector<at::Tensor> StageHeads::receive_inputs(int head, RankId from, std::uint64_t tag,
                                                   const BatchExtent& extent) {
  const std::vector<Shape> shapes = tensor_shapes(layout_, extent);
  const int index = program_.heads[head].use - static_cast<int>(layout_.model.layers.size());
  std::vector<at::Tensor> inputs;
  for (const int tensor : layout_.head_reads[index]) {
    const at::ScalarType dtype = layout_.tensors[tensor].spec.dtype;
    inputs.push_back(at::empty(shapes[tensor], at::isFloatingType(dtype) ? at::kFloat : dtype));
  }
  exchange_inputs(*replicas_, Direction::Receive, from, tag, inputs);
  return inputs;
}

/// Returns the microbatch's share of its step's loss, by job. With equal microbatches it is exactly 1 / their
/// number.
std::vector<LossScale> StageHeads::scales_of(const HeadStep& head, MicrobatchId microbatch,
                                             const RunContext& context) {
  const std::int64_t position = context.position_of(microbatch);
  const std::int64_t first = position - position % microbatches_per_update_;
  if (step_total_.first != first) {
    BatchExtent total = context.extent_of(first);
    for (std::int64_t p = first + 1; p < first + microbatches_per_update_; ++p) {
      const BatchExtent one = context.extent_of(p);
      total.samples += one.samples;
      for (std::size_t i = 0; i < one.counts.size(); ++i) total.counts[i] += one.counts[i];
    }
    step_total_ = {first, std::move(total)};
  }
  const BatchExtent extent = context.extent_of(position);
  const std::size_t counts = layout_.model.counts.size();
  // Jobs that read their own batches have their own counts (batches_of_jobs).
  const auto weight_in = [&](const BatchExtent& e, std::size_t job) {
    const std::size_t first = e.counts.size() > counts ? job * counts : 0;
    return static_cast<double>(head.count < 0 ? e.samples : e.counts.at(first + head.count));
  };
  std::vector<LossScale> of_jobs;
  for (std::size_t job = 0; job < context.loss_scales.size(); ++job) {
    const double all = std::max(1.0, weight_in(step_total_.second, job)), own = weight_in(extent, job),
                 weight = head.named->weight * context.loss_scales[job];
    of_jobs.push_back({.share = weight * (own / all), .unit = weight / all});
  }
  return of_jobs;
}

void StageHeads::backward(LayerSlot& slot, const RunContext& context) {
  for (std::size_t h = program_.heads.size(); h-- > 0;) {
    const HeadStep& step = program_.heads[h];
    const std::span<const bool> needs(reinterpret_cast<const bool*>(step.needs.data()), step.needs.size());
    layers_.add_gradients(
        slot, step,
        step.head->backward_of_jobs(slot.heads[h], scales_of(step, slot.microbatch, context), needs));
  }
  slot.heads.clear();
}

void StageHeads::collect() {
  if (!sums_on_device_.defined()) return;
  const at::Tensor sums = to_host(std::exchange(sums_on_device_, {}));
  for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += sums.const_data_ptr<double>()[i];
}

void StageHeads::reduce() {
  if (program_.heads.empty() || !replicas_) return;
  collect();
  at::Tensor sums = at::tensor(sums_, at::kDouble);
  replicas_->all_reduce(sums, "REDUCE of the losses")->wait();
  std::copy_n(sums.const_data_ptr<double>(), sums_.size(), sums_.begin());
}

void StageHeads::note_nonfinite(const HeadStep& head, std::optional<MicrobatchId> microbatch) {
  if (first_nonfinite_ || layout_.model.jobs() > 1) return;
  std::string text = "the loss is " + nonfinite_text(sums_[head.sums]);
  if (program_.heads.size() > 1) text += " in head " + head.named->name;
  if (microbatch) text += " in microbatch " + std::to_string(microbatch->value);
  first_nonfinite_ = NonfinitePlace{
      NonfinitePlace::order_of(NonfinitePlace::Kind::Loss, microbatch.value_or(MicrobatchId(0)).value, 0),
      text + " (stage " + std::to_string(program_.stage.value) + ")"};
}

std::vector<char> StageHeads::nonfinite_jobs() {
  collect();
  if (program_.heads.empty()) return {};
  const auto jobs = static_cast<std::size_t>(layout_.model.jobs());
  std::vector<char> nonfinite(jobs, 0);
  for (const HeadStep& step : program_.heads) {
    for (std::size_t job = 0; job < jobs; ++job) {
      if (std::isfinite(sums_[step.sums + job * step.num_sums / jobs])) continue;
      nonfinite[job] = 1;
      note_nonfinite(step, std::nullopt);
    }
  }
  return nonfinite;
}

void StageHeads::require_finite() {
  collect();
  const auto jobs = static_cast<std::size_t>(layout_.model.jobs());
  for (const HeadStep& step : program_.heads) {
    std::size_t finite = 0;  // jobs of an array that continue
    for (std::size_t job = 0; job < jobs; ++job)
      finite += std::isfinite(sums_[step.sums + job * step.num_sums / jobs]);
    if (const double loss = sums_[step.sums]; finite == 0)
      throw NumericError(first_nonfinite_
                             ? first_nonfinite_->text
                             : "the loss is " + nonfinite_text(loss) +
                                   (program_.heads.size() > 1 ? " in head " + step.named->name : ""),
                         "lower --lr or add --warmup-steps");
  }
}

std::vector<double> StageHeads::take_sums() {
  collect();
  return std::exchange(sums_, std::vector<double>(program_.num_sums, 0.0));
}

LossSums StageHeads::losses_of(std::span<const double> sums) const {
  if (program_.heads.empty()) return {};
  std::vector<NamedValues> jobs = job_values(layout_.model, sums);
  NamedValues values = values_of_jobs(jobs);
  const HeadStep& first = program_.heads.front();
  // With class weights, the number of samples precedes their weight (with_class_weights).
  const std::size_t from_end = class_units(*first.named->head) ? 2 : 1;
  return {.values = std::move(values),
          .jobs = std::move(jobs),
          .weight = sums[first.sums + first.num_sums - from_end]};
}

}  // namespace millrace
