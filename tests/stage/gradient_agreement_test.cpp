// The norm of a model's gradient: the same bits on every rank of every plan, namely of the sum over
// parameters in the order of the model.
#include "runtime/stage/gradient_agreement.h"

#include <ATen/ops/full_like.h>

#include <cmath>
#include <limits>

#include "runtime/model/fuse.h"
#include "tests/stage/stage_fixture.h"

namespace millrace {
namespace {

struct AgreementPlan {
  const char* name;
  std::vector<std::vector<std::string>> layers;  // [stage]
  std::vector<std::vector<int>> ranks;           // [stage]
  int num_ranks;
};

/// Six layers, the last of which uses the weight of the first.
LayeredModel six_layers() {
  LayeredModel model = chain_of_linears({4, 4, 4, 4, 4, 4, 4});
  model.layers[5].tied = {{"weight", "l0.weight"}};
  return model;
}

const std::vector<AgreementPlan>& agreement_plans() {
  static const std::vector<AgreementPlan> plans{
      {"one stage", {{"l0", "l1", "l2", "l3", "l4", "l5"}}, {{0}}, 1},
      {"two stages", {{"l0", "l1"}, {"l2", "l3", "l4", "l5"}}, {{0}, {1}}, 2},
      {"three stages", {{"l0"}, {"l1", "l2", "l3"}, {"l4", "l5"}}, {{0}, {1}, {2}}, 3},
      {"replicas", {{"l0", "l1", "l2"}, {"l3", "l4", "l5"}}, {{0, 1}, {2, 3, 4}}, 5},
      {"several stages on a rank", {{"l0"}, {"l1", "l2"}, {"l3"}, {"l4", "l5"}}, {{0}, {1}, {0}, {1}}, 2}};
  return plans;
}

using NamedGradients = std::map<std::string, at::Tensor>;

/// Returns the norms that each rank of `plan` finds.
std::vector<std::vector<double>> norms_of(const LayeredModel& model, const AgreementPlan& plan,
                                          const NamedGradients& gradients) {
  const StageLayout layout = layout_of(model, plan.layers);
  std::vector<std::vector<double>> found(plan.num_ranks);
  on_ranks(plan.num_ranks, [&](Communicator& ranks) {
    std::vector<std::unique_ptr<ParameterStore>> stores;
    std::vector<GradientAgreement::Part> parts;
    for (std::size_t s = 0; s < plan.ranks.size(); ++s) {
      for (std::size_t replica = 0; replica < plan.ranks[s].size(); ++replica) {
        if (plan.ranks[s][replica] != ranks.rank().value) continue;
        ParameterStore& store = *stores.emplace_back(std::make_unique<ParameterStore>(
            layout, StageId(static_cast<int>(s)), std::vector<std::uint64_t>(model.jobs(), 1), at::kCPU));
        for (std::size_t slot = 0; slot < store.slots().size(); ++slot)
          store.view(store.flat_gradient(), slot).copy_(gradients.at(store.slots()[slot].name));
        for (const TiedUse& use : store.tied())
          at::Tensor(use.gradient).fill_(1e12);  // is the owner's by now: it does not count again
        parts.push_back({&store, replica == 0});
      }
    }
    GradientAgreement agreement(ranks, layout);
    found[ranks.rank().value] = agreement.norms(parts);
  });
  return found;
}

/// Returns name and shape of the trained parameters, in the order of the model.
std::vector<std::pair<std::string, Shape>> parameters_of(const LayeredModel& model) {
  std::vector<std::pair<std::string, Shape>> result;
  const StageLayout layout = layout_of_one_stage(model);
  const ParameterStore store(layout, StageId(0), std::vector<std::uint64_t>(model.jobs(), 1), at::kCPU);
  for (const ParameterSlot& slot : store.slots()) result.emplace_back(slot.name, slot.shape);
  return result;
}

/// A double just does not hold a sum of 2^60 and 11^2: from the large parameter on nothing changes it,
/// whereas the small ones by themselves do.
TEST(GradientAgreement, AddsParametersInTheOrderOfTheModelWhicheverThePlan) {
  const LayeredModel model = six_layers();
  NamedGradients gradients;
  double in_order = 0, small_ones = 0;
  for (const auto& [name, shape] : parameters_of(model)) {
    const double value = name == "l0.weight" ? double(1 << 30) : 11;
    at::Tensor gradient = at::empty(shape, at::kFloat).zero_();
    gradient.view({-1}).narrow(0, 0, 1).fill_(value);
    gradients[name] = gradient;
    in_order += value * value;
    if (name != "l0.weight") small_ones += value * value;
  }
  ASSERT_EQ(gradients.size(), 11u);
  ASSERT_NE(std::sqrt(in_order), std::sqrt(std::pow(2.0, 60) + small_ones)) << "the order is not seen";
  for (const AgreementPlan& plan : agreement_plans()) {
    for (const auto& of_rank : norms_of(model, plan, gradients))
      EXPECT_EQ(of_rank, std::vector<double>{std::sqrt(in_order)}) << plan.name;
  }
}

TEST(GradientAgreement, EveryRankOfEveryPlanHasTheBitsOfOneProcess) {
  const LayeredModel model = six_layers();
  NamedGradients gradients;
  double sum = 0;
  for (const auto& [name, shape] : parameters_of(model)) {
    gradients[name] = rough(shape, gradients.size());
    const at::Tensor flat = gradients[name].flatten().to(at::kDouble);
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
      const double element = flat.const_data_ptr<double>()[i];
      sum += element * element;
    }
  }
  const std::vector<double> one = norms_of(model, agreement_plans().front(), gradients).front();
  ASSERT_EQ(one.size(), 1u);
  EXPECT_NEAR(one.front() / std::sqrt(sum), 1, 1e-12);
  for (const AgreementPlan& plan : agreement_plans()) {
    for (const auto& of_rank : norms_of(model, plan, gradients)) EXPECT_EQ(of_rank, one) << plan.name;
  }
}

TEST(GradientAgreement, AnElementThatIsNotFiniteIsSeenByAllRanks) {
  const LayeredModel model = six_layers();
  for (const float value :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    NamedGradients gradients;
    for (const auto& [name, shape] : parameters_of(model)) gradients[name] = rough(shape, gradients.size());
    gradients["l3.bias"].narrow(0, 2, 1).fill_(value);
    for (const AgreementPlan& plan : agreement_plans()) {
      for (const auto& of_rank : norms_of(model, plan, gradients))
        EXPECT_FALSE(std::isfinite(of_rank.at(0))) << plan.name;
    }
  }
}

/// A loss that is not finite may leave finite gradients. One rank knows of it.
TEST(GradientAgreement, ATroubledRankMakesTheNormOfAllNaN) {
  const StageLayout layout = layout_of_one_stage(six_layers());
  on_ranks(3, [&](Communicator& ranks) {
    GradientAgreement agreement(ranks, layout);
    for (const char troubled : {1, 0}) {
      const char mine = ranks.rank() == RankId(1) ? troubled : 0;
      EXPECT_EQ(std::isnan(agreement.norms({}, {mine}).at(0)), troubled == 1)
          << "rank " << ranks.rank().value;
    }
  });
}

TEST(GradientAgreement, JobsOfAnArrayHaveTheNormsOfEachByItself) {
  const LayeredModel one = chain_of_linears({4, 4, 4, 4, 4, 4, 4});
  const auto choices = std::make_shared<KernelChoices>(ArrayKernels::Loop, steady_clock());
  const LayeredModel both = *fuse({one, one}, choices);
  NamedGradients gradients, of_jobs[2];
  for (const auto& [name, shape] : parameters_of(one)) {
    for (const int job : {0, 1}) {
      at::Tensor gradient = rough(shape, 100 * static_cast<std::uint64_t>(job) + gradients.size());
      of_jobs[job][name] = gradient;
      gradients[job_prefix(job) + name] = gradient;
    }
  }
  const AgreementPlan& alone = agreement_plans().front();
  for (const bool finite : {true, false}) {
    at::Tensor& broken = gradients[job_prefix(1) + "l2.weight"];
    if (!finite) broken = at::full_like(broken, std::numeric_limits<float>::infinity());
    const double first = norms_of(one, alone, of_jobs[0]).front().front(),
                 second = norms_of(one, alone, of_jobs[1]).front().front();
    EXPECT_NE(first, second);
    for (const AgreementPlan& plan : agreement_plans()) {
      for (const auto& of_rank : norms_of(both, plan, gradients)) {
        ASSERT_EQ(of_rank.size(), 2u) << plan.name;
        EXPECT_EQ(of_rank[0], first) << plan.name;
        EXPECT_EQ(std::isfinite(of_rank[1]), finite) << plan.name;
        EXPECT_EQ(of_rank[1] == second, finite) << plan.name;
      }
    }
  }
}

TEST(GradientAgreement, ClippingFollowsTheirFormulas) {
  EXPECT_EQ(norm_of({9, 16}), 5);
  EXPECT_EQ(norm_of({}), 0);
  EXPECT_EQ(clip_factor(4, 2, false), 2 / (4 + 1e-6));
  EXPECT_EQ(clip_factor(4, 2, true), 0.5);
  EXPECT_EQ(clip_factor(1, 2, false), 1);
  EXPECT_EQ(clip_factor(1, 2, true), 1);
}

}  // namespace
}  // namespace millrace
