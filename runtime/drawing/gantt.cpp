#include "runtime/drawing/gantt.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "runtime/schedule/message.h"
#include "runtime/schedule/schedule.h"

namespace millrace {
namespace {

constexpr int kRight = 16, kLegend = 22, kCell = 2;
constexpr std::size_t kMostBars = 5000;   // 250 bytes each
constexpr std::size_t kMostRows = 128;    // of a grid
constexpr std::size_t kMostArrows = 400;  // beyond it they hide the bars
constexpr std::size_t kMostTints = 6;     // chunks that can be told apart by their shade
constexpr int kBlends = 6;                // levels of a colour in a grid: long runs of equal cells
constexpr double kDigit = 6.7;            // width of a character at 12 px
constexpr const char* kIdle = "#e3e7ec";
constexpr const char* kDark = "#16202b";  // text on bars: legible on every colour below

struct Kind {
  const char* name;
  const char* shown;
  const char* colour;
};
constexpr std::array<Kind, 11> kKinds{{{"forward", "forward", "#82b4f5"},
                                       {"backward", "backward", "#74c69b"},
                                       {"input", "input gradient", "#58c4bd"},
                                       {"weight", "weight gradient", "#cbd96a"},
                                       {"reduce", "reduce", "#f3ab6d"},
                                       {"update", "update", "#bd9be8"},
                                       {"send", "send", "#f09db0"},
                                       {"receive", "receive", "#8d97d8"},
                                       {"data", "data", "#ecd36c"},
                                       {"other", "other", "#c9b8a0"},
                                       {"wait", "wait", kIdle}}};
constexpr Kind kOther{"", "", "#aab2bc"};

const Kind& kind_named(const std::string& name) {
  for (const Kind& kind : kKinds) {
    if (name == kind.name) return kind;
  }
  return kOther;
}

/// The lightest of `tints` is still a colour, and two neighbours differ.
Colour tinted(const char* colour, int tint, std::size_t tints) {
  const double step = std::min(0.32, 0.74 / std::max(1.0, static_cast<double>(tints) - 1));
  const double share = std::min(0.74, step * tint);
  return mixed(parse_colour(colour), parse_colour("#ffffff"), share);
}

double text_width(const std::string& text) {
  std::size_t characters = 0;
  for (char c : text) characters += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return kDigit * static_cast<double>(characters);
}

class Gantt {
 public:
  Gantt(const std::vector<GanttRow>& rows, const GanttOptions& options) : rows_(rows), options_(options) {
    double labels = 0, notes = 0;
    for (const GanttRow& row : rows) {
      bars_ += row.bars.size();
      labels = std::max(labels, text_width(row.label));
      if (!options.notes.empty()) notes = std::max({notes, text_width(row.note), text_width(options.notes)});
      for (const GanttBar& bar : row.bars) {
        if (options.span <= 0) span_ = std::max(span_, bar.end);
      }
    }
    if (options.span > 0) span_ = options.span;
    if (!(span_ > 0)) span_ = 1;
    grid_ = bars_ > kMostBars;
    every_ = grid_ ? (rows.size() + kMostRows - 1) / kMostRows : 1;
    shown_rows_ = (rows.size() + every_ - 1) / std::max<std::size_t>(1, every_);
    row_ = shown_rows_ <= 24 ? 30 : shown_rows_ <= 64 ? 16 : 8;
    left_ = static_cast<int>(labels) + 26;
    right_ = options.width - kRight - (notes > 0 ? static_cast<int>(notes) + 8 : 0);
    per_unit_ = (right_ - left_) / span_;
    find_kinds();
    lay_out_legend();
    top_ = 42 + kLegend * legend_lines_ + (options.subtitle.empty() ? 0 : 18);
    bottom_ = top_ + row_ * static_cast<int>(shown_rows_);
  }

  std::string draw() const {
    const int height = bottom_ + 34;
    std::string svg = printed(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" "
        "font-family=\"system-ui,sans-serif\" font-size=\"12\">",
        options_.width, height, options_.width, height);
    svg += "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\" rx=\"6\"/>";
    svg += "<text x=\"12\" y=\"22\" font-size=\"15\" font-weight=\"600\" fill=\"#1f2933\">" +
           escape_xml(options_.title) + "</text>";
    if (!options_.subtitle.empty())
      svg += "<text x=\"12\" y=\"41\" fill=\"#1f2933\">" + escape_xml(options_.subtitle) + "</text>";
    svg += legend() + grounds() + (grid_ ? cells() : bars()) + axis();
    if (!grid_ && options_.arrows.size() <= kMostArrows) svg += arrows();
    return svg + labels() + "</svg>";
  }

 private:
  double x(double time) const { return left_ + time * per_unit_; }
  int y(std::size_t shown_row) const { return top_ + row_ * static_cast<int>(shown_row); }
  int bar_height() const { return row_ >= 16 ? row_ - 4 : row_ - 1; }

  /// Those that can be seen: a bar of a pixel, or many that add up to some.
  void find_kinds() {
    std::map<std::string, double> longest, sum;
    for (const GanttRow& row : rows_) {
      for (const GanttBar& bar : row.bars) {
        const double pixels = (bar.end - bar.start) * per_unit_;
        longest[bar.kind] = std::max(longest[bar.kind], pixels);
        sum[bar.kind] += pixels;
      }
    }
    for (const auto& [kind, pixels] : longest) {
      if (pixels >= 1 || sum[kind] >= 10) kinds_.insert(kind);
    }
  }

  struct LegendEntry {
    std::string colour;  ///< empty: words alone
    std::string name;
    LegendPlace place{};
  };

  /// Lays out the legend of what is in the picture, in lines that fit.
  void lay_out_legend() {
    const auto entry = [&](const std::string& colour, const std::string& name) {
      legend_.push_back({.colour = colour, .name = name});
    };
    for (const Kind& kind : kKinds) {
      if (kinds_.contains(kind.name) && kind.colour != kIdle) entry(kind.colour, kind.shown);
    }
    if (has_idle_time()) entry(kIdle, "idle");
    for (std::size_t i = 0; options_.tints.size() > 1 && i < options_.tints.size(); ++i)
      entry(to_hex(tinted(kKinds[0].colour, static_cast<int>(i), options_.tints.size())), options_.tints[i]);
    if (grid_ && every_ > 1) entry("", "one rank of " + std::to_string(every_) + " shown");
    if (grid_) entry("", "cells: mean colour of their time");
    std::vector<double> widths;
    for (const LegendEntry& e : legend_) widths.push_back(17 + text_width(e.name));
    const std::vector<LegendPlace> places = legend_places(widths, 12, options_.width, 19);
    for (std::size_t i = 0; i < places.size(); ++i) legend_[i].place = places[i];
    if (!places.empty()) legend_lines_ = places.back().line + 1;
  }

  bool has_idle_time() const {
    return std::ranges::any_of(rows_, [&](const GanttRow& row) {
      double busy = 0;
      for (const GanttBar& bar : row.bars) busy += bar.kind == "wait" ? 0 : bar.end - bar.start;
      return busy < (end_of(row) - row.from) * (1 - 1e-6);
    });
  }

  std::string legend() const {
    std::string svg;
    for (const LegendEntry& e : legend_) {
      const int baseline = top_ - 22 - kLegend * (legend_lines_ - 1 - e.place.line);
      if (!e.colour.empty())
        svg += printed("<rect x=\"%.1f\" y=\"%d\" width=\"12\" height=\"12\" rx=\"2\" fill=\"%s\"/>",
                       e.place.x, baseline - 10, e.colour.c_str());
      svg += printed("<text x=\"%.1f\" y=\"%d\" fill=\"#1f2933\">", e.place.x + (e.colour.empty() ? 0 : 17),
                     baseline) +
             escape_xml(e.name) + "</text>";
    }
    return svg;
  }

  double end_of(const GanttRow& row) const { return row.to > 0 ? row.to : span_; }

  std::string grounds() const {
    std::string svg;
    for (std::size_t r = 0; r < shown_rows_; ++r) {
      const GanttRow& row = rows_[r * every_];
      svg += printed("<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\"/>", x(row.from),
                     y(r) + 1, std::max(0.0, x(end_of(row)) - x(row.from)), bar_height(), kIdle);
    }
    return svg;
  }

  std::string axis() const {
    std::string svg;
    const int ticks = std::clamp((right_ - left_) / 70, 2, 10);
    const double step = round_ticks(0, span_ * options_.scale, ticks).second / options_.scale;
    for (double t = 0; t <= span_ * 1.0001; t += step) {
      svg += printed(
          "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#c3cad3\"/><text x=\"%.1f\" y=\"%d\" "
          "text-anchor=\"middle\" fill=\"#52606d\">%.6g</text>",
          x(t), bottom_, x(t), bottom_ + 5, x(t), bottom_ + 19, t * options_.scale);
    }
    return svg + printed("<text x=\"12\" y=\"%d\" fill=\"#52606d\">", bottom_ + 19) +
           escape_xml(options_.unit) + "</text>";
  }

  std::string labels() const {
    std::string svg;
    const std::size_t each = row_ >= 16 ? 1 : 4;  // labels are 12 px high
    for (std::size_t r = 0; r < shown_rows_; r += each) {
      const GanttRow& row = rows_[r * every_];
      const double baseline = y(r) + (row_ >= 16 ? bar_height() / 2.0 + 5 : 8);
      svg += printed("<text x=\"12\" y=\"%.1f\" fill=\"#1f2933\">", baseline) + escape_xml(row.label) +
             "</text>";
      if (row.note.empty()) continue;
      const bool inside = options_.notes.empty();
      svg += printed("<text x=\"%d\" y=\"%.1f\" text-anchor=\"%s\" fill=\"#52606d\">",
                     inside ? left_ + 4 : options_.width - kRight, baseline, inside ? "start" : "end") +
             escape_xml(row.note) + "</text>";
    }
    if (options_.notes.empty()) return svg;
    return svg +
           printed("<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"#52606d\">", options_.width - kRight,
                   top_ - 7) +
           escape_xml(options_.notes) + "</text>";
  }

  std::string bars() const {
    std::string svg;
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      for (const GanttBar& bar : rows_[r].bars) {
        if (x(bar.start) <= right_) svg += draw_bar(bar, y(r));
      }
    }
    return svg;
  }

  std::string draw_bar(const GanttBar& bar, int top) const {
    const double width = std::max(0.6, (bar.end - bar.start) * per_unit_);
    const Kind& kind = kind_named(bar.kind);
    std::string svg =
        printed("<g><rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" rx=\"%d\" fill=\"%s\"%s/>",
                x(bar.start), top + 1, width, bar_height(), width > 6 ? 2 : 0,
                to_hex(tinted(kind.colour, bar.tint, options_.tints.size())).c_str(),
                width > 3 && kind.colour != kIdle ? " stroke=\"#fff\" stroke-width=\"0.8\"" : "");
    if (row_ >= 16 && !bar.label.empty() && width > text_width(bar.label) + 2) {
      svg += printed("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" font-size=\"11\" fill=\"%s\">",
                     x(bar.start) + width / 2, top + bar_height() / 2.0 + 5, kDark) +
             escape_xml(bar.label) + "</text>";
    }
    return svg + "<title>" + escape_xml(kind.shown + (" " + bar.label)) +
           printed(": %.6g to %.6g ", bar.start * options_.scale, bar.end * options_.scale) +
           escape_xml(options_.unit) + "</title></g>";
  }

  std::string arrows() const {
    std::string path;
    for (const GanttArrow& arrow : options_.arrows) {
      const bool down = arrow.to > arrow.from;
      path += printed("M%.1f %dL%.1f %d", x(arrow.sent), y(arrow.from) + (down ? bar_height() + 1 : 1),
                      x(arrow.arrived), y(arrow.to) + (down ? 1 : bar_height() + 1));
    }
    if (path.empty()) return "";
    return "<path d=\"" + path +
           "\" fill=\"none\" stroke=\"#52606d\" stroke-width=\"0.9\" opacity=\"0.75\"/>";
  }

  /// Cells of kCell pixels; runs of one colour are one shape, all shapes of a colour one path.
  std::string cells() const {
    std::map<std::string, std::string> paths;
    const auto columns = static_cast<std::size_t>((right_ - left_) / kCell);
    for (std::size_t r = 0; r < shown_rows_; ++r) {
      const std::vector<std::string> colours = row_colours(rows_[r * every_], columns);
      for (std::size_t c = 0; c < columns;) {
        std::size_t end = c + 1;
        while (end < columns && colours[end] == colours[c]) ++end;
        if (!colours[c].empty()) {
          const int wide = static_cast<int>(end - c) * kCell;
          paths[colours[c]] += printed("M%d %dh%dv%dh-%dz", left_ + static_cast<int>(c) * kCell, y(r) + 1,
                                       wide, bar_height(), wide);
        }
        c = end;
      }
    }
    std::string svg;
    for (const auto& [colour, path] : paths) svg += "<path fill=\"" + colour + "\" d=\"" + path + "\"/>";
    return svg;
  }

  /// Returns the colour of each cell; empty where the rank is idle.
  std::vector<std::string> row_colours(const GanttRow& row, std::size_t columns) const {
    std::vector<std::array<double, kKinds.size()>> shares(columns);
    const double per_cell = span_ / static_cast<double>(columns);
    for (const GanttBar& bar : row.bars) {
      const auto kind = static_cast<std::size_t>(&kind_named(bar.kind) - kKinds.data());
      if (kind >= kKinds.size()) continue;
      for (double c = std::floor(bar.start / per_cell); c * per_cell < bar.end; ++c) {
        if (c < 0 || c >= static_cast<double>(columns)) continue;
        const double inside = std::min(bar.end, (c + 1) * per_cell) - std::max(bar.start, c * per_cell);
        shares[c][kind] += inside / per_cell;
      }
    }
    std::vector<std::string> colours;
    for (const auto& cell : shares) colours.push_back(blend(cell));
    return colours;
  }

  static std::string blend(const std::array<double, kKinds.size()>& shares) {
    Colour sum;
    double covered = 0;
    for (std::size_t k = 0; k < shares.size(); ++k) {
      const double share = std::round(shares[k] * kBlends) / kBlends;
      const Colour colour = parse_colour(kKinds[k].colour);
      sum = {sum.red + share * colour.red, sum.green + share * colour.green, sum.blue + share * colour.blue};
      covered += share;
    }
    if (covered == 0) return "";
    const Colour mean{sum.red / covered, sum.green / covered, sum.blue / covered};
    return to_hex(mixed(parse_colour(kIdle), mean, std::min(1.0, covered)));
  }

  const std::vector<GanttRow>& rows_;
  const GanttOptions& options_;
  std::set<std::string> kinds_;
  std::size_t bars_ = 0, every_ = 1, shown_rows_ = 0;
  double span_ = 0, per_unit_ = 1;
  bool grid_ = false;
  int row_ = 30, left_ = 84, right_ = 0, top_ = 46, bottom_ = 0;
  std::vector<LegendEntry> legend_;
  int legend_lines_ = 1;
};

// ---- simulations
// ----------------------------------------------------------------------------------------------

std::vector<int> stages_of(const std::vector<TimedAction>& actions) {
  std::set<int> stages;
  for (const TimedAction& t : actions) stages.insert(t.action.stage.value);
  return {stages.begin(), stages.end()};
}

std::string list_of(const std::vector<int>& stages) {
  std::string text;
  for (int s : stages) text += (text.empty() ? "" : ", ") + std::to_string(s);
  return (stages.size() == 1 ? "stage " : "stages ") + text;
}

GanttRow row_of(const std::vector<TimedAction>& actions, std::size_t rank) {
  const std::vector<int> stages = stages_of(actions);
  GanttRow row{.label = "rank " + std::to_string(rank) + (stages.size() <= 4 ? " · " + list_of(stages) : "")};
  for (const TimedAction& t : actions) {
    if (t.end <= t.start || (is_transfer(t.action.op) && !is_send(t.action.op))) continue;
    const auto chunk = std::ranges::find(stages, t.action.stage.value) - stages.begin();
    row.bars.push_back({t.start, t.end, bar_kind_of(t.action.op), std::to_string(t.action.microbatch.value),
                        static_cast<int>(chunk)});
  }
  return row;
}

/// Messages that were under way for some time.
std::vector<GanttArrow> arrows_of(const Simulation& simulation, const PipelineShape& shape) {
  const MessageIndex messages(shape);
  std::vector<GanttArrow> sent(messages.size()), arrows;
  if (messages.size() > kMostArrows || simulation.arrival.size() != messages.size()) return arrows;
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    for (const TimedAction& t : simulation.ranks[r]) {
      if (!is_send(t.action.op) || t.action.peer.value == static_cast<int>(r)) continue;
      const auto message = static_cast<std::size_t>(messages.of(t.action));
      if (simulation.arrival[message] > t.start)
        arrows.push_back(
            {r, t.start, static_cast<std::size_t>(t.action.peer.value), simulation.arrival[message]});
    }
  }
  return arrows;
}

std::pair<const char*, double> unit_of(double seconds) {
  if (seconds >= 1) return {"s", 1};
  if (seconds >= 1e-3) return {"ms", 1e3};
  return {"µs", 1e6};
}

std::string subtitle_of(const Simulation& simulation) {
  const auto [unit, scale] = unit_of(simulation.makespan);
  double busiest = 1;
  int stash = 0, versions = 0;
  for (double bubble : simulation.bubble_fraction) busiest = std::min(busiest, bubble);
  for (int s : simulation.peak_stash) stash = std::max(stash, s);
  for (int v : simulation.peak_versions) versions = std::max(versions, v);
  return printed("makespan %.6g %s · bubble of the busiest rank %.1f %% · peak stash %d · weight versions %d",
                 simulation.makespan * scale, unit, busiest * 100, stash, versions);
}

}  // namespace

const char* bar_kind_of(Op op) {
  switch (op) {
    case Op::Forward:
      return "forward";
    case Op::Backward:
      return "backward";
    case Op::BackwardInput:
      return "input";
    case Op::BackwardWeight:
      return "weight";
    case Op::Reduce:
      return "reduce";
    case Op::Update:
      return "update";
    default:
      return "send";
  }
}

const char* colour_of(const std::string& kind) {
  return kind_named(kind).colour;
}

std::string gantt_svg(const std::vector<GanttRow>& rows, const GanttOptions& options) {
  return Gantt(rows, options).draw();
}

std::string draw_svg(const Simulation& simulation, const PipelineShape& shape, const std::string& title) {
  std::vector<GanttRow> rows;
  std::size_t chunks = 0;
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    GanttRow& row = rows.emplace_back(row_of(simulation.ranks[r], r));
    row.note = printed("%.0f %% · %d", simulation.bubble_fraction[r] * 100, simulation.peak_stash[r]);
    chunks = std::max(chunks, stages_of(simulation.ranks[r]).size());
  }
  const auto [unit, scale] = unit_of(simulation.makespan);
  GanttOptions options{.title = title,
                       .subtitle = subtitle_of(simulation),
                       .notes = "bubble · stash",
                       .width = 1200,
                       .unit = unit,
                       .scale = scale,
                       .arrows = arrows_of(simulation, shape)};
  for (std::size_t c = 0; c < std::min(chunks, kMostTints); ++c)
    options.tints.push_back(
        (c + 1 == kMostTints && chunks > kMostTints ? "and on" : "chunk " + std::to_string(c)));
  return gantt_svg(rows, options);
}

std::string draw_text(const Simulation& simulation, int columns) {
  static const std::map<Op, char> letters{{Op::Forward, 'F'},       {Op::Backward, 'B'},
                                          {Op::BackwardInput, 'I'}, {Op::BackwardWeight, 'W'},
                                          {Op::Reduce, 'R'},        {Op::Update, 'U'}};
  std::string text;
  bool chunks = false;
  const double per_column = simulation.makespan > 0 ? simulation.makespan / columns : 1;
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    std::string row(static_cast<std::size_t>(columns), '.');
    const std::vector<int> stages = stages_of(simulation.ranks[r]);
    chunks |= stages.size() > 1;
    for (const TimedAction& t : simulation.ranks[r]) {
      if (is_transfer(t.action.op) || t.end <= t.start) continue;
      const auto begin = static_cast<std::size_t>(std::lround(t.start / per_column)),
                 end = std::min<std::size_t>(static_cast<std::size_t>(std::lround(t.end / per_column)),
                                             row.size());
      const bool odd = (std::ranges::find(stages, t.action.stage.value) - stages.begin()) % 2 == 1;
      const char letter = letters.at(t.action.op);
      for (std::size_t c = begin; c < end; ++c) row[c] = static_cast<char>(odd ? letter - 'A' + 'a' : letter);
      const std::string number = std::to_string(t.action.microbatch.value);
      if (end > begin + number.size() && is_compute(t.action.op))
        row.replace(begin + 1, number.size(), number);
    }
    text += "rank " + std::to_string(r) + " |" + row + "|\n";
  }
  if (chunks) text += "Small letters: a rank's second, fourth, ... stage.\n";
  return text;
}

}  // namespace millrace
