#include "runtime/stage/update_rule.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
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
#include "runtime/kernels/update_kernels.h"

namespace millrace {
namespace {

static_assert(static_cast<int>(ParameterKind::Weight) == static_cast<int>(ParameterGroup::Weight));
static_assert(static_cast<int>(ParameterKind::Bias) == static_cast<int>(ParameterGroup::Bias));
static_assert(static_cast<int>(ParameterKind::Norm) == static_cast<int>(ParameterGroup::Norm));
static_assert(static_cast<int>(ParameterKind::Embedding) == static_cast<int>(ParameterGroup::Embedding));

at::Tensor cut(const at::Tensor& flat, FlatRange range) {
  return flat.narrow(0, range.begin, range.size());
}

/// Returns the parts of ascending ranges that are inside `within`.
std::vector<FlatRange> overlaps(const std::vector<FlatRange>& ranges, FlatRange within) {
  std::vector<FlatRange> parts;
  for (auto range = std::ranges::upper_bound(ranges, within.begin, {}, &FlatRange::end);
       range != ranges.end() && range->begin < within.end; ++range)
    parts.push_back({std::max(range->begin, within.begin), std::min(range->end, within.end)});
  return parts;
}

/// A rule that updates with its own loops, in one pass per block, or with ATen's operators.
template <class Rule>
class EitherKernels : public UpdateRule {
 public:
  using UpdateRule::UpdateRule;

 protected:
  /// The arguments of own(), by value because the work is deferred.
  template <class T>
  struct Flat {
    T *weights, *gradient;
    double lr, factor;
    const std::vector<FlatRange>* touched;
  };
  template <class T>
  static Flat<T> flat_of(const Update& update) {
    return {update.weights.mutable_data_ptr<T>() + update.begin,
            update.gradient.mutable_data_ptr<T>() + update.begin, update.scalars.lr,
            update.scalars.gradient_factor, update.touched};
  }
  /// Fills in the members that all rules have in a block of update_kernels.h. Also scales the gradient.
  template <class T, class Block>
  static Block placed(Block numbers, const Flat<T>& flat, FlatRange r) {
    numbers.weights = flat.weights + r.begin;
    numbers.gradient = flat.gradient + r.begin;
    numbers.count = r.size();
    if (flat.factor != 1) scale(numbers.gradient, numbers.count, flat.factor);
    return numbers;
  }
  /// Returns the address of a block in a state tensor; null if the tensor is undefined.
  template <class T>
  T* place(const at::Tensor& state, FlatRange r) const {
    return state.defined() ? state.mutable_data_ptr<T>() + (r.begin - shard().begin) : nullptr;
  }

 private:
  void update_(const Update& update, BlockWork& work) final {
    const UpdateScalars& scalars = update.scalars;
    if (!own_kernels(update.weights)) {
      const at::Tensor gradient = part_of(update, update.gradient);
      multiply_(gradient, scalars.gradient_factor);
      static_cast<Rule&>(*this).by_torch(part_of(update, update.weights), gradient, scalars.lr, work);
    } else if (update.weights.scalar_type() == at::kFloat) {
      static_cast<Rule&>(*this).own(flat_of<float>(update), work);
    } else {
      static_cast<Rule&>(*this).own(flat_of<double>(update), work);
    }
  }
};

class Sgd final : public EitherKernels<Sgd> {
 public:
  Sgd(const RuleOptions& options, const RuleParts& parts) : EitherKernels(options, parts) {
    if (number(&RuleOptions::momentum) != 0) momentum_ = add_state("momentum_buffer");
  }
  bool updates_touched(const at::Tensor& weights) const override {
    return !momentum_.defined() && number(&RuleOptions::weight_decay) == 0 && own_kernels(weights);
  }

 private:
  friend EitherKernels;
  /// Returns whether the momentum must be set to the gradient. Only a dampened first step needs it: otherwise
  /// a momentum buffer of zeros gives the gradient by itself.
  bool is_first(const Segment& segment) const {
    return segment.updates == 0 && number(&RuleOptions::dampening) != 0;
  }
  template <class T>
  void own(const Flat<T>& flat, BlockWork& work) const {
    for (const Segment& segment : segments()) {
      const SgdBlock<T> numbers{.decay = static_cast<T>(decay_of(segment.decays)),
                                .factor = static_cast<T>(number(&RuleOptions::momentum)),
                                .rest = static_cast<T>(1 - number(&RuleOptions::dampening)),
                                .lr = static_cast<T>(flat.lr),
                                .first = is_first(segment),
                                .nesterov = options_.nesterov};
      const auto update_block = [this, flat, numbers](FlatRange r) {
        SgdBlock<T> block = placed(numbers, flat, r);
        block.momentum = place<T>(momentum_, r);
        update(block);
      };
      if (flat.touched)
        work.add(overlaps(*flat.touched, segment.range), update_block);
      else
        work.add(segment.range, update_block);
    }
  }
  void by_torch(const at::Tensor& weights, const at::Tensor& gradient, double lr, BlockWork&) const {
    for (const auto& [decays, first] :
         {std::pair{true, false}, {false, false}, {true, true}, {false, true}}) {
      std::vector<at::Tensor> parameters, gradients, momenta;
      for (const Segment& segment : segments()) {
        if (segment.decays != decays || is_first(segment) != first) continue;
        parameters.push_back(cut(weights, segment.range));
        gradients.push_back(cut(gradient, segment.range));
        if (momentum_.defined()) momenta.push_back(part(momentum_, segment.range));
      }
      if (parameters.empty()) continue;
      at::_fused_sgd_(parameters, gradients, momenta, decay_of(decays), number(&RuleOptions::momentum), lr,
                      number(&RuleOptions::dampening), options_.nesterov, /*maximize=*/false,
                      /*is_first_step=*/first);
    }
  }
  at::Tensor momentum_;
};

class Adam final : public EitherKernels<Adam> {
 public:
  Adam(const RuleOptions& options, const RuleParts& parts)
      : EitherKernels(options, parts), average_(add_state("exp_avg")), square_(add_state("exp_avg_sq")) {
    if (options.amsgrad) maximum_ = add_state("max_exp_avg_sq");
  }

 private:
  friend EitherKernels;
  template <class T>
  void own(const Flat<T>& flat, BlockWork& work) const {
    const double beta1 = number(&RuleOptions::beta1), beta2 = number(&RuleOptions::beta2);
    for (const Segment& segment : segments()) {
      const double decay = decay_of(segment.decays);
      const bool apart = options_.kind == UpdateRuleKind::AdamW;
      const auto step = static_cast<double>(static_cast<T>(segment.updates + 1));
      const AdamBlock<T> numbers{.decay = static_cast<T>(apart ? 0 : decay),
                                 .keep = static_cast<T>(apart ? 1 - flat.lr * decay : 1),
                                 .lerp = static_cast<T>(1 - beta1),
                                 .beta2 = static_cast<T>(beta2),
                                 .rest = static_cast<T>(1 - beta2),
                                 .correction = static_cast<T>(std::sqrt(1 - std::pow(beta2, step))),
                                 .epsilon = static_cast<T>(number(&RuleOptions::epsilon)),
                                 .step_size = static_cast<T>(flat.lr / (1 - std::pow(beta1, step)))};
      work.add(segment.range, [this, flat, numbers](FlatRange r) {
        AdamBlock<T> block = placed(numbers, flat, r);
        block.average = place<T>(average_, r);
        block.square = place<T>(square_, r);
        block.maximum = place<T>(maximum_, r);
        update(block);
      });
    }
  }
  void by_torch(const at::Tensor& weights, const at::Tensor& gradient, double lr, BlockWork&) const {
    // of the newest segment; most others have the same value
    std::pair<std::int64_t, at::Tensor> step{-1, {}};
    for (bool decays : {true, false}) {
      std::vector<at::Tensor> parameters, gradients, averages, squares, maxima, steps;
      for (const Segment& segment : segments()) {
        if (segment.decays != decays) continue;
        parameters.push_back(cut(weights, segment.range));
        gradients.push_back(cut(gradient, segment.range));
        averages.push_back(part(average_, segment.range));
        squares.push_back(part(square_, segment.range));
        if (maximum_.defined()) maxima.push_back(part(maximum_, segment.range));
        if (step.first != segment.updates)
          step = {segment.updates, at::full({}, static_cast<double>(segment.updates + 1), weights.options())};
        steps.push_back(step.second);
      }
      if (parameters.empty()) continue;
      const double decay = decay_of(decays);
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

/// Runs a kernel's two passes with ATen's square roots between them, which need not be rounded correctly.
/// `of_each` is the number of roots for each element.
template <class Block, class T = std::remove_pointer_t<decltype(Block::roots)>>
void by_roots(Block block, std::int64_t of_each) {
  at::Tensor roots = at::empty({of_each * block.count}, c10::CppTypeToScalarType<T>::value);
  block.roots = roots.mutable_data_ptr<T>();
  prepare(block);
  roots.sqrt_();
  finish(block);
}

class Adadelta final : public EitherKernels<Adadelta> {
 public:
  Adadelta(const RuleOptions& options, const RuleParts& parts)
      : EitherKernels(options, parts), square_(add_state("square_avg")), delta_(add_state("acc_delta")) {}

 private:
  friend EitherKernels;
  template <class T>
  void own(const Flat<T>& flat, BlockWork& work) const {
    const double rho = number(&RuleOptions::rho);
    for (const Segment& segment : segments()) {
      const AdadeltaBlock<T> numbers{.decay = static_cast<T>(decay_of(segment.decays)),
                                     .rho = static_cast<T>(rho),
                                     .rest = static_cast<T>(1 - rho),
                                     .epsilon = static_cast<T>(number(&RuleOptions::epsilon)),
                                     .lr = static_cast<T>(flat.lr)};
      work.add(segment.range, [this, flat, numbers](FlatRange r) {
        AdadeltaBlock<T> block = placed(numbers, flat, r);
        block.square = place<T>(square_, r);
        block.delta = place<T>(delta_, r);
        by_roots(block, 2);
      });
    }
  }
  void by_torch(const at::Tensor& weights, const at::Tensor& gradient, double lr, BlockWork& work) const {
    const double rho = number(&RuleOptions::rho), epsilon = number(&RuleOptions::epsilon);
    const double decay = number(&RuleOptions::weight_decay);
    for (const Segment& segment : segments()) {
      work.add_on(weights, segment.range, [=, this, decays = segment.decays](FlatRange r) {
        at::Tensor w = cut(weights, r), g = cut(gradient, r), v = part(square_, r), u = part(delta_, r);
        if (decays && decay != 0) g.add_(w, decay);
        v.mul_(rho).addcmul_(g, g, 1 - rho);
        const at::Tensor step = u.add(epsilon).sqrt_().div_(v.add(epsilon).sqrt_()).mul_(g);
        u.mul_(rho).addcmul_(step, step, 1 - rho);
        w.add_(step, -lr);
      });
    }
  }
  at::Tensor square_, delta_;
};

class RmsProp final : public EitherKernels<RmsProp> {
 public:
  RmsProp(const RuleOptions& options, const RuleParts& parts)
      : EitherKernels(options, parts), square_(add_state("square_avg")) {
    if (number(&RuleOptions::momentum) != 0) momentum_ = add_state("momentum_buffer");
    if (options.centered) mean_ = add_state("grad_avg");
  }

 private:
  friend EitherKernels;
  template <class T>
  void own(const Flat<T>& flat, BlockWork& work) const {
    const double alpha = number(&RuleOptions::alpha);
    for (const Segment& segment : segments()) {
      const RmsPropBlock<T> numbers{.decay = static_cast<T>(decay_of(segment.decays)),
                                    .alpha = static_cast<T>(alpha),
                                    .rest = static_cast<T>(1 - alpha),
                                    .epsilon = static_cast<T>(number(&RuleOptions::epsilon)),
                                    .factor = static_cast<T>(number(&RuleOptions::momentum)),
                                    .lr = static_cast<T>(flat.lr)};
      work.add(segment.range, [this, flat, numbers](FlatRange r) {
        RmsPropBlock<T> block = placed(numbers, flat, r);
        block.square = place<T>(square_, r);
        block.mean = place<T>(mean_, r);
        block.momentum = place<T>(momentum_, r);
        by_roots(block, 1);
      });
    }
  }
  void by_torch(const at::Tensor& weights, const at::Tensor& gradient, double lr, BlockWork& work) const {
    const double alpha = number(&RuleOptions::alpha), epsilon = number(&RuleOptions::epsilon);
    const double decay = number(&RuleOptions::weight_decay), momentum = number(&RuleOptions::momentum);
    for (const Segment& segment : segments()) {
      work.add_on(weights, segment.range, [=, this, decays = segment.decays](FlatRange r) {
        at::Tensor w = cut(weights, r), g = cut(gradient, r), v = part(square_, r);
        if (decays && decay != 0) g.add_(w, decay);
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

/// ASGD. As in torch.optim, an update uses the previous update's rate, and the first uses its own. Before
/// averaging starts it is plain gradient descent.
class Asgd final : public EitherKernels<Asgd> {
 public:
  Asgd(const RuleOptions& options, const RuleParts& parts)
      : EitherKernels(options, parts),
        average_(add_state("ax")),
        begin_(number(&RuleOptions::nonmonotone) > 0 ? INT64_MAX : 0) {}
  at::Tensor averaged_weights() const override { return updates() > begin_ ? average_ : at::Tensor(); }
  void begin_averaging(std::int64_t updates) override { begin_ = updates; }
  std::optional<double> last_rate() const override { return last_rate_; }
  void set_last_rate(double rate) override { last_rate_ = rate; }

 private:
  friend EitherKernels;
  /// The numbers of one update. Before averaging starts, `eta` is the rate, and the others are meaningless.
  struct Numbers {
    bool averages;
    double eta, keep = 1, weight = 1, decay = 0;
  };
  Numbers numbers(const Segment& segment, double lr) const {
    Numbers n{.averages = updates() >= begin_, .eta = lr};
    n.decay = decay_of(segment.decays);
    if (!n.averages) return n;
    const double lambd = number(&RuleOptions::lambd), rate = last_rate_.value_or(lr);
    const auto before = static_cast<double>(segment.updates - begin_);
    n.eta = rate / std::pow(1 + lambd * rate * before, number(&RuleOptions::alpha));
    n.keep = 1 - lambd * n.eta;
    n.weight = 1 / std::max(1.0, before - number(&RuleOptions::average_start));
    return n;
  }
  void updated(double lr) {
    if (updates() >= begin_) last_rate_ = lr;
  }
  template <class T>
  void own(const Flat<T>& flat, BlockWork& work) {
    for (const Segment& segment : segments()) {
      const Numbers n = numbers(segment, flat.lr);
      const AsgdBlock<T> block{.decay = static_cast<T>(n.decay),
                               .keep = static_cast<T>(n.keep),
                               .lr = static_cast<T>(n.eta),
                               .weight = static_cast<T>(n.weight)};
      work.add(segment.range, [this, flat, block, averages = n.averages](FlatRange r) {
        AsgdBlock<T> own = placed(block, flat, r);
        if (averages) own.average = place<T>(average_, r);
        update(own);
      });
    }
    updated(flat.lr);
  }
  void by_torch(const at::Tensor& weights, const at::Tensor& gradient, double lr, BlockWork& work) {
    for (const Segment& segment : segments()) {
      work.add_on(weights, segment.range, [=, this, n = numbers(segment, lr)](FlatRange r) {
        at::Tensor w = cut(weights, r), g = cut(gradient, r), average = part(average_, r);
        if (n.decay != 0) g.add_(w, n.decay);
        if (n.averages) w.mul_(n.keep);
        w.add_(g, -n.eta);
        if (!n.averages) return;
        if (n.weight == 1)
          average.copy_(w);
        else
          average.add_(w.sub(average), n.weight);
      });
    }
    updated(lr);
  }
  at::Tensor average_;
  std::int64_t begin_;  ///< updates done when averaging starts
  std::optional<double> last_rate_;
};

/// The base of LAMB and LARS, in which the rate of a parameter depends on the norms of the whole parameter.
/// An update therefore has two passes. The first prepares the step and adds up squares, block by block.
/// When all blocks are done, the second takes the step.
template <class Rule>
class LayerWise : public EitherKernels<Rule> {
  using Base = EitherKernels<Rule>;

 public:
  LayerWise(const RuleOptions& options, const RuleParts& parts)
      : Base(options, parts),
        blocks_(blocks_of(this->slots_, parts.store.flat_weights().numel())),
        sums_(2 * blocks_.size()) {}

 protected:
  template <class T>
  using Flat = typename Base::template Flat<T>;
  struct Norms {
    double weights = 0, step = 0;
  };
  /// Consecutive blocks of this rank with equal update counts that together are at most one whole block. A
  /// bias is therefore not a separate piece of work.
  struct Run {
    std::size_t first = 0, last = 0;  ///< blocks [first, last)
    FlatRange range;
    std::int64_t updates = 0;  ///< updates done before this one
  };
  bool decays(const FlatBlock& block) const { return UpdateRule::decays(this->slots_[block.slot]); }
  double decay_of(const FlatBlock& block) const { return UpdateRule::decay_of(decays(block)); }

 private:
  friend Base;
  std::vector<Run> runs() const {
    std::vector<Run> runs;
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      const FlatRange range = blocks_[b].range;
      if (range.begin < this->shard().begin || range.end > this->shard().end) continue;
      const std::int64_t updates = this->updates(this->slots_[blocks_[b].slot].offset);
      if (!runs.empty() && runs.back().updates == updates &&
          range.end - runs.back().range.begin <= kBlockElements) {
        runs.back().last = b + 1;
        runs.back().range.end = range.end;
      } else {
        runs.push_back({b, b + 1, range, updates});
      }
    }
    return runs;
  }
  template <class T>
  void own(const Flat<T>& flat, BlockWork& work) {
    for (const Run& run : runs()) {
      work.add(run.range, [this, flat, run](FlatRange range) {
        if (flat.factor != 1) scale(flat.gradient + range.begin, range.size(), flat.factor);
        static_cast<const Rule&>(*this).prepare(flat, run);
        for (std::size_t b = run.first; b < run.last; ++b) {
          const FlatRange r = blocks_[b].range;
          static_cast<const Rule&>(*this).prepare_block(flat, blocks_[b]);
          if (!scales(blocks_[b])) continue;
          const SquaresOfTwo sums = square_sums(flat.weights + r.begin, flat.gradient + r.begin, r.size());
          sums_.put(2 * b, sums.first);
          sums_.put(2 * b + 1, sums.second);
        }
      });
    }
  }
  void by_torch(const at::Tensor& weights, const at::Tensor& gradient, double, BlockWork& work) {
    if (!weights.device().is_cpu()) return prepare_on_device(weights, gradient);
    for (const Run& run : runs()) {
      for (std::size_t b = run.first; b < run.last; ++b) {
        work.add(blocks_[b].range, [=, this, updates = run.updates](FlatRange r) {
          const at::Tensor w = cut(weights, r), g = cut(gradient, r);
          static_cast<const Rule&>(*this).prepare(w, g, r, decay_of(blocks_[b]), updates);
          if (!scales(blocks_[b])) return;
          sums_.put(2 * b, w);
          sums_.put(2 * b + 1, g);
        });
      }
    }
  }
  void finish_(const UpdateRule::Update& update, BlockWork& work) final {
    norms_ = norms();
    if (!this->own_kernels(update.weights)) {
      const at::Tensor weights = this->part_of(update, update.weights),
                       gradient = this->part_of(update, update.gradient);
      if (!weights.device().is_cpu()) return step_on_device(weights, gradient, update.scalars.lr);
      for (std::size_t s = 0; s < this->slots_.size(); ++s) {
        work.add(this->shard_of_slot(s), [=, this, lr = update.scalars.lr](FlatRange r) {
          static_cast<const Rule&>(*this).step(cut(weights, r), cut(gradient, r), r,
                                               UpdateRule::decay_of(UpdateRule::decays(this->slots_[s])), lr,
                                               norms_[s]);
        });
      }
    } else if (update.weights.scalar_type() == at::kFloat) {
      steps(Base::template flat_of<float>(update), work);
    } else {
      steps(Base::template flat_of<double>(update), work);
    }
  }
  /// On a device a launch costs more than a pass over memory. Whole segments are therefore prepared at once,
  /// and the norms of all parameters are one batch of work.
  void prepare_on_device(const at::Tensor& weights, const at::Tensor& gradient) {
    const auto& rule = static_cast<const Rule&>(*this);
    std::vector<typename Base::Segment> alike;  // updated equally often
    for (const auto& segment : this->segments()) {
      if (!alike.empty() && alike.back().updates == segment.updates)
        alike.back().range.end = segment.range.end;
      else
        alike.push_back(segment);
    }
    for (const auto& [r, decays, updates] : alike)
      rule.prepare(cut(weights, r), cut(gradient, r), r, /*decay=*/0, updates);
    if (rule.decays_first()) decay_on_device(weights, gradient);
    std::size_t block = 0;
    for (std::size_t s = 0; s < this->slots_.size(); ++s) {
      const FlatRange r = this->shard_of_slot(s);
      while (block < blocks_.size() && blocks_[block].range.begin < r.begin) ++block;
      if (r.size() == 0 || !scales(blocks_[block])) continue;
      sums_.put(2 * block, cut(weights, r));
      sums_.put(2 * block + 1, cut(gradient, r));
    }
  }
  /// Adds the decay to the gradients of all parameters that decay.
  void decay_on_device(const at::Tensor& weights, const at::Tensor& gradient) const {
    const double decay = UpdateRule::decay_of(true);
    std::vector<at::Tensor> gradients, decaying;
    for (const auto& segment : this->segments()) {
      if (decay == 0 || !segment.decays) continue;
      gradients.push_back(cut(gradient, segment.range));
      decaying.push_back(cut(weights, segment.range));
    }
    if (!gradients.empty()) at::_foreach_add_(gradients, decaying, decay);
  }
  /// Multiplies each parameter's step by its rate, all in one piece of work, and takes the steps.
  void step_on_device(const at::Tensor& weights, const at::Tensor& gradient, double lr) {
    const auto& rule = static_cast<const Rule&>(*this);
    if (!rule.decays_first()) decay_on_device(weights, gradient);
    std::vector<at::Tensor> steps;
    std::vector<at::Scalar> rates;
    for (std::size_t s = 0; s < this->slots_.size(); ++s) {
      const FlatRange r = this->shard_of_slot(s);
      if (r.size() == 0) continue;
      steps.push_back(cut(gradient, r));
      rates.push_back(rule.rate(lr, UpdateRule::decay_of(UpdateRule::decays(this->slots_[s])), norms_[s]));
    }
    if (steps.empty()) return;
    at::_foreach_mul_(steps, rates);
    rule.step_on_device(cut(weights, this->shard()), cut(gradient, this->shard()));
  }
  template <class T>
  void steps(const Flat<T>& flat, BlockWork& work) {
    for (const Run& run : runs()) {
      work.add(run.range, [this, flat, run](FlatRange) {
        for (std::size_t b = run.first; b < run.last; ++b)
          static_cast<const Rule&>(*this).step_block(flat, blocks_[b], norms_[blocks_[b].slot]);
      });
    }
  }
  /// Returns the norms of each slot, summed over the blocks of all replicas in order. They are 0 where the
  /// rate does not depend on them.
  std::vector<Norms> norms() {
    std::vector<double> by_block = sums_.take();
    this->shards_.sum_(by_block);
    std::vector<Norms> norms(this->slots_.size());
    for (std::size_t b = 0; b < blocks_.size(); ++b) {
      norms[blocks_[b].slot].weights += by_block[2 * b];
      norms[blocks_[b].slot].step += by_block[2 * b + 1];
    }
    for (Norms& n : norms) n = {std::sqrt(n.weights), std::sqrt(n.step)};
    return norms;
  }
  bool scales(const FlatBlock& block) const { return this->options_.nvlamb || decays(block); }

  const std::vector<FlatBlock> blocks_;
  SquareSums sums_;           ///< sums for the weights and the prepared steps of each block
  std::vector<Norms> norms_;  ///< by slot; kept from the first pass to the second
};

class Lamb final : public LayerWise<Lamb> {
 public:
  Lamb(const RuleOptions& options, const RuleParts& parts)
      : LayerWise(options, parts), average_(add_state("exp_avg")), square_(add_state("exp_avg_sq")) {}

 private:
  friend LayerWise;
  /// 1 - beta^step
  double correction(std::optional<double> RuleOptions::*beta, std::int64_t updates) const {
    return 1 - std::pow(number(beta), double(updates + 1));
  }
  static double rate(double lr, double /*decay*/, const Norms& norms) {
    return lr * (norms.weights > 0 && norms.step > 0 ? norms.weights / norms.step : 1);
  }
  template <class T>
  void prepare(const Flat<T>& flat, const Run& run) const {
    const double beta1 = number(&RuleOptions::beta1), beta2 = number(&RuleOptions::beta2);
    by_roots(LambBlock<T>{.gradient = flat.gradient + run.range.begin,
                          .average = place<T>(average_, run.range),
                          .square = place<T>(square_, run.range),
                          .count = run.range.size(),
                          .beta1 = static_cast<T>(beta1),
                          .rest1 = static_cast<T>(1 - beta1),
                          .beta2 = static_cast<T>(beta2),
                          .rest2 = static_cast<T>(1 - beta2),
                          .correction1 = static_cast<T>(correction(&RuleOptions::beta1, run.updates)),
                          .correction2 = static_cast<T>(correction(&RuleOptions::beta2, run.updates)),
                          .epsilon = static_cast<T>(number(&RuleOptions::epsilon))},
             1);
  }
  template <class T>
  void prepare_block(const Flat<T>& flat, const FlatBlock& block) const {
    const FlatRange r = block.range;
    if (const double decay = decay_of(block); decay != 0)
      add_multiple(flat.gradient + r.begin, flat.weights + r.begin, r.size(), decay);
  }
  template <class T>
  void step_block(const Flat<T>& flat, const FlatBlock& block, const Norms& norms) const {
    const FlatRange r = block.range;
    add_multiple(flat.weights + r.begin, flat.gradient + r.begin, r.size(), -rate(flat.lr, 0, norms));
  }
  void prepare(const at::Tensor& weights, at::Tensor gradient, FlatRange range, double decay,
               std::int64_t updates) const {
    const double beta1 = number(&RuleOptions::beta1), beta2 = number(&RuleOptions::beta2);
    at::Tensor m = part(average_, range), v = part(square_, range);
    m.mul_(beta1).add_(gradient, 1 - beta1);
    v.mul_(beta2).addcmul_(gradient, gradient, 1 - beta2);
    const at::Tensor root =
        v.div(correction(&RuleOptions::beta2, updates)).sqrt_().add_(number(&RuleOptions::epsilon));
    gradient.copy_(m).div_(correction(&RuleOptions::beta1, updates)).div_(root);
    if (decay != 0) gradient.add_(weights, decay);
  }
  void step(at::Tensor weights, const at::Tensor& prepared, FlatRange, double, double lr,
            const Norms& norms) const {
    weights.add_(prepared, -rate(lr, 0, norms));
  }
  static bool decays_first() { return true; }  ///< before the norms are computed
  void step_on_device(const at::Tensor& weights, const at::Tensor& step) const { weights.sub_(step); }
  at::Tensor average_, square_;
};

class Lars final : public LayerWise<Lars> {
 public:
  Lars(const RuleOptions& options, const RuleParts& parts)
      : LayerWise(options, parts), momentum_(add_state("momentum_buffer")) {}

 private:
  friend LayerWise;
  double rate(double lr, double decay, const Norms& norms) const {
    const double below = norms.step + decay * norms.weights + number(&RuleOptions::epsilon);
    return norms.weights > 0 && norms.step > 0 ? lr * number(&RuleOptions::trust) * norms.weights / below
                                               : lr;
  }
  template <class T>
  void prepare(const Flat<T>&, const Run&) const {}
  template <class T>
  void prepare_block(const Flat<T>&, const FlatBlock&) const {}
  /// Updates with a momentum of steps that include their rates. The gradient was scaled before.
  template <class T>
  void step_block(const Flat<T>& flat, const FlatBlock& block, const Norms& norms) const {
    const double decay = decay_of(block);
    update(SgdBlock<T>{.weights = flat.weights + block.range.begin,
                       .gradient = flat.gradient + block.range.begin,
                       .momentum = place<T>(momentum_, block.range),
                       .count = block.range.size(),
                       .decay = static_cast<T>(decay),
                       .factor = static_cast<T>(number(&RuleOptions::momentum)),
                       .rest = static_cast<T>(rate(flat.lr, decay, norms)),
                       .lr = 1});
  }
  void prepare(const at::Tensor&, const at::Tensor&, FlatRange, double, std::int64_t) const {}
  void step(at::Tensor weights, at::Tensor gradient, FlatRange range, double decay, double lr,
            const Norms& norms) const {
    if (decay != 0) gradient.add_(weights, decay);
    at::Tensor buffer = part(momentum_, range);
    buffer.mul_(number(&RuleOptions::momentum)).add_(gradient, rate(lr, decay, norms));
    weights.sub_(buffer);
  }
  static bool decays_first() { return false; }
  void step_on_device(const at::Tensor& weights, const at::Tensor& step) const {
    at::Tensor buffer = momentum_;
    buffer.mul_(number(&RuleOptions::momentum)).add_(step);
    weights.sub_(buffer);
  }
  at::Tensor momentum_;
};

/// Returns the options with every number set to the result of value_of().
RuleOptions with_numbers(RuleOptions options) {
  for (const RuleNumber& number : rule_numbers()) options.*number.member = value_of(options, number.member);
  return options;
}

}  // namespace

void BlockWork::add_on(const at::Tensor& tensor, FlatRange range, std::function<void(FlatRange)> work) {
  if (tensor.device().is_cpu())
    add(range, std::move(work));
  else if (range.size() > 0)
    work(range);
}

void BlockWork::add(std::span<const FlatRange> ranges, std::function<void(FlatRange)> work) {
  works_.push_back(std::move(work));
  for (const FlatRange range : ranges) {
    for (std::int64_t begin = range.begin; begin < range.end; begin += kBlockElements)
      blocks_.emplace_back(works_.size() - 1, FlatRange{begin, std::min(range.end, begin + kBlockElements)});
    elements_ += range.size();
  }
}

void BlockWork::run() {
  // Smaller updates take less time than waking a thread.
  constexpr std::int64_t kElementsOfThread = 2 * kBlockElements;
  const auto blocks = std::ssize(blocks_);
  const std::int64_t grain = 1 + kElementsOfThread * blocks / std::max<std::int64_t>(1, elements_);
  at::parallel_for(0, blocks, grain, [&](std::int64_t first, std::int64_t last) {
    for (auto b = static_cast<std::size_t>(first); b < static_cast<std::size_t>(last); ++b)
      works_[blocks_[b].first](blocks_[b].second);
  });
  *this = {};
}

UpdateRule::UpdateRule(const RuleOptions& options, const RuleParts& parts)
    : options_(with_numbers(options)),
      slots_(parts.store.slots()),
      shards_(parts.store,
              options.shard_state && parts.replicas && parts.replicas->size() > 1 ? parts.replicas : nullptr),
      kernels_(parts.kernels),
      elements_(parts.store.flat_weights().numel()),
      tensors_(parts.store.flat_weights().options()),
      no_decay_(no_decay_of(options)) {
  if (number(&RuleOptions::ema) > 0) ema_ = add_state("ema");
}

/// Returns whether our own kernels may be used on these tensors. They may not on a processor without FMA,
/// where ATen rounds differently.
bool UpdateRule::own_kernels(const at::Tensor& weights) const {
  static const bool there = has_update_kernels() && at::get_cpu_capability() != "DEFAULT";
  return there && kernels_ == UpdateKernels::Own && weights.device().is_cpu();
}

at::Tensor UpdateRule::part_of(const Update& update, const at::Tensor& flat) const {
  return flat.narrow(0, update.begin, elements_);
}

void UpdateRule::multiply_(at::Tensor gradient, double factor) {
  if (factor != 1) gradient.mul_(factor);
}

void UpdateRule::apply_all_(std::span<const Update> updates) {
  BlockWork work;
  // Emulated devices have no values: their updates are only counted.
  const auto computes = [](const Update& one) { return !one.scalars.skip && !one.weights.is_meta(); };
  for (const Update& one : updates) {
    if (computes(one)) one.rule->update_(one, work);
  }
  work.run();
  for (const Update& one : updates) {
    if (computes(one)) one.rule->finish_(one, work);
  }
  work.run();
  for (const Update& one : updates) {
    if (!one.scalars.skip) {
      one.rule->average_(one);
      for (UpdateCount& count : one.rule->counts_) ++count.updates;
      for (Segment& segment : one.rule->segments_) ++segment.updates;
    } else if (!one.scalars.exchanges) {
      continue;
    }
    if (one.rule->shards_.shared()) one.rule->shards_.all_gather_(one.rule->part_of(one, one.weights));
  }
}

/// Moves the average towards the new weights. The first update initializes it with them. Multiplication and
/// addition are separate: a kernel may fuse the two in only some elements, and the plan would then determine
/// which.
void UpdateRule::average_(const Update& update) {
  if (!ema_.defined()) return;
  const double decay = number(&RuleOptions::ema);
  const at::Tensor weights = part_of(update, update.weights);
  for (const Segment& segment : segments()) {
    at::Tensor average = part(ema_, segment.range);
    const at::Tensor own = cut(weights, segment.range);
    if (segment.updates == 0)
      average.copy_(own);
    else
      average.mul_(decay).add_(own.mul(1 - decay));
  }
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

const std::vector<UpdateRule::Segment>& UpdateRule::segments() const {
  std::vector<Segment>& segments = segments_;
  if (!segments.empty()) return segments;
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
  segments_.clear();
  for (const UpdateCount& count : counts) {
    if (counts_.empty() || counts_.back().updates != count.updates) counts_.push_back(count);
  }
}

std::unique_ptr<UpdateRule> make_update_rule(const RuleOptions& options, const ParameterStore& store,
                                             Communicator* replicas, UpdateKernels kernels) {
  const RuleParts parts{store, replicas, kernels};
  switch (options.kind) {
    case UpdateRuleKind::Sgd:
      break;
    case UpdateRuleKind::Adam:
    case UpdateRuleKind::AdamW:
      return std::make_unique<Adam>(options, parts);
    case UpdateRuleKind::Lamb:
      return std::make_unique<Lamb>(options, parts);
    case UpdateRuleKind::Lars:
      return std::make_unique<Lars>(options, parts);
    case UpdateRuleKind::Adadelta:
      return std::make_unique<Adadelta>(options, parts);
    case UpdateRuleKind::RmsProp:
      return std::make_unique<RmsProp>(options, parts);
    case UpdateRuleKind::Asgd:
      return std::make_unique<Asgd>(options, parts);
  }
  return std::make_unique<Sgd>(options, parts);
}

}  // namespace millrace
