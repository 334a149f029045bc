// Timelines of a processed run as pictures: CPU, GPU and disk over time, the calls of each process group,
// phases.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "experiments/io/trace/timeline_data.h"
#include "runtime/base/result.h"

namespace millrace {

/// A stretch of time to draw; nanoseconds UTC.
struct TimeWindow {
  std::string name;  ///< part of the file's name; empty: the whole run
  std::int64_t from = 0, to = 0;
};

/// The whole run: from the earliest sample or event to the last.
struct TimeExtent {
  std::int64_t first = 0, last = 0;
};
Result<TimeExtent> extent_of(const Timeline& timeline, const std::vector<TimelineGroup>& groups);

/// "12..30" (seconds since the start), "2023-02-11T13:11:30..2023-02-11T13:11:40", init, first-5min,
/// first-training, first-epoch, first-eval, first-checkpoint, last-2min or last-5s; named ones with 5 s on
/// each side. Problem: nothing of that kind in the run, or outside of it.
Result<TimeWindow> parse_zoom(const std::string& text, const Timeline& timeline, const TimeExtent& extent);
const std::vector<std::string>& zoom_names();

struct PlotOptions {
  std::string title;
  bool paper = false;   ///< GPU, calls of all processes, phases; no legend
  bool narrow = false;  ///< half as wide
};

/// Calls of a group, by type, in columns as fine as a pixel: a picture's size does not depend on their
/// number.
struct GroupColumns {
  std::string title;
  std::vector<std::vector<float>> busy;  ///< by EventType and column: share of the column that calls cover
  std::vector<std::int64_t> events;      ///< in the window, by EventType
};

struct TimelinePicture {
  const Timeline* timeline = nullptr;
  TimeExtent extent;  ///< seconds are counted from its start
  TimeWindow window;
  std::vector<GroupColumns> groups;
};

/// Columns across a picture.
std::size_t plot_columns(const PlotOptions& options);

/// Reads the groups' events once. Problem: a file that cannot be read.
Result<std::vector<GroupColumns>> group_columns(const std::vector<TimelineGroup>& groups,
                                                const TimeWindow& window, std::size_t columns);

/// Draws into `path` (.svg, .png, .pdf).
Status draw_timeline(const TimelinePicture& picture, const PlotOptions& options, const std::string& path);

/// One page that zooms by wheel and drags, without anything from the net. All events are in it up to
/// `most_events`; beyond, shares of 65,536 columns (said on the page).
Result<std::string> timeline_page(const Timeline& timeline, const std::vector<TimelineGroup>& groups,
                                  const TimeExtent& extent, const std::string& title,
                                  std::int64_t most_events = 3'000'000);

}  // namespace millrace
