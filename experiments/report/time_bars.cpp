#include "experiments/report/time_bars.h"

#include <algorithm>
#include <numeric>

#include "experiments/drawing/figures.h"
#include "runtime/base/text.h"
#include "runtime/drawing/svg.h"

namespace millrace {
namespace {

constexpr double kSeen = 0.003;     // of the longest bar; less is thinner than a line
constexpr double kWithText = 0.07;  // room for a figure

double sum_of(const TimeRow& row) {
  return std::accumulate(row.seconds.begin(), row.seconds.end(), 0.0);
}

}  // namespace

std::string time_bars_html(const std::vector<TimePart>& parts, const std::vector<TimeRow>& rows) {
  double longest = 0;
  for (const TimeRow& row : rows) longest = std::max(longest, sum_of(row));
  if (!(longest > 0)) return "";
  std::vector<char> seen(parts.size(), 0);
  std::string bars;
  for (const TimeRow& row : rows) {
    bars += "<span>" + escape_xml(row.label) + "</span><div class=\"bar\">";
    for (std::size_t p = 0; p < std::min(parts.size(), row.seconds.size()); ++p) {
      const double share = row.seconds[p] / longest;
      if (!(share >= kSeen)) continue;
      seen[p] = 1;
      const std::string value = figure(row.seconds[p] * 1e3);
      bars += printed("<i style=\"width:%.2f%%;background:", share * 100) + escape_xml(parts[p].colour) +
              (parts[p].colour.starts_with("var(") ? ";color:var(--text)" : "") + "\" title=\"" +
              escape_xml(parts[p].name) + " " + value + " ms\">" + (share >= kWithText ? value : "") + "</i>";
    }
    bars += "</div><span class=\"sum\">" + figure(sum_of(row) * 1e3) + " ms</span>";
  }
  std::string legend;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    if (seen[p])
      legend += "<span><i style=\"background:" + escape_xml(parts[p].colour) + "\"></i>" +
                escape_xml(parts[p].name) + "</span>";
  }
  return "<div class=\"legend\">" + legend + "</div><div class=\"bars\">" + bars + "</div>";
}

}  // namespace millrace
