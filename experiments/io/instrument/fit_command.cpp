#include "experiments/io/instrument/fit_command.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "driver/cli/command_support.h"
#include "experiments/io/instrument/instrument_support.h"
#include "experiments/io/instrument/scaling_fit.h"
#include "experiments/io/instrument/workload_file.h"
#include "experiments/io/trace/lines.h"
#include "runtime/base/files.h"
#include "runtime/base/progress_line.h"

namespace millrace {
namespace {

struct FitFlags {
  SourceFlags source;
  std::string metric = "all_compute";
  std::string out;
  bool kit = false;
  std::optional<std::string> workload_file;
  std::optional<Configuration> at;
  std::optional<Family> family;  ///< nothing: the best
  OutputFormat format = OutputFormat::Text;
};

struct ConfigurationFit {
  Configuration configuration;
  Summary summary;
  DistributionFits fits;
};

struct AllFits {
  std::string metric;
  std::vector<ConfigurationFit> configurations;
  Scaling mean, spread;
  std::vector<std::string> notes;
};

Result<AllFits> fit_all(const StepData& data, const std::string& metric) {
  AllFits all{metric};
  std::vector<ScalingPoint> means, spreads;
  for (const auto& [configuration, metrics] : data.by_configuration) {
    const std::vector<double>* values = find_metric(metrics, metric);
    if (!values) {
      all.notes.push_back(std::to_string(configuration.ranks) + " ranks, batch " +
                          std::to_string(configuration.batch) + ": has no " + metric);
      continue;
    }
    const Summary summary = summary_of(*values);
    if (const Result<DistributionFits> fits = fit_distributions(*values)) {
      all.configurations.push_back({configuration, summary, *fits});
    } else {
      return fits.problems();
    }
    means.push_back({double(configuration.ranks), double(configuration.batch), summary.mean});
    spreads.push_back({double(configuration.ranks), double(configuration.batch), summary.std});
  }
  if (means.empty()) {
    std::vector<std::string> known;
    for (const auto& [name, values] : data.by_configuration.begin()->second) known.push_back(name);
    const std::optional<std::string> nearest = nearest_name(metric, known);
    return Problem{"--metric", "no run has '" + metric + "'",
                   nearest ? "did you mean " + *nearest + "?" : ""};
  }
  const Result<Scaling> mean = fit_scaling(means), spread = fit_scaling(spreads);
  if (!mean) return mean.problems();
  if (!spread) return spread.problems();
  all.mean = *mean;
  all.spread = *spread;
  return all;
}

Json fits_json(const AllFits& all) {
  Json list = Json::array();
  for (const ConfigurationFit& c : all.configurations) {
    Json families = Json::array();
    for (const FamilyFit& fit : c.fits.fits) {
      Json entry = Json::object({{"distribution", fit.distribution.json()}, {"ks", fit.ks}});
      const Family family = fit.distribution.family;
      if (family != Family::Constant && family != Family::Empirical) {
        entry["log_likelihood"] = fit.log_likelihood;
        entry["aic"] = fit.aic;
        entry["bic"] = fit.bic;
      }
      families.push_back(std::move(entry));
    }
    Json left_out = Json::array();
    for (const std::string& why : c.fits.left_out) left_out.push_back(why);
    list.push_back(Json::object({{"ranks", c.configuration.ranks},
                                 {"batch", c.configuration.batch},
                                 {"count", static_cast<std::int64_t>(c.summary.count)},
                                 {"mean", c.summary.mean},
                                 {"std", c.summary.std},
                                 {"fits", std::move(families)},
                                 {"left_out", std::move(left_out)}}));
  }
  return Json::object({{"format", "millrace-fits-1"},
                       {"metric", all.metric},
                       {"configurations", std::move(list)},
                       {"mean", all.mean.json()},
                       {"spread", all.spread.json()}});
}

void print_fits(const AllFits& all) {
  std::printf("%-6s %-9s %7s  %-18s %10s %12s %12s %8s\n", "ranks", "batch", "values", "family", "mean s",
              "AIC", "BIC", "KS");
  for (const ConfigurationFit& c : all.configurations) {
    for (const FamilyFit& fit : c.fits.fits) {
      const Family family = fit.distribution.family;
      std::printf("%-6d %-9d %7zu  %-18s %10.6f ", c.configuration.ranks, c.configuration.batch,
                  c.summary.count, to_string(family).c_str(), fit.distribution.mean());
      if (family == Family::Constant || family == Family::Empirical) {
        std::printf("%12s %12s %8.4f\n", "-", "-", fit.ks);
      } else {
        std::printf("%12.2f %12.2f %8.4f\n", fit.aic, fit.bic, fit.ks);
      }
    }
    for (const std::string& why : c.fits.left_out) std::printf("%-25s left out: %s\n", "", why.c_str());
  }
  for (const auto& [name, scaling] : {std::pair("mean", &all.mean), std::pair("spread", &all.spread)}) {
    if (all.configurations.size() == 1) {
      std::printf("%-6s = %s   (one configuration: nothing says how it changes with ranks or batch)\n", name,
                  scaling->text().c_str());
      continue;
    }
    std::printf("%-6s = %s   (R2 %.4f; left-out points: median error %.1f %%, worst %.1f %%)\n", name,
                scaling->text().c_str(), scaling->r2, 100 * scaling->median_error,
                100 * scaling->worst_error);
  }
}

/// The family that was asked for, or the best by BIC. "best" for a configuration that was not measured: a
/// normal of the mean and spread that the scaling gives.
Result<WorkloadFile> workload_of(const AllFits& all, Configuration wanted, std::optional<Family> family,
                                 const std::string& name) {
  WorkloadFile file{.name = name, .ranks = wanted.ranks, .batch = wanted.batch};
  const std::string place = std::to_string(wanted.ranks) + " ranks, batch " + std::to_string(wanted.batch);
  const auto measured = std::find_if(all.configurations.begin(), all.configurations.end(),
                                     [&](const auto& c) { return c.configuration == wanted; });
  if (measured == all.configurations.end()) {
    if (family && family != Family::Normal)
      return Problem{"--family", place + " was not measured: only mean and spread are known there",
                     "--family normal, or a configuration that was measured"};
    const auto elsewhere = [&](int Configuration::*quantity, bool varied) {
      return !varied && all.configurations.front().configuration.*quantity != wanted.*quantity;
    };
    for (const auto& [name, other] :
         {std::pair("ranks", elsewhere(&Configuration::ranks, all.mean.ranks_varied)),
          std::pair("batch", elsewhere(&Configuration::batch, all.mean.batch_varied))}) {
      if (other)
        return Problem{
            "--at", place + " was not measured, and all measured configurations have the same " + name,
            std::string("measure runs of other ") + name + ", or name a configuration that was measured"};
    }
    const double mean = all.mean.at(wanted.ranks, wanted.batch),
                 std = all.spread.at(wanted.ranks, wanted.batch);
    file.computation =
        std > 0 ? Distribution{Family::Normal, {mean, std}} : Distribution{Family::Constant, {mean}};
    file.comment = all.metric + " for " + place + ", from the fitted mean " + all.mean.text() +
                   " and spread " + all.spread.text();
    return file;
  }
  const FamilyFit* fit = &measured->fits.fits.front();
  if (family) {
    fit = measured->fits.find(*family);
    if (!fit)
      return Problem{"--family", "'" + to_string(*family) + "' was not fitted to " + place,
                     "best, or another"};
  }
  file.computation = fit->distribution;
  file.comment = all.metric + " of " + std::to_string(measured->summary.count) + " steps, " + place + ": " +
                 to_string(fit->distribution.family);
  return file;
}

int print_kit(const Result<KitFits>& fits, const std::string& out) {
  if (!fits) return exit_with(ExitCode::InputData, fits.problems());
  std::printf("%s", distribution_fits_text(*fits).c_str());
  if (out.empty()) return 0;
  const std::pair<const char*, std::string> files[] = {
      {"compute_time_fit.json", python_json(compute_time_fit_json(*fits), 4)},
      {"ditribution_fits.txt", distribution_fits_text(*fits)}};
  for (const auto& [name, text] : files) {
    const Status done = write_file_atomically(std::filesystem::path(out) / name, text);
    if (!done) return exit_with(ExitCode::Usage, done.problems());
  }
  return 0;
}

Result<std::optional<Family>> family_from(const std::string& text) {
  if (text == "best") return std::optional<Family>();
  std::vector<std::string> names{"best"};
  for (const std::string& name : all_names<Family>()) names.push_back(name);
  const Result<std::size_t> place = choice_from(text, "family", names);
  if (!place) return place.problems();
  return std::optional(static_cast<Family>(*place - 1));
}

/// "RANKS BATCH".
Target into_configuration(std::optional<Configuration>& member) {
  return {[&member](const std::vector<std::string>& words) -> std::optional<Problem> {
    const std::optional<int> ranks = number_of<int>(words[0]), batch = number_of<int>(words[1]);
    if (!ranks || !batch || *ranks < 1 || *batch < 1)
      return Problem{"", "'" + words[0] + " " + words[1] + "' is not RANKS BATCH", "for example 8 4"};
    member = Configuration{*ranks, *batch};
    return std::nullopt;
  }};
}

CommandSpec fit_spec(FitFlags& f) {
  CommandSpec spec;
  spec.command = "instrument fit";
  spec.summary = "Fit distributions to step times, and mean and spread as functions of ranks and batch.";
  add_source_flags(spec, f.source);
  spec.flags.push_back(flag("", "metric", "NAME", "Which times.", into::text(f.metric)));
  spec.flags.push_back(flag("", "out", "OUT", "Folder for fits.json.", into::text(f.out), 'o'));
  spec.flags.push_back(flag("", "kit",
                            "The kit's fits instead: normals of what lies between the 1st and the 99th "
                            "percentile, and linear regressions of mean and spread.",
                            into::on(f.kit)));
  spec.flags.push_back(
      flag("Workload", "workload-file", "FILE",
           "Write a workload (YAML, DLIO's configuration) whose computation time is the fit, for --at.",
           into::text(f.workload_file)));
  spec.flags.push_back(flag("Workload", "at", "RANKS BATCH",
                            "Which configuration; one that was not measured gets the fitted mean and spread "
                            "(default: the only one measured).",
                            into_configuration(f.at)));
  spec.flags.push_back(flag("Workload", "family", "NAME", "best (by BIC) or one of the fitted families.",
                            into::parsed(f.family, family_from, "best")));
  spec.flags.push_back(flag("", "format", "text|json", "What to print.", into::choice(f.format, "format")));
  spec.examples = {
      "millrace instrument fit sets/unet3d --workload unet3d",
      "millrace instrument fit sets/unet3d --workload unet3d --workload-file emulated.yaml --at 8 4",
      "millrace instrument fit sets/unet3d --workload unet3d --kit --out tables"};
  return spec;
}

int fit(const FitFlags& flags) {
  const std::string& out = flags.out;
  if (!out.empty()) {
    if (const Status made = make_writable_folder(out); !made)
      return exit_with(ExitCode::Usage, made.problems());
  }
  std::optional<WorkingLine> working("reads the runs");
  const Result<StepData> data = read_step_data(flags.source.options);
  working.reset();
  if (!data) return exit_with(ExitCode::InputData, data.problems());
  print_left_out(*data);
  working.emplace("fits");
  if (flags.kit) {
    const Result<KitFits> fits = kit_fits(*data);
    working.reset();
    return print_kit(fits, out);
  }
  const Result<AllFits> all = fit_all(*data, flags.metric);
  working.reset();
  if (!all) return exit_with(ExitCode::InputData, all.problems());
  for (const std::string& note : all->notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  if (flags.format == OutputFormat::Json) {
    std::printf("%s\n", fits_json(*all).dump(2).c_str());
  } else {
    print_fits(*all);
  }
  if (!out.empty()) {
    const Status done =
        write_file_atomically(std::filesystem::path(out) / "fits.json", fits_json(*all).dump(2) + "\n");
    if (!done) return exit_with(ExitCode::Usage, done.problems());
  }
  if (!flags.workload_file) return 0;
  if (!flags.at && all->configurations.size() > 1)
    return exit_with(ExitCode::Usage,
                     {{"--at", "is needed: several configurations were measured", "--at RANKS BATCH"}});
  const Result<WorkloadFile> file =
      workload_of(*all, flags.at.value_or(all->configurations.front().configuration), flags.family,
                  to_string(flags.source.workload));
  if (!file) return exit_with(ExitCode::Usage, file.problems());
  if (const Status done = write_file_atomically(*flags.workload_file, workload_yaml(*file)); !done)
    return exit_with(ExitCode::Usage, done.problems());
  std::fprintf(stderr, "written to %s\n", flags.workload_file->c_str());
  return 0;
}

}  // namespace

CommandSpec instrument_fit_spec() {
  return without_targets<FitFlags>(fit_spec);
}

int instrument_fit_command(const std::vector<std::string>& args) {
  FitFlags flags;
  return run_command(fit_spec(flags), args, [&](const Arguments& given, Problems problems) {
    append(problems, complete(flags.source, given));
    return problems.empty() ? fit(flags) : exit_with(ExitCode::Usage, problems);
  });
}

}  // namespace millrace
