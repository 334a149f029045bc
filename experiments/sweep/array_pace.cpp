#include "experiments/sweep/array_pace.h"

#include <algorithm>

namespace millrace {
namespace {

/// Of a size that is known; else as long for a trial as the next larger one, or the next smaller.
double step_in(const std::map<std::size_t, double>& known, std::size_t trials) {
  auto nearest = known.lower_bound(trials);
  if (nearest == known.end()) --nearest;
  return nearest->second * static_cast<double>(trials) / static_cast<double>(nearest->first);
}

}  // namespace

void ArrayPace::learn(std::size_t trials, bool differ, double step_s, double beside_s) {
  std::map<std::size_t, double>& known = differ ? differing_ : alike_;
  const auto [entry, is_new] = known.try_emplace(trials, step_s);
  if (!is_new) entry->second = std::min(entry->second, step_s);
  beside_s_ += beside_s;
  ++num_ran_;
}

double ArrayPace::step_of(std::size_t trials, bool differ) const {
  const auto& own = differ ? differing_ : alike_;
  return step_in(own.empty() ? (differ ? alike_ : differing_) : own, trials);
}

bool ArrayPace::pays(std::size_t trials, bool differed, std::size_t more, bool differ, double steps,
                     int stops) const {
  if (num_ran_ == 0) return false;
  const double apart = step_of(trials, differed) + step_of(more, false);
  return steps * step_of(trials + more, differ) + stops * beside_s_ / num_ran_ < steps * apart;
}

}  // namespace millrace
