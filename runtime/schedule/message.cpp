#include "runtime/schedule/message.h"

namespace millrace {

MessageIndex::MessageIndex(const PipelineShape& shape)
    : links_(shape.all_links()), microbatches_(shape.microbatches) {
  for (auto* table : {&into_, &out_of_}) table->resize(shape.num_stages());
  for (const StageLink& link : links_) {
    into_[link.to.value].push_back(link);
    out_of_[link.from.value].push_back(link);
  }
  link_at_.resize(shape.num_stages());
  for (std::size_t i = 0; i < links_.size(); ++i) {
    auto& row = link_at_[links_[i].from.value];
    const std::size_t offset = static_cast<std::size_t>(links_[i].to.value - links_[i].from.value);
    if (row.size() <= offset) row.resize(offset + 1);
    row[offset] = static_cast<int>(i) + 1;
  }
}

std::int64_t MessageIndex::of(const Action& t) const {
  const bool gradient = t.op == Op::SendGradient || t.op == Op::RecvGradient;
  const bool from_here = t.op == Op::SendActivation || t.op == Op::RecvGradient;
  const int from = from_here ? t.stage.value : t.peer_stage.value,
            to = from_here ? t.peer_stage.value : t.stage.value;
  if (from < 0 || from >= static_cast<int>(link_at_.size()) || to <= from) return -1;
  const auto& row = link_at_[from];
  const std::size_t offset = static_cast<std::size_t>(to - from);
  if (offset >= row.size() || row[offset] == 0) return -1;
  if (t.microbatch.value < 0 || t.microbatch.value >= microbatches_) return -1;
  return ((row[offset] - 1) * std::int64_t{microbatches_} + t.microbatch.value) * 2 + gradient;
}

}  // namespace millrace
