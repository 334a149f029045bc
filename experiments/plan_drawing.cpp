#include "experiments/plan_drawing.h"

#include <algorithm>

#include "runtime/schedule/gantt.h"

namespace millrace {
namespace {

constexpr int kBox = 240, kGap = 96, kMargin = 14, kTop = 12, kHead = 92, kLine = 17;
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

int box_x(int stage) {
  return kMargin + stage * (kBox + kGap);
}

std::string draw_stage(const PlanStage& stage, int index, int height, double slowest) {
  const int x = box_x(index);
  std::string svg = printed("<g><rect class=\"box\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"10\"/>",
                            x, kTop, kBox, height);
  std::string names;
  for (const std::string& layer : stage.layers) names += layer + "\n";
  svg += "<title>" + escape_xml(names) + "</title>";
  svg += printed("<text class=\"title\" x=\"%d\" y=\"%d\">Stage %d</text>", x + 14, kTop + 25, index);
  svg += printed("<text class=\"tick\" x=\"%d\" y=\"%d\" text-anchor=\"end\">", x + kBox - 14, kTop + 25) +
         escape_xml(ranks_text(stage.ranks)) + "</text>";
  // Length: time of a microbatch divided among the replicas, against the slowest stage.
  const double total = stage.forward_s + stage.backward_s;
  if (total > 0 && slowest > 0) {
    const double full = kBox - 28.0, share = total / static_cast<double>(stage.ranks.size()) / slowest;
    const double forward = full * share * stage.forward_s / total, backward = full * share - forward;
    svg += printed("<rect x=\"%d\" y=\"%d\" width=\"%.1f\" height=\"7\" rx=\"2\" fill=\"%s\"/>", x + 14,
                   kTop + 37, forward, colour_of("forward"));
    svg += printed("<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"7\" rx=\"2\" fill=\"%s\"/>",
                   x + 14 + forward, kTop + 37, backward, colour_of("backward"));
    svg += printed("<text class=\"tick\" x=\"%d\" y=\"%d\">", x + 14, kTop + 61) + "forward " +
           duration_text(stage.forward_s) + ", back " + duration_text(stage.backward_s) + "</text>";
  }
  svg += printed("<text class=\"tick\" x=\"%d\" y=\"%d\">", x + 14, kTop + 78) +
         std::to_string(stage.layers.size()) + (stage.layers.size() == 1 ? " layer" : " layers") +
         (stage.parameter_bytes > 0 ? ", " + bytes_text(stage.parameter_bytes) + " of weights" : "") +
         "</text>";
  int y = kTop + kHead;
  svg += printed("<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>", x + 14, x + kBox - 14,
                 y - 4, y - 4);
  for (const std::string& layer : shown_layers(stage.layers)) {
    y += kLine;
    svg += printed("<text class=\"mono\" x=\"%d\" y=\"%d\">", x + 14, y - 4) +
           escape_xml(shortened(layer, 25)) + "</text>";
  }
  return svg + "</g>";
}

std::string draw_crossing(const PlanCrossing& crossing, int height, int depth) {
  const int from = crossing.from.value, to = crossing.to.value;
  const std::string label = crossing.bytes > 0 ? bytes_text(crossing.bytes) : "";
  const std::string title = "<title>" +
                            escape_xml("stage " + std::to_string(from) + " to stage " + std::to_string(to) +
                                       ": " + label + " for a microbatch") +
                            "</title>";
  if (to == from + 1) {
    const int x0 = box_x(from) + kBox + 4, x1 = box_x(to) - 5, y = kTop + 46;
    return printed(
               "<g><path class=\"arrow\" d=\"M%d %dH%d\" marker-end=\"url(#head)\"/><text class=\"tick\" "
               "x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">",
               x0, y, x1 - 4, (x0 + x1) / 2.0 - 2, y - 8) +
           label + "</text>" + title + "</g>";
  }
  // A skip over stages runs below the boxes.
  const int x0 = box_x(from) + kBox / 2 + 12 * depth, x1 = box_x(to) + kBox / 2 - 12 * depth,
            bottom = kTop + height, y = bottom + 24 + 20 * depth;
  return printed(
             "<g><path class=\"arrow\" d=\"M%d %dV%dH%dV%d\" marker-end=\"url(#head)\"/><text class=\"tick\" "
             "x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">",
             x0, bottom, y, x1, bottom + 8, (x0 + x1) / 2.0, y - 5) +
         label + "</text>" + title + "</g>";
}

}  // namespace

std::string plan_svg(const Plan& plan) {
  std::size_t most = 1;
  double slowest = 0;
  for (const PlanStage& stage : plan.stages) {
    most = std::max(most, shown_layers(stage.layers).size());
    slowest = std::max(slowest, (stage.forward_s + stage.backward_s) /
                                    static_cast<double>(std::max<std::size_t>(1, stage.ranks.size())));
  }
  const int height = kHead + kLine * static_cast<int>(most) + 8;
  std::string arrows;
  int skips = 0;
  std::vector<char> joined(plan.stages.size(), 0);
  for (const PlanCrossing& crossing : plan.crossings) {
    if (crossing.from.value < 0 || crossing.to.value >= plan.num_stages() || crossing.from >= crossing.to)
      continue;
    const bool skip = crossing.to.value > crossing.from.value + 1;
    if (!skip) joined[static_cast<std::size_t>(crossing.to.value)] = 1;
    arrows += draw_crossing(crossing, height, skip ? skips++ : 0);
  }
  // A plan written by hand says nothing of tensors: the chain.
  for (int s = 1; s < plan.num_stages() && plan.crossings.empty(); ++s) {
    arrows += draw_crossing({StageId(s - 1), StageId(s), 0}, height, 0);
  }
  const int width = box_x(plan.num_stages()) - kGap + kMargin,
            total = kTop + height + 14 + (skips > 0 ? 22 + 20 * skips : 0);
  std::string svg = printed(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plan\" viewBox=\"0 0 %d %d\" width=\"%d\" "
      "height=\"%d\" role=\"img\" aria-label=\"plan\">",
      width, total, width, total);
  svg +=
      "<defs><marker id=\"head\" viewBox=\"0 0 10 10\" refX=\"8\" refY=\"5\" markerWidth=\"7\" "
      "markerHeight=\"7\" orient=\"auto\"><path class=\"arrowhead\" d=\"M0 0L10 5L0 10z\"/></marker></defs>";
  for (int s = 0; s < plan.num_stages(); ++s)
    svg += draw_stage(plan.stages[static_cast<std::size_t>(s)], s, height, slowest);
  return svg + arrows + "</svg>";
}

}  // namespace millrace
