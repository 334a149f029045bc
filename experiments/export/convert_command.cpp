#include "experiments/export/convert_command.h"

#include <cstdio>
#include <optional>

#include "driver/cli/command_support.h"
#include "experiments/export/exporters.h"
#include "runtime/base/files.h"
#include "runtime/base/progress_line.h"

namespace millrace {
namespace {

int export_all(const EventLog& log, const std::vector<ExportFormat>& formats, const std::string& folder,
               OutputFormat format) {
  if (const Status made = make_writable_folder(folder); !made)
    return exit_with(ExitCode::Usage, made.problems());
  for (const std::string& note : log.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  Json list = Json::array();
  for (const ExportFormat one : formats) {
    const Exported done = export_log(log, one, folder);
    Json files = Json::array();
    for (const std::string& file : done.files) files.push_back(file);
    list.push_back(Json::object(
        {{"format", to_string(one)}, {"files", files}, {"spans", done.spans}, {"values", done.values}}));
    if (format == OutputFormat::Text && !done.files.empty())
      std::printf("%s: %s%lld %s in %s/%s%s\n", to_string(one).c_str(),
                  done.spans > 0 ? (std::to_string(done.spans) + " spans, ").c_str() : "",
                  static_cast<long long>(done.values), one == ExportFormat::Mllog ? "lines" : "values",
                  folder.c_str(), done.files.front().c_str(), done.files.size() > 1 ? " and others" : "");
    if (done.files.empty() || done.spans + done.values == 0)
      std::fprintf(stderr, "note: %s has nothing of this run to show\n", to_string(one).c_str());
  }
  if (format == OutputFormat::Json)
    std::printf(
        "%s\n",
        Json::object({{"source", log.source}, {"folder", folder}, {"exports", list}}).dump(1).c_str());
  return 0;
}

struct ConvertFlags {
  std::vector<ExportFormat> formats;
  std::optional<std::string> out;
  OutputFormat format = OutputFormat::Text;
};

CommandSpec spec_of(ConvertFlags& f) {
  CommandSpec spec;
  spec.command = "trace convert";
  spec.summary = "Write a run for other tools: mllog, Chrome, Perfetto, TensorBoard, Prometheus, CSV.";
  spec.positionals = {"DIR"};
  spec.flags = {
      {.name = "to",
       .value = "FORMATS",
       .help = "Comma-separated: mllog, chrome, perfetto, tensorboard, prometheus, csv, mlflow, or all.",
       .required = true,
       .target = into::parsed(f.formats, parse_export_formats)},
      flag("", "out", "DIR", "Where the files go (default: DIR/export).", into::text(f.out), 'o'),
      flag("", "format", "text|json", "How to print what was written.", into::choice(f.format, "format")),
  };
  spec.interrupted = "files that are finished stay";
  spec.examples = {"millrace trace convert run --to perfetto,tensorboard",
                   "millrace trace convert processed/unet3d_8g --to chrome --out chrome",
                   "millrace trace convert hydra_log/unet3d/run --to all --format json"};
  return spec;
}

}  // namespace

CommandSpec convert_spec() {
  return without_targets<ConvertFlags>(spec_of);
}

int convert_command(const std::vector<std::string>& args) {
  ConvertFlags flags;
  return run_command(spec_of(flags), args, [&](const Arguments& given, const Problems& problems) {
    if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
    const std::string& folder = given.positionals().front();
    const Result<EventLog> log = while_working("reads the run", [&] { return read_event_log(folder); });
    if (!log) return exit_with(ExitCode::InputData, log.problems());
    return export_all(*log, flags.formats, flags.out.value_or(folder + "/export"), flags.format);
  });
}

Problems check_log_formats(const std::string& formats) {
  const auto parsed = parse_export_formats(formats);
  return parsed ? Problems{} : parsed.problems();
}

int export_run(const std::string& output_dir, const std::string& formats) {
  const Result<EventLog> log = read_event_log(output_dir);
  if (!log) return exit_with(ExitCode::InputData, log.problems());
  return export_all(*log, *parse_export_formats(formats), output_dir + "/export", OutputFormat::Text);
}

}  // namespace millrace
