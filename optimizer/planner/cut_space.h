// The places where a pipeline can be cut, with what lies between two of them. LibTorch-free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "optimizer/cost/cost_model.h"

namespace millrace {

/// A state is a set of layers that contains, with a layer, everything it depends on; state 0 is empty, the
/// last one is the model. A stage is the difference of two nested states. A linear space holds the prefixes
/// of one topological order; the complete space holds every such set (every antichain cut of the graph).
class CutSpace {
 public:
  static CutSpace linear(const CostModel& model, std::vector<int> order);
  /// Nothing if the graph has more than `most_states` states (or enumerating them takes too long).
  static std::optional<CutSpace> complete(const CostModel& model, const std::vector<int>& order,
                                          int most_states);

  bool is_linear() const { return members_.empty(); }
  int states() const { return static_cast<int>(parameters_.size()); }
  int last() const { return states() - 1; }
  /// Pairs (a, b) with a stage between them: the work of one pass over the space.
  std::int64_t pairs() const;
  /// Whether state `a` lies strictly inside `b`; only for a < b (states are numbered by growing compute
  /// time).
  bool nested(int a, int b) const { return is_linear() || inside_[a][b]; }

  double forward_s(int sheet, int a, int b) const { return forward_[sheet][b] - forward_[sheet][a]; }
  double backward_s(int sheet, int a, int b) const { return backward_[sheet][b] - backward_[sheet][a]; }
  double compute_s(int sheet, int a, int b) const { return compute_[sheet][b] - compute_[sheet][a]; }
  Bytes parameters(int a, int b) const { return parameters_[b] - parameters_[a]; }
  Bytes lowered(int a, int b) const { return lowered_[b] - lowered_[a]; }
  Bytes fields(int a, int b) const { return fields_[b] - fields_[a]; }
  Bytes saved(int a, int b) const { return saved_[b] - saved_[a]; }
  struct LayerBytes {
    Bytes parameters = 0, lowered = 0, fields = 0, saved = 0;
  };
  LayerBytes bytes(int a, int b) const {
    return {parameters(a, b), lowered(a, b), fields(a, b), saved(a, b)};
  }
  /// Returns a lower bound of the bytes of the layers between two states. It never falls with a later `b`,
  /// nested or not, and is never below 0.
  LayerBytes least_bytes(int a, int b) const {
    const LayerBytes& behind = least_behind_[b];
    return {std::max<Bytes>(0, behind.parameters - parameters_[a]),
            std::max<Bytes>(0, behind.lowered - lowered_[a]), std::max<Bytes>(0, behind.fields - fields_[a]),
            std::max<Bytes>(0, behind.saved - saved_[a])};
  }
  /// Bytes that every cut at `b` sends to the next stage, at least: the tensor from the layer before to the
  /// layer behind in a linear space. -1 if there is none: the next stage need not wait for this one.
  Bytes next_bytes(int b) const { return next_[b]; }
  /// Bytes of the tensors that a stage between the states reads from before `a`, each once: what it receives
  /// for a microbatch. At least, where a tensor's readers take unequal parts of it.
  Bytes incoming(int a, int b) const {
    return incoming_.empty() ? incoming_of(a, b) : incoming_[place_of(a, b)];
  }
  /// Returns the bytes of the tensors that the stage makes and layers behind `b` read. It is a lower bound:
  /// each stage behind that reads a tensor gets it.
  Bytes outgoing(int a, int b) const {
    return outgoing_.empty() ? outgoing_of(a, b) : outgoing_[place_of(a, b)];
  }
  /// Bytes of the tensors that are needed on the other side of the cut `b`, each once.
  Bytes live_bytes(int b) const { return live_[b]; }

  /// The most bytes that the backward of a stage needs beyond what it has freed by then. At least, in a space
  /// that is not linear; 0 where layers are not in execution order.
  Bytes workspace(int a, int b) const;

  /// Layers between two states, in execution order.
  std::vector<int> layers(int a, int b) const;

 private:
  explicit CutSpace(const CostModel& model);
  void push_state(const CostModel& model, int node);  // linear: the state after one more layer
  void make_workspaces(const CostModel& model);
  void make_late_workspaces(const CostModel& model);
  void make_tensors(const LayerGraph& graph);
  void make_least_behind();
  void make_messages();
  bool holds(int state, int place) const;
  Bytes incoming_of(int a, int b) const;
  Bytes outgoing_of(int a, int b) const;
  std::size_t place_of(int a, int b) const {
    return static_cast<std::size_t>(a) * parameters_.size() + static_cast<std::size_t>(b);
  }

  /// A tensor and the places of order_ of the layers that make and read it, ascending.
  struct Tensor {
    int producer = 0;
    Bytes bytes = 0;
    std::vector<int> readers;
  };
  std::vector<int> order_;
  std::vector<std::vector<std::uint64_t>> members_;  // complete: by state, bits are positions of order_
  std::vector<std::vector<bool>> inside_;            // complete: [a][b]
  std::vector<std::vector<double>> forward_, backward_, compute_;           // by sheet, by state
  std::vector<Bytes> parameters_, lowered_, fields_, saved_, next_, live_;  // by state
  std::vector<LayerBytes> least_behind_;  // by state: of it and those behind
  // [k][i]: the most of workspace + saved up to there, of 2^k layers from the i-th on. Empty: none needs any.
  std::vector<std::vector<Bytes>> workspaces_;
  // Complete, by state: places whose layers need more than all behind them in the state have saved, with how
  // much more, most first.
  std::vector<std::vector<std::pair<Bytes, int>>> late_workspaces_;
  std::vector<Tensor> tensors_;
  std::vector<Bytes> incoming_, outgoing_;  // complete, by pair of states; empty: too many
  std::vector<std::vector<int>> crossing_;  // by state: tensors that are made in it and read behind it
};

/// Whether each layer reads the one before it: then the graph has one topological order, and its prefixes are
/// all the sets that a cut can separate.
bool has_one_order(const LayerGraph& graph);

/// Topological orders that differ where branches run in parallel: the file's, one branch after the other, and
/// the one that keeps the least bytes alive. Never empty for an acyclic graph.
std::vector<std::vector<int>> topological_orders(const LayerGraph& graph);

}  // namespace millrace
