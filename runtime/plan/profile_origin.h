// On what processor a profile was measured, and when: what its predictions are worth elsewhere and later.
#pragma once

#include <string>

namespace millrace {

struct ProfileOrigin {
  std::string processor{};  ///< as /proc/cpuinfo names it; empty: not known
  std::string date{};       ///< UTC, "2026-01-31T12:00:00Z"; empty: not known
  bool operator==(const ProfileOrigin&) const = default;
};

/// Returns "profile of 5 minutes ago, on AMD EPYC 7763", or what of it is known; empty: nothing is. `now` is
/// in the form of `date`.
std::string to_string(const ProfileOrigin& origin, const std::string& now);

/// Returns one sentence where a profile is of another processor than `processor`, or more than a day older
/// than `now`; empty: neither, or not known.
std::string doubt_of(const ProfileOrigin& origin, const std::string& processor, const std::string& now);

}  // namespace millrace
