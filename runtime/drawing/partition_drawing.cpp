#include "runtime/drawing/partition_drawing.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "runtime/base/quantities.h"
#include "runtime/base/text.h"
#include "runtime/drawing/gantt.h"

namespace millrace {
namespace {

constexpr std::size_t kNamedLayers = 120;  // more are drawn small, without names
constexpr std::size_t kTinyLayers = 1500;  // and more still as strokes
constexpr double kTitleCharacter = 9.6;    // pixels of its font
constexpr int kMargin = 16, kSide = 190, kHead = 54, kBandGap = 30;

struct Colours {
  const char* band;
  const char* box;
  const char* line;
};
constexpr std::array<Colours, 8> kColours{{{"#eef4ff", "#cfe0ff", "#3b6fd4"},
                                           {"#eefaf3", "#c9ecd8", "#24865a"},
                                           {"#fff5ea", "#ffddb5", "#c26a12"},
                                           {"#f7f0fd", "#e2cdf6", "#8447b5"},
                                           {"#fdeff2", "#f8cdd7", "#c03a5b"},
                                           {"#eaf9fb", "#bfe9ef", "#177f91"},
                                           {"#fbf8e3", "#efe6a1", "#8d7a0c"},
                                           {"#f1f2f4", "#d6dae0", "#55606e"}}};

struct Box {
  int stage = 0;
  int row = 0;     // within the stage
  int column = 0;  // within the row
  double x = 0, y = 0;
};

struct Style {
  int width, height, row, column;  // of a box; distances
  bool named;
};

Style style_for(std::size_t layers) {
  if (layers <= kNamedLayers) return {186, 22, 36, 206, true};
  if (layers <= kTinyLayers) return {26, 7, 11, 32, false};
  return {14, 2, 4, 18, false};
}

std::string shortened(const std::string& name, std::size_t longest) {
  if (name.size() <= longest) return name;
  std::size_t start = name.size() - (longest - 1);
  while (start < name.size() && (static_cast<unsigned char>(name[start]) & 0xc0) == 0x80) ++start;
  return "…" + name.substr(start);
}

class Drawing {
 public:
  Drawing(const Plan& plan, const LayerGraph& graph)
      : plan_(plan), graph_(graph), style_(style_for(graph.nodes.size())) {}

  std::string svg() {
    place();
    std::string body = bands();
    std::string bold;  // over the rest
    for (const LayerEdge& edge : graph_.edges) {
      (boxes_[edge.producer].stage == boxes_[edge.consumer].stage ? body : bold) += line(edge);
    }
    body += bold;
    for (std::size_t i = 0; i < boxes_.size(); ++i) body += box(static_cast<int>(i));
    body += labels_;
    const std::string size =
        printed("viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\"", width_, height_, width_, height_);
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size +
           " font-family=\"system-ui, sans-serif\" role=\"img\" aria-label=\"partitioned graph\">"
           "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>" +
           title() + body + "</svg>\n";
  }

 private:
  void place() {
    std::unordered_map<std::string, int> stage_of;
    for (int s = 0; s < plan_.num_stages(); ++s) {
      for (const std::string& layer : plan_.stages[s].layers) stage_of[layer] = s;
    }
    boxes_.resize(graph_.nodes.size());
    for (std::size_t i = 0; i < boxes_.size(); ++i) boxes_[i].stage = stage_of[graph_.nodes[i].name];
    std::vector<std::vector<int>> before(boxes_.size());
    for (const LayerEdge& edge : graph_.edges) before[edge.consumer].push_back(edge.producer);
    rows_.assign(plan_.num_stages(), {});
    const std::vector<int> order = *graph_.topological_order();
    for (int node : order) {
      Box& box = boxes_[node];
      double parents = 0;
      for (int p : before[node]) {
        if (boxes_[p].stage == box.stage) box.row = std::max(box.row, boxes_[p].row + 1);
        parents = std::max(parents, static_cast<double>(boxes_[p].column));
      }
      auto& rows = rows_[box.stage];
      if (rows.size() <= static_cast<std::size_t>(box.row))
        rows.resize(static_cast<std::size_t>(box.row) + 1);
      rows[box.row].push_back(node);
    }
    int columns = 1;
    for (auto& rows : rows_) {
      for (auto& row : rows) {
        // Children under their parents, as far as one pass can do it.
        std::stable_sort(row.begin(), row.end(),
                         [&](int a, int b) { return pull(before[a]) < pull(before[b]); });
        for (std::size_t c = 0; c < row.size(); ++c) boxes_[row[c]].column = static_cast<int>(c);
        columns = std::max(columns, static_cast<int>(row.size()));
      }
    }
    left_ = kMargin + kSide;
    right_ = left_ + columns * style_.column;
    double y = kHead;
    for (auto& rows : rows_) {
      tops_.push_back(y);
      y += 12;
      for (auto& row : rows) {
        const double shift = (columns - static_cast<double>(row.size())) * style_.column / 2;
        for (int node : row) {
          boxes_[node].x = left_ + shift + boxes_[node].column * style_.column;
          boxes_[node].y = y;
        }
        y += style_.row;
      }
      y = std::max(y + 4, tops_.back() + 84);  // room for the stage's text
      bottoms_.push_back(y);
      y += kBandGap;
    }
    width_ = std::max(right_ + 150, kMargin * 2 + kTitleCharacter * static_cast<double>(title_text().size()));
    height_ = y - kBandGap + kMargin;
  }

  double pull(const std::vector<int>& parents) const {
    double sum = 0;
    for (int p : parents) sum += boxes_[p].column;
    return parents.empty() ? 0 : sum / static_cast<double>(parents.size());
  }

  std::string title_text() const {
    std::string text = plan_.model + ": " + std::to_string(plan_.num_stages()) + " stages on " +
                       std::to_string(plan_.num_ranks()) + " ranks, " + to_string(plan_.schedule) + ", " +
                       std::to_string(plan_.microbatches) + " microbatches";
    if (plan_.predicted_step_s > 0) text += ", step " + duration_text(plan_.predicted_step_s);
    return text;
  }

  std::string title() const {
    return printed("<text x=\"%d\" y=\"30\" font-size=\"17\" font-weight=\"600\" fill=\"#1f2933\">",
                   kMargin) +
           escape_xml(title_text()) + "</text>";
  }

  const Colours& colours(int stage) const {
    return kColours[static_cast<std::size_t>(stage) % kColours.size()];
  }

  std::string bands() const {
    std::string svg;
    for (int s = 0; s < plan_.num_stages(); ++s) {
      const PlanStage& stage = plan_.stages[s];
      svg += printed("<rect x=\"%d\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" rx=\"10\" fill=\"%s\"/>",
                     kMargin / 2, tops_[s], width_ - kMargin, bottoms_[s] - tops_[s], colours(s).band);
      const auto text = [&](double y, const char* look, const std::string& what) {
        svg += printed("<text x=\"%d\" y=\"%.0f\" %s>", kMargin + 4, tops_[s] + y, look) + escape_xml(what) +
               "</text>";
      };
      const std::string small = "font-size=\"12\" fill=\"#52606d\"";
      text(22, printed("font-size=\"15\" font-weight=\"600\" fill=\"%s\"", colours(s).line).c_str(),
           "Stage " + std::to_string(s));
      text(40, small.c_str(),
           ranks_text(stage.ranks) + ", " + std::to_string(stage.layers.size()) +
               (stage.layers.size() == 1 ? " layer" : " layers"));
      if (stage.forward_s + stage.backward_s > 0) {
        text(57, small.c_str(),
             "F " + duration_text(stage.forward_s) + ", B " + duration_text(stage.backward_s));
      }
      if (stage.peak_bytes > 0) {
        text(74, small.c_str(),
             bytes_text(stage.peak_bytes) + " a rank" + (stage.recompute ? ", recomputes" : ""));
      }
    }
    return svg;
  }

  std::string line(const LayerEdge& edge) {
    const Box& from = boxes_[edge.producer];
    const Box& to = boxes_[edge.consumer];
    const bool crosses = from.stage != to.stage;
    const bool near = crosses ? to.stage == from.stage + 1 && to.row == 0 &&
                                    from.row + 1 == static_cast<int>(rows_[from.stage].size())
                              : to.row == from.row + 1;
    const char* colour = crosses ? colours(from.stage).line : "#9aa5b1";
    const double stroke = (crosses ? 2.2 : 1.1) * (style_.named ? 1 : 0.7);
    std::string path;
    double label_x = 0;
    double label_y = 0;
    if (near) {
      const double x0 = from.x + style_.width / 2.0, y0 = from.y + style_.height;
      const double x1 = to.x + style_.width / 2.0, y1 = to.y;
      path = printed("M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f", x0, y0, x0, (y0 + y1) / 2, x1, (y0 + y1) / 2,
                     x1, y1);
      label_x = (x0 + x1) / 2 + 7;
      label_y = (y0 + y1) / 2 + 4;
    } else {
      const double x0 = from.x + style_.width, y0 = from.y + style_.height / 2.0;
      const double x1 = to.x + style_.width, y1 = to.y + style_.height / 2.0;
      const double out = std::max({x0, x1, widest_between(from, to)}) + 10 + 9 * (bulges_++ % 6);
      path = printed("M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f", x0, y0, out, y0, out, y1, x1, y1);
      label_x = 0.25 * (x0 + x1) / 2 + 0.75 * out + 4;
      label_y = (y0 + y1) / 2 + 4;
    }
    const std::string hint = graph_.nodes[edge.producer].name + " to " + graph_.nodes[edge.consumer].name +
                             ": " + bytes_text(edge.bytes);
    if (crosses && (style_.named || labelled_++ < 200)) {
      labels_ +=
          printed(
              "<text x=\"%.1f\" y=\"%.1f\" font-size=\"11\" fill=\"%s\" stroke=\"#fff\" stroke-width=\"3\" "
              "paint-order=\"stroke\">",
              label_x, label_y, colour) +
          bytes_text(edge.bytes) + "</text>";
    }
    return "<path d=\"" + path +
           printed("\" fill=\"none\" stroke=\"%s\" stroke-width=\"%.1f\"><title>", colour, stroke) +
           escape_xml(hint) + "</title></path>";
  }

  /// Right end of the rows that a line passes over, looked at sparsely when there are many.
  double widest_between(const Box& from, const Box& to) const {
    double widest = 0;
    int seen = 0;
    for (int s = from.stage; s <= to.stage && seen < 64; ++s) {
      const int first = s == from.stage ? from.row : 0;
      const int last = s == to.stage ? to.row : static_cast<int>(rows_[s].size()) - 1;
      for (int r = first; r <= last && seen < 64; ++r, ++seen) {
        widest = std::max(widest, boxes_[rows_[s][r].back()].x + style_.width);
      }
    }
    return widest;
  }

  std::string box(int node) const {
    const Box& box = boxes_[node];
    const LayerNode& layer = graph_.nodes[node];
    const std::string hint = layer.name + " (" + layer.kind + "), stage " + std::to_string(box.stage) +
                             ": forward " + duration_text(layer.forward_s) + ", backward " +
                             duration_text(layer.backward_s()) + ", " + bytes_text(layer.parameter_bytes) +
                             " of weights, output " + bytes_text(layer.activation_bytes);
    std::string svg = printed(
        "<g><rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" rx=\"%d\" fill=\"%s\" stroke=\"%s\" "
        "stroke-width=\"%.1f\"/><title>",
        box.x, box.y, style_.width, style_.height, style_.named ? 5 : 1, colours(box.stage).box,
        colours(box.stage).line, style_.named ? 1.0 : 0.4);
    svg += escape_xml(hint) + "</title>";
    if (style_.named) {
      svg +=
          printed("<text x=\"%.1f\" y=\"%.1f\" font-size=\"12\" fill=\"#1f2933\">", box.x + 8, box.y + 15) +
          escape_xml(shortened(layer.name, 17)) + "</text>";
      svg += printed("<text x=\"%.1f\" y=\"%.1f\" font-size=\"10\" fill=\"#616e7c\" text-anchor=\"end\">",
                     box.x + style_.width - 7, box.y + 15) +
             duration_text(layer.forward_s + layer.backward_s()) + "</text>";
    }
    return svg + "</g>";
  }

  const Plan& plan_;
  const LayerGraph& graph_;
  const Style style_;
  std::vector<Box> boxes_;
  std::vector<std::vector<std::vector<int>>> rows_;  // stage, row, nodes
  std::vector<double> tops_, bottoms_;               // of the bands
  std::string labels_;
  double left_ = 0, right_ = 0, width_ = 0, height_ = 0;
  int bulges_ = 0;
  int labelled_ = 0;
};

}  // namespace

std::string partition_svg(const Plan& plan, const LayerGraph& graph) {
  return Drawing(plan, graph).svg();
}

}  // namespace millrace
