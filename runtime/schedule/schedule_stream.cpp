#include "runtime/schedule/schedule_stream.h"

#include <algorithm>
#include <set>
#include <string>

#include "runtime/schedule/generators.h"
#include "runtime/schedule/lock_step.h"

namespace millrace {
namespace {

using Lists = std::vector<std::vector<Action>>;

std::int64_t period_of(ScheduleKind kind, const PipelineShape& shape) {
  if (updates_after_several(kind))
    return shape.update_every > 0 ? shape.update_every : least_update_every(shape);
  return shape.replica_cycle();
}

/// Index after the last Update of microbatches below `cut`.
std::size_t cut_position(const std::vector<Action>& actions, std::int64_t cut) {
  for (std::size_t i = actions.size(); i-- > 0;) {
    if (actions[i].op == Op::Update && actions[i].microbatch.value < cut) return i + 1;
  }
  return 0;
}

/// The place of a cut in each rank's list, and the receives behind it whose messages are sent before it.
struct Cut {
  std::vector<std::size_t> ends;
  Lists under_way;
};

Cut cut_of(const Lists& ranks, const MessageIndex& messages, std::int64_t cut) {
  Cut result;
  std::set<std::int64_t> sent;
  for (const auto& actions : ranks) {
    result.ends.push_back(cut_position(actions, cut));
    for (std::size_t i = 0; i < result.ends.back(); ++i)
      if (is_send(actions[i].op)) sent.insert(messages.of(actions[i]));
  }
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    auto& under_way = result.under_way.emplace_back();
    for (std::size_t i = result.ends[r]; i < ranks[r].size(); ++i) {
      const Action& a = ranks[r][i];
      if (is_transfer(a.op) && !is_send(a.op) && sent.contains(messages.of(a))) under_way.push_back(a);
    }
  }
  return result;
}

/// Moves the receives of a cut to the end of the part before it, because nothing may be under way there if
/// sends block.
void receive_before(Cut& cut, Lists& ranks) {
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    auto& actions = ranks[r];
    for (const Action& receive : cut.under_way[r]) {
      const auto end = actions.begin() + static_cast<std::ptrdiff_t>(cut.ends[r]++);
      const auto found = std::find(end, actions.end(), receive);
      std::rotate(end, found, found + 1);
    }
    cut.under_way[r].clear();
  }
}

/// Part by part: what is before the cut can then end by itself, and no receive moves up over an earlier cut.
void free_of_circles(Lists& ranks, const Cut& cut, ScheduleKind kind, const PipelineShape& shape) {
  Schedule part{.kind = kind};
  for (std::size_t r = 0; r < ranks.size(); ++r)
    part.ranks.emplace_back(ranks[r].begin(), ranks[r].begin() + static_cast<std::ptrdiff_t>(cut.ends[r]));
  part = for_rendezvous(std::move(part), shape);
  for (std::size_t r = 0; r < ranks.size(); ++r) std::ranges::copy(part.ranks[r], ranks[r].begin());
}

/// Whether all ranks come to the cut without anybody's help from behind it.
bool can_rest(const Lists& ranks, const Cut& cut, const PipelineShape& shape, Transport transport) {
  Lists lists;
  for (std::size_t r = 0; r < ranks.size(); ++r)
    lists.emplace_back(ranks[r].begin(), ranks[r].begin() + static_cast<std::ptrdiff_t>(cut.ends[r]));
  return LockStep(lists, shape, transport).run();
}

}  // namespace

ScheduleStream::Block ScheduleStream::shifted(Block block, std::int64_t by) {
  for (Lists* lists : {&block.actions, &block.under_way}) {
    for (auto& actions : *lists)
      for (Action& a : actions) a.microbatch = MicrobatchId(a.microbatch.value + by);
  }
  return block;
}

Result<ScheduleStream> ScheduleStream::make(ScheduleKind kind, PipelineShape shape, Transport transport) {
  if (!is_asynchronous(kind)) return Problem{"", to_string(kind) + " is not made for a stream", {}};
  if (shape.ranks_of_stage.empty()) return Problem{"", "the pipeline has no stages", {}};
  ScheduleStream stream;
  stream.period_ = period_of(kind, shape);
  const std::int64_t in_flight = least_update_every(shape);
  const std::int64_t fill = (in_flight + stream.period_ - 1) / stream.period_ + 1;
  constexpr std::int64_t kMost = 1 << 24;  // microbatches of the list that is proved
  if (stream.period_ > kMost / (2 * fill + 4))
    return Problem{"", "an update of " + std::to_string(stream.period_) + " microbatches is too long",
                   "use fewer --microbatches"};
  shape.microbatches = static_cast<int>(stream.period_ * (2 * fill + 3));
  Result<Schedule> schedule = make_schedule(kind, shape);
  if (!schedule) return schedule.problems();
  const MessageIndex messages(shape);
  std::vector<Cut> cuts;
  for (std::int64_t c = 1; c <= 2 * fill + 2; ++c) {
    cuts.push_back(cut_of(schedule->ranks, messages, c * stream.period_));
    if (transport == Transport::Buffered) continue;
    receive_before(cuts.back(), schedule->ranks);
    free_of_circles(schedule->ranks, cuts.back(), kind, shape);
  }
  if (transport == Transport::Rendezvous) schedule = for_rendezvous(*std::move(schedule), shape);
  if (Problems problems = check(*schedule, shape, transport); !problems.empty()) return problems;

  std::vector<std::size_t> begin(schedule->ranks.size(), 0);
  std::vector<Block> blocks;
  for (std::int64_t c = 0; c < fill + 2; ++c) {
    Cut& cut = cuts[c];
    if (!can_rest(schedule->ranks, cut, shape, transport))
      return Problem{
          "", "the ranks cannot rest after minibatch " + std::to_string((c + 1) * stream.period_), {}};
    Block block{.under_way = std::move(cut.under_way)};
    for (std::size_t r = 0; r < schedule->ranks.size(); ++r) {
      const auto& actions = schedule->ranks[r];
      block.actions.emplace_back(actions.begin() + static_cast<std::ptrdiff_t>(begin[r]),
                                 actions.begin() + static_cast<std::ptrdiff_t>(cut.ends[r]));
      begin[r] = cut.ends[r];
    }
    blocks.push_back(std::move(block));
  }
  while (blocks.size() > 1 && shifted(blocks[blocks.size() - 2], stream.period_) == blocks.back())
    blocks.pop_back();
  if (static_cast<std::int64_t>(blocks.size()) > fill + 1)
    return Problem{"", to_string(kind) + " does not repeat itself on these stages", {}};
  stream.blocks_ = std::move(blocks);
  return stream;
}

const ScheduleStream::Block& ScheduleStream::block_at(std::int64_t index, std::int64_t& shift) const {
  const std::int64_t last = static_cast<std::int64_t>(blocks_.size()) - 1;
  shift = std::max<std::int64_t>(0, index - last) * period_;
  return blocks_[std::min(index, last)];
}

std::vector<Action> ScheduleStream::actions(RankId rank, std::int64_t from, std::int64_t to) const {
  std::vector<Action> result;
  for (std::int64_t index = from / period_; index < to / period_; ++index) {
    std::int64_t shift = 0;
    for (Action a : block_at(index, shift).actions[rank.value]) {
      a.microbatch = MicrobatchId(a.microbatch.value + shift);
      result.push_back(a);
    }
  }
  return result;
}

std::vector<Action> ScheduleStream::under_way(RankId rank, std::int64_t cut) const {
  if (cut < period_) return {};
  std::int64_t shift = 0;
  std::vector<Action> result = block_at(cut / period_ - 1, shift).under_way[rank.value];
  for (Action& a : result) a.microbatch = MicrobatchId(a.microbatch.value + shift);
  return result;
}

VersionRule version_rule(ScheduleKind kind, const PipelineShape& shape, StageId stage) {
  if (updates_after_several(kind)) return {.per_version = period_of(kind, shape), .lag = 1};
  return {.per_version = shape.replicas(stage),
          .lag = warm_up_of(shape, kind == ScheduleKind::PipeDreamVSync ? StageId(0) : stage)};
}

}  // namespace millrace
