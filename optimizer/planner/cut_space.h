// The places where a pipeline can be cut, with the costs of the layers between two of them. LibTorch-free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "optimizer/cost/cost_model.h"

namespace millrace {

/// A state is a set of layers that contains, with each layer, all layers that it depends on. State 0 is
/// empty, the last one is the model. A stage is the difference of two nested states. A linear space holds the
/// prefixes of one topological order. The complete space holds all such sets: every antichain cut of the
/// graph.
class CutSpace {
 public:
  static CutSpace linear(const CostModel& model, std::vector<int> order);
  /// Returns nothing if the graph has more than `most_states` states, or if enumerating them takes too long.
  static std::optional<CutSpace> complete(const CostModel& model, const std::vector<int>& order,
                                          int most_states);

  bool is_linear() const { return members_.empty(); }
  int states() const { return static_cast<int>(parameters_.size()); }
  int last() const { return states() - 1; }
  /// Returns the work of one pass over the space: the number of pairs (a, b) that the pass looks at.
  std::int64_t pairs() const;
  /// Returns whether state `a` lies strictly inside `b`. Needs a < b: states are numbered by growing compute
  /// time.
  bool nested(int a, int b) const { return is_linear() || inside_[a][b]; }

  double forward_s(int sheet, int a, int b) const { return forward_[sheet][b] - forward_[sheet][a]; }
  double backward_s(int sheet, int a, int b) const { return backward_[sheet][b] - backward_[sheet][a]; }
  double compute_s(int sheet, int a, int b) const { return compute_[sheet][b] - compute_[sheet][a]; }
  Bytes parameters(int a, int b) const { return parameters_[b] - parameters_[a]; }
  Bytes touched(int a, int b) const { return touched_[b] - touched_[a]; }  ///< LayerNode::touched_bytes
  Bytes lowered(int a, int b) const { return lowered_[b] - lowered_[a]; }
  /// A lower bound: a field counts for the first layer of the model that reads it.
  Bytes fields(int a, int b) const { return fields_[b] - fields_[a]; }
  Bytes saved(int a, int b) const { return saved_[b] - saved_[a]; }
  Bytes between(int a, int b) const { return between_[b] - between_[a]; }
  struct LayerBytes {
    Bytes parameters = 0, lowered = 0, fields = 0, saved = 0, between = 0;
  };
  LayerBytes bytes(int a, int b) const {
    return {parameters(a, b), lowered(a, b), fields(a, b), saved(a, b), between(a, b)};
  }
  /// Returns a lower bound of the bytes of the layers between two states. It never falls with a later `b`,
  /// nested or not, and is never below 0.
  LayerBytes least_bytes(int a, int b) const {
    const LayerBytes& behind = least_behind_[b];
    return {std::max<Bytes>(0, behind.parameters - parameters_[a]),
            std::max<Bytes>(0, behind.lowered - lowered_[a]), std::max<Bytes>(0, behind.fields - fields_[a]),
            std::max<Bytes>(0, behind.saved - saved_[a]), std::max<Bytes>(0, behind.between - between_[a])};
  }
  /// Returns a lower bound of the bytes that every cut at `b` sends to the next stage. In a linear space it
  /// is the tensor from the layer before the cut to the layer behind it. Returns -1 if there is none: then
  /// the next stage need not wait for this one.
  Bytes next_bytes(int b) const { return next_[b]; }
  /// Returns the bytes that a stage between the states receives for a microbatch: the tensors from before `a`
  /// that it reads, each counted once. It is a lower bound if a tensor's readers take unequal parts of it.
  Bytes incoming(int a, int b) const {
    return incoming_.empty() ? incoming_of(a, b) : incoming_[place_of(a, b)];
  }
  /// Returns the bytes of what it receives that a stage between the states keeps beside its saved bytes
  /// (LayerEdge::kept_bytes).
  Bytes arrived(int a, int b) const { return arrived_.empty() ? arrived_of(a, b) : arrived_[place_of(a, b)]; }
  /// Returns the bytes of the tensors that the stage makes and layers behind `b` read, each counted once. It
  /// is a lower bound of the bytes sent: several later stages may each get the same tensor.
  Bytes outgoing(int a, int b) const {
    return outgoing_.empty() ? outgoing_of(a, b) : outgoing_[place_of(a, b)];
  }
  /// Returns the bytes of the tensors that layers behind the cut `b` need, each counted once.
  Bytes live_bytes(int b) const { return live_[b]; }

  /// A tensor, with the places of the layers that make and read it in the order from which the space was
  /// made.
  struct Tensor {
    int producer = 0;
    Bytes bytes = 0;
    std::vector<int> readers;                 ///< ascending
    std::vector<std::pair<int, Bytes>> kept;  ///< by reader (LayerEdge::kept_bytes)
  };
  const std::vector<Tensor>& tensors() const { return tensors_; }

  /// Returns the most temporary bytes that a stage's backward needs beyond the stash that it has freed by
  /// then. In a space that is not linear it is a lower bound. Returns 0 if the layers are not in execution
  /// order.
  Bytes workspace(int a, int b) const { return workspace_in(together_, a, b); }
  /// Returns the same of a backward to the inputs alone, which keeps LayerNode::kept_between of each layer.
  Bytes split_workspace(int a, int b) const { return workspace_in(apart_, a, b); }

  /// Returns the layers between two states, in the order from which the space was made.
  std::vector<int> layers(int a, int b) const;

 private:
  explicit CutSpace(const CostModel& model);
  void push_state(const CostModel& model, int node);  // linear spaces: adds the state with one more layer
  void make_workspaces(const CostModel& model);
  void make_late_workspaces(const CostModel& model);
  void make_tensors(const LayerGraph& graph);
  void make_least_behind();
  void make_messages();
  bool holds(int state, int place) const;
  Bytes incoming_of(int a, int b) const;
  Bytes arrived_of(int a, int b) const;
  Bytes outgoing_of(int a, int b) const;
  std::size_t place_of(int a, int b) const {
    return static_cast<std::size_t>(a) * parameters_.size() + static_cast<std::size_t>(b);
  }

  std::vector<int> order_;
  std::vector<std::vector<std::uint64_t>> members_;  // complete spaces: [state], bit i is place i of order_
  std::vector<std::vector<bool>> inside_;            // complete spaces: [a][b], whether a lies inside b
  std::vector<std::vector<double>> forward_, backward_, compute_;  // [sheet][state]
  std::vector<Bytes> parameters_, touched_, lowered_, fields_, saved_, between_, next_,
      live_;                              // indexed by state
  std::vector<Bytes> next_kept_;          // indexed by state: of next_, what the layer behind the cut keeps
  std::vector<LayerBytes> least_behind_;  // [state]: the least sums of this state and all later ones
  /// The workspaces of a backward, by what it frees of each layer.
  struct Workspaces {
    std::vector<Bytes> freed;  ///< indexed by state: bytes that the layers up to there free
    /// Linear spaces: [k][i] is the maximum over the 2^k layers from the i-th on of a layer's workspace +
    /// what the layers up to it free. Empty: no layer has a workspace.
    std::vector<std::vector<Bytes>> most;
    /// Complete spaces, indexed by state: pairs of bytes and place, most bytes first. The layer's workspace
    /// exceeds what all layers behind it in the state free by so many bytes.
    std::vector<std::vector<std::pair<Bytes, int>>> late;
  };
  Bytes workspace_in(const Workspaces& of, int a, int b) const;
  Workspaces together_, apart_;
  std::vector<Tensor> tensors_;
  // Complete spaces, at place_of(a, b): the results of incoming_of, arrived_of and outgoing_of. Empty: there
  // are too many states, and the functions compute each result again.
  std::vector<Bytes> incoming_, arrived_, outgoing_;
  std::vector<std::vector<int>> crossing_;  // [state]: tensors that are made in it and read behind it
};

/// Returns whether each layer reads the one before it. Then the graph has one topological order, and only the
/// prefixes of this order can be separated by a cut.
bool has_one_order(const LayerGraph& graph);

/// Returns up to three topological orders, which differ where branches run in parallel: the order of the
/// file, one branch after the other, and a greedy order that keeps few bytes alive. The list is never empty
/// for an acyclic graph.
std::vector<std::vector<int>> topological_orders(const LayerGraph& graph);

}  // namespace millrace
