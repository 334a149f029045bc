#include "experiments/io/instrument/workload_file.h"

#include <cmath>

namespace millrace {
namespace {

Json part(const char* family, double first, double second, double weight) {
  const bool logs = std::string(family) == "lognormal";
  return Json::object(
      {{"weight", weight},
       {"time", Json::object(
                    {{"type", family}, {logs ? "mu" : "mean", first}, {logs ? "sigma" : "stdev", second}})}});
}

Json values_json(const std::vector<double>& values) {
  Json list = Json::array();
  for (double value : values) list.push_back(value);
  return Json::object({{"type", "empirical"}, {"values", std::move(list)}});
}

}  // namespace

Json computation_time_json(const Distribution& d) {
  const std::vector<double>& p = d.parameters;
  switch (d.family) {
    case Family::Constant:
      return p[0];
    case Family::Empirical:
      return values_json(p);
    case Family::Weibull: {
      std::vector<double> values;
      for (int i = 0; i < 200; ++i)
        values.push_back(p[1] * std::pow(-std::log1p(-(i + 0.5) / 200), 1 / p[0]));
      return values_json(values);
    }
    case Family::NormalMixture:
    case Family::LogNormalMixture: {
      const char* const family = d.family == Family::NormalMixture ? "normal" : "lognormal";
      Json parts = Json::array();
      parts.push_back(part(family, p[1], p[2], p[0]));
      parts.push_back(part(family, p[3], p[4], 1 - p[0]));
      return Json::object({{"type", "mixture"}, {"components", std::move(parts)}});
    }
    default:
      return d.json();
  }
}

std::string workload_yaml(const WorkloadFile& file) {
  std::string text = "# " + file.comment + "\n";
  text += "model: {name: " + Json(file.name).dump() + "}\n";
  text += "framework: pytorch\n";
  text += "workflow: {generate_data: false, train: true}\n";
  text += "reader: {batch_size: " + std::to_string(file.batch) + "}\n";
  text += "train:\n  computation_time: " + computation_time_json(file.computation).dump() + "\n";
  return text;
}

}  // namespace millrace
