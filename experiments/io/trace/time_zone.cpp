#include "experiments/io/trace/time_zone.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "experiments/io/trace/civil_time.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

/// Reads from the front of a text; every function leaves `text` behind what it read.
struct RuleText {
  std::string_view text;

  bool take(char c) {
    if (text.empty() || text.front() != c) return false;
    text.remove_prefix(1);
    return true;
  }
  bool number(int& value, int most) {
    std::size_t used = 0;
    value = 0;
    while (used < text.size() && used < 4 && text[used] >= '0' && text[used] <= '9')
      value = value * 10 + (text[used++] - '0');
    text.remove_prefix(used);
    return used > 0 && value <= most;
  }
  /// "EST" or "<+03>".
  bool zone_name() {
    if (take('<')) {
      const std::size_t end = text.find('>');
      if (end == std::string_view::npos || end == 0) return false;
      text.remove_prefix(end + 1);
      return true;
    }
    std::size_t used = 0;
    while (used < text.size() && ((text[used] | 32) >= 'a' && (text[used] | 32) <= 'z')) ++used;
    text.remove_prefix(used);
    return used >= 3;
  }
  /// [+-]h[h][:mm[:ss]] in seconds.
  bool time(int& seconds, int most_hours) {
    const bool negative = take('-');
    if (!negative) take('+');
    int hours = 0, minutes = 0, rest = 0;
    if (!number(hours, most_hours)) return false;
    if (take(':') && (!number(minutes, 59) || (take(':') && !number(rest, 59)))) return false;
    seconds = hours * 3600 + minutes * 60 + rest;
    if (negative) seconds = -seconds;
    return true;
  }
};

/// "+01:00", "-5", "-0500" or "Z".
bool parse_offset(std::string_view text, int& offset) {
  if (text == "UTC" || text == "Z" || text == "GMT") return offset = 0, true;
  if (text.empty() || (text[0] != '+' && text[0] != '-')) return false;
  if (text.size() == 5 && text.find(':') == std::string_view::npos) {
    const std::string with_colon = std::string(text.substr(0, 3)) + ":" + std::string(text.substr(3));
    return parse_offset(with_colon, offset);
  }
  RuleText rest{text};
  return rest.time(offset, 15) && rest.text.empty();
}

std::int64_t big_endian(const char* bytes, int size) {
  std::uint64_t value = 0;
  for (int i = 0; i < size; ++i) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return size == 4 ? static_cast<std::int32_t>(static_cast<std::uint32_t>(value))
                   : static_cast<std::int64_t>(value);
}

int weekday_of(std::int64_t days) {
  return static_cast<int>(((days + 4) % 7 + 7) % 7);  // 1970-01-01 was a Thursday
}

}  // namespace

TimeZone TimeZone::fixed(int offset_s) {
  TimeZone zone;
  zone.rule_.standard = offset_s;
  const int minutes = std::abs(offset_s) / 60;
  zone.name_ = printed("%c%02d:%02d", offset_s < 0 ? '-' : '+', minutes / 60, minutes % 60);
  return zone;
}

TimeZone TimeZone::montreal() {
  TimeZone zone;
  parse_rule("EST5EDT,M3.2.0,M11.1.0", zone.rule_);
  zone.name_ = "America/Montreal";
  return zone;
}

bool TimeZone::parse_rule(const std::string& text, Rule& rule) {
  RuleText in{text};
  int west = 0;
  if (!in.zone_name() || !in.time(west, 24)) return false;
  rule = {};
  rule.standard = -west;
  if (in.text.empty()) return true;
  if (!in.zone_name()) return false;
  rule.has_summer = true;
  rule.summer = rule.standard + 3600;
  if (!in.text.empty() && in.text.front() != ',') {
    if (!in.time(west, 24)) return false;
    rule.summer = -west;
  }
  for (RuleDay* day : {&rule.start, &rule.end}) {
    if (!in.take(',') || !in.take('M') || !in.number(day->month, 12) || !in.take('.') ||
        !in.number(day->week, 5) || !in.take('.') || !in.number(day->weekday, 6))
      return false;
    if (day->month < 1 || day->week < 1) return false;
    if (in.take('/') && !in.time(day->time_s, 167)) return false;
  }
  return in.text.empty();
}

/// TZif, RFC 8536: the second block has 64-bit times, its footer the rule for what comes after them.
bool TimeZone::parse_file(const std::string& bytes, TimeZone& zone) {
  constexpr std::size_t kHeader = 44;
  const auto counts_at = [&](std::size_t at, std::int64_t(&counts)[6]) {
    if (bytes.size() < at + kHeader || bytes.compare(at, 4, "TZif") != 0) return false;
    for (int i = 0; i < 6; ++i) counts[i] = big_endian(bytes.data() + at + 20 + 4 * i, 4);
    return std::all_of(counts, counts + 6, [](std::int64_t n) { return n >= 0 && n < 1 << 20; });
  };
  std::int64_t n[6];  // isutc, isstd, leap, times, types, characters
  if (!counts_at(0, n) || bytes[4] < '2') return false;
  const std::size_t second =
      kHeader + static_cast<std::size_t>(n[3] * 5 + n[4] * 6 + n[5] + n[2] * 8 + n[1] + n[0]);
  if (!counts_at(second, n)) return false;
  const std::size_t times = second + kHeader, indices = times + static_cast<std::size_t>(n[3]) * 8;
  const std::size_t types = indices + static_cast<std::size_t>(n[3]);
  const std::size_t end = types + static_cast<std::size_t>(n[4] * 6 + n[5] + n[2] * 12 + n[1] + n[0]);
  if (bytes.size() < end + 2 || n[4] == 0) return false;
  const auto offset_of = [&](std::size_t type) {
    return static_cast<int>(big_endian(bytes.data() + types + type * 6, 4));
  };
  for (std::size_t i = 0; i < static_cast<std::size_t>(n[3]); ++i) {
    const auto type = static_cast<unsigned char>(bytes[indices + i]);
    if (type >= n[4]) return false;
    zone.transitions_.push_back({big_endian(bytes.data() + times + 8 * i, 8), offset_of(type)});
  }
  zone.first_offset_ = offset_of(0);
  const std::string footer = bytes.substr(end + 1, bytes.find('\n', end + 1) - end - 1);
  if (!parse_rule(footer, zone.rule_)) {
    zone.rule_ = {};
    zone.rule_.standard = zone.transitions_.empty() ? zone.first_offset_ : zone.transitions_.back().offset;
  }
  return true;
}

Result<TimeZone> TimeZone::parse(const std::string& text, const std::string& database) {
  int offset = 0;
  if (parse_offset(text, offset)) return fixed(offset);
  if (text == "America/Montreal") return montreal();
  TimeZone zone;
  zone.name_ = text;
  if (parse_rule(text, zone.rule_)) return zone;
  const Problem unknown{"time zone '" + text + "'", "is not known",
                        "a name of the tz database (Europe/Zurich), an offset (-05:00) or UTC"};
  // Names alone are taken: nothing leads out of the database's folder.
  if (text.empty() || text[0] == '/' || text.find("..") != std::string::npos) return unknown;
  const Result<std::string> bytes = read_file(std::filesystem::path(database) / text, kMiB);
  if (!bytes || !parse_file(*bytes, zone)) return unknown;
  return zone;
}

int TimeZone::rule_offset(const Rule& rule, std::int64_t utc_s) {
  if (!rule.has_summer) return rule.standard;
  const int year =
      civil_from_days((utc_s + rule.standard - (utc_s < 0 ? kDaySeconds : 0)) / kDaySeconds).year;
  const auto moment = [&](const RuleDay& day, int offset) {
    const std::int64_t first = days_from_civil({year, day.month, 1});
    std::int64_t days = first + (day.weekday - weekday_of(first) + 7) % 7 + 7 * (day.week - 1);
    const std::int64_t next_month =
        day.month == 12 ? days_from_civil({year + 1, 1, 1}) : days_from_civil({year, day.month + 1, 1});
    while (days >= next_month) days -= 7;  // week 5 is the last
    return days * kDaySeconds + day.time_s - offset;
  };
  const std::int64_t start = moment(rule.start, rule.standard), end = moment(rule.end, rule.summer);
  const bool summer = start < end ? utc_s >= start && utc_s < end : utc_s >= start || utc_s < end;
  return summer ? rule.summer : rule.standard;
}

int TimeZone::offset_at(std::int64_t utc_s) const {
  if (transitions_.empty() || utc_s >= transitions_.back().at) return rule_offset(rule_, utc_s);
  const auto after = std::upper_bound(transitions_.begin(), transitions_.end(), utc_s,
                                      [](std::int64_t at, const Transition& t) { return at < t.at; });
  return after == transitions_.begin() ? first_offset_ : std::prev(after)->offset;
}

std::int64_t TimeZone::utc_of(std::int64_t local_s, std::int64_t not_before) const {
  // The offsets a day before and after are the only ones that can hold around it.
  const int before = offset_at(local_s - kDaySeconds), after = offset_at(local_s + kDaySeconds);
  std::int64_t candidates[2] = {local_s - before, local_s - after};
  if (candidates[0] > candidates[1]) std::swap(candidates[0], candidates[1]);
  for (std::int64_t candidate : candidates) {
    if (candidate + offset_at(candidate) == local_s && candidate >= not_before) return candidate;
  }
  for (std::int64_t candidate : candidates) {
    if (candidate + offset_at(candidate) == local_s) return candidate;
  }
  return local_s - before;  // a time that the clock skipped
}

Result<TimeZone> time_zone_from(const std::string& text) {
  Result<TimeZone> zone = TimeZone::parse(text);
  if (zone) return zone;
  const Problem& problem = zone.problems().front();
  return Problem{"", "'" + text + "' " + problem.what, problem.hint};
}

}  // namespace millrace
