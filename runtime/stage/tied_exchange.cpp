#include "runtime/stage/tied_exchange.h"

#include <algorithm>

#include <ATen/Functions.h>

#include "runtime/base/check.h"

namespace millrace {
namespace {

// The first tag of ties, above the tags of all positions.
constexpr std::uint64_t kTieTags = std::uint64_t{1} << 47;

/// The ranks that send to and receive from replica `mine` of one end of a tie.
struct Partners {
  RankId from;
  std::vector<RankId> to;
};
Partners partners_of(std::size_t mine, const std::vector<RankId>& ours, const std::vector<RankId>& others) {
  Partners partners{.from = others[mine % others.size()], .to = {}};
  for (std::size_t i = mine; i < others.size(); i += ours.size()) partners.to.push_back(others[i]);
  return partners;
}

}  // namespace

RankPairs talking_pairs(const std::vector<TieAcross>& ties,
                        const std::vector<std::vector<RankId>>& ranks_of_stage) {
  RankPairs pairs;
  const auto add = [&](StageId stage, StageId other) {
    const auto &ours = ranks_of_stage.at(stage.value), &others = ranks_of_stage.at(other.value);
    for (std::size_t mine = 0; mine < ours.size(); ++mine) {
      for (const RankId to : partners_of(mine, ours, others).to)
        if (to != ours[mine]) pairs.emplace(ours[mine], to);
    }
  };
  for (const TieAcross& tie : ties) {
    add(tie.owner_stage, tie.user_stage);
    add(tie.user_stage, tie.owner_stage);
  }
  return pairs;
}

TiedExchange::TiedExchange(const StageLayout& layout, StageId stage,
                           const std::vector<std::vector<RankId>>& ranks_of_stage, ParameterStore& store,
                           Communicator& world, const MessageNumbers& numbers)
    : stage_(stage), num_ties_(layout.ties.size()), numbers_(numbers), store_(store), world_(world) {
  for (std::size_t t = 0; t < layout.ties.size(); ++t) {
    const TieAcross& tie = layout.ties[t];
    const bool owns = tie.owner_stage == stage;
    if (!owns && tie.user_stage != stage) continue;
    End end{.tie = t,
            .layer = tie.layer,
            .name = tie.owner,
            .slot = 0,
            .use = nullptr,
            .from = {},
            .to = {},
            .other = owns ? tie.user_stage : tie.owner_stage};
    if (owns) {
      const auto slot = std::ranges::find(store.slots(), tie.owner, &ParameterSlot::name);
      MILLRACE_CHECK(slot != store.slots().end(), tie.owner << " is not in this stage");
      end.slot = static_cast<std::size_t>(slot - store.slots().begin());
    } else {
      const auto use = std::ranges::find_if(
          store.tied(), [&](const TiedUse& u) { return u.owner == tie.owner && u.layer == tie.layer; });
      MILLRACE_CHECK(use != store.tied().end(), tie.owner << " is not tied here");
      end.use = &*use;
    }
    const auto& ours = ranks_of_stage.at(stage.value);
    const auto& others = ranks_of_stage.at(end.other.value);
    const auto mine = static_cast<std::size_t>(std::ranges::find(ours, world.rank()) - ours.begin());
    Partners partners = partners_of(mine, ours, others);
    end.from = partners.from;
    end.to = std::move(partners.to);
    (owns ? owned_ : used_).push_back(std::move(end));
  }
}

void TiedExchange::give_gradients() {
  if (std::exchange(given_, true)) return;
  for (const End& end : used_)
    if (send(end, end.use->gradient, false))
      sibling(end.other)->owned(end.tie)->arrived =
          end.use->gradient.clone();  // a copy: the using stage may continue before the owner reads it
}

void TiedExchange::add_gradients() {
  give_gradients();
  given_ = false;
  std::vector<std::pair<int, std::pair<std::size_t, at::Tensor>>> parts;  // layer, (slot, gradient)
  for (const TiedUse& use : store_.tied())
    if (use.slot >= 0) parts.push_back({use.layer, {static_cast<std::size_t>(use.slot), use.gradient}});
  for (End& end : owned_) {
    if (end.from != world_.rank()) {
      end.arrived = at::empty(store_.slots()[end.slot].shape, store_.flat_gradient().options());
      const Transfer transfer{Direction::Receive, end.from, tag_of(end, false), end.arrived,
                              "RECEIVE of the tied gradient of " + end.name};
      world_.exchange({&transfer, 1})->wait();
    } else if (!end.arrived.defined()) {
      sibling(end.other)->give_gradients();
    }
    parts.push_back({end.layer, {end.slot, std::exchange(end.arrived, {})}});
  }
  std::ranges::stable_sort(parts, {}, [](const auto& part) { return part.first; });
  for (const auto& [layer, part] : parts) store_.add_tied_gradient(part.first, part.second);
}

void TiedExchange::exchange_values() {
  for (const End& end : owned_) {
    const at::Tensor values = store_.view(store_.flat_weights(), end.slot);
    if (!send(end, values, true)) continue;
    for (const End& used : sibling(end.other)->used_)
      if (used.tie == end.tie) at::Tensor(used.use->mirror).copy_(values);
    sibling(end.other)->store_.weights_changed();
  }
  for (const End& end : used_) {
    if (end.from == world_.rank()) continue;
    // The old values are no longer read: this step's backwards are done, and a forward settles first.
    const Transfer transfer{Direction::Receive, end.from, tag_of(end, true), end.use->mirror,
                            "RECEIVE of the tied " + end.name};
    messages_.push_back({{end.use->mirror}, world_.exchange({&transfer, 1})});
  }
}

void TiedExchange::settle() {
  if (messages_.empty()) return;
  for (Message& message : messages_) message.pending->wait();
  messages_.clear();
  store_.weights_changed();
}

TiedExchange* TiedExchange::sibling(StageId stage) const {
  const auto found = std::ranges::find(siblings_, stage, &TiedExchange::stage_);
  MILLRACE_CHECK(found != siblings_.end(), "stage " << stage.value << " is not on this rank");
  return *found;
}

TiedExchange::End* TiedExchange::owned(std::size_t tie) {
  const auto found = std::ranges::find(owned_, tie, &End::tie);
  MILLRACE_CHECK(found != owned_.end(), "stage " << stage_.value << " does not own tie " << tie);
  return &*found;
}

std::uint64_t TiedExchange::tag_of(const End& end, bool values) const {
  const auto version = static_cast<std::uint64_t>(store_.current().value);
  return kTieTags + numbers_.tag(version, end.tie, num_ties_, numbers_.most_ties) * 2 + values;
}

bool TiedExchange::send(const End& end, const at::Tensor& tensor, bool values) {
  Message message;
  std::vector<Transfer> transfers;
  bool here = false;
  for (const RankId to : end.to) {
    if (to == world_.rank()) {
      here = true;
      continue;
    }
    // A copy is sent, because this stage may continue before the other has received it.
    message.tensors.push_back(tensor.clone());
    transfers.push_back({Direction::Send, to, tag_of(end, values), message.tensors.back(),
                         (values ? "SEND of the tied " : "SEND of the tied gradient of ") + end.name});
  }
  if (transfers.empty()) return here;
  message.pending = world_.exchange(transfers);
  messages_.push_back(std::move(message));
  return here;
}

}  // namespace millrace
