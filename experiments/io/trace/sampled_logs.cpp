#include "experiments/io/trace/sampled_logs.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "experiments/io/trace/civil_time.h"
#include "experiments/io/trace/json_objects.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

/// "-" stands for nothing measured.
std::optional<int> measured(std::string_view text) {
  return text == "-" ? std::optional(0) : number_of<int>(text);
}

Problem nothing_in(const std::string& name, const std::string& what, const std::string& hint) {
  return Problem{name, what, hint};
}

/// More damaged rows than good ones: another format, not damage.
std::optional<Problem> distrust(const Dropped& dropped, std::size_t good, const std::string& name) {
  const auto damaged = dropped.find("damaged rows");
  if (damaged == dropped.end() || static_cast<std::size_t>(damaged->second) <= good) return std::nullopt;
  return Problem{
      name, std::to_string(damaged->second) + " rows cannot be read, only " + std::to_string(good) + " can",
      "is it what the kit's tracer writes?"};
}

class Pmon {
 public:
  Pmon(std::string_view text, const std::string& name) : rest_(text), name_(name) {}

  Result<GpuLog> read() {
    bool whole = true;
    while (!rest_.empty()) {
      const std::string_view line = next_line(rest_, whole);
      std::vector<std::string_view> words = words_of(line);
      if (words.empty()) continue;
      if (words[0].front() == '#') {
        if (words[0] == "#Date" && !header(words))
          return nothing_in(name_, "has no column for one of: gpu, pid, type, sm, mem, enc, dec, fb, command",
                            "trace with nvidia-smi pmon -s um -o DT");
        continue;
      }
      if (columns_.empty())
        return nothing_in(name_, "does not begin with pmon's header (#Date Time gpu ...)", "");
      if (!whole) {
        ++log_.dropped["a last row that is cut off"];
      } else if (!row(words)) {
        ++log_.dropped["damaged rows"];
      }
    }
    if (const std::optional<Problem> bad = distrust(log_.dropped, static_cast<std::size_t>(log_.rows), name_))
      return *bad;
    if (log_.rows == 0)
      return nothing_in(name_, "holds no sample", "the date of the run is in it: it must not be empty");
    return std::move(log_);
  }

 private:
  enum Column { Gpu, Pid, Type, Sm, Memory, Encoder, Decoder, Framebuffer, Command, kColumns };

  bool header(const std::vector<std::string_view>& words) {
    static constexpr std::string_view kNames[kColumns] = {"gpu", "pid", "type", "sm",     "mem",
                                                          "enc", "dec", "fb",   "command"};
    columns_.assign(kColumns, 0);
    for (std::size_t c = 0; c < kColumns; ++c) {
      const auto found = std::find(words.begin(), words.end(), kNames[c]);
      if (found == words.end()) return false;
      columns_[c] = static_cast<std::size_t>(found - words.begin());
    }
    width_ = words.size();
    return true;
  }

  bool row(const std::vector<std::string_view>& words) {
    if (words.size() < width_) return false;
    const std::optional<std::int64_t> date = parse_date(words[0]);
    const std::optional<std::int64_t> time = parse_time_of_day(words[1]);
    const std::optional<int> gpu = number_of<int>(words[columns_[Gpu]]);
    if (!date || !time || !gpu || *gpu < 0 || *gpu > 4096) return false;
    GpuSample sample{.local = *date * kDaySeconds + *time, .gpu = *gpu};
    const std::string_view pid = words[columns_[Pid]];
    if (pid != "-") {
      const std::optional<std::uint32_t> number = number_of<std::uint32_t>(pid);
      const std::optional<int> values[] = {measured(words[columns_[Sm]]), measured(words[columns_[Memory]]),
                                           measured(words[columns_[Encoder]]),
                                           measured(words[columns_[Decoder]]),
                                           measured(words[columns_[Framebuffer]])};
      if (!number ||
          !std::all_of(std::begin(values), std::end(values), [](auto& v) { return v.has_value(); }))
        return false;
      sample.pid = *number;
      sample.type = words[columns_[Type]].front();
      sample.sm = *values[0], sample.memory = *values[1], sample.encoder = *values[2];
      sample.decoder = *values[3], sample.framebuffer_mb = *values[4];
      const std::string_view command = words[columns_[Command]];
      sample.command.assign(command.data(), static_cast<std::size_t>(words.back().end() - command.begin()));
    }
    take(std::move(sample), pid != "-");
    return true;
  }

  void take(GpuSample sample, bool has_process) {
    if (log_.rows++ == 0) log_.first = log_.last = sample.local;
    log_.first = std::min(log_.first, sample.local);
    log_.last = std::max(log_.last, sample.local);
    if (!has_process) return;
    // A row is repeated if it has the same process on the same GPU in the same second.
    if (sample.local != second_) seen_.clear(), second_ = sample.local;
    if (!seen_.insert({sample.gpu, sample.pid}).second) {
      ++log_.dropped["repeated rows"];
      return;
    }
    log_.samples.push_back(std::move(sample));
  }

  std::string_view rest_;
  const std::string& name_;
  GpuLog log_;
  std::vector<std::size_t> columns_;
  std::size_t width_ = 0;
  LocalSecond second_ = INT64_MIN;
  std::set<std::pair<int, std::uint32_t>> seen_;
};

}  // namespace

LocalSecond nearest_local(std::int64_t time_of_day, LocalSecond near) {
  const std::int64_t day = near / kDaySeconds;
  LocalSecond best = day * kDaySeconds + time_of_day;
  if (best - near > kDaySeconds / 2) best -= kDaySeconds;
  if (near - best > kDaySeconds / 2) best += kDaySeconds;
  return best;
}

Result<GpuLog> read_pmon(std::string_view text, const std::string& name) {
  return Pmon(text, name).read();
}

GpuProcesses gpu_processes(const GpuLog& log, const std::set<std::uint32_t>& reads) {
  GpuProcesses result;
  std::map<std::pair<LocalSecond, int>, std::vector<std::uint32_t>> together;
  for (const GpuSample& sample : log.samples) together[{sample.local, sample.gpu}].push_back(sample.pid);
  for (const auto& [place, pids] : together) {
    const auto reader =
        std::find_if(pids.begin(), pids.end(), [&](auto pid) { return reads.count(pid) != 0; });
    const std::uint32_t owner = reader == pids.end() ? pids.front() : *reader;
    for (std::uint32_t pid : pids) (pid == owner ? result.kept : result.ignored).insert(pid);
  }
  for (std::uint32_t pid : result.ignored) result.kept.erase(pid);
  return result;
}

Result<CpuLog> read_mpstat(std::string_view text, LocalSecond near, const std::string& name) {
  CpuLog log;
  std::vector<std::size_t> columns;
  std::size_t cpu_column = 0, width = 0;
  std::optional<LocalSecond> previous;
  bool whole = true;
  while (!text.empty()) {
    const std::vector<std::string_view> words = words_of(next_line(text, whole));
    if (words.size() < 2 || words[0] == "Linux" || words[0] == "Average:") continue;
    const bool half_day = words[1] == "AM" || words[1] == "PM";
    const auto cpu = std::find(words.begin(), words.end(), "CPU");
    if (cpu != words.end()) {
      columns.clear();
      cpu_column = static_cast<std::size_t>(cpu - words.begin());
      width = words.size();
      for (const char* wanted : kCpuColumns) {
        const auto found = std::find(words.begin(), words.end(), wanted);
        if (found == words.end())
          return nothing_in(name, std::string("has no column ") + wanted,
                            "trace with mpstat 1 of sysstat 10 or later");
        columns.push_back(static_cast<std::size_t>(found - words.begin()));
      }
      continue;
    }
    if (!whole) {
      ++log.dropped["a last row that is cut off"];
      continue;
    }
    const std::optional<std::int64_t> time =
        parse_time_of_day(words[0], half_day ? words[1] : std::string_view{});
    CpuSample sample;
    bool good = time && !columns.empty() && words.size() == width;
    for (std::size_t c = 0; good && c < columns.size(); ++c) {
      good = number_of<double>(words[columns[c]]).has_value();
      sample.values.emplace_back(words[columns[c]]);
    }
    if (!good) {
      ++log.dropped["damaged rows"];
      continue;
    }
    if (words[cpu_column] != "all") {
      ++log.dropped["rows of single CPUs"];
      continue;
    }
    // Past midnight the time of day starts again: the day is the one nearest to the row before.
    sample.local = nearest_local(*time, previous.value_or(near));
    previous = sample.local;
    log.samples.push_back(std::move(sample));
  }
  if (const std::optional<Problem> bad = distrust(log.dropped, log.samples.size(), name)) return *bad;
  if (log.samples.empty()) return nothing_in(name, "holds no sample of all CPUs", "trace with mpstat 1");
  return log;
}

namespace {

/// "2023-02-11 08:11:19 AM", "2023-02-11T08:11:19+0100", "02/11/2023 08:11:19".
std::optional<LocalSecond> iostat_time(const std::string& text) {
  const std::vector<std::string_view> words = words_of(text);
  if (words.size() >= 2 && words.size() <= 3) {
    const std::optional<std::int64_t> date = parse_date(words[0]);
    const std::optional<std::int64_t> time =
        parse_time_of_day(words[1], words.size() == 3 ? words[2] : std::string_view{});
    if (date && time) return *date * kDaySeconds + *time;
    return std::nullopt;
  }
  const std::optional<std::int64_t> iso = parse_iso(text.substr(0, 19));
  return iso ? std::optional(*iso / kSecond) : std::nullopt;
}

std::string csv_value(const Json& value) {
  if (value.is_string()) return value.as_string();
  if (value.kind() == Json::Kind::Int) return std::to_string(value.as_int());
  return value.is_number() ? python_number(value.as_double()) : "";
}

void take_disks(const Json& sample, DiskLog& log) {
  const Json* stamp = sample.find("timestamp");
  const Json* disks = sample.find("disk");
  const std::optional<LocalSecond> local =
      stamp && stamp->is_string() ? iostat_time(stamp->as_string()) : std::nullopt;
  if (!local || !disks || !disks->is_array()) {
    ++log.dropped["damaged rows"];
    return;
  }
  for (const Json& disk : disks->items()) {
    if (!disk.is_object()) continue;
    if (log.columns.empty()) {
      for (const auto& [key, value] : disk.members()) log.columns.push_back(key);
    }
    DiskLog::Row row{*local, {}};
    for (const std::string& column : log.columns) {
      const Json* value = disk.find(column);
      row.values.push_back(value ? csv_value(*value) : "");
    }
    log.rows.push_back(std::move(row));
  }
}

}  // namespace

Result<DiskLog> read_iostat(std::string_view text, const std::string& name) {
  const std::size_t key = text.find("\"statistics\"");
  if (key == std::string_view::npos)
    return nothing_in(name, "has no \"statistics\"", "trace with iostat -mdxty -o JSON 1");
  DiskLog log;
  // One sample after the other: the file has no end if iostat was killed.
  JsonObjects samples(text.substr(key));
  while (const std::optional<std::string_view> object = samples.next()) {
    const Result<Json> sample = parse_json(*object, name);
    if (sample) {
      take_disks(*sample, log);
    } else {
      ++log.dropped["damaged rows"];
    }
  }
  if (samples.cut_off()) ++log.dropped["a last sample that is cut off"];
  if (const std::optional<Problem> bad = distrust(log.dropped, log.rows.size(), name)) return *bad;
  if (log.rows.empty())
    return nothing_in(name, "holds no sample of a disk", "trace with iostat -mdxty -o JSON 1");
  return log;
}

std::string python_number(double value) {
  char text[40];
  const double size = std::abs(value);
  // Python switches to exponents below 1e-4 and from 1e16 on.
  const bool plain = value == 0 || (size >= 1e-4 && size < 1e16);
  const auto [end, error] = std::to_chars(text, text + sizeof text, value,
                                          plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string result(text, end);
  if (plain && std::isfinite(value) && result.find('.') == std::string::npos) result += ".0";
  return result;
}

namespace {

/// Calls `take(sample, utc seconds)` for the samples from `from` on; the others are counted.
template <class Samples, class Take>
void in_utc(const Samples& samples, const TimeZone& zone, std::int64_t from, Dropped* dropped, Take take) {
  std::int64_t previous = INT64_MIN;
  for (const auto& sample : samples) {
    const std::int64_t utc = zone.utc_of(sample.local, previous);
    previous = utc;
    if (utc * kSecond < from) {
      if (dropped) ++(*dropped)["rows before the start of INIT"];
      continue;
    }
    take(sample, utc);
  }
}

/// A mean of whole numbers as Python's statistics.mean gives it: whole if it is.
std::string mean_text(std::int64_t sum, std::int64_t count) {
  if (sum % count == 0) return std::to_string(sum / count);
  return python_number(static_cast<double>(sum) / static_cast<double>(count));
}

}  // namespace

std::string gpu_out(const GpuLog& log, const GpuProcesses& processes, const TimeZone& zone, std::int64_t from,
                    Dropped& dropped) {
  std::string text;
  in_utc(log.samples, zone, from, &dropped, [&](const GpuSample& s, std::int64_t utc) {
    if (processes.kept.count(s.pid) == 0) {
      ++dropped["rows of processes that are not the run's"];
      return;
    }
    text +=
        iso_text(utc * kSecond, 0) + " " + std::to_string(s.gpu) + " " + std::to_string(s.pid) + " " + s.type;
    for (int value : {s.sm, s.memory, s.encoder, s.decoder, s.framebuffer_mb})
      text += " " + std::to_string(value);
    text += " " + s.command + "\n";
  });
  return text;
}

std::string gpu_csv(const GpuLog& log, const GpuProcesses& processes, const TimeZone& zone,
                    std::int64_t from) {
  struct Sum {
    std::int64_t count = 0, sm = 0, memory = 0, framebuffer = 0;
  };
  std::map<std::int64_t, Sum> seconds;  // by UTC second: GPUs may start at different times
  in_utc(log.samples, zone, from, nullptr, [&](const GpuSample& s, std::int64_t utc) {
    if (processes.kept.count(s.pid) == 0) return;
    Sum& sum = seconds[utc];
    ++sum.count;
    sum.sm += s.sm;
    sum.memory += s.memory;
    sum.framebuffer += s.framebuffer_mb;
  });
  std::string text = "timestamp,sm,mem,fb\n";
  for (const auto& [utc, sum] : seconds) {
    text += iso_text(utc * kSecond, 0);
    for (std::int64_t total : {sum.sm, sum.memory, sum.framebuffer})
      text += "," + mean_text(total, sum.count);
    text += "\n";
  }
  return text;
}

namespace {

std::string cpu_rows(const CpuLog& log, const TimeZone& zone, std::int64_t from, char separator,
                     Dropped* dropped) {
  std::string text;
  in_utc(log.samples, zone, from, dropped, [&](const CpuSample& sample, std::int64_t utc) {
    text += iso_text(utc * kSecond, 0);
    for (const std::string& value : sample.values) (text += separator) += value;
    text += "\n";
  });
  return text;
}

}  // namespace

std::string cpu_out(const CpuLog& log, const TimeZone& zone, std::int64_t from, Dropped& dropped) {
  return cpu_rows(log, zone, from, ' ', &dropped);
}

std::string cpu_csv(const CpuLog& log, const TimeZone& zone, std::int64_t from) {
  std::string header = "timestamp";
  for (const char* column : kCpuColumns) header.append(",").append(column);
  return header + "\n" + cpu_rows(log, zone, from, ',', nullptr);
}

std::string iostat_csv(const DiskLog& log, const TimeZone& zone) {
  std::string text = "timestamp";
  for (const std::string& column : log.columns) text += "," + column;
  text += "\n";
  in_utc(log.rows, zone, INT64_MIN, nullptr, [&](const DiskLog::Row& row, std::int64_t utc) {
    text += iso_text(utc * kSecond, 0);
    for (const std::string& value : row.values) text += "," + value;
    text += "\n";
  });
  return text;
}

}  // namespace millrace
