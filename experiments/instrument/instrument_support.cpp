#include "experiments/instrument/instrument_support.h"

#include <cctype>
#include <cstdio>

namespace millrace {

void add_source_flags(CommandSpec& spec) {
  spec.positionals = {"DIR..."};
  spec.flags.push_back(
      {.name = "workload",
       .short_name = 'w',
       .value = "NAME",
       .help = "unet3d or dlrm (DIR/raw_data/*.json, arrays of mllog events), bert "
               "(DIR/data/<run>/**/timeline-*.json), dlio-unet3d, dlio-bert or dlio-dlrm (dlio.log "
               "below DIR), millrace (our own runs: DIR/steps.rank*.jsonl).",
       .required = true});
  spec.flags.push_back(
      {.name = "ranks",
       .value = "N",
       .help = "Of all runs; else from the manifest, or a name as the kit writes it (UNET3D_8g_4b), "
               "whose numbers are read whole."});
  spec.flags.push_back(
      {.name = "batch", .value = "N", .help = "Of all runs, as --ranks; the two go together."});
  spec.flags.push_back(
      {.name = "manifest",
       .value = "FILE",
       .help = "JSON: {\"runs\": [{\"path\": \"raw_data/a.json\", \"ranks\": 8, \"batch\": 4}]}, paths "
               "below DIR."});
  spec.flags.push_back(
      {.name = "keep-warm-up", .help = "Count the first epoch and the first step of each too."});
}

SourceArguments source_arguments(Arguments& arguments, Problems& problems) {
  SourceArguments result;
  StepDataOptions& o = result.options;
  o.folders = arguments.positionals();
  const std::string workload = arguments.string("workload");
  struct Known {
    const char* name;
    StepSource source;
    bool by_sample;
  };
  static constexpr Known kKnown[] = {
      {"unet3d", StepSource::Unet3d, true},   {"dlrm", StepSource::Dlrm, false},
      {"bert", StepSource::Bert, false},      {"dlio-unet3d", StepSource::Dlio, true},
      {"dlio-bert", StepSource::Dlio, false}, {"dlio-dlrm", StepSource::Dlio, false},
      {"millrace", StepSource::Own, false}};
  bool known = false;
  std::vector<std::string> names;
  for (const Known& k : kKnown) {
    names.emplace_back(k.name);
    if (workload != k.name) continue;
    known = true;
    o.source = k.source;
    o.by_sample = k.by_sample;
  }
  if (!known) {
    const std::optional<std::string> nearest = nearest_name(workload, names);
    problems.push_back(
        {"--workload", "unknown workload '" + workload + "'",
         nearest ? "did you mean " + *nearest + "?" : "unet3d, dlrm, bert, dlio-..., millrace"});
  }
  for (char c : workload)
    result.label += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  result.bert = o.source == StepSource::Bert;
  result.log_batches = workload == "dlrm" || workload == "dlio-dlrm";
  o.manifest = arguments.string("manifest");
  o.keep_warm_up = arguments.boolean("keep-warm-up");
  if (arguments.has("ranks") != arguments.has("batch"))
    problems.push_back({"--ranks, --batch", "one is given without the other", "give both"});
  if (arguments.has("ranks")) o.ranks = static_cast<int>(arguments.integer("ranks", 1, 1 << 24));
  if (arguments.has("batch")) o.batch = static_cast<int>(arguments.integer("batch", 1, 1 << 30));
  return result;
}

void print_left_out(const StepData& data) {
  for (const std::string& note : data.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  for (const auto& [why, count] : data.dropped)
    std::fprintf(stderr, "left out: %lld %s\n", static_cast<long long>(count), why.c_str());
}

}  // namespace millrace
