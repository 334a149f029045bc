#include "experiments/io/dlio/time_spec.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <thread>

namespace millrace {
namespace {

/// Marsaglia and Tsang, "A simple method for generating gamma variables" (2000); below shape 1 by Stuart's
/// relation.
double gamma(double shape, double scale, RandomStream& random) {
  if (shape < 1) return gamma(shape + 1, scale, random) * std::pow(1 - random.uniform(), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = random.normal(), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v))
      return d * v * scale;
  }
}

/// Knuth's product, in pieces so that exp does not underflow: a sum of Poisson numbers is one.
double poisson(double lambda, RandomStream& random) {
  double count = 0;
  for (; lambda > 0; lambda -= 500) {
    const double limit = std::exp(-std::min(lambda, 500.0));
    for (double product = 1 - random.uniform(); product > limit; product *= 1 - random.uniform()) ++count;
  }
  return count;
}

struct TimeFamily {
  const char* name;
  TimeSpec::Kind kind;
  const char* first;
  const char* second;  // nullptr: one parameter
};
constexpr TimeFamily kFamilies[] = {{"normal", TimeSpec::Kind::Normal, "mean", "stdev"},
                                    {"uniform", TimeSpec::Kind::Uniform, "min", "max"},
                                    {"gamma", TimeSpec::Kind::Gamma, "shape", "scale"},
                                    {"exponential", TimeSpec::Kind::Exponential, "scale", nullptr},
                                    {"poisson", TimeSpec::Kind::Poisson, "lam", nullptr},
                                    {"lognormal", TimeSpec::Kind::LogNormal, "mu", "sigma"}};

void check_range(const TimeSpec& spec, const std::string& key, Problems& problems) {
  const bool positive = spec.kind == TimeSpec::Kind::Gamma || spec.kind == TimeSpec::Kind::Exponential;
  const bool any_sign = spec.kind == TimeSpec::Kind::LogNormal;
  const bool good = any_sign   ? spec.b >= 0
                    : positive ? spec.a > 0 && (spec.kind == TimeSpec::Kind::Exponential || spec.b > 0)
                    : spec.kind == TimeSpec::Kind::Uniform ? spec.a >= 0 && spec.b >= spec.a
                                                           : spec.a >= 0 && spec.b >= 0;
  if (!good || spec.a > 1e6 || spec.b > 1e6)
    problems.push_back({key, "has a value out of range", "seconds, not negative, at most 1,000,000"});
}

}  // namespace

double TimeSpec::mean() const {
  switch (kind) {
    case Kind::Uniform:
      return (a + b) / 2;
    case Kind::Gamma:
      return a * b;
    case Kind::LogNormal:
      return std::exp(a + b * b / 2);
    case Kind::Empirical: {
      double sum = 0;
      for (const double value : values) sum += value;
      return sum / static_cast<double>(values.size());
    }
    case Kind::Mixture: {
      double sum = 0;
      for (std::size_t i = 0; i < components.size(); ++i) sum += weights[i] * components[i].mean();
      return sum;
    }
    default:
      return a;
  }
}

double draw(const TimeSpec& spec, RandomStream& random) {
  switch (spec.kind) {
    case TimeSpec::Kind::Constant:
      return spec.a;
    case TimeSpec::Kind::Normal:
      return std::abs(spec.a + spec.b * random.normal());
    case TimeSpec::Kind::Uniform:
      return random.uniform(spec.a, spec.b);
    case TimeSpec::Kind::Gamma:
      return gamma(spec.a, spec.b, random);
    case TimeSpec::Kind::Exponential:
      return -spec.a * std::log(1 - random.uniform());
    case TimeSpec::Kind::Poisson:
      return poisson(spec.a, random);
    case TimeSpec::Kind::LogNormal:
      return std::exp(spec.a + spec.b * random.normal());
    case TimeSpec::Kind::Empirical:
      return spec.values[random.below(spec.values.size())];
    case TimeSpec::Kind::Mixture:
      break;
  }
  double place = random.uniform();
  std::size_t chosen = 0;
  while (chosen + 1 < spec.weights.size() && place >= spec.weights[chosen]) place -= spec.weights[chosen++];
  return draw(spec.components[chosen], random);
}

Result<TimeSpec> parse_time_spec(const Json& json, const std::string& key) {
  Problems problems;
  TimeSpec spec;
  if (json.is_number()) {
    spec.a = json.as_double();
    check_range(spec, key, problems);
    if (!problems.empty()) return problems;
    return spec;
  }
  if (!json.is_object())
    return Problem{key, "is no duration",
                   "a number of seconds, {mean, stdev} or {type: normal, mean, stdev}"};
  ObjectReader in(json, problems);
  if (!json.find("type")) {
    spec.kind = TimeSpec::Kind::Normal;
    spec.a = in.number("mean", 0);
    spec.b = in.number("stdev", 0);
  } else if (const std::string type = in.string("type"); type == "empirical") {
    spec.kind = TimeSpec::Kind::Empirical;
    if (const Json* values = in.array("values")) {
      for (const Json& value : values->items()) {
        if (value.is_number() && value.as_double() >= 0 && value.as_double() <= 1e6)
          spec.values.push_back(value.as_double());
        else
          problems.push_back({key, "has a value that is no duration", {}});
      }
    }
    if (spec.values.empty()) problems.push_back({key, "has no values", {}});
  } else if (type == "mixture") {
    spec.kind = TimeSpec::Kind::Mixture;
    double sum = 0;
    if (const Json* parts = in.array("components")) {
      for (const Json& part : parts->items()) {
        const Json* weight = part.find("weight");
        const Json* time = part.find("time");
        if (!weight || !weight->is_number() || !(weight->as_double() > 0) || !time) {
          problems.push_back({key, "a component needs `weight` above 0 and `time`", {}});
          continue;
        }
        const Result<TimeSpec> inner = parse_time_spec(*time, key);
        if (!inner) {
          append(problems, inner.problems());
          continue;
        }
        sum += weight->as_double();
        spec.weights.push_back(weight->as_double());
        spec.components.push_back(*inner);
      }
    }
    for (double& weight : spec.weights) weight /= sum;
    if (spec.components.empty()) problems.push_back({key, "has no components", {}});
  } else {
    const auto* family = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                      [&](const TimeFamily& f) { return type == f.name; });
    if (family == std::end(kFamilies))
      return Problem{key, "unknown distribution '" + type + "'",
                     "normal, uniform, gamma, exponential, poisson, lognormal, empirical or mixture"};
    spec.kind = family->kind;
    spec.a = in.number(family->first);
    if (family->second) spec.b = in.number(family->second);
  }
  in.finish();
  if (problems.empty() && spec.kind < TimeSpec::Kind::Empirical) check_range(spec, key, problems);
  if (!problems.empty()) return problems;
  return spec;
}

void PreciseWait::until(TimePoint when) {
  // Linux rounds a sleep up by a thread's slack, 50 us unless it says otherwise.
  thread_local const bool exact = ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL) == 0;
  (void)exact;
  const auto margin =
      std::min(longest_spin_, std::chrono::nanoseconds(static_cast<std::int64_t>(1.2 * lateness_ns_)));
  TimePoint now = clock_.now();
  if (now + margin < when) {
    const TimePoint asleep_until = when - margin;
    clock_.sleep_until(asleep_until);
    now = clock_.now();
    const auto late = static_cast<double>((now - asleep_until).count());
    lateness_ns_ = std::max(late, lateness_ns_ * 0.98);
  }
  while (now < when) {
    for (int i = 0; i < 8; ++i) __builtin_ia32_pause();
    now = clock_.now();
  }
  plan_.ended(when, now);
}

}  // namespace millrace
