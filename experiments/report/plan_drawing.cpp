#include "experiments/report/plan_drawing.h"

#include <algorithm>

#include "experiments/drawing/figures.h"
#include "runtime/drawing/gantt.h"

namespace millrace {
namespace {

constexpr int kBox = 220, kGap = 62, kMargin = 14, kTop = 12, kHead = 92, kLine = 17;
constexpr int kBetween = 44;  // two lines of boxes, and 20 for each arrow that runs there
constexpr std::size_t kShownLayers = 9;

std::string shortened(const std::string& name, std::size_t longest) {
  if (name.size() <= longest) return name;
  // The end of a layer's name says more than its beginning; never cut inside a UTF-8 sequence.
  std::size_t start = name.size() - (longest - 1);
  while (start < name.size() && (static_cast<unsigned char>(name[start]) & 0xc0) == 0x80) ++start;
  return "…" + name.substr(start);
}

/// All layers, or the first and last ones with a count between.
std::vector<std::string> shown_layers(const std::vector<std::string>& layers) {
  if (layers.size() <= kShownLayers) return layers;
  std::vector<std::string> shown(layers.begin(), layers.begin() + 5);
  shown.push_back("… " + std::to_string(layers.size() - 8) + " more …");
  shown.insert(shown.end(), layers.end() - 3, layers.end());
  return shown;
}

/// The positions of the boxes: lines of equally many, each as high as its highest box.
class Grid {
 public:
  /// `lanes`: arrows below each line of boxes beside those to the next box, by line.
  Grid(const Plan& plan, int width)
      : columns_(
            std::clamp((width - 2 * kMargin + kGap) / (kBox + kGap), 1, std::max(1, plan.num_stages()))) {
    // Lines of one length look better than a full one and a rest.
    const int lines = (plan.num_stages() + columns_ - 1) / columns_;
    if (lines > 0) columns_ = (plan.num_stages() + lines - 1) / lines;
    height_.assign(lines, 0);
    lanes_.assign(static_cast<std::size_t>(lines) + 1, 0);
    for (int s = 0; s < plan.num_stages(); ++s) {
      const std::size_t shown = shown_layers(plan.stages[s].layers).size();
      int& height = height_[line(s)];
      height = std::max(height, kHead + kLine * static_cast<int>(shown) + 8);
    }
  }
  int column(int stage) const { return stage % columns_; }
  int line(int stage) const { return stage / columns_; }
  int x(int stage) const { return kMargin + column(stage) * (kBox + kGap); }
  int top(int stage) const { return line_top(line(stage)); }
  int height(int stage) const { return height_[line(stage)]; }
  int bottom(int stage) const { return top(stage) + height(stage); }
  int middle(int stage) const { return x(stage) + kBox / 2; }
  /// Reserves a height for an arrow below a line of boxes; before positions are asked for.
  int take_lane(int line) { return lanes_[line]++; }
  int lane_y(int line, int lane) const { return line_top(line) + height_[line] + 24 + 20 * lane; }
  int width() const { return kMargin * 2 + columns_ * (kBox + kGap) - kGap; }
  int total() const {
    const int last = static_cast<int>(height_.size());
    return last == 0
               ? 2 * kTop
               : line_top(last) - kBetween + 14 + (lanes_[static_cast<std::size_t>(last) - 1] > 0 ? 22 : 0);
  }

 private:
  int line_top(int line) const {
    int y = kTop;
    for (int l = 0; l < line; ++l) y += height_[l] + kBetween + 20 * lanes_[l];
    return y;
  }
  int columns_;
  std::vector<int> height_, lanes_;
};

std::string draw_stage(const PlanStage& stage, int index, const Grid& grid, double slowest) {
  const int x = grid.x(index), top = grid.top(index), height = grid.height(index);
  std::string svg = printed("<g><rect class=\"box\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"10\"/>",
                            x, top, kBox, height);
  std::string names;
  for (const std::string& layer : stage.layers) names += layer + "\n";
  svg += "<title>" + escape_xml(names) + "</title>";
  svg += printed("<text class=\"title\" x=\"%d\" y=\"%d\">Stage %d</text>", x + 14, top + 25, index);
  svg += printed("<text class=\"tick\" x=\"%d\" y=\"%d\" text-anchor=\"end\">", x + kBox - 14, top + 25) +
         escape_xml(ranks_text(stage.ranks)) + "</text>";
  // Length: time of a microbatch divided among the replicas, against the slowest stage.
  const double total = stage.forward_s + stage.backward_s;
  if (total > 0 && slowest > 0) {
    const double full = kBox - 28.0, share = total / static_cast<double>(stage.ranks.size()) / slowest;
    const double forward = full * share * stage.forward_s / total, backward = full * share - forward;
    svg += printed("<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"7\" rx=\"2\" fill=\"%s\"/>", x + 14,
                   top + 37, forward, colour_of("forward"));
    svg += printed("<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"7\" rx=\"2\" fill=\"%s\"/>",
                   x + 14 + forward, top + 37, backward, colour_of("backward"));
    svg += printed("<text class=\"tick\" x=\"%d\" y=\"%d\">", x + 14, top + 61) + "forward " +
           duration_figure(stage.forward_s) + ", back " + duration_figure(stage.backward_s) + "</text>";
  }
  svg += printed("<text class=\"tick\" x=\"%d\" y=\"%d\">", x + 14, top + 78) +
         std::to_string(stage.layers.size()) + (stage.layers.size() == 1 ? " layer" : " layers") +
         (stage.parameter_bytes > 0 ? ", " + bytes_text(stage.parameter_bytes) + " of weights" : "") +
         "</text>";
  int y = top + kHead;
  svg += printed("<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>", x + 14, x + kBox - 14,
                 y - 4, y - 4);
  for (const std::string& layer : shown_layers(stage.layers)) {
    y += kLine;
    svg += printed("<text class=\"mono\" x=\"%d\" y=\"%d\">", x + 14, y - 4) +
           escape_xml(shortened(layer, 25)) + "</text>";
  }
  return svg + "</g>";
}

/// An arrow along the points, its words at the middle of its longest level part.
std::string arrow(const std::vector<std::pair<int, int>>& points, const std::string& label,
                  const std::string& title, const std::string& id) {
  std::string path = printed("M%d %d", points.front().first, points.front().second);
  double x = points.front().first, y = points.front().second, longest = -1;
  for (std::size_t i = 1; i < points.size(); ++i) {
    const auto [x0, y0] = points[i - 1];
    const auto [x1, y1] = points[i];
    path += printed("L%d %d", x1, y1);
    if (y0 == y1 && std::abs(x1 - x0) > longest) longest = std::abs(x1 - x0), x = (x0 + x1) / 2.0, y = y0;
  }
  const bool level = longest >= 0;
  if (!level) x += 8, y = (points.front().second + points.back().second) / 2.0 + 8;
  return "<g><path class=\"arrow\" d=\"" + path + "\" marker-end=\"url(#" + id + "-head)\"/>" +
         printed("<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y - 7,
                 level ? "middle" : "start") +
         label + "</text><title>" + escape_xml(title) + "</title></g>";
}

/// Draws from box to box: sideways to the next in the line, down to the next line, or below the boxes past
/// others.
std::string draw_crossing(const PlanCrossing& crossing, const Grid& grid, int lane, const std::string& id) {
  const int from = crossing.from.value, to = crossing.to.value;
  const std::string label = crossing.bytes > 0 ? bytes_text(crossing.bytes) : "";
  const std::string title = "stage " + std::to_string(from) + " to stage " + std::to_string(to) +
                            (label.empty() ? "" : ": " + label + " for a microbatch");
  const int bottom = grid.bottom(from), top = grid.top(to) - 5;
  if (to == from + 1 && grid.line(from) == grid.line(to)) {
    const int y = grid.top(from) + 46;
    return arrow({{grid.x(from) + kBox + 3, y}, {grid.x(to) - 7, y}}, label, title, id);
  }
  if (to == from + 1 && grid.column(from) == grid.column(to))
    return arrow({{grid.middle(from), bottom}, {grid.middle(to), top}}, label, title, id);
  const int shift = 12 * (lane + 1), y = grid.lane_y(grid.line(from), lane);
  const int start = grid.middle(from) + (to == from + 1 ? 0 : shift),
            end = grid.middle(to) - (to == from + 1 ? 0 : shift);
  if (grid.line(from) == grid.line(to))
    return arrow({{start, bottom}, {start, y}, {end, y}, {end, bottom + 8}}, label, title, id);
  if (grid.line(to) == grid.line(from) + 1)
    return arrow({{start, bottom}, {start, y}, {end, y}, {end, top}}, label, title, id);
  // Past whole lines: down the gap left of the box.
  const int channel = grid.x(to) - (grid.column(to) == 0 ? 7 : 14 + 4 * lane), over = grid.top(to) - 12;
  return arrow({{start, bottom}, {start, y}, {channel, y}, {channel, over}, {end, over}, {end, top}}, label,
               title, id);
}

}  // namespace

std::string plan_svg(const Plan& plan, int width, const std::string& id) {
  double slowest = 0;
  for (const PlanStage& stage : plan.stages) {
    slowest = std::max(slowest, (stage.forward_s + stage.backward_s) /
                                    static_cast<double>(std::max<std::size_t>(1, stage.ranks.size())));
  }
  std::vector<PlanCrossing> crossings;
  for (const PlanCrossing& crossing : plan.crossings) {
    if (crossing.from.value >= 0 && crossing.to.value < plan.num_stages() && crossing.from < crossing.to)
      crossings.push_back(crossing);
  }
  // A plan written by hand says nothing of tensors: the chain.
  for (int s = 1; s < plan.num_stages() && plan.crossings.empty(); ++s)
    crossings.push_back({StageId(s - 1), StageId(s), 0});
  Grid grid(plan, width);
  std::vector<int> lanes;
  for (const PlanCrossing& crossing : crossings) {
    const int from = crossing.from.value, to = crossing.to.value;
    const bool direct =
        to == from + 1 && (grid.line(from) == grid.line(to) || grid.column(from) == grid.column(to));
    lanes.push_back(direct ? 0 : grid.take_lane(grid.line(from)));
  }
  std::string arrows;
  for (std::size_t c = 0; c < crossings.size(); ++c)
    arrows += draw_crossing(crossings[c], grid, lanes[c], id);
  std::string svg = printed(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plan\" viewBox=\"0 0 %d %d\" width=\"%d\" "
      "height=\"%d\" role=\"img\" aria-label=\"plan\">",
      grid.width(), grid.total(), grid.width(), grid.total());
  svg += "<defs><marker id=\"" + id +
         "-head\" viewBox=\"0 0 10 10\" refX=\"8\" refY=\"5\" markerWidth=\"7\" markerHeight=\"7\" "
         "orient=\"auto\"><path class=\"arrowhead\" d=\"M0 0L10 5L0 10z\"/></marker></defs>";
  for (int s = 0; s < plan.num_stages(); ++s) svg += draw_stage(plan.stages[s], s, grid, slowest);
  return svg + arrows + "</svg>";
}

}  // namespace millrace
