// Exchanges parameters that are tied across stages. The gradients of their uses are sent to the owner before
// an update, and its new values are returned after it.
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

/// Numbers that separate the messages of models that share a pipeline.
struct MessageNumbers {
  int model = 0;   ///< number of this model
  int models = 1;  ///< number of models that share the pipeline
  /// largest numbers of crossings and ties of any of these models; 0: those of this model's layout
  std::size_t most_crossings = 0, most_ties = 0;

  /// Returns the tag of `item` at `position`, unique among all models. `own` is the number of items of this
  /// model, and `most` the largest number of any model.
  std::uint64_t tag(std::uint64_t position, std::size_t item, std::size_t own, std::size_t most) const {
    return (position * static_cast<std::uint64_t>(models) + static_cast<std::uint64_t>(model)) *
               (most > 0 ? most : own) +
           item;
  }
};

/// Returns which ranks send to which because of `ties`: gradients to owners, values to users.
RankPairs talking_pairs(const std::vector<TieAcross>& ties,
                        const std::vector<std::vector<RankId>>& ranks_of_stage);

/// One stage's end of all its ties. Gradients and values are the same on all replicas of a stage. Replica i
/// of a stage therefore receives from replica i mod n of the other stage, which has n replicas. Not
/// thread-safe. Throws PeerError.
class TiedExchange {
 public:
  /// All arguments by reference must outlive the object. `ranks_of_stage` may be empty if nothing is tied
  /// across stages.
  TiedExchange(const StageLayout& layout, StageId stage,
               const std::vector<std::vector<RankId>>& ranks_of_stage, ParameterStore& store,
               Communicator& world, const MessageNumbers& numbers = {});
  /// Connects another stage of this rank: messages between the two stay in memory.
  void connect(TiedExchange& other) { siblings_.push_back(&other); }

  /// Sends the gradients of parameters that other stages own to these stages. Repeated calls between two
  /// updates send nothing.
  void give_gradients();
  /// Calls give_gradients() and waits for all gradients of parameters that this stage owns. Then it adds the
  /// gradient of each use, including uses within the stage, in layer order.
  void add_gradients();
  /// Sends the values of parameters that this stage owns, and posts the receives of the others. Must be
  /// called after the update.
  void exchange_values();
  /// Waits for the messages in flight; then the values can be read.
  void settle();

 private:
  struct End {
    std::size_t tie;   ///< index in StageLayout::ties, which tags its messages
    int layer;         ///< the layer that uses the parameter
    std::string name;  ///< full name of the owner's parameter
    std::size_t slot;  ///< index in the store, at the owner's end
    const TiedUse* use;
    /// the rank that sends to this one; if it is this rank, a stage in siblings_ sends
    RankId from;
    std::vector<RankId> to;  ///< the ranks to which this rank sends; may include this rank
    StageId other;
    at::Tensor arrived{};  ///< at the owner's end: the gradient from another stage of this rank
  };
  struct Message {
    std::vector<at::Tensor> tensors;
    std::unique_ptr<Pending> pending;
  };

  TiedExchange* sibling(StageId stage) const;
  End* owned(std::size_t tie);
  std::uint64_t tag_of(const End& end, bool values) const;
  /// Sends copies of `tensor` to all ranks of `end.to` except this one. Returns whether this rank is one of
  /// them.
  bool send(const End& end, const at::Tensor& tensor, bool values);

  StageId stage_;
  std::size_t num_ties_;
  MessageNumbers numbers_;
  ParameterStore& store_;
  Communicator& world_;
  std::vector<TiedExchange*> siblings_;
  std::vector<End> owned_, used_;  ///< in the order of the layers that use them
  bool given_ = false;
  std::vector<Message> messages_;  ///< in flight
};

}  // namespace millrace
