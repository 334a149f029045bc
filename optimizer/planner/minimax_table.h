// The least possible worst stage over all cuts: a dynamic programme over a cut space. LibTorch-free.
#pragma once

#include <algorithm>
#include <limits>
#include <tuple>
#include <vector>

#include "optimizer/planner/cut_space.h"

namespace millrace {

/// at(s, a) is the least value of the worst stage over all cuts of the layers behind state a into the stages
/// from s on. A stage's value may be seconds, bytes or something else; infinite: not allowed. `growing` must
/// be at most the value, and must never fall when layers are added at either end. Memory rises and falls with
/// the end of a stage because of the tensors that cross, so the values cannot be bisected. The bisection uses
/// `growing`. From there a scan goes outwards, until `growing` or the rest is no better than the best known.
class MinimaxTable {
 public:
  double least() const { return table_.empty() ? kNone : table_[0]; }
  double at(int s, int a) const { return table_[index(s, a)]; }

  /// Fills the table. `value(s, a, b)` and `growing(s, a, b)` are about stage s with the layers between
  /// states a and b. `ordered` matters in a space that is not linear: it says that growing(s, a, b) never
  /// falls with a later b, nested or not.
  template <class Value, class Growing>
  void fill(const CutSpace& space, int stages, bool ordered, Value&& value, Growing&& growing) {
    states_ = static_cast<std::size_t>(space.states());
    const std::size_t entries = static_cast<std::size_t>(stages) * states_;
    table_.assign(entries, kNone);
    if (space.is_linear()) fill_relaxed(space.last(), stages, growing);
    const int last = space.last();
    for (int s = stages - 1; s >= 0; --s) {
      if (!space.is_linear() && ordered && s + 1 < stages) fill_least_rests(s, last);
      for (int a = 0; a < (s == 0 ? 1 : last); ++a) {
        double& best = table_[index(s, a)];
        if (s + 1 == stages) {
          best = value(s, a, last);
        } else if (space.is_linear()) {
          best = scanned(s, a, last - (stages - s - 1), value, growing);
        } else if (ordered) {
          best = scanned_sets(space, s, a, last, value, growing);
        } else {
          for (int b = a + 1; b < last; ++b) {
            if (table_[index(s + 1, b)] >= best || !space.nested(a, b) || growing(s, a, b) >= best) continue;
            best = std::min(best, std::max(value(s, a, b), table_[index(s + 1, b)]));
          }
        }
      }
    }
  }

  /// Returns the ends of all stages but the last of a cut whose worst stage is least(). An end is -1 if there
  /// is no such cut.
  template <class Value>
  std::vector<int> cuts(const CutSpace& space, int stages, Value&& value) const {
    std::vector<int> ends;
    int a = 0;
    for (int s = 0; s + 1 < stages; ++s) {
      double best = kNone;
      int end = -1;
      for (int b = a + 1; a >= 0 && b < space.last(); ++b) {
        if (!space.nested(a, b) || table_[index(s + 1, b)] >= best) continue;
        const double worst = std::max(value(s, a, b), table_[index(s + 1, b)]);
        if (worst < best) std::tie(best, end) = std::pair(worst, b);
      }
      ends.push_back(end);
      a = end;
    }
    return ends;
  }

 private:
  static constexpr double kNone = std::numeric_limits<double>::infinity();

  std::size_t index(int s, int a) const {
    return static_cast<std::size_t>(s) * states_ + static_cast<std::size_t>(a);
  }

  /// Fills relaxed_ and meeting_. relaxed_ is the same table for `growing` instead of the values, and stages
  /// may be without layers. Therefore the entry for the remaining stages never rises when a later state is
  /// taken, and bisection is right.
  template <class Growing>
  void fill_relaxed(int last, int stages, Growing&& growing) {
    relaxed_.assign(static_cast<std::size_t>(stages) * states_, 0);
    meeting_.assign(relaxed_.size(), last);
    const auto stage = [&](int s, int a, int b) { return a == b ? 0 : growing(s, a, b); };
    for (int s = stages - 1; s >= 0; --s) {
      for (int a = 0; a < (s == 0 ? 1 : last); ++a) {
        if (s + 1 == stages) {
          relaxed_[index(s, a)] = stage(s, a, last);
          continue;
        }
        int low = a;
        for (int high = last; low < high;) {
          const int middle = low + (high - low) / 2;
          stage(s, a, middle) >= relaxed_[index(s + 1, middle)] ? high = middle : low = middle + 1;
        }
        meeting_[index(s, a)] = low;
        double best = std::max(stage(s, a, low), relaxed_[index(s + 1, low)]);
        if (low > a) best = std::min(best, relaxed_[index(s + 1, low - 1)]);
        relaxed_[index(s, a)] = best;
      }
    }
  }

  template <class Value, class Growing>
  double scanned(int s, int a, int high, Value&& value, Growing&& growing) const {
    double best = kNone;
    if (a + 1 > high) return best;
    const auto take = [&](int b) {
      const double rest = table_[index(s + 1, b)];
      if (rest < best) best = std::min(best, std::max(value(s, a, b), rest));
    };
    const int middle = std::clamp(meeting_[index(s, a)], a + 1, high);
    for (int b = middle; b <= high && growing(s, a, b) < best; ++b) take(b);
    for (int b = middle - 1; b > a && relaxed_[index(s + 1, b)] < best; --b) take(b);
    return best;
  }

  /// Fills least_rest_: for each b, the least table entry of stage s + 1 over b and the states before it.
  void fill_least_rests(int s, int last) {
    least_rest_.assign(last, kNone);
    double least = kNone;
    for (int b = 1; b < last; ++b) least_rest_[b] = least = std::min(least, table_[index(s + 1, b)]);
  }

  template <class Value, class Growing>
  double scanned_sets(const CutSpace& space, int s, int a, int last, Value&& value, Growing&& growing) const {
    const auto rest = [&](int b) { return least_rest_[b]; };
    double best = kNone;
    const auto take = [&](int b) {
      if (table_[index(s + 1, b)] < best && space.nested(a, b))
        best = std::min(best, std::max(value(s, a, b), table_[index(s + 1, b)]));
    };
    int low = a + 1;
    for (int high = last; low < high;) {
      const int middle = low + (high - low) / 2;
      growing(s, a, middle) >= rest(middle) ? high = middle : low = middle + 1;
    }
    for (int b = low; b < last && growing(s, a, b) < best; ++b) take(b);
    for (int b = low - 1; b > a && rest(b) < best; --b) take(b);
    return best;
  }

  std::size_t states_ = 0;
  std::vector<double> table_, relaxed_, least_rest_;
  std::vector<int> meeting_;  // [s, a]: the first end with which stage s is at least as much as the rest
};

}  // namespace millrace
