#include "experiments/sweep/fused_job.h"

#include <algorithm>

#include "driver/flags/compute_specs.h"

namespace millrace {
namespace {

bool trains_arrays() {
  const std::vector<Flag> flags = train_spec().flags;
  return std::ranges::find(flags, "fused", &Flag::name) != flags.end();
}

}  // namespace

Result<JobSpec> fused_job(const SweptJob& job, const std::vector<JobSettings>& settings,
                          const std::vector<std::string>& unfused) {
  if (!trains_arrays())
    return Problem{job.source(), "this build of millrace trains no job arrays", "leave fused out of modes"};
  Result<JobSpec> array = job.with(settings.front());
  if (!array) return array;
  set_flag(*array, "fused", "true");
  set_flag(*array, "jobs", std::to_string(settings.size()));
  if (!unfused.empty()) {
    std::string layers;
    for (const std::string& layer : unfused) layers += (layers.empty() ? "" : ",") + layer;
    set_flag(*array, "unfused", layers);
  }
  for (std::size_t i = 0; i < settings.front().size(); ++i) {
    std::vector<std::string> values;
    for (const JobSettings& one : settings) values.push_back(one[i].text);
    const bool alike =
        std::ranges::count(values, values.front()) == static_cast<std::ptrdiff_t>(values.size());
    if (!alike) array->lists.emplace_back(settings.front()[i].flag, std::move(values));
  }
  return array;
}

}  // namespace millrace
