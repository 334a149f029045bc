// Dense numbers for the messages of a schedule: one for each (link, microbatch, direction).
#pragma once

#include <vector>

#include "runtime/schedule/schedule.h"

namespace millrace {

class MessageIndex {
 public:
  explicit MessageIndex(const PipelineShape& shape);
  std::size_t size() const { return links_.size() * static_cast<std::size_t>(microbatches_) * 2; }
  /// Returns the number of a transfer's message; -1 if the transfer belongs to no link or microbatch of the
  /// shape.
  std::int64_t of(const Action& transfer) const;
  std::size_t link_of(std::size_t message) const {
    return message / 2 / static_cast<std::size_t>(microbatches_);
  }
  std::int64_t microbatch_of(std::size_t message) const {
    return static_cast<std::int64_t>(message / 2 % static_cast<std::size_t>(microbatches_));
  }
  const std::vector<StageLink>& links() const { return links_; }
  const std::vector<StageLink>& into(StageId stage) const { return at(into_, stage); }
  const std::vector<StageLink>& out_of(StageId stage) const { return at(out_of_, stage); }

 private:
  static const std::vector<StageLink>& at(const std::vector<std::vector<StageLink>>& of, StageId stage) {
    return of[stage.value];
  }

  std::vector<StageLink> links_;
  std::vector<std::vector<StageLink>> into_, out_of_;  ///< by stage, in order of links_
  std::vector<std::vector<int>> link_at_;              ///< [from][to] -> index + 1
  int microbatches_;
};

/// Returns the end of the exchange (Transport::Rendezvous) that begins at `at`: adjacent sends, then adjacent
/// receives. A send behind a receive belongs to the next exchange.
inline std::size_t exchange_end(const std::vector<Action>& actions, std::size_t at) {
  while (at < actions.size() && is_send(actions[at].op)) ++at;
  while (at < actions.size() && is_receive(actions[at].op)) ++at;
  return at;
}

}  // namespace millrace
