// A processed run read back: phases, samples, and the events of each process group.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "experiments/io/trace/event_sorter.h"
#include "experiments/io/trace/raw_trace.h"
#include "runtime/base/result.h"

namespace millrace {

/// A csv of samples: `timestamp,name,...`. Values that are no numbers are NaN.
struct SampleTable {
  std::vector<std::string> columns;         ///< without the timestamp
  std::vector<std::int64_t> times;          ///< nanoseconds UTC
  std::vector<std::vector<double>> values;  ///< by column
  const std::vector<double>* column(const std::string& name) const;
};

struct TimelineGroup {
  std::string file;   ///< path of its log
  std::string title;  ///< "Worker 0"
};

struct Timeline {
  std::string folder;
  std::vector<PhaseSpan> phases;
  std::optional<SampleTable> cpu, gpu, disk;  ///< cpu: user (with nice), system, I/O wait, stolen, idle;
                                              ///< disk: MB/s read and written, summed over the disks
  std::vector<std::pair<std::string, std::vector<TimelineGroup>>> layouts;  ///< by name
  std::vector<std::string> notes;

  const std::vector<TimelineGroup>* layout(const std::string& name) const;
};

/// `folder`: what preprocess wrote (it holds timeline/), or the timeline folder itself. Problem: there is
/// none, or it has neither phases nor events.
Result<Timeline> read_timeline(const std::string& folder);

/// Calls `take` for the events of a group in the order of the file. Rows that cannot be read are counted.
/// Problem: no such file, more bad rows than good ones.
struct EventCounts {
  std::int64_t events = 0, damaged = 0;
};
Result<EventCounts> for_each_event(const std::string& file,
                                   const std::function<void(const TraceEvent&)>& take);

/// `2023-02-11T13:11:27.500200000,...,READ` at the front of a line; false: it is no such row.
bool parse_event(std::string_view line, TraceEvent& event);

std::vector<PhaseSpan> read_phases(std::string_view csv, Dropped& dropped);

}  // namespace millrace
