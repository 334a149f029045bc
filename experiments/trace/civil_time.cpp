#include "experiments/trace/civil_time.h"

#include <cstdio>
#include <cstring>

namespace millrace {
namespace {

/// All of `text` as digits.
std::optional<int> digits_of(std::string_view text) {
  if (text.empty() || text.size() > 9) return std::nullopt;
  int value = 0;
  for (char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

std::int64_t floor_divide(std::int64_t a, std::int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}

std::optional<std::int64_t> checked_date(std::optional<int> year, std::optional<int> month,
                                         std::optional<int> day) {
  if (!year || !month || !day || *month < 1 || *month > 12 || *day < 1) return std::nullopt;
  if (*year < 1700 || *year > 2255) return std::nullopt;  // nanoseconds since 1970 hold no more
  const std::int64_t days = days_from_civil({*year, *month, *day});
  // 30 February is 2 March: not the date that was written.
  const CivilDate back = civil_from_days(days);
  if (back.month != *month || back.day != *day) return std::nullopt;
  return days;
}

}  // namespace

// Howard Hinnant, "chrono-compatible low-level date algorithms": eras of 400 years that begin in March.
std::int64_t days_from_civil(const CivilDate& date) {
  const std::int64_t year = date.year - (date.month <= 2 ? 1 : 0);
  const std::int64_t era = floor_divide(year, 400);
  const std::int64_t year_of_era = year - era * 400;
  const std::int64_t day_of_year = (153 * (date.month + (date.month > 2 ? -3 : 9)) + 2) / 5 + date.day - 1;
  const std::int64_t day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
  return era * 146097 + day_of_era - 719468;
}

CivilDate civil_from_days(std::int64_t days) {
  days += 719468;
  const std::int64_t era = floor_divide(days, 146097);
  const std::int64_t day_of_era = days - era * 146097;
  const std::int64_t year_of_era =
      (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146096) / 365;
  const std::int64_t day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const std::int64_t month = (5 * day_of_year + 2) / 153;
  CivilDate date;
  date.day = static_cast<int>(day_of_year - (153 * month + 2) / 5 + 1);
  date.month = static_cast<int>(month + (month < 10 ? 3 : -9));
  date.year = static_cast<int>(year_of_era + era * 400 + (date.month <= 2 ? 1 : 0));
  return date;
}

std::optional<std::int64_t> parse_date(std::string_view text) {
  if (text.size() == 8 && text[2] != '/')
    return checked_date(digits_of(text.substr(0, 4)), digits_of(text.substr(4, 2)),
                        digits_of(text.substr(6)));
  if (text.size() == 10 && text[4] == '-' && text[7] == '-')
    return checked_date(digits_of(text.substr(0, 4)), digits_of(text.substr(5, 2)),
                        digits_of(text.substr(8)));
  if ((text.size() == 10 || text.size() == 8) && text[2] == '/' && text[5] == '/') {
    std::optional<int> year = digits_of(text.substr(6));
    if (year && text.size() == 8) *year += 2000;
    return checked_date(year, digits_of(text.substr(0, 2)), digits_of(text.substr(3, 2)));
  }
  return std::nullopt;
}

std::optional<std::int64_t> parse_time_of_day(std::string_view text, std::string_view suffix) {
  if (text.size() != 8 || text[2] != ':' || text[5] != ':') return std::nullopt;
  std::optional<int> hour = digits_of(text.substr(0, 2));
  const std::optional<int> minute = digits_of(text.substr(3, 2));
  const std::optional<int> second = digits_of(text.substr(6));
  if (!hour || !minute || !second || *hour > 23 || *minute > 59 || *second > 60) return std::nullopt;
  if (!suffix.empty()) {
    if ((suffix != "AM" && suffix != "PM") || *hour < 1 || *hour > 12) return std::nullopt;
    *hour = *hour % 12 + (suffix == "PM" ? 12 : 0);
  }
  return *hour * 3600 + *minute * 60 + *second;
}

std::optional<std::int64_t> parse_iso(std::string_view text) {
  if (text.ends_with('Z')) text.remove_suffix(1);
  if (text.size() < 19 || (text[10] != 'T' && text[10] != ' ')) return std::nullopt;
  const std::optional<std::int64_t> date = parse_date(text.substr(0, 10));
  const std::optional<std::int64_t> time = parse_time_of_day(text.substr(11, 8));
  if (!date || !time) return std::nullopt;
  std::int64_t fraction = 0;
  if (text.size() > 19) {
    if (text[19] != '.' || text.size() < 21 || text.size() > 29) return std::nullopt;
    std::int64_t unit = kSecond;
    for (char c : text.substr(20)) {
      if (c < '0' || c > '9') return std::nullopt;
      unit /= 10;
      fraction += (c - '0') * unit;
    }
  }
  return (*date * kDaySeconds + *time) * kSecond + fraction;
}

std::string iso_text(std::int64_t nanoseconds, int digits) {
  char text[IsoWriter::kLength];
  IsoWriter().write(nanoseconds, text);
  return std::string(text, digits == 0 ? 19 : 20 + static_cast<std::size_t>(digits));
}

void IsoWriter::write(std::int64_t nanoseconds, char* to) {
  const std::int64_t second = floor_divide(nanoseconds, kSecond);
  if (second != second_) {
    second_ = second;
    const std::int64_t days = floor_divide(second, kDaySeconds);
    const CivilDate date = civil_from_days(days);
    const int time = static_cast<int>(second - days * kDaySeconds);
    char text[64];
    std::snprintf(text, sizeof text, "%04d-%02d-%02dT%02d:%02d:%02d.", date.year, date.month, date.day,
                  time / 3600, time / 60 % 60, time % 60);
    std::memcpy(text_, text, sizeof text_);
  }
  std::memcpy(to, text_, 20);
  auto fraction = static_cast<std::uint32_t>(nanoseconds - second * kSecond);
  for (int i = 28; i >= 20; --i) {
    to[i] = static_cast<char>('0' + fraction % 10);
    fraction /= 10;
  }
}

}  // namespace millrace
