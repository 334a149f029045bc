// Parameters of several stages: the owner's gradient is the sum over all uses in the order of layers, and the
// users' values are the owner's.
#include "runtime/stage/tied_exchange.h"

#include <ATen/ops/add.h>

#include "tests/stage/stage_fixture.h"

namespace millrace {
namespace {

// Layers of tied_model() by index.
constexpr int kOwner = 0, kC = 1, kB = 2, kE = 4;

/// Gradient of the weight by its use in `layer`.
at::Tensor gradient_by(int layer, std::uint64_t step, std::uint64_t replica = 0) {
  return rough({4, 4}, 1000 * step + 100 * replica + static_cast<std::uint64_t>(layer));
}

/// The owner's first, then by layer.
at::Tensor gradient_by_all(std::uint64_t step) {
  return at::add(at::add(at::add(gradient_by(kOwner, step), gradient_by(kC, step)), gradient_by(kB, step)),
                 gradient_by(kE, step));
}

at::Tensor initial_weight(std::uint64_t seed) {
  const StageLayout layout = layout_of_one_stage(tied_model());
  const ParameterStore store(layout, StageId(0), seed);
  return store.view(store.flat_weights(), slot_named(store, "a.weight")).clone();
}

/// Fills the stage's gradients as a backward leaves them.
void fill_gradients(ParameterStore& store, std::uint64_t step, std::uint64_t replica = 0) {
  store.flat_gradient().zero_();
  for (std::size_t s = 0; s < store.slots().size(); ++s)
    if (store.slots()[s].name == "a.weight")
      store.view(store.flat_gradient(), s).copy_(gradient_by(kOwner, step, replica));
  for (const TiedUse& use : store.tied())
    at::Tensor(use.gradient).copy_(gradient_by(use.layer, step, replica));
}

void subtract_gradient(ParameterStore& store) {
  store.publish([](at::Tensor weights, const at::Tensor& gradient) { weights.sub_(gradient); });
}

TEST(TiedExchange, TheOrderOfUsesIsSeenInTheSum) {
  const auto g = [](int layer) { return gradient_by(layer, 1); };
  EXPECT_FALSE(same_bits(gradient_by_all(1), at::add(at::add(at::add(g(kOwner), g(kB)), g(kC)), g(kE))));
}

/// The owner's own stage uses the weight too (b), and one of the others does before it (c).
TEST(TiedExchange, TheOwnerAddsTheUsesOfAllStagesInTheOrderOfLayers) {
  const StageLayout layout = layout_of(tied_model(), {{"a", "b"}, {"c", "s"}, {"e"}});
  on_ranks(3, [&](Communicator& ranks) {
    const int rank = ranks.rank().value;
    ParameterStore store(layout, StageId(rank), 7);
    TiedExchange ties(layout, StageId(rank), {{RankId(0)}, {RankId(1)}, {RankId(2)}}, store, ranks);
    at::Tensor weight = initial_weight(7);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      const std::string where = "stage " + std::to_string(rank) + ", step " + std::to_string(step);
      for (const TiedUse& use : store.tied())
        if (use.slot < 0) expect_bits(use.mirror, weight, where + ": values of a.weight");
      fill_gradients(store, step);
      ties.add_gradients();
      if (rank == 0)
        expect_bits(store.view(store.flat_gradient(), slot_named(store, "a.weight")), gradient_by_all(step),
                    where + ": gradient of a.weight");
      for (std::size_t s = 0; s < store.slots().size(); ++s) {
        if (store.slots()[s].name == "a.weight") continue;
        EXPECT_FALSE(store.view(store.flat_gradient(), s).any().item<bool>()) << store.slots()[s].name;
      }
      weight = at::add(weight, gradient_by_all(step), -1);
      subtract_gradient(store);
      ties.exchange_values();
      ties.settle();
      if (rank == 0)
        expect_bits(store.view(store.flat_weights(), slot_named(store, "a.weight")), weight, where);
    }
  });
}

/// Stages of one rank hand gradients and values over in memory. A user may be through with its update, which
/// zeroes its gradients, before the owner adds them.
TEST(TiedExchange, StagesOfOneRankNeedNoMessages) {
  const StageLayout layout = layout_of(tied_model(), {{"a", "b"}, {"c", "s"}, {"e"}});
  on_ranks(1, [&](Communicator& ranks) {
    RecordingCommunicator recorded(ranks);
    const std::vector<std::vector<RankId>> ranks_of_stage(3, {RankId(0)});
    std::vector<std::unique_ptr<ParameterStore>> stores;
    std::vector<std::unique_ptr<TiedExchange>> ties;
    for (const int s : {0, 1, 2}) {
      stores.push_back(std::make_unique<ParameterStore>(layout, StageId(s), 7));
      ties.push_back(
          std::make_unique<TiedExchange>(layout, StageId(s), ranks_of_stage, *stores.back(), recorded));
    }
    for (const auto& one : ties)
      for (const auto& other : ties)
        if (one != other) one->connect(*other);
    at::Tensor weight = initial_weight(7);
    for (std::uint64_t step = 1; step <= 2; ++step) {
      for (auto& store : stores) fill_gradients(*store, step);
      weight = at::add(weight, gradient_by_all(step), -1);
      for (const std::size_t s : {1, 0, 2}) {  // the owner's add_gradients() asks stage 2 for its own
        ties[s]->add_gradients();
        if (s == 0)
          expect_bits(stores[s]->view(stores[s]->flat_gradient(), slot_named(*stores[s], "a.weight")),
                      gradient_by_all(step), "gradient in step " + std::to_string(step));
        subtract_gradient(*stores[s]);
        ties[s]->exchange_values();
        ties[s]->settle();
      }
      for (const std::size_t s : {1, 2}) {
        for (const TiedUse& use : stores[s]->tied())
          expect_bits(use.mirror, weight,
                      "values in stage " + std::to_string(s) + ", step " + std::to_string(step));
      }
    }
    EXPECT_TRUE(recorded.sent.empty());
  });
}

/// Gradients and values differ here from replica to replica, so that they say from which one they came.
TEST(TiedExchange, ReplicaIGetsFromReplicaIModuloThoseOfTheOtherStage) {
  const StageLayout layout = layout_of(tied_model(), {{"a", "b"}, {"c", "s", "e"}});
  const std::vector<std::vector<RankId>> ranks_of_stage{{RankId(0), RankId(1)},
                                                        {RankId(2), RankId(3), RankId(4)}};
  on_ranks(5, [&](Communicator& ranks) {
    const bool owns = ranks.rank().value < 2;
    const auto replica = static_cast<std::uint64_t>(ranks.rank().value - (owns ? 0 : 2));
    ParameterStore store(layout, StageId(owns ? 0 : 1), 7);
    TiedExchange ties(layout, StageId(owns ? 0 : 1), ranks_of_stage, store, ranks);
    fill_gradients(store, 1, replica);
    ties.add_gradients();
    const auto of_owner = [](std::uint64_t owner) {
      const std::uint64_t user = owner % 3;
      return at::add(at::add(at::add(gradient_by(kOwner, 1, owner), gradient_by(kC, 1, user)),
                             gradient_by(kB, 1, owner)),
                     gradient_by(kE, 1, user));
    };
    const std::string where = "replica " + std::to_string(replica);
    if (owns)
      expect_bits(store.view(store.flat_gradient(), slot_named(store, "a.weight")), of_owner(replica),
                  where + " of the owner");
    subtract_gradient(store);
    ties.exchange_values();
    ties.settle();
    for (const TiedUse& use : store.tied())
      if (!owns)
        expect_bits(use.mirror, at::add(initial_weight(7), of_owner(replica % 2), -1),
                    where + " of the user");
  });
}

}  // namespace
}  // namespace millrace
