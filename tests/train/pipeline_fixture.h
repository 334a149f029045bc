// Training in one process on threads: small models, random batches, and a slow reference without a scheduler.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randint.h>

#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "runtime/base/failpoint.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/comm/store.h"
#include "runtime/layers/basic_layers.h"
#include "runtime/train/trainer.h"

namespace millrace {
namespace fs = std::filesystem;

/// Random batches as a function of the position; lengths differ from one to the next where the model has any.
class RandomBatches final : public BatchSource {
 public:
  RandomBatches(const LayeredModel& model, int microbatch,
                std::function<void(std::int64_t position)> on_get = {})
      : model_(model), microbatch_(microbatch), on_get_(std::move(on_get)) {}
  Batch get(std::int64_t position) override {
    if (on_get_) on_get_(position);
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(position) + 1000);
    Batch batch;
    for (const FieldSpec& field : model_.fields) {
      at::Tensor value = at::empty(field_shape(field, extent(position)), at::TensorOptions(field.dtype));
      if (value.is_floating_point())
        value.normal_(0, 1, generator);
      else
        value.random_(0, field.limit, generator);
      batch.fields.push_back(std::move(value));
    }
    return batch;
  }
  void seek(std::int64_t) override {}
  BatchExtent extent(std::int64_t position) const override {
    BatchExtent extent{.samples = microbatch_};
    if (!model_.dimensions.empty()) extent.samples += position % 2;
    for (std::size_t d = 0; d < model_.dimensions.size(); ++d)
      extent.lengths.push_back(2 + (position * 7 + static_cast<std::int64_t>(d)) % 5);
    for (std::size_t c = 0; c < model_.counts.size(); ++c)
      extent.counts.push_back(extent.samples * extent.lengths.at(0));
    return extent;
  }

 private:
  LayeredModel model_;
  int microbatch_;
  std::function<void(std::int64_t)> on_get_;
};

/// Linear, GELU, dropout, and a skip connection over several layers.
inline LayeredModel small_model() {
  LayeredModel model = classifier("small", {12}, 5);
  std::string last = "input";
  const auto then = [&](const std::string& name, LayerPtr layer) {
    model.layers.push_back({name, std::move(layer), {last}});
    last = name;
  };
  then("a", linear(12, 16));
  then("b", gelu());
  const std::string skip = last;
  then("c", linear(16, 16));
  then("d", dropout(0.2));
  then("e", linear(16, 16));
  then("f", gelu());
  model.layers.push_back({"g", add(), {last, skip}});
  last = "g";
  then("h", linear(16, 16));
  then("i", relu());
  then("j", linear(16, 5));
  end_in_cross_entropy(model);
  return model;
}

inline LayeredModel conv_model() {
  LayeredModel model = classifier("conv", {3, 8, 8}, 4);
  std::string last = "input";
  const auto then = [&](const std::string& name, LayerPtr layer) {
    model.layers.push_back({name, std::move(layer), {last}});
    last = name;
  };
  then("conv1", conv2d({.in = 3, .out = 8, .padding = 1}));
  then("bn1", batch_norm2d(8));
  then("relu1", relu());
  then("conv2", conv2d({.in = 8, .out = 8, .padding = 1, .bias = false}));
  then("bn2", batch_norm2d(8));
  then("pool", max_pool2d(2, 2));
  then("flatten", flatten());
  then("fc", linear(128, 4));
  end_in_cross_entropy(model);
  return model;
}

/// Ranks that a transport between processes joins, as threads.
inline std::vector<std::unique_ptr<Communicator>> joined_ranks(Backend backend, int size,
                                                               std::chrono::milliseconds deadline) {
  auto store = make_memory_store();
  std::vector<std::unique_ptr<Communicator>> ranks(size);
  std::vector<std::jthread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      ranks[r] = make_communicator(
          {.backend = backend, .rank = RankId(r), .size = size, .deadline = deadline}, store);
    });
  }
  threads.clear();
  return ranks;
}

struct Outcome {
  std::map<std::string, at::Tensor> weights;
  std::vector<double> losses;                                  // losses of the last stage's first replica
  std::vector<std::map<std::string, at::Tensor>> job_weights;  // weights of each job of an array
  std::vector<RunReport> reports;
};

class Pipeline : public ::testing::Test {
 protected:
  static std::vector<std::unique_ptr<Communicator>> local_ranks(int size,
                                                                std::chrono::milliseconds deadline) {
    return make_local_communicators(size, deadline);
  }
  void SetUp() override {
    at::set_num_threads(1);
    char name[] = "/tmp/millrace-train-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(folder_); }

  static constexpr int kMicrobatch = 3;

  TrainOptions options(std::int64_t steps, UpdateRuleKind rule = UpdateRuleKind::Sgd) {
    return {.steps = steps,
            .microbatch = kMicrobatch,
            .seed = 11,
            .rule = {.kind = rule, .weight_decay = 1e-3},
            .learning_rate = {.base = rule == UpdateRuleKind::Sgd ? 0.05 : 0.003},
            .print_every = 1 << 20};
  }

  Outcome train(const LayeredModel& model, const Plan& plan, const TrainOptions& options) {
    return train(std::vector{model}, plan, options);
  }
  /// Several arrays that go through the pipeline in turn: `plan.arrays`.
  Outcome train(const std::vector<LayeredModel>& models, const Plan& plan, TrainOptions options) {
    options.save_weights = (folder_ / "weights.safetensors").string();
    auto communicators = make_ranks_(plan.num_ranks(), std::chrono::milliseconds(60'000));
    Outcome outcome;
    outcome.reports.resize(communicators.size());
    std::mutex mutex;
    std::exception_ptr first;
    {
      std::vector<std::jthread> threads;
      for (std::size_t r = 0; r < communicators.size(); ++r) {
        threads.emplace_back([&, r] {
          try {
            at::set_num_threads(1);
            SteadyClock clock;
            std::vector<TrainedArray> arrays;
            std::size_t first_job = 0;
            for (const LayeredModel& model : models) {
              arrays.push_back({model, [&](const BatchNeeds&, const BatchNeeds&) {
                                  BatchSources sources{.train = make_batches_(model)};
                                  if (evaluation_microbatches_ > 0)
                                    sources.evaluation = {std::make_unique<RandomBatches>(model, kMicrobatch),
                                                          evaluation_microbatches_};
                                  if (make_evaluation_) sources.evaluation = make_evaluation_(model);
                                  return sources;
                                }});
              for (int b = 0; batches_of_job_ && b < model.jobs(); ++b) {
                const std::size_t job = first_job++;
                arrays.back().of_jobs.push_back([&, job](const BatchNeeds&, const BatchNeeds&) {
                  BatchSources sources{.train = batches_of_job_(job)};
                  const LayeredModel& one = model.of_jobs.empty() ? model : model.of_jobs.front();
                  if (evaluation_microbatches_ > 0)
                    sources.evaluation = {std::make_unique<RandomBatches>(one, kMicrobatch),
                                          evaluation_microbatches_};
                  return sources;
                });
              }
            }
            Failpoints faults(faults_, static_cast<int>(r), clock);
            Trainer trainer({*communicators[r], clock, *device_, &faults}, std::move(arrays), plan, options);
            outcome.reports[r] = trainer.run();
          } catch (const std::exception& error) {
            std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
            communicators[r]->abort(error.what());
          }
        });
      }
    }
    if (first) std::rethrow_exception(first);
    outcome.losses = outcome.reports[plan.stages.back().ranks[0].value].losses;
    if (outcome.reports[0].stopped) return outcome;  // saved a checkpoint instead
    const auto weights_in = [](const std::string& path) {
      const auto file = SafetensorsFile::open(path);
      EXPECT_TRUE(file) << path;
      std::map<std::string, at::Tensor> weights;
      for (const std::string& name : file->names()) weights[name] = file->tensor(name);
      return weights;
    };
    int jobs = 0;
    for (const LayeredModel& model : models) jobs += model.jobs();
    for (int job = 0; jobs > 1 && job < jobs; ++job) {
      const std::string path = file_of_job(options.save_weights, job);
      outcome.job_weights.push_back(fs::exists(path) ? weights_in(path)
                                                     : std::map<std::string, at::Tensor>());
    }
    if (jobs == 1) outcome.weights = weights_in(options.save_weights);
    return outcome;
  }

  static void expect_equal(const Outcome& a, const Outcome& b, const std::string& what) {
    EXPECT_EQ(a.losses, b.losses) << what;
    ASSERT_EQ(a.weights.size(), b.weights.size());
    for (const auto& [name, tensor] : a.weights)
      EXPECT_TRUE(at::equal(tensor, b.weights.at(name))) << what << ": " << name;
  }

  static Plan plan_for(const LayeredModel& model, const std::vector<int>& replicas, int microbatches,
                       ScheduleKind kind) {
    Plan plan = uniform_plan(model.name, model.layer_names(), static_cast<int>(replicas.size()), 1,
                             microbatches, kind);
    int rank = 0;
    for (std::size_t s = 0; s < replicas.size(); ++s) {
      plan.stages[s].ranks.clear();
      for (int r = 0; r < replicas[s]; ++r) plan.stages[s].ranks.emplace_back(rank++);
    }
    return plan;
  }

  fs::path folder_;
  std::function<std::vector<std::unique_ptr<Communicator>>(int size, std::chrono::milliseconds deadline)>
      make_ranks_ = local_ranks;
  std::shared_ptr<Device> device_ = make_cpu_device();
  std::int64_t evaluation_microbatches_ = 0;
  std::function<Evaluation(const LayeredModel& model)> make_evaluation_;  ///< instead of random ones
  std::function<void(std::int64_t position)> on_batch_;  ///< in training; called by the threads of all ranks
  std::vector<Failpoint> faults_;                        ///< of every rank
  /// Makes a job's batches for arrays whose jobs read their own (JobData::Own).
  std::function<std::unique_ptr<BatchSource>(std::size_t job)> batches_of_job_;
  std::function<std::unique_ptr<BatchSource>(const LayeredModel& model)> make_batches_ =
      [this](const LayeredModel& model) {
        return std::make_unique<RandomBatches>(model, kMicrobatch, on_batch_);
      };
};

/// The communicator of a single process.
struct Alone final : Communicator {
  RankId rank() const override { return RankId(0); }
  int size() const override { return 1; }
  bool buffers_sends() const override { return true; }
  std::unique_ptr<Pending> exchange(std::span<const Transfer>) override { return nullptr; }
  std::unique_ptr<Pending> all_reduce(at::Tensor, std::string) override { return nullptr; }
  void broadcast(at::Tensor, RankId) override {}
  void barrier() override {}
  std::unique_ptr<Communicator> subgroup(const std::vector<RankId>&, const std::string&) override {
    return nullptr;
  }
  void abort(const std::string&) noexcept override {}
};

/// One process, by hand: the engine's layers, a list of past weights, no scheduler.
class Reference {
 public:
  Reference(const LayeredModel& model, const Plan& plan, const TrainOptions& options,
            std::unique_ptr<BatchSource> batches = {})
      : layout_(*make_layout(model, plan, options.microbatch, options.precision)),
        whole_(*make_layout(model,
                            uniform_plan(model.name, model.layer_names(), 1, 1, 1, ScheduleKind::OneFOneB),
                            options.microbatch, options.precision)),
        options_(options),
        batches_(batches ? std::move(batches) : std::make_unique<RandomBatches>(model, options.microbatch)) {
    for (int s = 0; s < layout_.num_stages(); ++s) {
      stores_.emplace_back(layout_, StageId(s), options.seed);
      rules_.push_back(make_update_rule(options.rule, stores_.back()));
    }
  }

  /// One stage on `replicas` ranks, in one process: the gradients of each replica's microbatches (m mod
  /// replicas) are added up in their order, then the replicas' sums in the order of ranks; those of tied uses
  /// by themselves.
  std::map<std::string, at::Tensor> replicated(std::int64_t steps, int replicas, int microbatches) {
    at::NoGradGuard no_grad;
    ParameterStore& store = stores_.at(0);
    StageExecutor executor({layout_, StageId(0), store, *rules_.at(0), alone_, nullptr, *device_},
                           {.seeds = {options_.seed}, .microbatches_per_update = microbatches});
    std::vector<at::Tensor> gradients{store.flat_gradient()};
    for (const TiedUse& use : store.tied()) gradients.push_back(use.gradient);
    for (std::int64_t step = 0; step < steps; ++step) {
      executor.begin(from(step * microbatches));
      std::vector<at::Tensor> sums(gradients.size());
      for (int replica = 0; replica < replicas; ++replica) {
        for (at::Tensor& gradient : gradients) gradient.zero_();
        for (int m = replica; m < microbatches; m += replicas) {
          executor.feed(MicrobatchId(m), batches_->get(step * microbatches + m));
          executor.execute({Op::Forward, StageId(0), MicrobatchId(m)});
          executor.execute({Op::Backward, StageId(0), MicrobatchId(m)});
        }
        for (std::size_t i = 0; i < sums.size(); ++i)
          sums[i] = replica == 0 ? gradients[i].clone() : at::add(sums[i], gradients[i]);
      }
      for (std::size_t i = 0; i < sums.size(); ++i) gradients[i].copy_(sums[i]);
      executor.update({{.lr = learning_rate(options_.learning_rate, step)}});
    }
    return weights();
  }

  /// w(t+1) = w(t) - lr grad f(w_1^version(0, t), ..., w_p^version(p-1, t)): what a stage's gradient t was
  /// computed with, given by the caller; the gradient is the mean over `per_update` microbatches.
  std::map<std::string, at::Tensor> delayed(
      std::int64_t updates, int per_update,
      const std::function<std::int64_t(int stage, std::int64_t t)>& version,
      std::int64_t first_position = 0) {
    at::NoGradGuard no_grad;
    const int p = layout_.num_stages();
    std::vector<std::vector<at::Tensor>> history(p);
    for (int s = 0; s < p; ++s) history[s].push_back(stores_[s].flat_weights().clone());
    for (std::int64_t t = 0; t < updates; ++t) {
      std::vector<at::Tensor> newest;
      for (int s = 0; s < p; ++s) {
        auto& store = stores_[s];
        newest.push_back(store.flat_weights().clone());
        const std::int64_t used = std::max<std::int64_t>(0, version(s, t));
        store.flat_weights().copy_(history[s][used]);
      }
      gradients(first_position + t * per_update, per_update);
      for (int s = 0; s < p; ++s) {
        auto& store = stores_[s];
        store.flat_weights().copy_(newest[s]);
        store.publish([&](at::Tensor w, const at::Tensor& g) {
          rules_[s]->apply_(w, g, {.lr = {options_.learning_rate.base}});
        });
        history[s].push_back(store.flat_weights().clone());
      }
    }
    return weights();
  }

  /// Goes on from a checkpoint whose stages are those of the reference, each updated so many times.
  void load(const Checkpoint& checkpoint, const std::vector<std::int64_t>& updates) {
    at::NoGradGuard no_grad;
    for (std::size_t s = 0; s < stores_.size(); ++s) {
      auto& store = stores_[s];
      for (std::size_t i = 0; i < store.slots().size(); ++i) {
        const std::string& name = store.slots()[i].name;
        store.view(store.flat_weights(), i).copy_(checkpoint.find(name)->tensor(name));
        for (const auto& [state, flat] : rules_[s]->state()) {
          const std::string saved = "rule/" + state + "/" + name;
          store.view(flat, i).copy_(checkpoint.find(saved)->tensor(saved));
        }
      }
      rules_[s]->set_updates(updates[s]);
    }
  }

 private:
  RunContext from(std::int64_t position) const {
    return {.first_position = position, .extent_of = [this](std::int64_t p) { return batches_->extent(p); }};
  }
  void gradients(std::int64_t position, int microbatches) {
    // One executor over the whole model, whose parameters are set from the stages' stores.
    ParameterStore store(whole_, StageId(0), options_.seed);
    auto rule = make_update_rule(options_.rule, store);
    StageExecutor executor({whole_, StageId(0), store, *rule, alone_, nullptr, *device_},
                           {.seeds = {options_.seed}, .microbatches_per_update = microbatches});
    executor.carried_states() = std::move(carried_);
    const auto named = weights();
    for (std::size_t i = 0; i < store.slots().size(); ++i)
      store.view(store.flat_weights(), i).copy_(named.at(store.slots()[i].name));
    executor.begin(from(position));
    for (int m = 0; m < microbatches; ++m) {
      executor.feed(MicrobatchId(m), batches_->get(position + m));
      executor.execute({Op::Forward, StageId(0), MicrobatchId(m)});
      executor.execute({Op::Backward, StageId(0), MicrobatchId(m)});
    }
    carried_ = std::move(executor.carried_states());
    std::map<std::string, at::Tensor> grads;
    for (std::size_t i = 0; i < store.slots().size(); ++i)
      grads[store.slots()[i].name] = store.view(store.flat_gradient(), i);
    for (auto& stage : stores_) {
      for (std::size_t i = 0; i < stage.slots().size(); ++i)
        stage.view(stage.flat_gradient(), i).copy_(grads.at(stage.slots()[i].name));
    }
  }

  std::map<std::string, at::Tensor> weights() {
    std::map<std::string, at::Tensor> result;
    for (auto& store : stores_) {
      for (std::size_t i = 0; i < store.slots().size(); ++i)
        result[store.slots()[i].name] = store.view(store.flat_weights(), i).clone();
    }
    return result;
  }

  StageLayout layout_, whole_;
  TrainOptions options_;
  std::unique_ptr<BatchSource> batches_;
  std::vector<ParameterStore> stores_;
  std::vector<std::unique_ptr<UpdateRule>> rules_;
  CarriedStates carried_;
  Alone alone_;
  std::shared_ptr<Device> device_ = make_cpu_device();
};

}  // namespace millrace
