// Local time of the traced machine to UTC. The zone is given; that of the machine which analyses is never
// asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// A zone's offsets over time. Value type; pure.
class TimeZone {
 public:
  /// "UTC", "-05:00", a POSIX rule ("EST5EDT,M3.2.0,M11.1.0"), or a name of the tz database
  /// ("America/Montreal"), read from `database`.
  static Result<TimeZone> parse(const std::string& text, const std::string& database = "/usr/share/zoneinfo");
  /// Montreal, where the kit was written: its formula is UTC = local + (5 - DST) hours.
  static TimeZone montreal();
  static TimeZone fixed(int offset_s);

  const std::string& name() const { return name_; }
  /// Seconds east of UTC at a moment (seconds since 1970, UTC).
  int offset_at(std::int64_t utc_s) const;
  /// The moment of a local wall-clock time (seconds since 1970 as if UTC). Where the clock was put back it is
  /// the first one that is not before `not_before` (the row before it); where it was put forward, the time
  /// counts on from the old offset.
  std::int64_t utc_of(std::int64_t local_s, std::int64_t not_before = INT64_MIN) const;

 private:
  struct Transition {
    std::int64_t at;  ///< UTC
    int offset;
  };
  struct RuleDay {
    int month = 0, week = 0, weekday = 0;  ///< Mm.w.d
    int time_s = 7200;                     ///< local
  };
  struct Rule {
    int standard = 0, summer = 0;
    bool has_summer = false;
    RuleDay start, end;
  };
  static bool parse_rule(const std::string& text, Rule& rule);
  static bool parse_file(const std::string& bytes, TimeZone& zone);
  static int rule_offset(const Rule& rule, std::int64_t utc_s);

  std::string name_;
  std::vector<Transition> transitions_;  ///< ascending; empty: the rule holds always
  int first_offset_ = 0;                 ///< before the first transition
  Rule rule_;                            ///< after the last
};

/// `TimeZone::parse`; the Problem names no place, as those of a flag's value.
Result<TimeZone> time_zone_from(const std::string& text);

}  // namespace millrace
