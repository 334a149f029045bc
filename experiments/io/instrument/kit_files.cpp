// The files that the kit's processors write, to the byte where Python's formatting allows.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "experiments/io/instrument/step_data.h"
#include "experiments/io/trace/sampled_logs.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

/// round(value, decimals) of Python: to the nearest decimal of the exact binary value.
double rounded(double value, int decimals) {
  return std::strtod(printed("%.*f", decimals, value).c_str(), nullptr);
}

std::string column(double value) {
  std::string text = python_number(rounded(value, 5));
  return "\t" + std::string(text.size() < 15 ? 15 - text.size() : 0, ' ') + text;
}

std::string right(const std::string& text, std::size_t width) {
  return std::string(text.size() < width ? width - text.size() : 0, ' ') + text;
}

void dump(const Json& json, int indent, int level, std::string& out) {
  const auto new_line = [&](int depth) {
    if (indent < 0) return;
    out += '\n';
    out.append(static_cast<std::size_t>(indent * depth), ' ');
  };
  const auto separate = [&](bool first) {
    if (!first) out += indent < 0 ? ", " : ",";
    new_line(level + 1);
  };
  if (json.is_object()) {
    out += '{';
    bool first = true;
    for (const auto& [key, value] : json.members()) {
      separate(first);
      first = false;
      out += Json(key).dump() + ": ";
      dump(value, indent, level + 1, out);
    }
    if (!first) new_line(level);
    out += '}';
  } else if (json.is_array()) {
    out += '[';
    bool first = true;
    for (const Json& value : json.items()) {
      separate(first);
      first = false;
      dump(value, indent, level + 1, out);
    }
    if (!first) new_line(level);
    out += ']';
  } else {
    out += json.kind() == Json::Kind::Double ? python_number(json.as_double()) : json.dump();
  }
}

/// Adds {ranks: {batch: value}}.
Json& place(Json& json, const Configuration& configuration) {
  return json[std::to_string(configuration.ranks)][std::to_string(configuration.batch)];
}

Json summary_json(const Summary& s) {
  return Json::object({{"median", s.median}, {"mean", s.mean}, {"std", s.std}, {"q1", s.q1}, {"q3", s.q3}});
}

/// An array as numpy prints it: eight digits, zeros at the end cut alike, exponents if the sizes differ much.
std::string numpy_array(const std::vector<double>& values) {
  double most = 0, least = INFINITY;
  for (double value : values) {
    if (value != 0) most = std::max(most, std::abs(value)), least = std::min(least, std::abs(value));
  }
  const bool exponents = most >= 1e8 || (most > 0 && (least < 1e-4 || most / least > 1000));
  std::vector<std::string> texts;
  std::size_t left = 0, right_side = 0;
  for (double value : values) {
    std::string shown = printed(exponents ? "%.8e" : "%.8f", value);
    if (!exponents) {
      while (shown.back() == '0') shown.pop_back();
    }
    const std::size_t point = shown.find('.');
    left = std::max(left, point);
    right_side = std::max(right_side, shown.size() - point);
    texts.push_back(shown);
  }
  std::string out = "[";
  for (const std::string& text : texts) {
    const std::size_t point = text.find('.');
    if (out.size() > 1) out += ' ';
    out += std::string(left - point, ' ') + text + std::string(right_side - (text.size() - point), ' ');
  }
  return out + "]";
}

std::string plane_text(const Plane& plane, const char* what) {
  return std::string("compute_time_") + what + " = np.dot(" + numpy_array({plane.a, plane.b}) +
         ", [num_gpus, batch_size]) + " + python_number(plane.c) + "\n";
}

}  // namespace

double kit_seconds(double nanoseconds) {
  return rounded(nanoseconds / 1e9, 6);
}

std::string python_json(const Json& json, int indent) {
  std::string out;
  dump(json, indent, 0, out);
  return out;
}

Json all_data_json(const StepData& data) {
  Json json = Json::object();
  for (const auto& [configuration, metrics] : data.by_configuration) {
    Json& here = place(json, configuration);
    for (const auto& [name, values] : metrics) {
      Json list = Json::array();
      for (double value : values) list.push_back(value);
      here[name] = std::move(list);
    }
  }
  return json;
}

std::string step_analysis(const StepData& data, const std::string& label, bool bert_columns) {
  const std::vector<std::string> columns =
      bert_columns ? std::vector<std::string>{"Mean", "Median", "Std", "1st quartile", "3rd quart"}
                   : std::vector<std::string>{"Mean", "Std", "q1", "Median", "q3"};
  std::string text = right("Metric", 30);
  for (const std::string& name : columns) text += "\t" + right(name, 15);
  text += "\n";
  for (auto at = data.by_configuration.begin(); at != data.by_configuration.end(); ++at) {
    const auto& [configuration, metrics] = *at;
    text += label + "_" + std::to_string(configuration.ranks) + "GPU_" + std::to_string(configuration.batch) +
            "batch\n";
    for (const auto& [name, values] : metrics) {
      const Summary s = summary_of(values);
      text += right(name, 30) + ":";
      for (double value : bert_columns ? std::vector<double>{s.mean, s.median, s.std, s.q1, s.q3}
                                       : std::vector<double>{s.mean, s.std, s.q1, s.median, s.q3})
        text += column(value);
      text += "\n";
    }
    const auto next = std::next(at);
    const bool last_of_ranks =
        next == data.by_configuration.end() || next->first.ranks != configuration.ranks;
    if (bert_columns || last_of_ranks) text += "\n";
  }
  return text;
}

Json plotting_data_json(const StepData& data) {
  Json json = Json::object();
  for (const auto& [configuration, metrics] : data.by_configuration) {
    for (const auto& [name, values] : metrics)
      place(json, configuration)[name] = summary_json(summary_of(values));
  }
  return json;
}

Json sleep_times_json(const StepData& data) {
  Json json = Json::object();
  for (const auto& [configuration, metrics] : data.by_configuration) {
    const std::vector<double>* compute = find_metric(metrics, "all_compute");
    if (!compute) continue;
    const Summary s = summary_of(*compute);
    place(json, configuration) =
        Json::object({{"mean", s.mean}, {"std", s.std}, {"median", s.median}, {"q1", s.q1}, {"q3", s.q3}});
  }
  return json;
}

Json ranks_json(const StepData& data) {
  std::map<std::string, std::vector<const RankSteps*>> runs;
  for (const RankSteps& rank : data.ranks) runs[rank.run].push_back(&rank);
  Json json = Json::object();
  for (const auto& [run, ranks] : runs) {
    Json list = Json::array();
    double slowest = 0, sum = 0;
    int slowest_rank = -1;
    for (const RankSteps* rank : ranks) {
      Json entry = Json::object({{"rank", rank->rank}, {"stage", rank->stage}});
      double busy = 0;
      for (const auto& [name, values] : rank->metrics) {
        if (values.empty()) continue;
        const Summary s = summary_of(values);
        entry[name] = summary_json(s);
        if (name == "forward" || name == "backward" || name == "update") busy += s.mean;
      }
      entry["busy_s"] = busy;
      sum += busy;
      if (busy > slowest) slowest = busy, slowest_rank = rank->rank;
      list.push_back(std::move(entry));
    }
    const double mean = sum / static_cast<double>(ranks.size());
    json[run] = Json::object({{"slowest_rank", slowest_rank},
                              {"slowest_over_mean", mean > 0 ? slowest / mean : 0.0},
                              {"ranks", std::move(list)}});
  }
  return json;
}

Result<KitFits> kit_fits(const StepData& data) {
  KitFits fits;
  std::vector<std::array<double, 2>> x;
  std::vector<double> means, stds;
  for (const auto& [configuration, metrics] : data.by_configuration) {
    const std::vector<double>* compute = find_metric(metrics, "all_compute");
    if (!compute || compute->empty()) continue;
    const std::vector<double> kept = trimmed(*compute);
    fits.normals[configuration] = {mean_of(kept), population_std(kept)};
    x.push_back({double(configuration.ranks), double(configuration.batch)});
    means.push_back(mean_of(kept));
    stds.push_back(population_std(kept));
  }
  if (means.empty()) return Problem{"all_compute", "was measured in no run", "is --workload right?"};
  fits.mean = fit_plane(x, means);
  fits.std = fit_plane(x, stds);
  return fits;
}

Json compute_time_fit_json(const KitFits& fits) {
  Json json = Json::object();
  for (const auto& [configuration, normal] : fits.normals) {
    Json mu = Json::array(), std = Json::array();
    mu.push_back(normal.first);
    std.push_back(normal.second);
    place(json, configuration) = Json::object({{"mu", mu}, {"std", std}});
  }
  return json;
}

std::string distribution_fits_text(const KitFits& fits) {
  return "Fitting lin reg gpus, batches and mus:\n    \tModel: \n    \t\t" + plane_text(fits.mean, "mean") +
         "    \tR2: " + python_number(fits.mean.r2) +
         "\nFitting lin reg gpus, batches and stds:\n    Model:\n    \t" + plane_text(fits.std, "std") +
         "    R2: " + python_number(fits.std.r2) + "\n";
}

}  // namespace millrace
