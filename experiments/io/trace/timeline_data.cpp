#include "experiments/io/trace/timeline_data.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>

#include "experiments/io/trace/civil_time.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kStampLength = 29;

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  while (true) {
    const std::size_t comma = line.find(',');
    cells.push_back(line.substr(0, comma));
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

Result<SampleTable> read_samples(const fs::path& path, Dropped& dropped) {
  const Result<std::string> text = read_file(path, 2 * kGiB);
  if (!text) return text.problems();
  SampleTable table;
  std::string_view rest = *text;
  bool whole = true;
  const std::vector<std::string_view> header = cells_of(next_line(rest, whole));
  if (header.empty() || header[0] != "timestamp")
    return Problem{path.string(), "does not begin with the column timestamp", ""};
  for (std::size_t c = 1; c < header.size(); ++c) table.columns.emplace_back(header[c]);
  table.values.resize(table.columns.size());
  while (!rest.empty()) {
    const std::vector<std::string_view> cells = cells_of(next_line(rest, whole));
    const std::optional<std::int64_t> time = parse_iso(cells[0]);
    if (!time || cells.size() != header.size()) {
      if (cells.size() > 1 || !cells[0].empty()) ++dropped["damaged samples"];
      continue;
    }
    table.times.push_back(*time);
    for (std::size_t c = 1; c < cells.size(); ++c)
      table.values[c - 1].push_back(number_of<double>(cells[c]).value_or(std::nan("")));
  }
  return table;
}

/// Several disks at one time become one row: MB/s read and written together.
SampleTable summed_disks(const SampleTable& disks) {
  SampleTable sums{.columns = {"read MB/s", "written MB/s"}};
  sums.values.resize(2);
  const auto rate = [&](const char* megabytes, const char* kilobytes, std::size_t row) {
    if (const auto* values = disks.column(megabytes)) return (*values)[row];
    const auto* values = disks.column(kilobytes);
    return values ? (*values)[row] / 1e3 : std::nan("");
  };
  for (std::size_t row = 0; row < disks.times.size(); ++row) {
    if (sums.times.empty() || sums.times.back() != disks.times[row]) {
      sums.times.push_back(disks.times[row]);
      for (auto& values : sums.values) values.push_back(0);
    }
    const double read = rate("rMB/s", "rkB/s", row), written = rate("wMB/s", "wkB/s", row);
    if (std::isfinite(read)) sums.values[0].back() += read;
    if (std::isfinite(written)) sums.values[1].back() += written;
  }
  return sums;
}

/// The shares of mpstat in groups that add up to 100 %: no time of a core is left out. A column that the file
/// lacks counts as nothing.
SampleTable grouped_cpu(const SampleTable& cpu) {
  const std::pair<const char*, std::vector<const char*>> groups[] = {
      {"user", {"%usr", "%nice", "%guest", "%gnice"}},
      {"system", {"%sys", "%irq", "%soft"}},
      {"I/O wait", {"%iowait"}},
      {"stolen", {"%steal"}},
      {"idle", {"%idle"}}};
  SampleTable sums{.columns = {}, .times = cpu.times, .values = {}};
  for (const auto& [name, parts] : groups) {
    std::vector<double> sum;
    for (const char* part : parts) {
      const std::vector<double>* values = cpu.column(part);
      if (values && sum.empty()) sum.assign(values->size(), 0);
      for (std::size_t row = 0; values && row < values->size(); ++row) sum[row] += (*values)[row];
    }
    if (sum.empty()) continue;
    sums.columns.emplace_back(name);
    sums.values.push_back(std::move(sum));
  }
  return sums;
}

/// worker_2 before worker_10, workers before loaders.
bool group_order(const TimelineGroup& a, const TimelineGroup& b) {
  const auto key = [](const TimelineGroup& group) {
    const std::string name = fs::path(group.file).stem().string();
    const std::size_t digits = name.find_last_not_of("0123456789") + 1;
    const std::int64_t number = number_of<std::int64_t>(std::string_view(name).substr(digits)).value_or(0);
    return std::tuple(!name.starts_with("parent"), number, name);
  };
  return key(a) < key(b);
}

class TimelineReader {
 public:
  explicit TimelineReader(const std::string& folder) : folder_(folder) {
    std::error_code error;
    if (fs::is_directory(folder_ / "timeline", error)) folder_ /= "timeline";
  }

  Result<Timeline> read() {
    timeline_.folder = folder_.string();
    std::error_code error;
    if (!fs::exists(folder_ / "timeline.csv", error))
      return Problem{folder_.string(), "has no timeline.csv",
                     "give the folder that `millrace trace preprocess` wrote"};
    const Result<std::string> phases = read_file(folder_ / "timeline.csv", kGiB);
    if (!phases) return phases.problems();
    timeline_.phases = read_phases(*phases, dropped_);
    if (std::optional<SampleTable> cpu = samples("cpu_all.csv")) timeline_.cpu = grouped_cpu(*cpu);
    timeline_.gpu = samples("gpu_avg.csv");
    if (std::optional<SampleTable> disks = samples("iostat.csv")) timeline_.disk = summed_disks(*disks);
    read_layouts();
    if (!problems_.empty()) return problems_;
    if (timeline_.phases.empty() && timeline_.layouts.empty())
      return Problem{folder_.string(), "has neither phases nor events", "was it preprocessed whole?"};
    for (const auto& [why, count] : dropped_)
      timeline_.notes.push_back(std::to_string(count) + " " + why + " left out");
    return std::move(timeline_);
  }

 private:
  std::optional<SampleTable> samples(const char* name) {
    std::error_code error;
    if (!fs::exists(folder_ / name, error)) {
      timeline_.notes.push_back(std::string(name) + " is missing: its panel is left out");
      return std::nullopt;
    }
    Result<SampleTable> table = read_samples(folder_ / name, dropped_);
    if (!table) {
      append(problems_, table.problems());
      return std::nullopt;
    }
    if (table->times.empty()) {
      timeline_.notes.push_back(std::string(name) + " has no sample: its panel is left out");
      return std::nullopt;
    }
    return std::move(*table);
  }

  void read_layouts() {
    std::error_code error;
    for (const fs::directory_entry& layout : fs::directory_iterator(folder_ / "pid", error)) {
      const Result<Json> info = read_json((layout.path() / "plotting_info.json").string());
      if (!info || !info->is_object()) {
        timeline_.notes.push_back(layout.path().string() + " has no plotting_info.json: left out");
        continue;
      }
      std::vector<TimelineGroup> groups;
      for (const auto& [file, title] : info->members()) {
        const fs::path path = layout.path() / fs::path(file).filename();
        if (!fs::exists(path, error)) {
          timeline_.notes.push_back(path.string() + " is missing: its panel is left out");
          continue;
        }
        groups.push_back({path.string(), title.is_string() ? title.as_string() : file});
      }
      std::sort(groups.begin(), groups.end(), group_order);
      if (!groups.empty())
        timeline_.layouts.emplace_back(layout.path().filename().string(), std::move(groups));
    }
    std::sort(timeline_.layouts.begin(), timeline_.layouts.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
  }

  fs::path folder_;
  Timeline timeline_;
  Dropped dropped_;
  Problems problems_;
};

/// Stamps of consecutive rows mostly share their second.
class StampParser {
 public:
  bool parse(const char* text, std::int64_t& ns) {
    if (std::string_view(text, 20) != std::string_view(known_, 20)) {
      const std::optional<std::int64_t> second = parse_iso({text, 19});
      if (!second || text[19] != '.') return false;
      second_ = *second;
      std::copy(text, text + 20, known_);
    }
    std::int64_t fraction = 0;
    for (int i = 20; i < 29; ++i) {
      if (text[i] < '0' || text[i] > '9') return false;
      fraction = fraction * 10 + (text[i] - '0');
    }
    ns = second_ + fraction;
    return true;
  }

 private:
  char known_[20] = {};
  std::int64_t second_ = 0;
};

struct EventParser {
  StampParser start, end;
  bool parse(std::string_view line, TraceEvent& event) {
    if (line.size() < 2 * kStampLength + 3 || line[kStampLength] != ',' || line[2 * kStampLength + 1] != ',')
      return false;
    if (!start.parse(line.data(), event.start) || !end.parse(line.data() + kStampLength + 1, event.end))
      return false;
    if (event.end < event.start) return false;
    const std::string_view name = line.substr(2 * kStampLength + 2);
    for (std::size_t t = 0; t < kEventNames.size(); ++t) {
      if (name == kEventNames[t]) return event.type = static_cast<std::uint8_t>(t), true;
    }
    return false;
  }
};

}  // namespace

const std::vector<double>* SampleTable::column(const std::string& name) const {
  const auto found = std::find(columns.begin(), columns.end(), name);
  return found == columns.end() ? nullptr : &values[found - columns.begin()];
}

const std::vector<TimelineGroup>* Timeline::layout(const std::string& name) const {
  for (const auto& [known, groups] : layouts) {
    if (known == name) return &groups;
  }
  return nullptr;
}

Result<Timeline> read_timeline(const std::string& folder) {
  return TimelineReader(folder).read();
}

bool parse_event(std::string_view line, TraceEvent& event) {
  return EventParser().parse(line, event);
}

Result<EventCounts> for_each_event(const std::string& file,
                                   const std::function<void(const TraceEvent&)>& take) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(file.c_str(), "rb"), &std::fclose);
  if (!in) return Problem{file, "cannot be read", ""};
  EventCounts counts;
  EventParser parser;
  std::string buffer;
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  bool end = false;
  while (!end) {
    const std::size_t had = buffer.size();
    buffer.resize(had + kPiece);
    const std::size_t got = std::fread(buffer.data() + had, 1, kPiece, in.get());
    buffer.resize(had + got);
    end = got == 0;
    std::string_view rest = buffer;
    while (!rest.empty() && (end || rest.find('\n') != std::string_view::npos)) {
      bool whole = true;
      const std::string_view line = next_line(rest, whole);
      TraceEvent event;
      if (line.empty()) continue;
      if (whole && parser.parse(line, event)) {
        ++counts.events;
        take(event);
      } else {
        ++counts.damaged;
      }
    }
    buffer.erase(0, buffer.size() - rest.size());
    if (buffer.size() > kPiece) return Problem{file, "is no file of events", "is it damaged?"};
  }
  if (counts.damaged > counts.events)
    return Problem{file, std::to_string(counts.damaged) + " of its rows are no events", "is it damaged?"};
  return counts;
}

std::vector<PhaseSpan> read_phases(std::string_view csv, Dropped& dropped) {
  std::vector<PhaseSpan> phases;
  bool whole = true;
  while (!csv.empty()) {
    const std::string_view line = next_line(csv, whole);
    if (line.empty()) continue;
    const std::vector<std::string_view> cells = cells_of(line);
    const std::optional<std::int64_t> start = parse_iso(cells[0]);
    const std::optional<std::int64_t> end = cells.size() == 3 ? parse_iso(cells[1]) : std::nullopt;
    bool known = false;
    for (std::size_t p = 0; start && end && *end >= *start && p < kPhaseNames.size(); ++p) {
      if (cells[2] != kPhaseNames[p]) continue;
      phases.push_back({*start, *end, static_cast<Phase>(p)});
      known = true;
    }
    if (!known) ++dropped["damaged phases"];
  }
  return phases;
}

}  // namespace millrace
