// Lower bounds of the time and memory of one stage, from the sums of a cut space. LibTorch-free;
// docs/planning.md, 1.4.
#pragma once

#include "optimizer/planner/cut_space.h"
#include "optimizer/planner/layouts.h"

namespace millrace {

/// Bounds for stage `s` of a layout with the layers between two states a < b of a space. Keeps references.
class StageBounds {
 public:
  StageBounds(const CostModel& model, const PlannerOptions& options) : model_(model), options_(options) {}

  // ---- bytes of a rank
  enum class Messages { Sure, None };  ///< counts the tensors that cross in any case, or no messages
  /// Returns a lower bound on the bytes that a rank holds: messages that are not sure to cross are left
  /// out. On a chain it is exact. Without messages it never falls with a later `b`, nor in a linear space
  /// with an earlier `a`.
  Bytes memory(const CutSpace& space, const Layout& layout, int s, int a, int b, bool recompute,
               Messages messages = Messages::Sure) const;
  /// Returns the least memory that the options allow, with or without recomputing.
  Bytes least_memory(const CutSpace& space, const Layout& layout, int s, int a, int b,
                     Messages messages = Messages::Sure) const;
  bool recomputes(const CutSpace& space, const Layout& layout, int s, int a, int b) const;
  bool fits(const CutSpace& space, const Layout& layout, int s, int a, int b,
            Messages messages = Messages::Sure) const;

  // ---- seconds
  double compute(const CutSpace& space, const Layout& layout, int s, int a, int b) const {
    return compute(space, layout, s, a, b, recomputes(space, layout, s, a, b));
  }
  double busy(const CutSpace& space, const Layout& layout, int s, int a, int b) const {
    return layout.rounds[s] * compute(space, layout, s, a, b);
  }
  double busy_if_it_fits(const CutSpace& space, const Layout& layout, int s, int a, int b) const;
  /// Returns busy() without recomputing. It never falls when layers are added, if the space is linear or all
  /// devices are of one kind.
  double least_busy(const CutSpace& space, const Layout& layout, int s, int a, int b) const;
  /// Returns a lower bound on the seconds that follow the last backward of the stage on its own ranks.
  double reduce_and_update(const CutSpace& space, const Layout& layout, int s, int a, int b) const;
  /// Returns the seconds of one message from stage s to the next over the quickest pair of ranks: a bound
  /// must hold for any pair of replicas.
  static double hop(const Layout& layout, int s, Bytes bytes);

 private:
  StageMemory parts(const CutSpace& space, const Layout& layout, int s, int a, int b,
                    Messages messages) const;
  double compute(const CutSpace& space, const Layout& layout, int s, int a, int b, bool recompute) const;

  const CostModel& model_;
  const PlannerOptions& options_;
};

}  // namespace millrace
