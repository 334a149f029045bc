// How many jobs are an array, how many arrays are in the pipeline at once, and in how many rounds: the best
// way is the best of all ways, tried one by one.
#include "optimizer/planner/plan_jobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "runtime/plan/array_profiles.h"
#include "tests/optimizer/every_cut.h"

namespace millrace {
namespace {

constexpr int kMicrobatches = 2;

/// The graph as an array of `jobs`: a part of each time is paid once, the rest by every job.
LayerGraph as_array(const LayerGraph& one, int jobs, double shared) {
  LayerGraph array = one;
  array.jobs = jobs;
  const double longer = shared + (1 - shared) * jobs;
  array.loss_s *= longer;
  for (LayerNode& node : array.nodes) {
    for (double* seconds : {&node.forward_s, &node.backward_input_s, &node.backward_weight_s})
      *seconds *= longer;
    for (Bytes* bytes :
         {&node.parameter_bytes, &node.activation_bytes, &node.saved_bytes, &node.workspace_bytes})
      *bytes *= jobs;
  }
  for (LayerEdge& edge : array.edges) edge.bytes *= jobs;
  return array;
}

/// A chain, measured as arrays of 1, 2 and 4 jobs.
LayerGraph chain_profile(RandomStream& random, int layers) {
  LayerGraph graph = random_layers(random, layers);
  for (int i = 0; i + 1 < layers; ++i) join(graph, i, i + 1);
  const double shared = random.uniform(0, 0.8);
  const LayerGraph one = graph;
  for (const int jobs : {2, 4}) graph.arrays.push_back(as_array(one, jobs, shared));
  return graph;
}

ClusterSpec ranks(int count) {
  return ClusterSpec::local(count);
}

/// Every way to divide the jobs: with arrays of at most `largest`, at most `arrays` in a round.
struct Division {
  int largest = 1, arrays = 1;
  std::vector<std::vector<int>> rounds;  // sizes of the arrays
};

std::vector<int> evenly(int jobs, int parts) {
  std::vector<int> sizes;
  for (int p = 0; p < parts; ++p) sizes.push_back(jobs / parts + (p < jobs % parts));
  return sizes;
}

std::vector<Division> every_division(int jobs, int most) {
  std::vector<Division> all;
  for (int largest = 1; largest <= std::min(jobs, most); ++largest) {
    for (int arrays = 1; arrays <= jobs; ++arrays) {
      // Full rounds and the rest.
      Division full{.largest = largest, .arrays = arrays};
      for (int left = jobs; left > 0;) {
        const int own = std::min(left, largest * arrays);
        full.rounds.push_back(evenly(own, std::min(arrays, (own + largest - 1) / largest)));
        left -= own;
      }
      if (static_cast<int>(full.rounds.front().size()) == arrays) all.push_back(full);
      // Any number of even rounds.
      for (int rounds = 1; rounds <= jobs; ++rounds) {
        Division even{.largest = largest, .arrays = arrays};
        for (const int own : evenly(jobs, rounds)) even.rounds.push_back(evenly(own, std::min(arrays, own)));
        const auto& first = even.rounds.front();
        if (static_cast<int>(first.size()) == arrays && first.front() == largest) all.push_back(even);
      }
    }
  }
  return all;
}

/// Computes the most that a rank holds of its stage beside weights: at each backward the stash, the next four
/// receives, and a message each way.
Bytes fullest_backward(const std::vector<Action>& actions, Bytes stash, Bytes in, Bytes out) {
  Bytes most = 0;
  int stashed = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    stashed += actions[i].op == Op::Forward;
    if (actions[i].op != Op::Backward) continue;
    Bytes bytes = stashed * stash + in + out;
    int posted = 0;
    for (std::size_t later = i + 1; later < actions.size() && posted < 4; ++later) {
      if (!is_receive(actions[later].op)) continue;
      bytes += actions[later].op == Op::RecvActivation ? in : out;
      ++posted;
    }
    most = std::max(most, bytes);
    --stashed;
  }
  return most;
}

/// Computes the memory of a stage's rank a second time. It holds weights, gradients and rule state of all
/// arrays. Besides it holds the larger of two: what the fullest backward of 1F1B holds, or one microbatch and
/// the bytes that all-reduces receive. These are all bytes with two replicas, those of a bucket with three.
Bytes peak_of(const LayerGraph& graph, const CostModel& model, const std::vector<CutStage>& stages,
              const PipelineShape& shape, int copies) {
  const Schedule schedule = *make_schedule(ScheduleKind::OneFOneB, shape);
  const std::vector<StageMemory> memories = model.memory_of(stages, 1);
  Bytes most = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    Bytes parameters = 0, saved = 0;
    for (const int node : stages[s].nodes) {
      parameters += graph.nodes[node].parameter_bytes;
      saved += graph.nodes[node].saved_bytes;
    }
    const Bytes in = memories[s].incoming, out = memories[s].outgoing;
    const auto replicas = static_cast<Bytes>(stages[s].ranks.size());
    const Bytes reduced = replicas == 2  ? parameters
                          : replicas > 2 ? std::min(parameters, 4 * kMiB) / replicas * (replicas - 1)
                                         : 0;
    Bytes kept = saved + in + reduced + in + out;
    for (const RankId rank : stages[s].ranks)
      kept = std::max(kept, fullest_backward(schedule.ranks[rank.value], saved + in, in, out));
    most = std::max(most, parameters * (2 + copies) * shape.arrays + kept + memories[s].workspace);
  }
  return most;
}

/// All cuts of a chain over all ways to replicate.
void for_every_plan(int layers, int num_ranks, const std::function<void(std::vector<CutStage>)>& see) {
  for (int bits = 0; bits < (1 << (layers - 1)); ++bits) {
    std::vector<CutStage> cut(1);
    for (int layer = 0; layer < layers; ++layer) {
      if (layer > 0 && ((bits >> (layer - 1)) & 1)) cut.emplace_back();
      cut.back().nodes.push_back(layer);
    }
    const int stages = static_cast<int>(cut.size());
    if (stages > num_ranks) continue;
    std::vector<int> replicas(cut.size(), 1);
    const std::function<void(std::size_t, int)> spread = [&](std::size_t s, int left) {
      if (s + 1 == cut.size()) {
        replicas[s] = left;
        std::vector<CutStage> stages_of = cut;
        int rank = 0;
        for (std::size_t i = 0; i < cut.size(); ++i) {
          for (int r = 0; r < replicas[i]; ++r) stages_of[i].ranks.emplace_back(rank++);
        }
        return see(std::move(stages_of));
      }
      for (int own = 1; own <= left - (stages - static_cast<int>(s) - 1); ++own) {
        replicas[s] = own;
        spread(s + 1, left - own);
      }
    };
    spread(0, num_ranks);
  }
}

Plan plan_of(const LayerGraph& graph, const std::vector<CutStage>& stages) {
  Plan plan{.model = graph.model, .microbatches = kMicrobatches};
  for (const CutStage& cut : stages) {
    PlanStage& stage = plan.stages.emplace_back();
    for (const int node : cut.nodes) stage.layers.push_back(graph.nodes[node].name);
    stage.ranks = cut.ranks;
  }
  return plan;
}

struct Best {
  double total_s = kNoPlan;
  bool even = false;  ///< the best division has equal rounds, with arrays of one size
};

Best best_of_all(const LayerGraph& profile, const ClusterSpec& cluster, const PlannerOptions& options,
                 int jobs) {
  Best best;
  RoundCosts costs(profile, cluster, options.costs);
  const int layers = static_cast<int>(profile.nodes.size());
  for (const Division& division : every_division(jobs, measured_sizes(profile).back())) {
    SizedModel& sized = **costs.of(division.largest, division.arrays);
    for_every_plan(layers, cluster.num_ranks(), [&](const std::vector<CutStage>& stages) {
      for (const CutStage& stage : stages) {
        const int replicas = static_cast<int>(stage.ranks.size());
        if (replicas > kMicrobatches || (division.arrays > 1 && kMicrobatches % replicas != 0)) return;
      }
      const PipelineShape shape = sized.model->shape_of(stages, kMicrobatches * division.arrays);
      if (options.memory_per_rank > 0 && peak_of(sized.graph, *sized.model, stages, shape,
                                                 options.costs.rule_copies) > options.memory_per_rank)
        return;
      const Plan plan = plan_of(profile, stages);
      double total = 0;
      bool even = true;
      for (const std::vector<int>& sizes : division.rounds) {
        const Result<RoundCost> cost =
            costs.cost(plan, {.jobs = std::accumulate(sizes.begin(), sizes.end(), 0),
                              .arrays = static_cast<int>(sizes.size())});
        ASSERT_TRUE(cost) << to_string(cost.problems());
        total += cost->step_s;
        even = even && static_cast<int>(sizes.size()) == division.arrays;
        for (const int size : sizes) even = even && size == division.largest;
      }
      if (total < best.total_s) best = {total, even};
    });
  }
  return best;
}

int jobs_of(const std::vector<PlanRound>& rounds) {
  int jobs = 0;
  for (const PlanRound& round : rounds) jobs += round.jobs;
  return jobs;
}

TEST(PlanJobs, IsTheBestOfAllWays) {
  int exact = 0, uneven = 0, refused = 0, several_rounds = 0, several_arrays = 0, alone = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    RandomStream random(seed);
    const LayerGraph profile = chain_profile(random, 2 + static_cast<int>(random.below(3)));
    const ClusterSpec cluster = ranks(1 + static_cast<int>(random.below(3)));
    const int jobs = 1 + static_cast<int>(random.below(7));
    PlannerOptions options{.microbatches = kMicrobatches, .schedule = ScheduleKind::OneFOneB, .chunks = 1};
    for (const bool limited : {false, true}) {
      if (limited) {
        Bytes weights = 0;
        for (const LayerNode& node : profile.nodes)
          weights += 3 * node.parameter_bytes + 4 * node.saved_bytes;
        options.memory_per_rank = static_cast<Bytes>(static_cast<double>(weights) * random.uniform(0.3, 4));
      }
      const Best best = best_of_all(profile, cluster, options, jobs);
      const Result<JobsAnswer> answer = plan_jobs(profile, cluster, options, jobs);
      SCOPED_TRACE("seed " + std::to_string(seed) + (limited ? ", limited" : ""));
      ASSERT_EQ(answer.has_value(), best.total_s < kNoPlan)
          << (answer ? "found one" : to_string(answer.problems()));
      if (!answer) {
        ++refused;
        continue;
      }
      const JobsCandidate& found = answer->candidates.front();
      EXPECT_TRUE(validate(found.plan, profile).empty()) << to_string(validate(found.plan, profile));
      EXPECT_EQ(jobs_of(found.plan.rounds), jobs);
      // Stages are chosen for the fullest round: where others are smaller, they may be a little off.
      EXPECT_LE(found.total_s, best.total_s * (best.even ? 1 + 1e-9 : 1.05));
      EXPECT_GE(found.total_s, best.total_s * (1 - 1e-9));
      exact += best.even;
      uneven += !best.even;
      several_rounds += found.plan.rounds.size() > 1;
      several_arrays += found.arrays > 1;
      alone += found.jobs == 1;
      if (limited) {
        EXPECT_LE(found.peak_bytes, options.memory_per_rank);
      }
      for (const JobsCandidate& other : answer->candidates)
        EXPECT_GE(other.total_s, found.total_s * (1 - 1e-9));
    }
  }
  EXPECT_GT(exact, 40);
  EXPECT_GT(uneven, 5);
  EXPECT_GT(refused, 2);
  EXPECT_GT(several_rounds, 5);
  EXPECT_GT(several_arrays, 5);
  EXPECT_GT(alone, 5);
}

TEST(PlanJobs, DividesAllJobsAndKeepsToTheSizes) {
  for (int jobs = 1; jobs <= 24; ++jobs) {
    for (int largest = 1; largest <= jobs; ++largest) {
      for (int arrays = 1; arrays <= jobs; ++arrays) {
        for (const std::vector<PlanRound>& rounds : divisions_of(jobs, largest, arrays)) {
          EXPECT_EQ(jobs_of(rounds), jobs);
          EXPECT_EQ(rounds.front().arrays, arrays);
          EXPECT_EQ(rounds.front().largest(), largest);
          for (const PlanRound& round : rounds) {
            EXPECT_LE(round.arrays, arrays);
            EXPECT_LE(round.largest(), largest);
            EXPECT_GE(round.sizes().back(), 1);
          }
        }
      }
    }
  }
  EXPECT_EQ(divisions_of(7, 2, 2),
            (std::vector<std::vector<PlanRound>>{{{.jobs = 4, .arrays = 2}, {.jobs = 3, .arrays = 2}}}));
  EXPECT_EQ(divisions_of(9, 4, 1),
            (std::vector<std::vector<PlanRound>>{
                {{.jobs = 4, .arrays = 1}, {.jobs = 4, .arrays = 1}, {.jobs = 1, .arrays = 1}}}));
  EXPECT_TRUE(divisions_of(4, 2, 3).empty());
}

/// Sizes in between lie on the line; a round with both lies between rounds of either.
TEST(PlanJobs, UnequalArraysTakeAsLongAsTheyAre) {
  RandomStream random(3);
  const LayerGraph profile = chain_profile(random, 3);
  const ClusterSpec cluster = ranks(2);
  const CostOptions options;
  RoundCosts costs(profile, cluster, options);
  Plan plan = uniform_plan("dag", {"layer0", "layer1", "layer2"}, 2, 1, 4, ScheduleKind::OneFOneB);
  const double smaller = costs.cost(plan, {.jobs = 3, .arrays = 3})->step_s,
               mixed = costs.cost(plan, {.jobs = 4, .arrays = 3})->step_s,
               larger = costs.cost(plan, {.jobs = 6, .arrays = 3})->step_s;
  EXPECT_LT(smaller, mixed);
  EXPECT_LT(mixed, larger);
  const double one = costs.compute_s(2, 4).value(), between = costs.compute_s(3, 4).value(),
               two = costs.compute_s(4, 4).value();
  EXPECT_NEAR(between, (one + two) / 2, 1e-12);
  EXPECT_FALSE(costs.of(5, 1));
}

/// With S stages, M microbatches of equal length and K arrays, ranks are idle for (S-1) / (K M + S-1).
TEST(PlanJobs, ArraysFillThePipelineAsTheFormulaSays) {
  LayerGraph graph;
  graph.model = "even";
  for (int i = 0; i < 3; ++i) {
    graph.nodes.push_back({.name = "layer" + std::to_string(i),
                           .forward_s = 1e-3,
                           .backward_input_s = 1e-3,
                           .backward_weight_s = 1e-3});
    if (i > 0) join(graph, i - 1, i);
  }
  ClusterSpec cluster = ranks(3);
  for (ClusterLevel& level : cluster.levels) level.latency_s = 0, level.bandwidth = 1e18;
  const CostOptions options;
  RoundCosts costs(graph, cluster, options);
  const Plan plan = uniform_plan("even", {"layer0", "layer1", "layer2"}, 3, 1, 4, ScheduleKind::OneFOneB);
  for (int arrays = 1; arrays <= 5; ++arrays) {
    const RoundCost cost = costs.cost(plan, {.jobs = arrays, .arrays = arrays}).value();
    EXPECT_NEAR(cost.idle, 2.0 / (4 * arrays + 2), 1e-9) << arrays;
    EXPECT_NEAR(cost.step_s, 3e-3 * (4 * arrays + 2), 1e-9) << arrays;
  }
}

TEST(PlanJobs, MemoryMakesRounds) {
  RandomStream random(5);
  const LayerGraph profile = chain_profile(random, 4);
  const ClusterSpec cluster = ranks(2);
  PlannerOptions options{.microbatches = 4};
  const JobsAnswer free = plan_jobs(profile, cluster, options, 7).value();
  EXPECT_EQ(free.candidates.front().plan.rounds.size(), 1u);
  EXPECT_EQ(free.not_fitting, 0);
  const JobsAnswer single = plan_jobs(profile, cluster, options, 1).value();
  options.memory_per_rank = single.candidates.front().peak_bytes;
  const JobsAnswer tight = plan_jobs(profile, cluster, options, 7).value();
  EXPECT_EQ(tight.candidates.front().plan.rounds.size(), 7u);
  EXPECT_GT(tight.not_fitting, 0);
  options.memory_per_rank = 1000;
  const Result<JobsAnswer> none = plan_jobs(profile, cluster, options, 7);
  ASSERT_FALSE(none);
  EXPECT_NE(to_string(none.problems()).find("no plan fits"), std::string::npos) << to_string(none.problems());
}

TEST(PlanJobs, RefusesWhatItCannotPlan) {
  RandomStream random(5);
  const LayerGraph profile = chain_profile(random, 3);
  PlannerOptions options{.microbatches = 0};
  EXPECT_NE(to_string(plan_jobs(profile, ranks(2), options, 2).problems()).find("--microbatches"),
            std::string::npos);
  options.microbatches = 4;
  EXPECT_FALSE(plan_jobs(profile, ranks(2), options, 0));
  EXPECT_FALSE(plan_jobs(profile.arrays.front(), ranks(2), options, 2));
}

/// A profile of one size says what jobs cost one by one, and nothing else is proposed.
TEST(PlanJobs, ProposesNoSizeBeyondThoseMeasured) {
  RandomStream random(7);
  LayerGraph profile = chain_profile(random, 3);
  const PlannerOptions options{.microbatches = 4};
  const JobsAnswer answer = plan_jobs(profile, ranks(2), options, 6).value();
  for (const JobsCandidate& c : answer.candidates) {
    EXPECT_LE(c.jobs, 4);
    EXPECT_EQ(c.interpolated, std::ranges::any_of(c.plan.rounds, [](const PlanRound& round) {
                const std::vector<int> sizes = round.sizes();
                return std::ranges::find(sizes, 3) != sizes.end();
              }));
  }
  profile.arrays.clear();
  const JobsAnswer alone = plan_jobs(profile, ranks(2), options, 6).value();
  for (const JobsCandidate& c : alone.candidates) EXPECT_EQ(c.jobs, 1);
}

}  // namespace
}  // namespace millrace
