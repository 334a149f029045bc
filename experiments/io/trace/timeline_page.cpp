// The page that zooms: data in compact arrays, a canvas, some lines of JavaScript.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "experiments/io/trace/civil_time.h"
#include "experiments/io/trace/timeline_plot.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

constexpr std::size_t kPageColumns = 65536;

std::string base64(const std::string& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve(bytes.size() * 4 / 3 + 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t word = 0;
    const std::size_t n = std::min<std::size_t>(3, bytes.size() - i);
    for (std::size_t k = 0; k < 3; ++k)
      word = word << 8 | (k < n ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    for (std::size_t k = 0; k < 4; ++k) out += k <= n ? kDigits[word >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

/// Seven bits a byte, the lowest first.
void append_varint(std::string& out, std::uint64_t value) {
  while (value >= 128) {
    out += static_cast<char>((value & 127) | 128);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

Json table_json(const std::optional<SampleTable>& table, std::int64_t first) {
  if (!table) return {};
  Json times = Json::array(), columns = Json::object();
  for (std::int64_t time : table->times) times.push_back(static_cast<double>(time - first) / 1e9);
  for (std::size_t c = 0; c < table->columns.size(); ++c) {
    Json values = Json::array();
    for (double value : table->values[c]) values.push_back(std::isfinite(value) ? Json(value) : Json());
    columns[table->columns[c]] = std::move(values);
  }
  return Json::object({{"t", std::move(times)}, {"columns", std::move(columns)}});
}

/// Starts as steps from the one before, and lengths, in microseconds: three to six bytes an event.
Json exact_group(const TimelineGroup& group, std::int64_t first, Problems& problems) {
  std::vector<std::string> bytes(kEventNames.size());
  std::vector<std::int64_t> last(kEventNames.size()), count(kEventNames.size());
  const Result<EventCounts> counts = for_each_event(group.file, [&](const TraceEvent& event) {
    const std::int64_t start = (event.start - first) / 1000;
    append_varint(bytes[event.type],
                  static_cast<std::uint64_t>(std::max<std::int64_t>(0, start - last[event.type])));
    append_varint(bytes[event.type], static_cast<std::uint64_t>((event.end - event.start) / 1000));
    last[event.type] = std::max(last[event.type], start);
    ++count[event.type];
  });
  if (!counts) append(problems, counts.problems());
  Json types = Json::array();
  for (std::size_t t = 0; t < bytes.size(); ++t)
    types.push_back(Json::object({{"n", count[t]}, {"e", base64(bytes[t])}}));
  return types;
}

/// Shares of columns as bytes.
Json coarse_group(const TimelineGroup& group, const TimeExtent& extent, Problems& problems) {
  const auto columns = group_columns({group}, {"", extent.first, extent.last}, kPageColumns);
  if (!columns) return append(problems, columns.problems()), Json();
  Json types = Json::array();
  for (std::size_t t = 0; t < kEventNames.size(); ++t) {
    std::string bytes;
    for (float share : (*columns)[0].busy[t])
      bytes += static_cast<char>(share <= 0 ? 0 : std::clamp(static_cast<int>(share * 255), 1, 255));
    types.push_back(Json::object({{"n", (*columns)[0].events[t]}, {"c", base64(bytes)}}));
  }
  return types;
}

/// Inside <script>, "</" must not occur.
std::string script_text(const Json& json) {
  std::string text = json.dump(), out;
  for (char c : text) out += c == '<' ? std::string("\\u003c") : std::string(1, c);
  return out;
}

constexpr std::string_view kPage =
#include <embedded/experiments/io/trace/timeline_page.html>
    ;

}  // namespace

Result<std::string> timeline_page(const Timeline& timeline, const std::vector<TimelineGroup>& groups,
                                  const TimeExtent& extent, const std::string& title,
                                  std::int64_t most_events) {
  Problems problems;
  std::int64_t events = 0;
  for (const TimelineGroup& group : groups) {
    const Result<EventCounts> counts = for_each_event(group.file, [](const TraceEvent&) {});
    if (!counts) return counts.problems();
    events += counts->events;
  }
  const bool exact = events <= most_events;
  const auto seconds = [&](std::int64_t time) { return static_cast<double>(time - extent.first) / 1e9; };
  Json phases = Json::array(), list = Json::array();
  for (const PhaseSpan& span : timeline.phases) {
    Json one = Json::array();
    one.push_back(seconds(span.start));
    one.push_back(seconds(span.end));
    one.push_back(kPhaseNames[static_cast<std::size_t>(span.phase)]);
    phases.push_back(std::move(one));
  }
  for (const TimelineGroup& group : groups) {
    Json types = exact ? exact_group(group, extent.first, problems) : coarse_group(group, extent, problems);
    list.push_back(Json::object({{"title", group.title}, {"types", std::move(types)}}));
  }
  if (!problems.empty()) return problems;
  const Json data = Json::object({{"title", title.empty() ? std::string("Timeline") : title},
                                  {"start", iso_text(extent.first, 0)},
                                  {"length", seconds(extent.last)},
                                  {"events", events},
                                  {"exact", exact},
                                  {"columns", static_cast<std::int64_t>(kPageColumns)},
                                  {"phases", std::move(phases)},
                                  {"cpu", table_json(timeline.cpu, extent.first)},
                                  {"gpu", table_json(timeline.gpu, extent.first)},
                                  {"disk", table_json(timeline.disk, extent.first)},
                                  {"groups", std::move(list)}});
  constexpr std::string_view kPlace = "@DATA@";
  constexpr std::size_t kAt = kPage.find(kPlace);
  return std::string(kPage.substr(0, kAt)) + script_text(data) +
         std::string(kPage.substr(kAt + kPlace.size()));
}

}  // namespace millrace
