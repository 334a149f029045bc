#include "runtime/stage/update_rule.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include <ATen/Parallel.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/addcdiv.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/check.h"

namespace millrace {
namespace {

static_assert(static_cast<int>(ParameterKind::Weight) == static_cast<int>(ParameterGroup::Weight));
static_assert(static_cast<int>(ParameterKind::Bias) == static_cast<int>(ParameterGroup::Bias));
static_assert(static_cast<int>(ParameterKind::Norm) == static_cast<int>(ParameterGroup::Norm));
static_assert(static_cast<int>(ParameterKind::Embedding) == static_cast<int>(ParameterGroup::Embedding));

at::Tensor cut(const at::Tensor& flat, FlatRange range) {
  return flat.narrow(0, range.begin, range.size());
}

/// So that the passes of a block find in the cache what the ones before have read. On a device: one block.
void by_blocks(FlatRange range, const at::Tensor& like, const std::function<void(FlatRange)>& work) {
  if (range.size() == 0) return;
  if (!like.device().is_cpu()) return work(range);
  const std::int64_t blocks = (range.size() + kBlockElements - 1) / kBlockElements;
  at::parallel_for(0, blocks, 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      const std::int64_t begin = range.begin + b * kBlockElements;
      work({begin, std::min(range.end, begin + kBlockElements)});
    }
  });
}

class Sgd final : public UpdateRule {
 public:
  Sgd(const RuleOptions& options, const ParameterStore& store, Communicator* replicas)
      : UpdateRule(options, store, replicas) {
    if (number(&RuleOptions::momentum) != 0) momentum_ = add_state("momentum_buffer");
  }

 private:
  void update_(const at::Tensor& weights, const at::Tensor& gradient, double lr) override {
    const double dampening = number(&RuleOptions::dampening);
    const std::vector<Segment> all = segments();
    // With momentum buffers of zeros the first step gives momentum = gradient, unless it is dampened.
    for (const auto& [decays, first] :
         {std::pair{true, false}, {false, false}, {true, true}, {false, true}}) {
      std::vector<at::Tensor> parameters, gradients, momenta;
      for (const Segment& segment : all) {
        if (segment.decays != decays || (dampening != 0 && segment.updates == 0) != first) continue;
        parameters.push_back(cut(weights, segment.range));
        gradients.push_back(cut(gradient, segment.range));
        if (momentum_.defined()) momenta.push_back(part(momentum_, segment.range));
      }
      if (parameters.empty()) continue;
      at::_fused_sgd_(parameters, gradients, momenta, decays ? number(&RuleOptions::weight_decay) : 0,
                      number(&RuleOptions::momentum), lr, dampening, options_.nesterov, /*maximize=*/false,
                      /*is_first_step=*/first);
    }
  }
  at::Tensor momentum_;
};

class Adam final : public UpdateRule {
 public:
  Adam(const RuleOptions& options, const ParameterStore& store, Communicator* replicas)
      : UpdateRule(options, store, replicas),
        average_(add_state("exp_avg")),
        square_(add_state("exp_avg_sq")) {
    if (options.amsgrad) maximum_ = add_state("max_exp_avg_sq");
  }

 private:
  void update_(const at::Tensor& weights, const at::Tensor& gradient, double lr) override {
    const std::vector<Segment> all = segments();
    for (bool decays : {true, false}) {
      std::vector<at::Tensor> parameters, gradients, averages, squares, maxima, steps;
      for (const Segment& segment : all) {
        if (segment.decays != decays) continue;
        parameters.push_back(cut(weights, segment.range));
        gradients.push_back(cut(gradient, segment.range));
        averages.push_back(part(average_, segment.range));
        squares.push_back(part(square_, segment.range));
        if (maximum_.defined()) maxima.push_back(part(maximum_, segment.range));
        steps.push_back(at::full({}, static_cast<double>(segment.updates + 1), weights.options()));
      }
      if (parameters.empty()) continue;
      const double decay = decays ? number(&RuleOptions::weight_decay) : 0;
      const double beta1 = number(&RuleOptions::beta1), beta2 = number(&RuleOptions::beta2);
      const double epsilon = number(&RuleOptions::epsilon);
      if (options_.kind == UpdateRuleKind::AdamW)
        at::_fused_adamw_(parameters, gradients, averages, squares, maxima, steps, lr, beta1, beta2, decay,
                          epsilon, options_.amsgrad, /*maximize=*/false);
      else
        at::_fused_adam_(parameters, gradients, averages, squares, maxima, steps, lr, beta1, beta2, decay,
                         epsilon, options_.amsgrad, /*maximize=*/false);
    }
  }
  at::Tensor average_, square_, maximum_;
};

// The widest vectors that the machine has; which are chosen when the program starts, before sanitizers have.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define MILLRACE_WIDEST_VECTORS __attribute__((target_clones("avx512f", "fma", "default")))
#else
#define MILLRACE_WIDEST_VECTORS
#endif

/// What Adadelta reads and writes of `count` elements; `roots` has room for two of each.
template <class T>
struct AdadeltaBlock {
  T *weights, *square, *delta, *roots;
  const T* gradient;
  std::int64_t count;
  T rho, rest, epsilon, lr;
};

/// v = rho v + (1 - rho) g g, and what roots are drawn of: u + epsilon, then v + epsilon. Rounded as ATen's
/// passes are.
template <class T>
inline __attribute__((always_inline)) void adadelta_squares(const AdadeltaBlock<T>& b) {
  const T* __restrict g = b.gradient;
  const T* __restrict u = b.delta;
  T* __restrict v = b.square;
  T* __restrict roots = b.roots;
  const T rho = b.rho, rest = b.rest, epsilon = b.epsilon;
  const std::int64_t count = b.count;
  for (std::int64_t i = 0; i < count; ++i) {
    v[i] = std::fma(rest * g[i], g[i], v[i] * rho);
    roots[i] = u[i] + epsilon;
    roots[count + i] = v[i] + epsilon;
  }
}
/// step = sqrt(u + epsilon) / sqrt(v + epsilon) g; u = rho u + (1 - rho) step step; w -= lr step.
template <class T>
inline __attribute__((always_inline)) void adadelta_step(const AdadeltaBlock<T>& b) {
  const T* __restrict g = b.gradient;
  const T* __restrict roots = b.roots;
  T* __restrict u = b.delta;
  T* __restrict w = b.weights;
  const T rho = b.rho, rest = b.rest, lr = b.lr;
  const std::int64_t count = b.count;
  for (std::int64_t i = 0; i < count; ++i) {
    const T step = roots[i] / roots[count + i] * g[i];
    u[i] = std::fma(rest * step, step, u[i] * rho);
    w[i] = std::fma(step, -lr, w[i]);
  }
}
// No templates: GCC makes no clones of them.
MILLRACE_WIDEST_VECTORS void squares_of(const AdadeltaBlock<float>& block) {
  adadelta_squares(block);
}
MILLRACE_WIDEST_VECTORS void squares_of(const AdadeltaBlock<double>& block) {
  adadelta_squares(block);
}
MILLRACE_WIDEST_VECTORS void step_of(const AdadeltaBlock<float>& block) {
  adadelta_step(block);
}
MILLRACE_WIDEST_VECTORS void step_of(const AdadeltaBlock<double>& block) {
  adadelta_step(block);
}

class Adadelta final : public UpdateRule {
 public:
  Adadelta(const RuleOptions& options, const ParameterStore& store, Communicator* replicas)
      : UpdateRule(options, store, replicas),
        square_(add_state("square_avg")),
        delta_(add_state("acc_delta")) {}

 private:
  void update_(const at::Tensor& weights, const at::Tensor& gradient, double lr) override {
    const double rho = number(&RuleOptions::rho), epsilon = number(&RuleOptions::epsilon);
    const double decay = number(&RuleOptions::weight_decay);
    for (const Segment& segment : segments()) {
      by_blocks(segment.range, weights, [&](FlatRange r) {
        at::Tensor w = cut(weights, r), g = cut(gradient, r), v = part(square_, r), u = part(delta_, r);
        if (segment.decays && decay != 0) g.add_(w, decay);
        if (w.device().is_cpu() && w.scalar_type() == at::kFloat) return in_two_passes<float>(w, g, v, u, lr);
        if (w.device().is_cpu() && w.scalar_type() == at::kDouble)
          return in_two_passes<double>(w, g, v, u, lr);
        v.mul_(rho).addcmul_(g, g, 1 - rho);
        const at::Tensor step = u.add(epsilon).sqrt_().div_(v.add(epsilon).sqrt_()).mul_(g);
        u.mul_(rho).addcmul_(step, step, 1 - rho);
        w.add_(step, -lr);
      });
    }
  }
  /// Instead of ten calls, which for a small job of an array cost more than the arithmetic.
  template <class T>
  void in_two_passes(const at::Tensor& w, const at::Tensor& g, const at::Tensor& v, const at::Tensor& u,
                     double lr) const {
    const double rho = number(&RuleOptions::rho);
    at::Tensor roots = at::empty({2 * w.numel()}, w.options());
    const AdadeltaBlock<T> block{.weights = w.mutable_data_ptr<T>(),
                                 .square = v.mutable_data_ptr<T>(),
                                 .delta = u.mutable_data_ptr<T>(),
                                 .roots = roots.mutable_data_ptr<T>(),
                                 .gradient = g.const_data_ptr<T>(),
                                 .count = w.numel(),
                                 .rho = static_cast<T>(rho),
                                 .rest = static_cast<T>(1 - rho),
                                 .epsilon = static_cast<T>(number(&RuleOptions::epsilon)),
                                 .lr = static_cast<T>(lr)};
    squares_of(block);
    roots.sqrt_();  // by ATen: its roots need not be rounded correctly
    step_of(block);
  }
  at::Tensor square_, delta_;
};

class RmsProp final : public UpdateRule {
 public:
  RmsProp(const RuleOptions& options, const ParameterStore& store, Communicator* replicas)
      : UpdateRule(options, store, replicas), square_(add_state("square_avg")) {
    if (number(&RuleOptions::momentum) != 0) momentum_ = add_state("momentum_buffer");
    if (options.centered) mean_ = add_state("grad_avg");
  }

 private:
  void update_(const at::Tensor& weights, const at::Tensor& gradient, double lr) override {
    const double alpha = number(&RuleOptions::alpha), epsilon = number(&RuleOptions::epsilon);
    const double decay = number(&RuleOptions::weight_decay), momentum = number(&RuleOptions::momentum);
    for (const Segment& segment : segments()) {
      by_blocks(segment.range, weights, [&](FlatRange r) {
        at::Tensor w = cut(weights, r), g = cut(gradient, r), v = part(square_, r);
        if (segment.decays && decay != 0) g.add_(w, decay);
        v.mul_(alpha).addcmul_(g, g, 1 - alpha);
        at::Tensor root;
        if (mean_.defined()) {
          at::Tensor mean = part(mean_, r);
          mean.mul_(alpha).add_(g, 1 - alpha);
          root = v.addcmul(mean, mean, -1).sqrt_().add_(epsilon);
        } else {
          root = v.sqrt().add_(epsilon);
        }
        if (!momentum_.defined()) {
          w.addcdiv_(g, root, -lr);
          return;
        }
        at::Tensor buffer = part(momentum_, r);
        buffer.mul_(momentum).addcdiv_(g, root);
        w.add_(buffer, -lr);
      });
    }
  }
  at::Tensor square_, momentum_, mean_;
};

/// As torch.optim's, an update takes the rate of the one before it, the first its own. Before averages begin,
/// plain descent.
class Asgd final : public UpdateRule {
 public:
  Asgd(const RuleOptions& options, const ParameterStore& store, Communicator* replicas)
      : UpdateRule(options, store, replicas),
        average_(add_state("ax")),
        begin_(number(&RuleOptions::nonmonotone) > 0 ? INT64_MAX : 0) {}
  at::Tensor averaged_weights() const override { return updates() > begin_ ? average_ : at::Tensor(); }
  void begin_averaging(std::int64_t updates) override { begin_ = updates; }
  std::optional<double> last_rate() const override { return last_rate_; }
  void set_last_rate(double rate) override { last_rate_ = rate; }

 private:
  void update_(const at::Tensor& weights, const at::Tensor& gradient, double lr) override {
    const bool averages = updates() >= begin_;
    for (const Segment& segment : segments()) {
      averages ? average(weights, gradient, segment, last_rate_.value_or(lr))
               : descend(weights, gradient, segment, lr);
    }
    if (averages) last_rate_ = lr;
  }
  void descend(const at::Tensor& weights, const at::Tensor& gradient, const Segment& segment, double lr) {
    const double decay = number(&RuleOptions::weight_decay);
    by_blocks(segment.range, weights, [&](FlatRange r) {
      at::Tensor w = cut(weights, r), g = cut(gradient, r);
      if (segment.decays && decay != 0) g.add_(w, decay);
      w.add_(g, -lr);
    });
  }
  void average(const at::Tensor& weights, const at::Tensor& gradient, const Segment& segment, double lr) {
    const double lambd = number(&RuleOptions::lambd), decay = number(&RuleOptions::weight_decay);
    const double before = static_cast<double>(segment.updates - begin_);
    const double eta = lr / std::pow(1 + lambd * lr * before, number(&RuleOptions::alpha));
    const double weight = 1 / std::max(1.0, before - number(&RuleOptions::average_start));
    by_blocks(segment.range, weights, [&](FlatRange r) {
      at::Tensor w = cut(weights, r), g = cut(gradient, r), average = part(average_, r);
      if (segment.decays && decay != 0) g.add_(w, decay);
      w.mul_(1 - lambd * eta).add_(g, -eta);
      if (weight == 1)
        average.copy_(w);
      else
        average.add_(w.sub(average), weight);
    });
  }
  at::Tensor average_;
  std::int64_t begin_;  ///< updates done when averages begin
  std::optional<double> last_rate_;
};

/// LAMB and LARS: the rate of a parameter depends on the norms of the whole of it.
class LayerWise : public UpdateRule {
 public:
  using UpdateRule::UpdateRule;

 protected:
  struct Norms {
    double weights = 0, step = 0;
  };
  /// Makes of a block's gradient what is taken to measure the step; `count`: updates before this one.
  virtual void prepare(at::Tensor gradient, const at::Tensor& weights, FlatRange range, bool decays,
                       std::int64_t count) = 0;
  virtual void step(at::Tensor weights, at::Tensor prepared, FlatRange range, bool decays, double lr,
                    const Norms& norms) = 0;
  /// Whether a parameter's rate follows its norms.
  virtual bool scales(const ParameterSlot& slot) const { return decays(slot); }

 private:
  void update_(const at::Tensor& weights, const at::Tensor& gradient, double lr) override {
    const std::vector<FlatBlock> blocks = blocks_of(slots_, weights.numel());
    SquareSums sums(2 * blocks.size());
    const auto mine = [&](const FlatBlock& b) {
      return b.range.begin >= shard().begin && b.range.end <= shard().end;
    };
    at::parallel_for(0, weights.device().is_cpu() ? static_cast<std::int64_t>(blocks.size()) : 1, 4,
                     [&](std::int64_t first, std::int64_t last) {
                       if (!weights.device().is_cpu()) last = static_cast<std::int64_t>(blocks.size());
                       for (std::int64_t i = first; i < last; ++i) {
                         const auto b = static_cast<std::size_t>(i);
                         if (!mine(blocks[b])) continue;
                         const FlatRange range = blocks[b].range;
                         const ParameterSlot& slot = slots_[blocks[b].slot];
                         prepare(cut(gradient, range), cut(weights, range), range, decays(slot),
                                 updates(slot.offset));
                         if (!scales(slot)) continue;
                         sums.put(2 * b, cut(weights, range));
                         sums.put(2 * b + 1, cut(gradient, range));
                       }
                     });
    std::vector<double> by_block = sums.take();
    shards_.sum_(by_block);
    std::vector<Norms> norms(slots_.size());
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      norms[blocks[b].slot].weights += by_block[2 * b];
      norms[blocks[b].slot].step += by_block[2 * b + 1];
    }
    for (Norms& n : norms) n = {std::sqrt(n.weights), std::sqrt(n.step)};
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      by_blocks(shard_of_slot(s), weights, [&](FlatRange r) {
        step(cut(weights, r), cut(gradient, r), r, decays(slots_[s]), lr, norms[s]);
      });
    }
  }
};

class Lamb final : public LayerWise {
 public:
  Lamb(const RuleOptions& options, const ParameterStore& store, Communicator* replicas)
      : LayerWise(options, store, replicas),
        average_(add_state("exp_avg")),
        square_(add_state("exp_avg_sq")) {}

 private:
  bool scales(const ParameterSlot& slot) const override { return options_.nvlamb || decays(slot); }
  void prepare(at::Tensor gradient, const at::Tensor& weights, FlatRange range, bool decays,
               std::int64_t count) override {
    const double beta1 = number(&RuleOptions::beta1), beta2 = number(&RuleOptions::beta2);
    const double correction1 = 1 - std::pow(beta1, double(count + 1));
    const double correction2 = 1 - std::pow(beta2, double(count + 1));
    at::Tensor m = part(average_, range), v = part(square_, range);
    m.mul_(beta1).add_(gradient, 1 - beta1);
    v.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
    const at::Tensor root = v.div(correction2).sqrt_().add_(number(&RuleOptions::epsilon));
    gradient.copy_(m).div_(correction1).div_(root);
    if (const double decay = number(&RuleOptions::weight_decay); decays && decay != 0)
      gradient.add_(weights, decay);
  }
  void step(at::Tensor weights, at::Tensor prepared, FlatRange, bool, double lr,
            const Norms& norms) override {
    const double trust = norms.weights > 0 && norms.step > 0 ? norms.weights / norms.step : 1;
    weights.add_(prepared, -lr * trust);
  }
  at::Tensor average_, square_;
};

class Lars final : public LayerWise {
 public:
  Lars(const RuleOptions& options, const ParameterStore& store, Communicator* replicas)
      : LayerWise(options, store, replicas), momentum_(add_state("momentum_buffer")) {}

 private:
  void prepare(at::Tensor, const at::Tensor&, FlatRange, bool, std::int64_t) override {}
  void step(at::Tensor weights, at::Tensor gradient, FlatRange range, bool decays, double lr,
            const Norms& norms) override {
    const double decay = decays ? number(&RuleOptions::weight_decay) : 0;
    const double below = norms.step + decay * norms.weights + number(&RuleOptions::epsilon);
    const double rate =
        norms.weights > 0 && norms.step > 0 ? lr * number(&RuleOptions::trust) * norms.weights / below : lr;
    if (decay != 0) gradient.add_(weights, decay);
    at::Tensor buffer = part(momentum_, range);
    buffer.mul_(number(&RuleOptions::momentum)).add_(gradient, rate);
    weights.sub_(buffer);
  }
  at::Tensor momentum_;
};

}  // namespace

UpdateRule::UpdateRule(const RuleOptions& options, const ParameterStore& store, Communicator* replicas)
    : options_(options),
      slots_(store.slots()),
      shards_(store, options.shard_state && replicas && replicas->size() > 1 ? replicas : nullptr),
      elements_(store.flat_weights().numel()),
      tensors_(store.flat_weights().options()),
      no_decay_(no_decay_of(options)) {}

void UpdateRule::apply_(const at::Tensor& weights, const at::Tensor& gradient, const UpdateScalars& scalars) {
  if (scalars.skip) return;
  if (scalars.gradient_factor != 1) at::Tensor(gradient).mul_(scalars.gradient_factor);
  update_(weights, gradient, scalars.lr);
  for (UpdateCount& count : counts_) ++count.updates;
  shards_.all_gather_(weights);
}

std::vector<std::pair<std::string, at::Tensor>> UpdateRule::whole_state() {
  std::vector<std::pair<std::string, at::Tensor>> result;
  for (const auto& [name, part] : state_) {
    at::Tensor whole = shards_.gather_to_first(part);
    if (whole.defined()) result.emplace_back(name, std::move(whole));
  }
  return result;
}

bool UpdateRule::decays(const ParameterSlot& slot) const {
  return std::ranges::find(no_decay_, static_cast<ParameterGroup>(slot.kind)) == no_decay_.end();
}

at::Tensor UpdateRule::add_state(const std::string& name) {
  state_.emplace_back(name, at::zeros({shard().size()}, tensors_));
  return state_.back().second;
}

FlatRange UpdateRule::shard_of_slot(std::size_t slot) const {
  const std::int64_t end = slot + 1 < slots_.size() ? slots_[slot + 1].offset : elements_;
  const std::int64_t begin = std::max(slots_[slot].offset, shard().begin);
  return {begin, std::max(begin, std::min(end, shard().end))};
}

std::vector<UpdateRule::Segment> UpdateRule::segments() const {
  std::vector<Segment> segments;
  const bool alike = no_decay_.empty() || number(&RuleOptions::weight_decay) == 0;
  for (std::size_t s = 0; s < slots_.size(); ++s) {
    const FlatRange range = shard_of_slot(s);
    if (range.size() == 0) continue;
    const Segment next{range, alike || decays(slots_[s]), updates(slots_[s].offset)};
    if (!segments.empty() && segments.back().decays == next.decays && segments.back().updates == next.updates)
      segments.back().range.end = range.end;
    else
      segments.push_back(next);
  }
  return segments;
}

std::int64_t UpdateRule::updates(std::int64_t element) const {
  const auto after = std::ranges::upper_bound(counts_, element, {}, &UpdateCount::begin);
  return std::prev(after)->updates;
}

void UpdateRule::set_updates(std::vector<UpdateCount> counts) {
  MILLRACE_CHECK(!counts.empty() && counts.front().begin == 0);
  counts_.clear();
  for (const UpdateCount& count : counts) {
    if (counts_.empty() || counts_.back().updates != count.updates) counts_.push_back(count);
  }
}

std::unique_ptr<UpdateRule> make_update_rule(const RuleOptions& options, const ParameterStore& store,
                                             Communicator* replicas) {
  switch (options.kind) {
    case UpdateRuleKind::Sgd:
      break;
    case UpdateRuleKind::Adam:
    case UpdateRuleKind::AdamW:
      return std::make_unique<Adam>(options, store, replicas);
    case UpdateRuleKind::Lamb:
      return std::make_unique<Lamb>(options, store, replicas);
    case UpdateRuleKind::Lars:
      return std::make_unique<Lars>(options, store, replicas);
    case UpdateRuleKind::Adadelta:
      return std::make_unique<Adadelta>(options, store, replicas);
    case UpdateRuleKind::RmsProp:
      return std::make_unique<RmsProp>(options, store, replicas);
    case UpdateRuleKind::Asgd:
      return std::make_unique<Asgd>(options, store, replicas);
  }
  return std::make_unique<Sgd>(options, store, replicas);
}

}  // namespace millrace
