// The processor and date of a profile, which determine how far its predictions can be trusted elsewhere and
// later.
#pragma once

#include <string>

namespace millrace {

struct ProfileOrigin {
  std::string processor{};  ///< name in /proc/cpuinfo; empty: unknown
  std::string date{};       ///< UTC, "2026-01-31T12:00:00Z"; empty: unknown
  bool operator==(const ProfileOrigin&) const = default;
};

/// Returns "profile of 5 minutes ago, on AMD EPYC 7763", or the known parts of it; empty if nothing is known.
/// `now` has the format of `date`.
std::string to_string(const ProfileOrigin& origin, const std::string& now);

/// Returns a sentence if a profile is from another processor than `processor`, or more than a day older than
/// `now`; empty if neither is the case or known.
std::string doubt_of(const ProfileOrigin& origin, const std::string& processor, const std::string& now);

}  // namespace millrace
