#include "experiments/report/rank_timeline.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "experiments/drawing/html_page.h"
#include "experiments/report/run_messages.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/drawing/gantt.h"
#include "runtime/trace/trace_windows.h"

namespace millrace {
namespace {

constexpr double kCutGap = 0.1;             // of the time that is shown: longer gaps are cut out
constexpr std::int64_t kTick = 100;         // nanoseconds: the unit of the page's numbers
constexpr std::size_t kStillColumns = 240;  // of the still picture
constexpr int kWide = 1096, kMostLoaderLanes = 4;

/// A kind of span as the page draws it.
struct Look {
  SpanKind kind;
  const char* name;
  const char* of_gantt;  ///< in the still picture; nullptr: not there
  const char* colour;    ///< nullptr: that of the still picture
};
const std::array<Look, 17> kLooks{{{SpanKind::Forward, "forward", "forward", nullptr},
                                   {SpanKind::Backward, "backward", "backward", nullptr},
                                   {SpanKind::BackwardInput, "backward input", "input", nullptr},
                                   {SpanKind::BackwardWeight, "backward weight", "weight", nullptr},
                                   {SpanKind::Send, "send", "send", nullptr},
                                   {SpanKind::Recv, "receive", "receive", nullptr},
                                   {SpanKind::Wait, "wait", nullptr, "#b9c2cc"},
                                   {SpanKind::Reduce, "reduce", "reduce", nullptr},
                                   {SpanKind::Update, "update", "update", nullptr},
                                   {SpanKind::Data, "batch wait", "data", nullptr},
                                   {SpanKind::Checkpoint, "checkpoint", "other", "#d43f9c"},
                                   {SpanKind::Eval, "evaluation", "other", "#8a4fd0"},
                                   {SpanKind::Step, "step", nullptr, "#66727f"},
                                   {SpanKind::Load, "load", nullptr, "#2f80c8"},
                                   {SpanKind::Preprocess, "preprocess", nullptr, "#35a549"},
                                   {SpanKind::Copy, "copy", "data", "#c98a1b"},
                                   {SpanKind::Loss, "loss", nullptr, "#1b2a41"}}};
constexpr std::size_t kMessage = kLooks.size();  // the kind of messages in the page's list

bool is_of_loader(SpanKind kind) {
  return kind == SpanKind::Load || kind == SpanKind::Preprocess;
}

/// A span or message of the page.
struct Event {
  std::int64_t start = 0, end = 0;
  std::size_t kind = 0;
  std::int64_t microbatch = -1, step = -1;
  int other = -1;  ///< the rank at the other end
};

struct Lane {
  std::string label;
  const char* form = "work";
  std::vector<Event> events;
};

/// A stretch of time that is shown without a gap.
struct Stretch {
  std::int64_t start = 0, end = 0;
  std::int64_t shown = 0;  ///< time that is shown before it
};

class RankTimeline {
 public:
  RankTimeline(const RunData& run, const TimelineLimits& limits) : run_(run), limits_(limits) {}

  std::string html() {
    choose_steps();
    choose_ranks();
    if (!collect()) return "";
    find_stretches();
    return html_card("Timeline", lead(),
                     "<div id=\"timeline\"></div><div id=\"timeline-still\" class=\"gantt scroll\">" +
                         still() + "</div><script type=\"application/json\" id=\"timeline-data\">" + data() +
                         "</script>");
  }

 private:
  /// All traced steps, or some early, some in the middle and some late.
  void choose_steps() {
    std::set<std::int64_t> steps;
    std::size_t spans = 0;
    for (const RankRun& rank : run_.ranks) {
      spans += rank.spans.size();
      for (const Span& span : rank.spans) steps.insert(span.step);
    }
    traced_ = steps.size();
    const std::vector<std::int64_t> all(steps.begin(), steps.end());
    if (spans <= limits_.spans) {
      steps_ = std::move(steps);
      return;
    }
    const auto count = static_cast<std::int64_t>(std::max<double>(
        1,
        static_cast<double>(all.size()) * static_cast<double>(limits_.spans) / static_cast<double>(spans)));
    for (const TraceWindow& one : trace_windows(0, count, static_cast<std::int64_t>(all.size())))
      for (std::int64_t i = one.first; i < one.end; ++i) steps_.insert(all[static_cast<std::size_t>(i)]);
  }

  void choose_ranks() {
    std::vector<std::size_t> traced;
    for (std::size_t r = 0; r < run_.ranks.size(); ++r)
      if (!run_.ranks[r].spans.empty()) traced.push_back(r);
    traced_ranks_ = traced.size();
    const std::size_t every = (traced.size() + limits_.ranks - 1) / std::max<std::size_t>(1, limits_.ranks);
    for (std::size_t i = 0; i < traced.size(); i += std::max<std::size_t>(1, every))
      ranks_.push_back(traced[i]);
  }

  /// Returns false if nothing is left to be drawn.
  bool collect() {
    const std::vector<std::int64_t> offsets = clock_offsets(run_);
    std::map<int, std::vector<Event>> messages;
    for (const RunMessage& one : messages_of(run_))
      if (steps_.contains(one.step))
        messages[one.to].push_back({one.sent, one.arrived, kMessage, one.microbatch, one.step, one.from});
    const std::size_t of_rank =
        std::max<std::size_t>(1, limits_.spans / std::max<std::size_t>(1, ranks_.size()));
    for (const std::size_t r : ranks_) {
      const RankRun& rank = run_.ranks[r];
      const std::string name = "rank " + std::to_string(rank.rank);
      Lane work{name + (rank.stage >= 0 ? " · s" + std::to_string(rank.stage) : ""), "work", {}};
      std::map<int, Lane> loaders;
      for (const Span& span : rank.spans) {
        if (span.end < span.start || !steps_.contains(span.step) || span.kind == SpanKind::Step) continue;
        const bool loads = is_of_loader(span.kind);
        const Event event{span.start + offsets[r],
                          span.end + offsets[r],
                          static_cast<std::size_t>(span.kind),
                          span.microbatch,
                          span.step,
                          loads ? -1 : span.peer};
        if (!loads) {
          work.events.push_back(event);
          continue;
        }
        const int place = std::clamp(span.peer, 0, kMostLoaderLanes - 1);
        loaders.try_emplace(place, Lane{"loader " + std::to_string(place), "thin", {}})
            .first->second.events.push_back(event);
      }
      lanes_.push_back(std::move(work));
      if (const auto found = messages.find(rank.rank); found != messages.end())
        lanes_.push_back({"messages in", "thin", std::move(found->second)});
      for (auto& [place, lane] : loaders) lanes_.push_back(std::move(lane));
    }
    bool any = false;
    for (Lane& lane : lanes_) {
      // An enclosing span comes first, and is drawn below.
      std::ranges::stable_sort(lane.events, {}, [](const Event& e) { return std::pair(e.start, -e.end); });
      if (lane.events.size() > of_rank) {
        cut_ += lane.events.size() - of_rank;
        lane.events.resize(of_rank);
      }
      any |= !lane.events.empty();
    }
    return any;
  }

  void find_stretches() {
    std::vector<std::pair<std::int64_t, std::int64_t>> spans;
    for (const Lane& lane : lanes_)
      for (const Event& event : lane.events) spans.emplace_back(event.start, event.end);
    std::ranges::sort(spans);
    std::vector<Stretch> covered;
    std::int64_t sum = 0;
    for (const auto& [start, end] : spans) {
      if (covered.empty() || start > covered.back().end) covered.push_back({start, start, 0});
      sum += std::max<std::int64_t>(0, end - covered.back().end);
      covered.back().end = std::max(covered.back().end, end);
    }
    const auto most = static_cast<std::int64_t>(kCutGap * static_cast<double>(sum));
    for (const Stretch& one : covered) {
      if (!stretches_.empty() && one.start - stretches_.back().end <= most)
        stretches_.back().end = one.end;
      else
        stretches_.push_back(one);
    }
    for (Stretch& one : stretches_) {
      one.shown = length_;
      length_ += std::max<std::int64_t>(kTick, one.end - one.start);
    }
  }

  std::int64_t shown(std::int64_t time) const {
    const auto after = std::ranges::upper_bound(stretches_, time, {}, &Stretch::start);
    const Stretch& one = after == stretches_.begin() ? stretches_.front() : *std::prev(after);
    return one.shown + std::clamp<std::int64_t>(time - one.start, 0, one.end - one.start);
  }

  std::string lead() const {
    std::string text =
        "Every traced span of each rank, on one time line. Below a rank: messages on their way to it, and "
        "the "
        "threads of its loader. Wheel, or + and -: zoom. Drag, or arrow keys: move. Double click, or 0: all.";
    if (steps_.size() < traced_)
      text += " Left out: " + std::to_string(traced_ - steps_.size()) + " of " + std::to_string(traced_) +
              " traced steps; those shown are from early, the middle and late.";
    if (ranks_.size() < traced_ranks_)
      text += " Left out: " + std::to_string(traced_ranks_ - ranks_.size()) + " of " +
              std::to_string(traced_ranks_) + " ranks.";
    if (cut_ > 0) text += " Left out: the last " + std::to_string(cut_) + " spans of full rows.";
    if (stretches_.size() > 1)
      text += " Dashed: " + std::to_string(stretches_.size() - 1) +
              (stretches_.size() == 2 ? " gap" : " gaps") + " without a trace, cut out.";
    return text;
  }

  /// For readers without the script: the whole length in columns, each in the colour of what took most of it.
  std::string still() const {
    std::vector<GanttRow> rows;
    const double column = static_cast<double>(length_) / static_cast<double>(kStillColumns);
    for (const Lane& lane : lanes_) {
      if (std::string_view(lane.form) != "work") continue;
      std::vector<std::map<std::size_t, double>> shares(kStillColumns);
      for (const Event& event : lane.events) {
        if (!kLooks[event.kind].of_gantt) continue;
        const double from = static_cast<double>(shown(event.start)) / column,
                     to = static_cast<double>(shown(event.end)) / column;
        for (auto c = static_cast<std::size_t>(from); c < kStillColumns && static_cast<double>(c) < to; ++c)
          shares[c][event.kind] += std::min(to, static_cast<double>(c + 1)) - std::max(from, double(c));
      }
      GanttRow row{.label = lane.label, .bars = {}, .note = {}, .to = static_cast<double>(length_) * 1e-9};
      for (std::size_t c = 0; c < kStillColumns; ++c) {
        std::size_t most = kLooks.size();
        double share = 0, sum = 0;
        for (const auto& [kind, part] : shares[c]) {
          sum += part;
          if (part > share) most = kind, share = part;
        }
        if (sum < 0.5 || most == kLooks.size()) continue;  // mostly idle
        const std::string kind = kLooks[most].of_gantt;
        const double start = static_cast<double>(c) * column * 1e-9,
                     end = static_cast<double>(c + 1) * column * 1e-9;
        if (!row.bars.empty() && row.bars.back().kind == kind &&
            row.bars.back().end >= start - column * 1e-10)
          row.bars.back().end = end;
        else
          row.bars.push_back({start, end, kind, "", 0});
      }
      rows.push_back(std::move(row));
    }
    return gantt_svg(rows, {.title = "All that was traced", .width = kWide});
  }

  std::string data() const {
    Json kinds = Json::array(), lanes = Json::array(), stretches = Json::array(), steps = Json::array();
    for (const Look& look : kLooks)
      kinds.push_back(Json::object(
          {{"name", look.name}, {"colour", look.colour ? look.colour : colour_of(look.of_gantt)}}));
    kinds.push_back(Json::object({{"name", "message"}, {"colour", colour_of("send")}}));
    std::map<std::int64_t, std::int64_t> starts;
    for (const Lane& lane : lanes_) {
      Json events = Json::array();
      std::int64_t last = 0;
      for (const Event& event : lane.events) {
        const std::int64_t start = shown(event.start) / kTick, end = shown(event.end) / kTick;
        for (const std::int64_t value : {start - last, end - start, static_cast<std::int64_t>(event.kind),
                                         event.microbatch, event.step, std::int64_t{event.other}})
          events.push_back(value);
        last = start;
        if (event.step < 0 || std::string_view(lane.form) != "work") continue;
        const auto found = starts.try_emplace(event.step, start).first;
        found->second = std::min(found->second, start);
      }
      lanes.push_back(Json::object({{"label", lane.label}, {"form", lane.form}, {"e", std::move(events)}}));
    }
    const auto row = [](std::initializer_list<std::int64_t> values) {
      Json list = Json::array();
      for (const std::int64_t value : values) list.push_back(value);
      return list;
    };
    for (const Stretch& one : stretches_)
      stretches.push_back(row({one.shown / kTick, (one.start - stretches_.front().start) / kTick}));
    for (const auto& [step, start] : starts) steps.push_back(row({start, step}));
    return Json::object({{"format", "millrace-timeline-1"},
                         {"length", length_ / kTick},
                         {"kinds", std::move(kinds)},
                         {"stretches", std::move(stretches)},
                         {"steps", std::move(steps)},
                         {"lanes", std::move(lanes)}})
        .dump(-1);
  }

  const RunData& run_;
  const TimelineLimits limits_;
  std::set<std::int64_t> steps_;
  std::size_t traced_ = 0, traced_ranks_ = 0, cut_ = 0;
  std::vector<std::size_t> ranks_;  ///< in RunData::ranks
  std::vector<Lane> lanes_;
  std::vector<Stretch> stretches_;
  std::int64_t length_ = 0;  ///< nanoseconds that are shown
};

}  // namespace

std::string rank_timeline_html(const RunData& run, const TimelineLimits& limits) {
  return RankTimeline(run, limits).html();
}

const char* rank_timeline_script() {
  return
#include <embedded/experiments/report/rank_timeline.js>
      ;
}

}  // namespace millrace
