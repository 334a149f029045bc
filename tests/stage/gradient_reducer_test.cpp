// Gradients of a stage's replicas: each bucket is the sum in the order of ranks, and leaves when its last
// layer is ready.
#include "runtime/stage/gradient_reducer.h"

#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "runtime/layers/sequence_layers.h"
#include "runtime/model/fuse.h"
#include "tests/stage/stage_fixture.h"

namespace millrace {
namespace {

// Three: two ranks have the same sum in either order.
constexpr int kReplicas = 3;

/// Elements of the flat gradient, each parameter padded to 64: l0 128, l1 320, l2 384, l3 128.
LayeredModel four_layers() {
  return chain_of_linears({6, 5, 40, 7, 5});
}

at::Tensor sum_of_ranks(at::IntArrayRef shape, std::uint64_t seed) {
  const at::Tensor r0 = rough(shape, seed), r1 = rough(shape, seed + 1), r2 = rough(shape, seed + 2);
  return at::add(at::add(r0, r1), r2);
}

TEST(GradientReducer, TheNumbersOfTheseTestsTellTheOrderOfASum) {
  const at::Tensor r0 = rough({1000}, 0), r1 = rough({1000}, 1), r2 = rough({1000}, 2);
  EXPECT_FALSE(same_bits(sum_of_ranks({1000}, 0), at::add(r0, at::add(r1, r2))));
  EXPECT_FALSE(same_bits(sum_of_ranks({1000}, 0), at::add(at::add(r0, r2), r1)));
}

TEST(GradientReducer, AddsEachBucketInTheOrderOfRanks) {
  const StageLayout layout = layout_of_one_stage(four_layers());
  for (const std::int64_t bucket_bytes : {1, 1000, 1 << 20}) {
    on_ranks(kReplicas, [&](Communicator& ranks) {
      ParameterStore store(layout, StageId(0), 1);
      GradientReducer reducer(store, &ranks, compile_stage(layout, StageId(0)), bucket_bytes);
      const auto rank = static_cast<std::uint64_t>(ranks.rank().value);
      for (const std::uint64_t step : {100u, 200u}) {  // the second begins as the first did
        const at::Tensor gradient = store.flat_gradient();
        gradient.copy_(rough(gradient.sizes(), step + rank));
        if (step == 100u)
          for (const int layer : {3, 2, 1, 0}) reducer.ready(layer);
        reducer.finish();
        const at::Tensor expected = sum_of_ranks(gradient.sizes(), step);
        for (std::size_t s = 0; s < store.slots().size(); ++s)
          expect_bits(store.view(gradient, s), store.view(expected, s),
                      "rank " + std::to_string(rank) + ", buckets of " + std::to_string(bucket_bytes) +
                          " bytes: " + store.slots()[s].name);
      }
    });
  }
}

/// Layers after the bucket's first may be ready long before it. A layer that is not ready is still written
/// to.
TEST(GradientReducer, ABucketLeavesWhenItsFirstLayerIsReady) {
  const StageLayout layout = layout_of_one_stage(four_layers());
  struct Case {
    std::int64_t bucket_bytes;
    std::vector<std::vector<std::int64_t>>
        sums;  // sizes of the sums that have begun when layer 3, 2, 1, 0 is ready
  };
  const std::vector<Case> cases{{1, {{128}, {128, 384}, {128, 384, 320}, {128, 384, 320, 128}}},
                                {1000, {{}, {512}, {512, 320}, {512, 320, 128}}},
                                {1 << 20, {{}, {}, {}, {960}}}};
  for (const Case& c : cases) {
    on_ranks(kReplicas, [&](Communicator& ranks) {
      ParameterStore store(layout, StageId(0), 1);
      RecordingCommunicator recorded(ranks);
      GradientReducer reducer(store, &recorded, compile_stage(layout, StageId(0)), c.bucket_bytes);
      const at::Tensor gradient = store.flat_gradient();
      const at::Tensor own = rough(gradient.sizes(), 100 + static_cast<std::uint64_t>(ranks.rank().value));
      gradient.fill_(std::numeric_limits<float>::quiet_NaN());  // whatever leaves too early
      for (const int layer : {3, 2, 1, 0}) {
        const auto [begin, end] = store.gradient_ranges(layer).front();
        gradient.narrow(0, begin, end - begin).copy_(own.narrow(0, begin, end - begin));
        reducer.ready(layer);
        EXPECT_EQ(recorded.sums, c.sums[3 - layer])
            << "layer " << layer << ", buckets of " << c.bucket_bytes << " bytes";
      }
      reducer.finish();
      expect_bits(gradient, sum_of_ranks(gradient.sizes(), 100),
                  "buckets of " + std::to_string(c.bucket_bytes) + " bytes");
    });
  }
}

/// Each replica reads other rows of the first of two tables, and one of them reads all rows of the second.
TEST(GradientReducer, TablesAreSumsOfTheRowsThatAnyReplicaRead) {
  constexpr std::int64_t kRows = 5000, kWidth = 3;
  LayeredModel model = chain_of_linears({kWidth, 4});
  model.fields.push_back({.name = "row", .dtype = at::kLong, .limit = kRows});
  const LayerPtr table = embedding({.vocabulary = kRows, .features = kWidth});
  NamedLayer first = model.layers[0];
  model.layers = {{"t0", table, {"row"}}, {"t1", table, {"row"}}, {"sum", add(), {"t0", "t1"}}, first};
  model.layers.back().inputs = {"sum"};
  model.fields.erase(model.fields.begin());
  const StageLayout layout = layout_of_one_stage(model);
  on_ranks(kReplicas, [&](Communicator& ranks) {
    ParameterStore store(layout, StageId(0), 1);
    RecordingCommunicator recorded(ranks);
    GradientReducer reducer(store, &recorded, compile_stage(layout, StageId(0)), 1 << 20);
    const auto rank = static_cast<std::uint64_t>(ranks.rank().value);
    const auto rows_of = [](std::uint64_t of) {
      return at::tensor({std::int64_t(7), std::int64_t(100 + of), std::int64_t(4999 - 2 * of)}, at::kLong);
    };
    at::Tensor expected;
    for (std::uint64_t of = 0; of < kReplicas; ++of) {
      at::Tensor own = at::zeros_like(store.flat_gradient());
      store.view(own, 0).index_copy_(0, rows_of(of), rough({3, kWidth}, of));
      store.view(own, 1).copy_(rough({kRows, kWidth}, 10 + of));
      store.view(own, 2).copy_(rough({4, kWidth}, 20 + of));
      expected = of == 0 ? own.clone() : at::add(expected, own);
      if (of == rank) store.flat_gradient().copy_(own);
    }
    store.touch(0, rows_of(rank));
    if (rank == 1)
      store.touch(1, {});
    else
      store.touch(1, rows_of(rank));
    reducer.finish();
    expect_bits(store.flat_gradient(), expected, "rank " + std::to_string(rank));
    const std::vector<FlatRange> touched = store.touched();
    EXPECT_EQ(touched.front(), (FlatRange{7 * kWidth, 8 * kWidth}));
    ASSERT_EQ(touched.size(), 1u + 1 + kReplicas + 2);
    const std::int64_t second = store.slots()[1].offset;
    EXPECT_EQ(touched[touched.size() - 2], (FlatRange{second, second + kRows * kWidth})) << "all its rows";
    EXPECT_EQ(touched.back(), (FlatRange{store.slots()[2].offset, store.flat_gradient().numel()}));
    EXPECT_EQ(recorded.sums.back(), (7 + kRows) * kWidth) << "row 7 of all, and two of each replica";
  });
}

/// A table between two layers is a sum by itself: no bucket has both layers.
TEST(GradientReducer, NoBucketReachesOverATable) {
  constexpr std::int64_t kRows = 5000, kWidth = 3;
  LayeredModel model = chain_of_linears({kWidth, 4});
  NamedLayer last = model.layers[0];
  last.inputs = {"sum"};
  const LayerPtr table = embedding({.vocabulary = kRows, .features = kWidth});
  model.layers = {{"t0", table, {"row"}},
                  {"between", linear(kWidth, kWidth), {"t0"}},
                  {"t1", table, {"row"}},
                  {"sum", add(), {"between", "t1"}},
                  last};
  model.fields.push_back({.name = "row", .dtype = at::kLong, .limit = kRows});
  model.fields.erase(model.fields.begin());
  const StageLayout layout = layout_of_one_stage(model);
  on_ranks(kReplicas, [&](Communicator& ranks) {
    ParameterStore store(layout, StageId(0), 1);
    GradientReducer reducer(store, &ranks, compile_stage(layout, StageId(0)), 1 << 20);
    const at::Tensor gradient = store.flat_gradient();
    gradient.copy_(rough(gradient.sizes(), 100 + static_cast<std::uint64_t>(ranks.rank().value)));
    for (const int layer : {0, 2}) store.touch(layer, {});
    reducer.finish();
    const at::Tensor expected = sum_of_ranks(gradient.sizes(), 100);
    for (std::size_t s = 0; s < store.slots().size(); ++s)
      expect_bits(store.view(gradient, s), store.view(expected, s), store.slots()[s].name);
  });
}

TEST(GradientReducer, TiedGradientsAreSumsByThemselves) {
  const StageLayout layout = layout_of(tied_model(), {{"a", "b"}, {"c", "s", "e"}});
  for (const int stage : {0, 1}) {
    on_ranks(kReplicas, [&](Communicator& ranks) {
      ParameterStore store(layout, StageId(stage), 1);
      GradientReducer reducer(store, &ranks, compile_stage(layout, StageId(stage)), 1 << 20);
      const auto rank = static_cast<std::uint64_t>(ranks.rank().value);
      ASSERT_EQ(store.tied().size(), stage == 0 ? 1u : 2u);
      for (const TiedUse& use : store.tied())
        at::Tensor(use.gradient).copy_(rough({4, 4}, 10 * static_cast<std::uint64_t>(use.layer) + rank));
      store.flat_gradient().copy_(rough(store.flat_gradient().sizes(), 100 + rank));
      reducer.finish();
      for (const TiedUse& use : store.tied())
        expect_bits(use.gradient, sum_of_ranks({4, 4}, 10 * static_cast<std::uint64_t>(use.layer)),
                    "stage " + std::to_string(stage) + ", layer " + std::to_string(use.layer));
      expect_bits(store.flat_gradient(), sum_of_ranks(store.flat_gradient().sizes(), 100), "own parameters");
    });
  }
}

TEST(GradientReducer, JobsOfAnArrayHaveTheSumsOfEachByItself) {
  const LayeredModel one = four_layers();
  const auto choices = std::make_shared<KernelChoices>(ArrayKernels::Loop, steady_clock());
  const StageLayout layout = layout_of_one_stage(*fuse({one, one}, choices));
  on_ranks(kReplicas, [&](Communicator& ranks) {
    ParameterStore store(layout, StageId(0), std::vector<std::uint64_t>{1, 2}, at::kCPU);
    RecordingCommunicator recorded(ranks);
    GradientReducer reducer(store, &recorded, compile_stage(layout, StageId(0)), 1 << 20);
    const at::Tensor gradient = store.flat_gradient();
    gradient.copy_(rough(gradient.sizes(), 100 + static_cast<std::uint64_t>(ranks.rank().value)));
    reducer.finish();
    EXPECT_EQ(recorded.sums, (std::vector<std::int64_t>{960, 960}));
    expect_bits(gradient, sum_of_ranks(gradient.sizes(), 100), "both jobs");
  });
}

TEST(GradientReducer, FrozenLayersKeepTheirs) {
  const StageLayout layout = layout_of_one_stage(four_layers());
  StageProgram program = compile_stage(layout, StageId(0));
  program.steps[2].frozen = true;
  on_ranks(kReplicas, [&](Communicator& ranks) {
    ParameterStore store(layout, StageId(0), 1);
    GradientReducer reducer(store, &ranks, program, 1);
    const auto rank = static_cast<std::uint64_t>(ranks.rank().value);
    const at::Tensor gradient = store.flat_gradient(), own = rough(gradient.sizes(), 100 + rank);
    gradient.copy_(own);
    reducer.finish();
    const at::Tensor sum = sum_of_ranks(gradient.sizes(), 100);
    for (std::size_t s = 0; s < store.slots().size(); ++s)
      expect_bits(store.view(gradient, s),
                  store.view(store.slots()[s].name.starts_with("l2.") ? own : sum, s), store.slots()[s].name);
  });
}

TEST(GradientReducer, AStageOnOneRankHasNothingToAdd) {
  const StageLayout layout = layout_of_one_stage(four_layers());
  ParameterStore store(layout, StageId(0), 1);
  GradientReducer reducer(store, nullptr, compile_stage(layout, StageId(0)), 1);
  const at::Tensor own = rough(store.flat_gradient().sizes(), 100);
  store.flat_gradient().copy_(own);
  reducer.ready(0);
  reducer.finish();
  expect_bits(store.flat_gradient(), own, "alone");
}

}  // namespace
}  // namespace millrace
