#include "experiments/io/instrument/process_command.h"

#include <cstdio>
#include <filesystem>

#include "driver/cli/command_support.h"
#include "experiments/io/instrument/instrument_charts.h"
#include "experiments/io/instrument/instrument_support.h"
#include "runtime/base/files.h"
#include "runtime/base/progress_line.h"

namespace millrace {
namespace {

/// The kit's file names. Returns what was written.
Result<std::vector<std::string>> write_tables(const StepData& data, const SourceFlags& source,
                                              const std::string& out) {
  std::vector<std::pair<std::string, std::string>> files;
  files.emplace_back("all_data.json", python_json(all_data_json(data), 4));
  files.emplace_back(source.bert() ? "bert_step_analysis.txt" : source.label() + "_step_analysis.log",
                     step_analysis(data, source.label(), source.bert()));
  if (source.bert()) {
    files.emplace_back("BERT_plotting_data.json", python_json(plotting_data_json(data), -1));
    files.emplace_back("dlio_sleep_times.json", python_json(sleep_times_json(data), 4));
  }
  if (source.options.source == StepSource::Own)
    files.emplace_back("ranks.json", ranks_json(data).dump(2) + "\n");
  if (source.options.source != StepSource::Dlio) {
    const Result<KitFits> fits = kit_fits(data);
    if (!fits) return fits.problems();
    files.emplace_back("compute_time_fit.json", python_json(compute_time_fit_json(*fits), 4));
    files.emplace_back("ditribution_fits.txt", distribution_fits_text(*fits));
  }
  std::vector<std::string> written;
  for (const auto& [name, text] : files) {
    const std::filesystem::path path = std::filesystem::path(out) / name;
    if (const Status done = write_file_atomically(path, text); !done) return done.problems();
    written.push_back(path.string());
  }
  return written;
}

struct ProcessFlags {
  SourceFlags source;
  std::string out;
};

/// Does what process and plot have in common: reading, the output folder.
template <class Write>
int with_step_data(const CommandSpec& spec, const std::vector<std::string>& args, ProcessFlags& flags,
                   Write write) {
  return run_command(spec, args, [&](const Arguments& given, Problems problems) {
    append(problems, complete(flags.source, given));
    if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
    std::optional<WorkingLine> working("reads the runs");
    const Result<StepData> data = read_step_data(flags.source.options);
    if (!data) return exit_with(ExitCode::InputData, data.problems());
    if (const Status made = make_writable_folder(flags.out); !made)
      return exit_with(ExitCode::Usage, made.problems());
    working.emplace("writes the results");
    const Result<std::vector<std::string>> written = write(*data);
    working.reset();
    if (!written) return exit_with(ExitCode::Usage, written.problems());
    print_left_out(*data);
    std::printf("%lld files, %lld durations or steps, %zu configurations\n",
                static_cast<long long>(data->files), static_cast<long long>(data->events),
                data->by_configuration.size());
    for (const std::string& path : *written) std::printf("%s\n", path.c_str());
    return 0;
  });
}

Flag out_flag(std::string& out) {
  return {.name = "out",
          .short_name = 'o',
          .value = "OUT",
          .help = "Folder for the results.",
          .required = true,
          .target = into::text(out)};
}

CommandSpec process_spec(ProcessFlags& f) {
  CommandSpec spec;
  spec.command = "instrument process";
  spec.summary =
      "Step times of many runs, pooled by ranks and batch: the kit's tables, throughputs and fits.";
  add_source_flags(spec, f.source);
  spec.flags.push_back(out_flag(f.out));
  spec.interrupted = "files that are finished stay";
  spec.examples = {"millrace instrument process sets/unet3d_r1 sets/unet3d_r2 --workload unet3d --out tables",
                   "millrace instrument process out --workload millrace --out tables"};
  return spec;
}

struct PlotFlags : ProcessFlags {
  ChartOptions options;
};

CommandSpec plot_spec(PlotFlags& f) {
  CommandSpec spec;
  spec.command = "instrument plot";
  spec.summary = "Charts of step times: breakdown, throughputs, latencies, histograms of compute time.";
  add_source_flags(spec, f.source);
  spec.flags.push_back(out_flag(f.out));
  spec.flags.push_back(flag("", "title", "TEXT", "Above the charts.", into::text(f.options.title), 't'));
  spec.flags.push_back(flag("", "figures", "LIST",
                            "Some of breakdown, throughputs, latencies, histograms, comma-separated.",
                            into::choices(f.options.figures, "figure")));
  spec.flags.push_back(flag("", "formats", "LIST", "Some of svg, png, pdf, comma-separated.",
                            into::choices(f.options.formats, "format")));
  spec.interrupted = "files that are finished stay";
  spec.examples = {"millrace instrument plot sets/unet3d --workload unet3d --out figures --formats svg,pdf"};
  return spec;
}

}  // namespace

CommandSpec instrument_process_spec() {
  return without_targets<ProcessFlags>(process_spec);
}

int instrument_process_command(const std::vector<std::string>& args) {
  ProcessFlags flags;
  return with_step_data(process_spec(flags), args, flags,
                        [&](const StepData& data) { return write_tables(data, flags.source, flags.out); });
}

CommandSpec instrument_plot_spec() {
  return without_targets<PlotFlags>(plot_spec);
}

int instrument_plot_command(const std::vector<std::string>& args) {
  PlotFlags flags;
  return with_step_data(plot_spec(flags), args, flags,
                        [&](const StepData& data) -> Result<std::vector<std::string>> {
                          ChartOptions options = flags.options;
                          options.out = flags.out;
                          options.label = flags.source.label();
                          options.log_batches = flags.source.log_batches();
                          Result<std::vector<std::string>> written = draw_charts(data, options);
                          if (written && written->empty())
                            return Problem{"--figures", "nothing of them can be drawn from these runs",
                                           "breakdown, throughputs, latencies, histograms"};
                          return written;
                        });
}

}  // namespace millrace
