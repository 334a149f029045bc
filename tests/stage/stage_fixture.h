// Helpers for tests of one part of a stage: ranks on threads in virtual time, numbers whose sums tell the
// order of additions, comparison of bits.
#pragma once

#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/mul.h>

#include <cstring>
#include <exception>
#include <functional>
#include <latch>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/comm/communicator.h"
#include "runtime/layers/basic_layers.h"
#include "runtime/model/stage_layout.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {

constexpr std::chrono::seconds kDeadline{60};

/// Runs `body` once a rank, each on a thread of its own, and throws what the first that fails has thrown.
/// Time is virtual: when all ranks wait for messages that nobody has sent, their deadlines come at once.
inline void on_ranks(int size, const std::function<void(Communicator& ranks)>& body) {
  VirtualClock clock;
  const auto communicators = make_local_communicators(size, kDeadline, {}, clock);
  std::latch all_count(size);
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (const auto& communicator : communicators) {
      threads.emplace_back([&, c = communicator.get()] {
        const at::NoGradGuard no_grad;
        at::set_num_threads(1);
        const ClockUser user(clock);
        all_count.arrive_and_wait();  // time must not move before the last rank counts as a user
        try {
          body(*c);
        } catch (const std::exception& error) {
          {
            std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
          }
          c->abort(error.what());
        }
      });
    }
  }
  if (first) std::rethrow_exception(first);
}

/// [shape], of magnitudes from 1/1000 to 1000: three of them have other sums in another order.
inline at::Tensor rough(at::IntArrayRef shape, std::uint64_t seed) {
  const auto generator = at::detail::createCPUGenerator(seed);
  const at::Tensor sign = at::empty(shape, at::kFloat).normal_(0, 1, generator);
  return at::mul(sign, at::exp(at::empty(shape, at::kFloat).uniform_(-7, 7, generator)));
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

/// Fails with the first element that differs.
inline void expect_bits(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  if (!found.defined()) {
    ADD_FAILURE() << what << ": there is none";
    return;
  }
  if (same_bits(found, expected)) return;
  if (found.sizes() != expected.sizes()) {
    ADD_FAILURE() << what << ": shape " << found.sizes() << ", expected " << expected.sizes();
    return;
  }
  const at::Tensor x = found.to(at::kDouble).contiguous(), y = expected.to(at::kDouble).contiguous();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const double a = x.const_data_ptr<double>()[i], b = y.const_data_ptr<double>()[i];
    if (std::memcmp(&a, &b, sizeof a) == 0) continue;
    ADD_FAILURE() << what << ": element " << i << " is " << ::testing::PrintToString(a) << ", expected "
                  << ::testing::PrintToString(b);
    return;
  }
  ADD_FAILURE() << what << ": " << found.scalar_type() << ", expected " << expected.scalar_type();
}

/// `layers`: names, by stage. Microbatches have three samples.
inline StageLayout layout_of(const LayeredModel& model, const std::vector<std::vector<std::string>>& layers,
                             bool recompute = false) {
  Plan plan{.model = model.name};
  for (const auto& names : layers) {
    const RankId rank(plan.num_stages());
    plan.stages.push_back({.layers = names, .ranks = {rank}, .recompute = recompute});
  }
  Result<StageLayout> layout = make_layout(model, plan, 3);
  if (!layout) throw std::runtime_error(to_string(layout.problems()));
  return *std::move(layout);
}
inline StageLayout layout_of_one_stage(const LayeredModel& model) {
  return layout_of(model, {model.layer_names()});
}

/// Linear layers l0, l1, ... from width to width, each behind the one before.
inline LayeredModel chain_of_linears(const std::vector<std::int64_t>& widths) {
  LayeredModel model = classifier("chain", {widths.front()}, widths.back());
  std::string last = "input";
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    const std::string name = "l" + std::to_string(i);
    model.layers.push_back({name, linear(widths[i], widths[i + 1]), {last}});
    last = name;
  }
  end_in_cross_entropy(model);
  return model;
}

/// The weight of `a` is that of three other layers. `c` comes before `b` in the model, but a plan may put it
/// into a later stage:
///   a -> b ----> s -> e
///   c -----------^
inline LayeredModel tied_model() {
  LayeredModel model = classifier("tied", {4}, 4);
  const std::vector<std::pair<std::string, std::string>> tie{{"weight", "a.weight"}};
  model.layers.push_back({"a", linear(4, 4), {"input"}});
  model.layers.push_back({"c", linear(4, 4), {"input"}, {}, tie});
  model.layers.push_back({"b", linear(4, 4), {"a"}, {}, tie});
  model.layers.push_back({"s", add(), {"b", "c"}});
  model.layers.push_back({"e", linear(4, 4), {"s"}, {}, tie});
  end_in_cross_entropy(model);
  return model;
}

/// Index of a parameter in the store.
inline std::size_t slot_named(const ParameterStore& store, const std::string& name) {
  for (std::size_t i = 0; i < store.slots().size(); ++i)
    if (store.slots()[i].name == name) return i;
  throw std::runtime_error("no parameter " + name);
}

/// Writes down what a rank sums up and sends.
class RecordingCommunicator final : public Communicator {
 public:
  explicit RecordingCommunicator(Communicator& inner) : inner_(inner) {}
  std::vector<std::int64_t> sums;          ///< elements of each all-reduce, in the order of issue
  std::map<std::string, at::Tensor> sent;  ///< copies, by Transfer::what

  RankId rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  bool buffers_sends() const override { return inner_.buffers_sends(); }
  std::unique_ptr<Pending> exchange(std::span<const Transfer> transfers) override {
    for (const Transfer& t : transfers) {
      if (t.direction != Direction::Send) continue;
      EXPECT_TRUE(sent.emplace(t.what.text(), t.tensor.clone()).second) << t.what.text() << " twice";
    }
    return inner_.exchange(transfers);
  }
  std::unique_ptr<Pending> all_reduce(at::Tensor tensor, std::string what) override {
    sums.push_back(tensor.numel());
    return inner_.all_reduce(std::move(tensor), std::move(what));
  }
  void broadcast(at::Tensor tensor, RankId root) override { inner_.broadcast(std::move(tensor), root); }
  void barrier() override { inner_.barrier(); }
  std::unique_ptr<Communicator> subgroup(const std::vector<RankId>& ranks, const std::string& name) override {
    return inner_.subgroup(ranks, name);
  }
  void abort(const std::string& reason) noexcept override { inner_.abort(reason); }

 private:
  Communicator& inner_;
};

}  // namespace millrace
