#include "experiments/report/counters_card.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "experiments/drawing/figures.h"
#include "experiments/drawing/html_page.h"
#include "experiments/drawing/svg_chart.h"
#include "experiments/runs/run_counters.h"
#include "runtime/base/text.h"
#include "runtime/drawing/svg.h"

namespace millrace {
namespace {

constexpr std::size_t kMostHosts = 4, kMostLines = 6, kMostEpochs = 40;
constexpr double kMega = 1e6, kMebi = 1 << 20;
const char* const kColours[] = {"#3b82c4", "#d9822b", "#3f9a6b", "#b3548f", "#7a6fd0", "#8b7355"};

using Points = std::vector<std::pair<double, double>>;
using Value = std::function<double(std::size_t)>;  // of the n-th moment

/// Returns the growth of a counter in a second, between each two moments.
Points rate(const ProcessCounters& of, std::int64_t origin_ns, const Value& count, double scale) {
  Points points;
  for (std::size_t i = 1; i < of.unix_ns.size(); ++i) {
    const double seconds = static_cast<double>(of.unix_ns[i] - of.unix_ns[i - 1]) * 1e-9;
    const double grown = count(i) - count(i - 1);
    if (seconds > 0 && grown >= 0)  // a device that came back begins at 0
      points.emplace_back(static_cast<double>(of.unix_ns[i] - origin_ns) * 1e-9, grown / seconds * scale);
  }
  return points;
}

Points level(const ProcessCounters& of, std::int64_t origin_ns, const Value& value) {
  Points points;
  for (std::size_t i = 0; i < of.unix_ns.size(); ++i)
    if (!std::isnan(value(i)))
      points.emplace_back(static_cast<double>(of.unix_ns[i] - origin_ns) * 1e-9, value(i));
  return points;
}

Value value_of(const ProcessCounters& of, const std::string& name) {
  const std::vector<double>* column = of.find(name);
  return [column](std::size_t i) { return column ? (*column)[i] : NAN; };
}

Value sum_of(const ProcessCounters& of, const std::string& begin) {
  std::vector<const std::vector<double>*> columns;
  for (const std::string& one : of.between(begin, "")) columns.push_back(of.find(begin + one));
  return [columns](std::size_t i) {
    double sum = columns.empty() ? NAN : 0;
    for (const auto* column : columns) sum += (*column)[i];
    return sum;
  };
}

double most(const Points& points) {
  double most = 0;
  for (const auto& [x, y] : points) most = std::max(most, y);
  return most;
}

/// Lines of a chart; one that is 0 throughout says nothing and is left out, as are the lower of many.
class Lines {
 public:
  void add(const std::string& name, Points points, Series::Style style = Series::Style::Line) {
    if (!points.empty() && most(points) > 0) series_.push_back({name, "", std::move(points), style});
  }
  std::string chart(const std::string& title, const std::string& unit) {
    if (series_.empty()) return "";
    std::ranges::stable_sort(series_, std::greater(), [](const Series& s) { return most(s.points); });
    const std::size_t left_out = series_.size() - std::min(series_.size(), kMostLines);
    series_.resize(series_.size() - left_out);
    for (std::size_t i = 0; i < series_.size(); ++i) series_[i].colour = kColours[i];
    std::string heading = title;
    if (left_out > 0) heading += ", the highest " + std::to_string(kMostLines);
    return "<div>" +
           line_chart_svg({.title = heading, .x_label = "seconds", .y_label = unit, .y_from_zero = true},
                          series_) +
           "</div>";
  }

 private:
  std::vector<Series> series_;
};

std::string name_of(const ProcessCounters& process) {
  if (process.ranks <= 1) return "rank " + std::to_string(process.rank);
  return "ranks " + std::to_string(process.rank) + " to " + std::to_string(process.rank + process.ranks - 1);
}

class Card {
 public:
  explicit Card(const RunData& run) : run_(run), all_(read_counters(run.folder)) {
    std::erase_if(all_, [](const ProcessCounters& process) { return process.unix_ns.empty(); });
    for (const ProcessCounters& process : all_) {
      origin_ns_ = origin_ns_ == 0 ? process.unix_ns.front() : std::min(origin_ns_, process.unix_ns.front());
      end_ns_ = std::max(end_ns_, process.unix_ns.back());
      if (std::ranges::find(hosts_, process.host) == hosts_.end()) hosts_.push_back(process.host);
    }
  }

  std::string html() const {
    if (all_.empty()) return "";
    std::string content;
    for (std::size_t h = 0; h < std::min(hosts_.size(), kMostHosts); ++h) content += host_html(hosts_[h]);
    if (hosts_.size() > kMostHosts)
      content += "<p class=\"lead\">" + std::to_string(hosts_.size() - kMostHosts) +
                 " more hosts are in the run's files, and are not drawn.</p>";
    return html_card("Counters",
                     "What the processes and their hosts counted while the run went on. Other programs of a "
                     "host are in its lines too.",
                     content + epochs_html() + cache_html() + notes_html());
  }

 private:
  std::string host_html(const std::string& host) const {
    Lines cores, memory, disks, latency, networks, gpus;
    const auto points_of = [&](const ProcessCounters& p, const std::string& name, double scale) {
      return rate(p, origin_ns_, value_of(p, name), scale);
    };
    for (const ProcessCounters& p : all_) {
      if (p.host != host) continue;
      cores.add(name_of(p), points_of(p, "process.cpu_s", 1));
      memory.add(name_of(p),
                 level(p, origin_ns_, [value = value_of(p, "process.resident_bytes")](std::size_t i) {
                   return value(i) / kMebi;
                 }));
      disks.add(name_of(p) + " reads", points_of(p, "process.read_from_disk_bytes", 1 / kMega));
      disks.add(name_of(p) + " writes", points_of(p, "process.written_to_disk_bytes", 1 / kMega));
      if (!p.of_host) continue;
      cores.add("host", rate(p, origin_ns_, sum_of(p, "cores.busy_s."), 1));
      cores.add("waiting for disks", rate(p, origin_ns_, sum_of(p, "cores.io_wait_s."), 1),
                Series::Style::Dashed);
      memory.add("host, in use", level(p, origin_ns_,
                                       [total = value_of(p, "memory.total_bytes"),
                                        available = value_of(p, "memory.available_bytes")](std::size_t i) {
                                         return (total(i) - available(i)) / kMebi;
                                       }));
      for (const std::string& disk : p.between("disks.", ".reads")) {
        const std::string begin = "disks." + disk + ".";
        disks.add(disk + " read", points_of(p, begin + "read_bytes", 1 / kMega), Series::Style::Dashed);
        disks.add(disk + " written", points_of(p, begin + "written_bytes", 1 / kMega), Series::Style::Dashed);
        for (const auto& [time, count, word] :
             {std::tuple{"read_ms", "reads", " read"}, std::tuple{"write_ms", "writes", " write"}})
          latency.add(disk + word, quotient(p, begin + time, begin + count));
      }
      for (const std::string& network : p.between("networks.", ".sent_bytes")) {
        const std::string begin = "networks." + network + ".";
        networks.add(network + " sent", points_of(p, begin + "sent_bytes", 1 / kMega));
        networks.add(network + " received", points_of(p, begin + "received_bytes", 1 / kMega),
                     Series::Style::Dashed);
      }
      for (const char* field : {"gpu_utilization", "memory_utilization"})
        gpus.add(field, level(p, origin_ns_, value_of(p, std::string("gpus.") + field)));
    }
    return (hosts_.size() > 1 ? "<h3>" + escape_xml(host) + "</h3>" : std::string()) +
           "<div class=\"pair\">" + cores.chart("Processors", "cores") + memory.chart("Memory", "MiB") +
           disks.chart("Disks", "MB/s") + latency.chart("Time of a disk's request", "ms") +
           networks.chart("Networks", "MB/s") + gpus.chart("GPUs", "%") + "</div>";
  }

  /// Returns the growth of `time` over that of `count`, between each two moments; 0 where `count` stands
  /// still.
  Points quotient(const ProcessCounters& p, const std::string& time, const std::string& count) const {
    const Value times = value_of(p, time), counts = value_of(p, count);
    Points points;
    for (std::size_t i = 1; i < p.unix_ns.size(); ++i) {
      const double n = counts(i) - counts(i - 1), ms = times(i) - times(i - 1);
      if (n >= 0 && ms >= 0)
        points.emplace_back(static_cast<double>(p.unix_ns[i] - origin_ns_) * 1e-9, n > 0 ? ms / n : 0);
    }
    return points;
  }

  struct Stretch {
    std::string name;
    std::int64_t from_ns = 0, to_ns = 0;
  };
  /// The epochs of the run; one for the whole run where it does not say how long one is.
  std::vector<Stretch> epochs() const {
    const RankRun* rank = loss_rank(run_);
    const Json* length = run_.summary.is_object() ? run_.summary.find("steps_per_epoch") : nullptr;
    if (!rank || !length || length->kind() != Json::Kind::Int || length->as_int() < 1)
      return {{"whole run", origin_ns_, end_ns_}};
    std::map<std::int64_t, std::int64_t> ends;
    for (const StepLine& step : rank->steps)
      if (step.unix_ns) ends[step.step / length->as_int()] = *step.unix_ns;
    std::vector<Stretch> epochs;
    std::int64_t from = origin_ns_;
    for (const auto& [epoch, end] : ends) {
      if (end <= from) continue;  // before the counters began
      epochs.push_back({std::to_string(epoch + 1), from, end});
      from = end;
    }
    if (end_ns_ > from) epochs.push_back({"after the last step", from, end_ns_});
    return epochs;
  }

  std::string epochs_html() const {
    std::vector<Stretch> stretches = epochs();
    std::string note;
    if (stretches.size() > kMostEpochs) {
      note = "<p class=\"lead\">The first " + std::to_string(kMostEpochs) + " of " +
             std::to_string(stretches.size()) + ".</p>";
      stretches.resize(kMostEpochs);
    }
    std::string rows;
    for (const Stretch& stretch : stretches) {
      const auto grown = [&](const char* name) {
        double sum = 0;
        for (const ProcessCounters& p : all_)
          sum += p.growth(std::string("process.") + name, stretch.from_ns, stretch.to_ns);
        return sum;
      };
      const double calls = grown("read_by_calls_bytes"), disk = grown("read_from_disk_bytes");
      rows += "<tr><td>" + stretch.name + "</td>" +
              cell(static_cast<double>(stretch.to_ns - stretch.from_ns) * 1e-9) + cell(calls / kMega) +
              cell(disk / kMega) + cell((calls < disk ? 0 : calls - disk) / kMega) +
              cell(grown("written_to_disk_bytes") / kMega) + cell(grown("major_faults")) + "</tr>";
    }
    return "<h3>Bytes from disk and from the cache</h3><p class=\"lead\">Of all ranks. From the cache: what "
           "calls "
           "read beyond what came from disks. Files that are mapped are read by page faults, which only the "
           "disk's "
           "column has. An epoch begins where the one before ended. Within a sample's interval bytes are "
           "shared "
           "out evenly.</p>" +
           note +
           "<div class=\"scroll\"><table><thead><tr><th>Epoch</th><th>seconds</th><th>read by calls, "
           "MB</th><th>from "
           "disk, MB</th><th>from the cache, MB</th><th>written to disk, MB</th><th>major page "
           "faults</th></tr></thead>"
           "<tbody>" +
           rows + "</tbody></table></div>";
  }

  static std::string cell(double value) {
    return "<td>" + (value == 0 ? std::string("0") : figure(value)) + "</td>";
  }

  std::string cache_html() const {
    std::string rows;
    for (const ProcessCounters& p : all_)
      for (const CacheLook& look : p.cache)
        rows +=
            "<tr><td>" + escape_xml(p.host) + ", " + escape_xml(look.when) + "</td><td>" +
            std::to_string(look.files) + "</td>" + cell(static_cast<double>(look.bytes) / kMega) + "<td>" +
            (look.bytes > 0 ? printed("%.1f %%", 100 * static_cast<double>(look.resident_bytes) /
                                                     static_cast<double>(look.bytes))
                            : std::string("–")) +
            "</td><td>" + (look.is_whole ? std::string("all") : std::string("as far as half a second went")) +
            (look.unreadable_files > 0 ? ", but " + std::to_string(look.unreadable_files) + " unreadable"
                                       : std::string()) +
            "</td></tr>";
    if (rows.empty()) return "";
    return "<h3>The data set in the page cache</h3><div class=\"scroll\"><table><thead><tr><th>Host</th><th>"
           "files</th><th>MB</th><th>in the cache</th><th>looked at</th></tr></thead><tbody>" +
           rows + "</tbody></table></div>";
  }

  std::string notes_html() const {
    std::set<std::string> notes;
    for (const ProcessCounters& p : all_) {
      const std::string who = name_of(p) + ": ";
      for (const auto& [what, of] : p.missing)
        notes.insert(who + what + " is missing in " + std::to_string(of.first) + " of " +
                     std::to_string(p.samples) + " samples" +
                     (of.second.empty() ? "" : " (" + of.second + ")"));
      if (p.skipped > 0) notes.insert(who + std::to_string(p.skipped) + " samples came too late to be taken");
      if (p.damaged > 0) notes.insert(who + std::to_string(p.damaged) + " damaged lines left out");
      if (!p.is_ended) notes.insert(who + "the counters have no end: the process was killed, or still runs");
    }
    std::string list;
    for (const std::string& note : notes) list += "<li>" + escape_xml(note) + "</li>";
    return list.empty() ? "" : "<ul class=\"notes\">" + list + "</ul>";
  }

  const RunData& run_;
  std::vector<ProcessCounters> all_;
  std::vector<std::string> hosts_;
  std::int64_t origin_ns_ = 0, end_ns_ = 0;
};

}  // namespace

std::string counters_html(const RunData& run) {
  return Card(run).html();
}

}  // namespace millrace
