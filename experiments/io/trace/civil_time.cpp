#include "experiments/io/trace/civil_time.h"

#include <chrono>
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
  if (!year || !month || !day) return std::nullopt;
  if (*year < 1700 || *year > 2255) return std::nullopt;  // nanoseconds since 1970 hold no more
  if (!(std::chrono::year(*year) / *month / *day).ok()) return std::nullopt;
  return days_from_civil({*year, *month, *day});
}

}  // namespace

std::int64_t days_from_civil(const CivilDate& date) {
  return std::chrono::sys_days(std::chrono::year(date.year) / date.month / date.day)
      .time_since_epoch()
      .count();
}

CivilDate civil_from_days(std::int64_t days) {
  const std::chrono::year_month_day date{std::chrono::sys_days(std::chrono::days(days))};
  return {static_cast<int>(date.year()), static_cast<int>(static_cast<unsigned>(date.month())),
          static_cast<int>(static_cast<unsigned>(date.day()))};
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
