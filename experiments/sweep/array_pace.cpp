#include "experiments/sweep/array_pace.h"

#include <algorithm>

namespace millrace {
namespace {

/// The time expected together must be less than this part of the time expected apart. Steps of one size vary
/// by 10 % from array to array, more where weights become denormal.
constexpr double kMargin = 0.85;

}  // namespace

void ArrayPace::learn(std::size_t trials, bool differ, double step_s, double beside_s) {
  Learnt& learnt = differ ? differing_ : alike_;
  const auto [known, is_new] = learnt.step_s.try_emplace(trials, step_s);
  if (!is_new) known->second = std::min(known->second, step_s);
  learnt.beside_s += beside_s;
  ++learnt.num_ran;
}

double ArrayPace::seconds(std::size_t trials, bool differ, double steps) const {
  const Learnt& own = differ ? differing_ : alike_;
  const Learnt& learnt = own.num_ran > 0 ? own : differ ? alike_ : differing_;
  auto nearest = learnt.step_s.lower_bound(trials);
  if (nearest == learnt.step_s.end()) --nearest;
  const double step_s = nearest->second * static_cast<double>(trials) / static_cast<double>(nearest->first);
  return steps * step_s + learnt.beside_s / learnt.num_ran;
}

bool ArrayPace::pays(const std::vector<OpenStep>& steps, const std::vector<OpenStep>& more, int iterations,
                     std::int64_t steps_each) const {
  if (alike_.num_ran + differing_.num_ran == 0) return false;
  const bool differed = differ(steps), differs = differed || steps.front().at != more.front().at;
  const double each = static_cast<double>(iterations * steps_each);
  return seconds(steps.size() + more.size(), differs, each) <
         kMargin * (seconds(steps.size(), differed, each) + seconds(more.size(), false, each));
}

}  // namespace millrace
