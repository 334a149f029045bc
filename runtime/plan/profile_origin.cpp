#include "runtime/plan/profile_origin.h"

#include <ctime>
#include <optional>

namespace millrace {
namespace {

constexpr double kDay = 86400;

std::optional<double> seconds_of(const std::string& date) {
  std::tm utc{};
  const char* const end = ::strptime(date.c_str(), "%Y-%m-%dT%H:%M:%S", &utc);
  if (!end) return std::nullopt;
  return static_cast<double>(::timegm(&utc));
}

std::optional<double> age_of(const ProfileOrigin& origin, const std::string& now) {
  const std::optional<double> then = seconds_of(origin.date), at = seconds_of(now);
  if (!then || !at || *at < *then) return std::nullopt;
  return *at - *then;
}

std::string age_text(double seconds) {
  const auto in = [&](double unit, const char* name) {
    const auto count = static_cast<long long>(seconds / unit);
    return std::to_string(count) + " " + name + (count == 1 ? "" : "s");
  };
  if (seconds < 60) return "less than a minute";
  if (seconds < 3600) return in(60, "minute");
  return seconds < 2 * kDay ? in(3600, "hour") : in(kDay, "day");
}

}  // namespace

std::string to_string(const ProfileOrigin& origin, const std::string& now) {
  const std::optional<double> age = age_of(origin, now);
  if (!age && origin.processor.empty()) return "";
  return std::string("profile") + (age ? " of " + age_text(*age) + " ago" : "") +
         (origin.processor.empty() ? "" : (age ? ", on " : " on ") + origin.processor);
}

std::string doubt_of(const ProfileOrigin& origin, const std::string& processor, const std::string& now) {
  const std::optional<double> age = age_of(origin, now);
  const bool elsewhere = !origin.processor.empty() && !processor.empty() && origin.processor != processor;
  if (!elsewhere && age.value_or(0) <= kDay) return "";
  return std::string("the predictions are of a profile") +
         (elsewhere ? " of another processor (" + origin.processor + ", this is " + processor + ")" : "") +
         (age.value_or(0) > kDay ? (elsewhere ? " and " : " ") + age_text(*age) + " old" : "") +
         ": profile and plan again before trusting them";
}

}  // namespace millrace
