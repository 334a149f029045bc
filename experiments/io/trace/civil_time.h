// Dates and times of day as numbers and as ISO text, without the machine's time zone. UTC unless it says
// local.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

inline constexpr std::int64_t kSecond = 1'000'000'000;  ///< in nanoseconds
inline constexpr std::int64_t kDaySeconds = 86'400;

struct CivilDate {
  int year = 1970, month = 1, day = 1;
};

/// Days since 1970-01-01 of the proleptic Gregorian calendar, and back.
std::int64_t days_from_civil(const CivilDate& date);
CivilDate civil_from_days(std::int64_t days);

/// "2023-02-11", "20230211", "02/11/2023" or "02/11/23" as days since 1970; nothing if it is no such
/// date, or not from 1700 to 2255.
std::optional<std::int64_t> parse_date(std::string_view text);

/// "08:11:18", and with `suffix` "AM" or "PM" the 12 h clock; seconds of the day. Nothing if out of range.
std::optional<std::int64_t> parse_time_of_day(std::string_view text, std::string_view suffix = {});

/// "2023-02-11T13:11:22[.digits]" (or a blank for the T, or a Z behind it) as nanoseconds since 1970.
std::optional<std::int64_t> parse_iso(std::string_view text);

/// "2023-02-11T13:11:22" with 0, 3 or 9 digits of the second. Years 0 to 9999.
std::string iso_text(std::int64_t nanoseconds, int digits);

/// Writes nanosecond stamps one after the other: 29 characters each, the date only when the second changes.
class IsoWriter {
 public:
  /// Writes kLength characters to `to`.
  void write(std::int64_t nanoseconds, char* to);
  static constexpr std::size_t kLength = 29;

 private:
  std::int64_t second_ = INT64_MIN;
  char text_[20] = {};
};

}  // namespace millrace
