// Job arrays in one process on threads.
#pragma once

#include "runtime/model/fuse.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {

/// Arrays of one model trained beside the jobs' own runs.
class JobArrays : public Pipeline {
 protected:
  std::shared_ptr<KernelChoices> choices(ArrayKernels mode) {
    return std::make_shared<KernelChoices>(mode, clock_);
  }
  LayeredModel array_of(const LayeredModel& model, std::size_t jobs, ArrayKernels mode = ArrayKernels::Loop,
                        const FuseOptions& options = {}) {
    auto array = fuse(std::vector<LayeredModel>(jobs, model), choices(mode), options);
    EXPECT_TRUE(array) << to_string(array.problems());
    return *array;
  }
  /// Two of its layers have one weight.
  static LayeredModel tied_model() {
    LayeredModel model = classifier("tied", {12}, 5);
    model.layers.push_back({"a", linear(12, 12), {"input"}});
    model.layers.push_back({"b", relu(), {"a"}});
    model.layers.push_back(
        {.name = "c", .layer = linear(12, 12), .inputs = {"b"}, .tied = {{"weight", "a.weight"}}});
    model.layers.push_back({"d", linear(12, 5), {"c"}});
    end_in_cross_entropy(model);
    return model;
  }
  /// Returns the options of one job of `options` as a training by itself.
  static TrainOptions alone(TrainOptions options, std::size_t job) {
    const JobOptions own = options.jobs[job];
    options.jobs.clear();
    options.seed = own.seed;
    options.rule = own.rule;
    options.clip = own.clip;
    options.learning_rate = own.learning_rate;
    return options;
  }
  /// Three jobs that differ in seed, rate, momentum and clipping.
  TrainOptions three(std::int64_t steps, UpdateRuleKind rule = UpdateRuleKind::Sgd) {
    TrainOptions result = options(steps, rule);
    for (std::uint64_t b = 0; b < 3; ++b) {
      JobOptions job{.seed = 11 + b, .rule = result.rule, .learning_rate = result.learning_rate};
      job.learning_rate.base *= 1 + 0.5 * double(b);
      if (rule == UpdateRuleKind::Sgd && b > 0) job.rule.momentum = 0.5 + 0.2 * double(b);
      if (b == 2) job.clip.norm = 0.1;
      result.jobs.push_back(job);
    }
    return result;
  }
  void expect_own_runs(const LayeredModel& model, const Plan& plan, const TrainOptions& options,
                       const std::string& what) {
    const Outcome array = train(array_of(model, options.jobs.size()), plan, options);
    const auto& losses = array.reports[plan.stages.back().ranks[0].value].jobs;
    for (std::size_t b = 0; b < options.jobs.size(); ++b) {
      const Outcome own = train(model, plan, alone(options, b));
      EXPECT_EQ(own.losses, losses.at(b).losses) << what << ", job " << b;
      ASSERT_EQ(own.weights.size(), array.job_weights.at(b).size());
      for (const auto& [name, tensor] : own.weights)
        EXPECT_TRUE(at::equal(tensor, array.job_weights[b].at(name)))
            << what << ", job " << b << ": " << name;
    }
  }
  SteadyClock clock_;
};

}  // namespace millrace
