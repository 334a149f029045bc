#include "experiments/io/instrument/instrument_support.h"

#include <cctype>
#include <cstdio>

namespace millrace {

void add_source_flags(CommandSpec& spec, SourceFlags& f) {
  spec.positionals = {"DIR..."};
  spec.flags.push_back({.name = "workload",
                        .short_name = 'w',
                        .value = "NAME",
                        .help = "unet3d or dlrm (DIR/raw_data/*.json, arrays of mllog events), bert "
                                "(DIR/data/<run>/**/timeline-*.json), dlio-unet3d, dlio-bert or dlio-dlrm "
                                "(dlio.log below DIR), millrace (our own runs: DIR/steps.rank*.jsonl).",
                        .required = true,
                        .target = into::choice(f.workload, "workload")});
  spec.flags.push_back(flag("", "ranks", "N",
                            "Of all runs; else from the manifest, or a name as the kit writes it "
                            "(UNET3D_8g_4b), whose numbers are read whole.",
                            into::integer(f.options.ranks, 1, 1 << 24)));
  spec.flags.push_back(flag("", "batch", "N", "Of all runs, as --ranks; the two go together.",
                            into::integer(f.options.batch, 1, 1 << 30)));
  spec.flags.push_back(flag(
      "", "manifest", "FILE",
      "JSON: {\"runs\": [{\"path\": \"raw_data/a.json\", \"ranks\": 8, \"batch\": 4}]}, paths below DIR.",
      into::text(f.options.manifest)));
  spec.flags.push_back(flag("", "keep-warm-up", "Count the first epoch and the first step of each too.",
                            into::on(f.options.keep_warm_up)));
}

std::string SourceFlags::label() const {
  std::string result;
  for (char c : to_string(workload))
    result += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

Problems complete(SourceFlags& flags, const Arguments& given) {
  StepDataOptions& o = flags.options;
  o.folders = given.positionals();
  switch (flags.workload) {
    case StepWorkload::Unet3d:
      o.source = StepSource::Unet3d;
      break;
    case StepWorkload::Dlrm:
      o.source = StepSource::Dlrm;
      break;
    case StepWorkload::Bert:
      o.source = StepSource::Bert;
      break;
    case StepWorkload::DlioUnet3d:
    case StepWorkload::DlioBert:
    case StepWorkload::DlioDlrm:
      o.source = StepSource::Dlio;
      break;
    case StepWorkload::Own:
      o.source = StepSource::Own;
      break;
  }
  o.by_sample = flags.workload == StepWorkload::Unet3d || flags.workload == StepWorkload::DlioUnet3d;
  if (given.has("ranks") == given.has("batch")) return {};
  return {{"--ranks, --batch", "one is given without the other", "give both"}};
}

void print_left_out(const StepData& data) {
  for (const std::string& note : data.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
  for (const auto& [why, count] : data.dropped)
    std::fprintf(stderr, "left out: %lld %s\n", static_cast<long long>(count), why.c_str());
}

}  // namespace millrace
