// From a shape to each rank's computations, by the generators of the table.
#include <algorithm>
#include <set>
#include <string>

#include "runtime/schedule/generators.h"
#include "runtime/schedule/list_schedule.h"

namespace millrace {
namespace {

std::string name(int stage) {
  return "stage " + std::to_string(stage);
}

bool equal_replicas(const PipelineShape& shape) {
  return std::ranges::all_of(shape.ranks_of_stage, [&](const auto& ranks) {
    return ranks.size() == shape.ranks_of_stage[0].size();
  });
}

/// Finds the problems of a shape that no schedule allows.
Problems basic_problems(const PipelineShape& shape) {
  Problems problems;
  if (shape.ranks_of_stage.empty()) problems.push_back({"", "the pipeline has no stages", {}});
  if (shape.microbatches < 1) problems.push_back({"", "there are no microbatches", "use at least 1"});
  const int world = shape.num_ranks();
  for (int s = 0; s < shape.num_stages(); ++s) {
    const auto& ranks = shape.ranks_of_stage[s];
    const int replicas = static_cast<int>(ranks.size());
    if (replicas == 0)
      problems.push_back({name(s), "has no ranks", {}});
    else if (replicas > shape.microbatches)
      problems.push_back({name(s),
                          "has " + std::to_string(replicas) + " replicas for " +
                              std::to_string(shape.microbatches) + " microbatches",
                          "use at least as many microbatches as replicas"});
    if (std::set<RankId>(ranks.begin(), ranks.end()).size() != ranks.size())
      problems.push_back({name(s), "names a rank twice", {}});
    for (RankId rank : ranks) {
      if (rank.value < 0 || rank.value >= world)
        problems.push_back(
            {name(s),
             "rank " + std::to_string(rank.value) + " is outside 0.." + std::to_string(world - 1),
             {}});
    }
  }
  for (const StageLink& link : shape.links) {
    if (link.from.value < 0 || link.to <= link.from || link.to.value >= shape.num_stages())
      problems.push_back({"",
                          "a link goes from stage " + std::to_string(link.from.value) + " to " +
                              std::to_string(link.to.value),
                          "links go to later stages"});
  }
  return problems;
}

/// Before anything asks for the array of a microbatch.
Problems array_problems(ScheduleKind kind, const PipelineShape& shape) {
  if (shape.arrays == 1) return {};
  if (shape.arrays < 1 || shape.microbatches < shape.arrays || shape.microbatches % shape.arrays != 0)
    return {{"",
             std::to_string(shape.microbatches) + " microbatches do not divide among " +
                 std::to_string(shape.arrays) + " arrays",
             "each array has as many"}};
  if (is_asynchronous(kind))
    return {{"", to_string(kind) + " keeps the pipeline full by itself: several arrays have no place in it",
             "use a schedule that flushes, for example 1f1b"}};
  Problems problems;
  const int of_each = shape.microbatches / shape.arrays;
  for (int s = 0; s < shape.num_stages(); ++s) {
    if (const int replicas = shape.replicas(StageId(s)); replicas > 0 && of_each % replicas != 0)
      problems.push_back({name(s),
                          "the " + std::to_string(of_each) +
                              " microbatches of each array do not divide among " + std::to_string(replicas) +
                              " replicas",
                          "with several arrays use a multiple of the replicas"});
  }
  return problems;
}

Problems asynchronous_problems(ScheduleKind kind, const PipelineShape& shape) {
  Problems problems;
  const auto must_divide = [&](const std::string& where, int by, const std::string& what, int count) {
    if (count % by == 0) return;
    problems.push_back({where, std::to_string(count) + " " + what + std::to_string(by), "use a multiple"});
  };
  for (int s = 0; s < shape.num_stages(); ++s)
    must_divide(name(s), shape.replicas(StageId(s)),
                "minibatches do not divide among replicas: ", shape.microbatches);
  if (kind == ScheduleKind::PipeDreamVSync && !equal_replicas(shape))
    problems.push_back({"", "vertical sync needs as many replicas in each stage", "use pipedream"});
  if (!updates_after_several(kind) || !problems.empty()) return problems;
  const int least = least_update_every(shape), every = shape.update_every > 0 ? shape.update_every : least;
  if (every < least)
    problems.push_back(
        {"", "an update every " + std::to_string(every) + " microbatches needs more than two versions",
         "use at least " + std::to_string(least)});
  must_divide("", every, "microbatches are not whole updates of ", shape.microbatches);
  for (int s = 0; s < shape.num_stages(); ++s)
    must_divide(name(s), shape.replicas(StageId(s)),
                "microbatches per update do not divide among replicas: ", every);
  return problems;
}

/// Whether stage s is where the schedule puts it: along the V, or where stage s mod p is.
Problems placement_problems(ScheduleKind kind, const PipelineShape& shape) {
  const int world = shape.num_ranks(), stages = shape.num_stages();
  const std::string schedule = to_string(kind);
  if (!equal_replicas(shape))
    return {{"", schedule + " needs as many replicas in each stage", "replicate all stages or none"}};
  const int replicas = shape.replicas(StageId(0)), p = world / replicas;
  const bool v = is_v_shaped(kind);
  if (v && stages != 2 * p)
    return {{"",
             schedule + " needs two stages per rank, the shape has " + std::to_string(stages) +
                 " stages on " + std::to_string(world) + " ranks",
             "stages r and 2p-1-r on rank r"}};
  for (int s = 0; s < stages; ++s) {
    const int like = v ? std::min(s, 2 * p - 1 - s) : s % p;
    if (shape.ranks_of_stage[s] != shape.ranks_of_stage[like])
      return {{name(s), schedule + " needs it on the ranks of stage " + std::to_string(like), {}}};
  }
  if (stages % p != 0) return {{"", schedule + " needs the same number of stages on each rank", {}}};
  return {};
}

/// One microbatch number of a replica -> of the whole step.
Order in_step(Order order, int replica, int replicas) {
  for (Action& a : order) a.microbatch = MicrobatchId(a.microbatch.value * replicas + replica);
  return order;
}

int own_count(int microbatches, int replica, int replicas) {
  return (microbatches - replica + replicas - 1) / replicas;
}

std::vector<Order> by_stage(const Generator& generator, const PipelineShape& shape) {
  std::vector<Order> ranks(shape.num_ranks());
  const bool batches = updates_after_several(generator.kind);
  const int every = !batches ? 0 : shape.update_every > 0 ? shape.update_every : least_update_every(shape);
  for (int s = 0; s < shape.num_stages(); ++s) {
    const int replicas = shape.replicas(StageId(s));
    for (int replica = 0; replica < replicas; ++replica) {
      const Place place{.stage = s,
                        .microbatches = own_count(shape.microbatches, replica, replicas),
                        .warm_up = warm_up_of(shape, StageId(s)),
                        .most_warm_up = most_warm_up(shape),
                        .update_every = batches ? every / replicas : 1};
      const RankId rank = shape.ranks_of_stage[s][replica];
      ranks[rank.value] = in_step(generator.one_stage(place), replica, replicas);
    }
  }
  return ranks;
}

std::vector<Order> by_place(const Generator& generator, const PipelineShape& shape) {
  std::vector<Order> ranks(shape.num_ranks());
  const int replicas = shape.replicas(StageId(0)), p = shape.num_ranks() / replicas;
  for (int replica = 0; replica < replicas; ++replica) {
    std::vector<Order> orders =
        generator.chunks(p, shape.num_stages() / p, own_count(shape.microbatches, replica, replicas));
    for (int r = 0; r < p; ++r) {
      const RankId rank = shape.ranks_of_stage[r][replica];
      ranks[rank.value] = in_step(std::move(orders[r]), replica, replicas);
    }
  }
  return ranks;
}

Result<Schedule> buffered_schedule(ScheduleKind kind, const PipelineShape& shape) {
  if (Problems problems = basic_problems(shape); !problems.empty()) return problems;
  if (Problems problems = array_problems(kind, shape); !problems.empty()) return problems;
  if (kind == ScheduleKind::AutoOrder) {
    const std::vector<double> unit(shape.num_stages(), 1);
    return list_schedule(shape, {.forward = unit, .backward_input = unit, .backward_weight = unit});
  }
  const auto* generator = std::ranges::find(kGenerators, kind, &Generator::kind);
  if (generator == std::end(kGenerators))
    return Problem{"", "a schedule of kind '" + to_string(kind) + "' is read from a file", "--schedule-file"};
  if (generator->all_ranks) return lower(kind, shape, generator->all_ranks(shape));
  const bool chunks = generator->chunks && (!generator->one_stage || shape.has_chunks());
  if (!chunks && shape.has_chunks())
    return Problem{"", to_string(kind) + " has one stage per rank", "for several: interleaved, zb-h1, zb-v"};
  Problems problems = chunks                  ? placement_problems(kind, shape)
                      : is_asynchronous(kind) ? asynchronous_problems(kind, shape)
                                              : Problems{};
  if (!problems.empty()) return problems;
  return lower(kind, shape, chunks ? by_place(*generator, shape) : by_stage(*generator, shape));
}

}  // namespace

int stash_limit(ScheduleKind kind, const PipelineShape& shape, RankId rank) {
  int chunks = 0, first = -1;
  for (int s = shape.num_stages(); s-- > 0;) {
    const auto& ranks = shape.ranks_of_stage[s];
    if (std::ranges::find(ranks, rank) != ranks.end()) ++chunks, first = s;
  }
  if (first < 0) return 0;
  const auto& ranks = shape.ranks_of_stage[first];
  const int replicas = static_cast<int>(ranks.size());
  const int replica = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
  const StashShape stash{.places = std::max(1, shape.num_stages() / chunks),
                         .chunks = chunks,
                         .first = first,
                         .microbatches = own_count(shape.microbatches, replica, replicas),
                         .warm_up = warm_up_of(shape, StageId(first)),
                         .most_warm_up = most_warm_up(shape)};
  const int all = stash.microbatches * chunks;
  const auto* generator = std::ranges::find(kGenerators, kind, &Generator::kind);
  const bool bounded = generator != std::end(kGenerators) && generator->most_stashed;
  return bounded ? std::min(all, generator->most_stashed(stash)) : all;
}

Result<Schedule> make_schedule(ScheduleKind kind, const PipelineShape& shape, Transport transport) {
  Result<Schedule> schedule = buffered_schedule(kind, shape);
  if (!schedule || transport == Transport::Buffered) return schedule;
  return for_rendezvous(*std::move(schedule), shape);
}

}  // namespace millrace
