// The timeline of ranks by phase: every traced span, to zoom into, and a still picture of it.
#pragma once

#include <cstddef>
#include <string>

#include "experiments/runs/run_data.h"

namespace millrace {

/// How much of a run the page holds, so that its size does not grow with the run's length.
struct TimelineLimits {
  std::size_t spans = 40'000;
  std::size_t ranks = 64;
};

/// A card with the picture and the data of the script; empty where nothing was traced. Long runs are shown
/// early, in the middle and late; the card says what was left out.
std::string rank_timeline_html(const RunData& run, const TimelineLimits& limits = {});

/// The script that lets a reader zoom. It loads nothing, and does nothing without the card.
const char* rank_timeline_script();

}  // namespace millrace
