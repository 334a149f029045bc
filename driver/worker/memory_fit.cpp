#include "driver/worker/memory_fit.h"

#include <algorithm>
#include <set>
#include <string>

#include "runtime/base/text.h"

namespace millrace {
namespace {

struct Part {
  Bytes bytes;
  std::string text;
};

std::string shown(Bytes bytes) {
  return printed("%.1f GB", double(bytes) / 1e9);
}

std::vector<Part> parameters_of(const NamedLayer& layer) {
  std::vector<Part> parts;
  for (const ParameterSpec& spec : layer.layer->parameters()) {
    if (spec.is_buffer || layer.is_tied(spec)) continue;
    Bytes bytes = sizeof(float);
    std::string shape;
    for (const std::int64_t side : spec.shape) {
      bytes *= side;
      shape += (shape.empty() ? "" : " x ") + std::to_string(side);
    }
    parts.push_back({bytes, layer.parameter_name(spec) + " (" + shape + "): " + shown(bytes)});
  }
  return parts;
}

}  // namespace

Status weights_fit(std::span<const LayeredModel> networks, const Plan& plan, const std::vector<int>& ranks,
                   Bytes available) {
  constexpr std::ptrdiff_t kNamed = 4;
  std::vector<Part> parts;
  for (const PlanStage& stage : plan.stages) {
    const std::set<std::string> names(stage.layers.begin(), stage.layers.end());
    for (const RankId rank : stage.ranks) {
      if (std::ranges::find(ranks, rank.value) == ranks.end()) continue;
      for (const LayeredModel& network : networks)
        for (const NamedLayer& layer : network.layers)
          if (names.contains(layer.name))
            for (Part& part : parameters_of(layer)) parts.push_back(std::move(part));
    }
  }
  Bytes weights = 0;
  for (const Part& part : parts) weights += part.bytes;
  if (available <= 0 || 2 * weights <= available) return Ok{};
  std::ranges::stable_sort(parts, std::greater(), &Part::bytes);
  std::string largest;
  for (std::ptrdiff_t i = 0; i < std::min(kNamed, std::ssize(parts)); ++i)
    largest += (i > 0 ? ", " : "") + parts[static_cast<std::size_t>(i)].text;
  return Problem{"memory",
                 "the weights of this process have " + shown(weights) + ", their gradients as much again; " +
                     shown(available) + " are free. The largest are " + largest,
                 "make the model smaller (tables: --table-rows-cap), spread its tables (--spread-tables), or "
                 "run its stages on more hosts"};
}

}  // namespace millrace
