// A rule's state in shards: who has which part, and that weights and gathered state equal those of a rule
// that has all of it.
#include "runtime/stage/state_shards.h"

#include <ATen/ops/full_like.h>

#include <limits>

#include "runtime/rules/rule_table.h"
#include "runtime/stage/update_rule.h"
#include "tests/stage/stage_fixture.h"

namespace millrace {
namespace {

constexpr int kShards = 3;
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

/// 40,000 elements are three blocks; the others are smaller than one.
LayeredModel with_a_large_layer() {
  return chain_of_linears({6, 200, 200, 30, 5});
}

TEST(StateShards, PartsFollowEachOtherAndBeginAtBlocks) {
  for (const LayeredModel& model : {with_a_large_layer(), chain_of_linears({2, 2})}) {
    const StageLayout layout = layout_of_one_stage(model);
    std::vector<FlatRange> parts(kShards);
    on_ranks(kShards, [&](Communicator& ranks) {
      const ParameterStore store(layout, StageId(0), 1);
      const StateShards shards(store, &ranks);
      EXPECT_TRUE(shards.shared());
      parts[ranks.rank().value] = shards.mine();
    });
    const ParameterStore store(layout, StageId(0), 1);
    std::int64_t end = 0, most = 0;
    for (const FlatRange& part : parts) {
      EXPECT_EQ(part.begin, end);
      end = part.end;
      most = std::max(most, part.size());
      bool at_block = part.begin == store.flat_weights().numel();
      for (const ParameterSlot& slot : store.slots())
        at_block = at_block || (part.begin >= slot.offset && part.begin < slot.offset + slot.elements &&
                                (part.begin - slot.offset) % kBlockElements == 0);
      EXPECT_TRUE(at_block) << part.begin;
    }
    EXPECT_EQ(end, store.flat_weights().numel());
    EXPECT_LE(most, end / kShards + 2 * kBlockElements);
    EXPECT_EQ(StateShards(store, nullptr).mine(), (FlatRange{0, end}));
  }
}

TEST(StateShards, PartsOfAllReplicasMakeTheWhole) {
  for (const LayeredModel& model : {with_a_large_layer(), chain_of_linears({2, 2})}) {
    const StageLayout layout = layout_of_one_stage(model);
    on_ranks(kShards, [&](Communicator& ranks) {
      const ParameterStore store(layout, StageId(0), 1);
      StateShards shards(store, &ranks);
      const auto [begin, end] = shards.mine();
      const at::Tensor whole = rough(store.flat_weights().sizes(), 5);
      const at::Tensor own = whole.narrow(0, begin, end - begin).clone();
      at::Tensor flat = at::full_like(whole, kNotANumber);
      flat.narrow(0, begin, end - begin).copy_(own);
      shards.all_gather_(flat);
      const std::string where = "rank " + std::to_string(ranks.rank().value);
      expect_bits(flat, whole, where + ": all_gather_");
      const at::Tensor gathered = shards.gather_to_first(own);
      if (ranks.rank() == RankId(0))
        expect_bits(gathered, whole, where + ": gather_to_first");
      else
        EXPECT_FALSE(gathered.defined()) << where;
      std::vector<double> sums(kShards + 1, 0.0);
      sums[ranks.rank().value] = 0.1 * (1 + ranks.rank().value);
      shards.sum_(sums);
      EXPECT_EQ(sums, (std::vector<double>{0.1 * 1, 0.1 * 2, 0.1 * 3, 0})) << where;
    });
  }
}

struct Updated {
  at::Tensor weights;
  std::vector<std::pair<std::string, at::Tensor>> state;
};

/// Three updates of one rank, which has `replicas` or all of the state.
Updated updated(const StageLayout& layout, const RuleOptions& options, Communicator* replicas) {
  ParameterStore store(layout, StageId(0), 1);
  const auto rule = make_update_rule(options, store, replicas);
  for (const std::uint64_t step : {1u, 2u, 3u}) {
    store.flat_gradient().copy_(rough(store.flat_gradient().sizes(), step));
    store.publish([&](const at::Tensor& weights, const at::Tensor& gradient) {
      rule->apply_(weights, gradient, {.lr = 0.01, .gradient_factor = 0.125});
    });
  }
  return {store.flat_weights(), rule->whole_state()};
}

TEST(StateShards, EveryRuleUpdatesAsIfItHadAllOfItsState) {
  const StageLayout layout = layout_of_one_stage(with_a_large_layer());
  const ParameterStore names(layout, StageId(0), 1);
  for (const RuleEntry& entry : rule_table()) {
    RuleOptions options{.kind = entry.kind, .shard_state = true};
    for (const auto& [flag, number] : entry.numbers)
      if (flag == "momentum") options.momentum = 0.9;
    const at::NoGradGuard no_grad;
    const Updated whole = updated(layout, options, nullptr);
    on_ranks(kShards, [&](Communicator& ranks) {
      const Updated shared = updated(layout, options, &ranks);
      const std::string where = to_string(entry.kind) + ", rank " + std::to_string(ranks.rank().value) + ": ";
      for (std::size_t s = 0; s < names.slots().size(); ++s)
        expect_bits(names.view(shared.weights, s), names.view(whole.weights, s),
                    where + names.slots()[s].name);
      ASSERT_EQ(shared.state.size(), ranks.rank() == RankId(0) ? whole.state.size() : 0u) << where;
      for (std::size_t t = 0; t < shared.state.size(); ++t) {
        EXPECT_EQ(shared.state[t].first, whole.state[t].first);
        for (std::size_t s = 0; s < names.slots().size(); ++s)
          expect_bits(names.view(shared.state[t].second, s), names.view(whole.state[t].second, s),
                      where + whole.state[t].first + " of " + names.slots()[s].name);
      }
    });
  }
}

}  // namespace
}  // namespace millrace
