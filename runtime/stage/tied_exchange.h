// Parameters that are tied across stages: gradients of their uses go to the owner before an update, its new
// values come back after it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/model/stage_layout.h"
#include "runtime/stage/parameter_store.h"

namespace millrace {

/// Which of a run's messages are those of one model: models that share a pipeline have others.
struct MessageNumbers {
  int model = 0;   ///< which of them
  int models = 1;  ///< that share the pipeline
  /// Of the model with the most: crossings and ties count up to it.
  std::size_t most_crossings = 0, most_ties = 0;  ///< 0: those of the layout

  /// Number `item` (of `own`, and of at most `most`) at `position`, among all models.
  std::uint64_t tag(std::uint64_t position, std::size_t item, std::size_t own, std::size_t most) const {
    return (position * static_cast<std::uint64_t>(models) + static_cast<std::uint64_t>(model)) *
               (most > 0 ? most : own) +
           item;
  }
};

/// One stage's end of all its ties. Of the two stages of a tie, replica i of either gets from replica
/// i mod n of the other, which has n: gradients and values are the same on all replicas of a stage.
/// Not thread-safe. Exceptions: PeerError.
class TiedExchange {
 public:
  /// All outlive it. `ranks_of_stage` may be empty where nothing is tied across stages.
  TiedExchange(const StageLayout& layout, StageId stage,
               const std::vector<std::vector<RankId>>& ranks_of_stage, ParameterStore& store,
               Communicator& world, const MessageNumbers& numbers = {});
  /// Another stage of this rank: what the two share stays in memory.
  void connect(TiedExchange& other) { siblings_.push_back(&other); }

  /// Hands this stage's gradients of others' parameters to their owners: once between two updates, however
  /// often it is called.
  void give_gradients();
  /// give_gradients(), waits for all gradients of own parameters, and adds each use's, also those within the
  /// stage, in the order of layers.
  void add_gradients();
  /// After the update: sends own values, and posts the receives of others'.
  void exchange_values();
  /// Waits for what is under way; then the values can be read.
  void settle();

 private:
  struct End {
    std::size_t tie;   ///< index in the layout: of messages
    int layer;         ///< that uses the parameter
    std::string name;  ///< the owner's
    std::size_t slot;  ///< of an owner: in the store
    const TiedUse* use;
    RankId from;             ///< who sends to this rank; this rank itself: `sibling` does
    std::vector<RankId> to;  ///< to whom this rank sends, itself among them
    StageId other;
    at::Tensor arrived{};  ///< at an owner: the gradient that a stage of this rank gave
  };
  struct Message {
    std::vector<at::Tensor> tensors;
    std::unique_ptr<Pending> pending;
  };

  TiedExchange* sibling(StageId stage) const;
  End* owned(std::size_t tie);
  std::uint64_t tag_of(const End& end, bool values) const;
  /// Copies of `tensor` to all of `end.to` but this rank. Whether this rank is one of them.
  bool send(const End& end, const at::Tensor& tensor, bool values);

  StageId stage_;
  std::size_t num_ties_;
  MessageNumbers numbers_;
  ParameterStore& store_;
  Communicator& world_;
  std::vector<TiedExchange*> siblings_;
  std::vector<End> owned_, used_;  ///< in the order of the layers that use
  bool given_ = false;
  std::vector<Message> messages_;                            ///< in flight
  std::vector<std::pair<at::Tensor, at::Tensor>> arrivals_;  ///< (mirror, what comes for it)
};

}  // namespace millrace
