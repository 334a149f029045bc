#include "driver/plan/device_profile_command.h"

#include <cstdio>
#include <filesystem>
#include <utility>

#include "driver/cli/command_support.h"
#include "runtime/plan/device_table.h"

namespace millrace {
namespace {

struct DeviceProfileFlags {
  std::string profile, table, device, model, out;
  TableLeave leave;
};

CommandSpec spec_of(DeviceProfileFlags& f) {
  CommandSpec spec;
  spec.command = "device-profile";
  spec.summary =
      "Turn a profile that was measured here into one of another device: its layers keep their shares, and a "
      "microbatch takes the time that a table has for the device.";
  spec.flags = {
      {.name = "profile",
       .short_name = 'p',
       .value = "FILE",
       .help = "profile.json of `millrace profile`.",
       .required = true,
       .target = into::text(f.profile)},
      device_table_flag(into::text(f.table)),
      table_device_flag(into::text(f.device)),
      flag("", "table-model", "NAME", "The table's name of the model (default: the profile's).",
           into::text(f.model)),
      flag("", "extrapolate",
           "Take a time for a microbatch smaller or larger than all of the table's: the line through "
           "the two nearest goes on.",
           into::on(f.leave.extrapolate)),
      flag("", "mix-stacks", "Take a time between two that were measured with different software.",
           into::on(f.leave.mix_stacks)),
      {.name = "out",
       .short_name = 'o',
       .value = "FILE",
       .help = "Write the profile here.",
       .required = true,
       .target = into::text(f.out)}};
  spec.examples = {
      "millrace device-profile --profile profile.json --table gpus.tsv --device v100 --out v100.json"};
  return spec;
}

int rescale(const DeviceProfileFlags& f) {
  const Result<LayerGraph> profile = LayerGraph::load(f.profile);
  if (!profile) return exit_with(ExitCode::InputData, profile.problems());
  if (profile->jobs > 1)
    return exit_with(ExitCode::InputData,
                     {{f.profile, "it is of a job array of " + std::to_string(profile->jobs) + " jobs",
                       "tables have the times of single jobs"}});
  const double here = batch_seconds(*profile);
  if (!(here > 0))
    return exit_with(ExitCode::InputData, {{f.profile, "it has no times", "measure it: millrace profile"}});
  const Result<DeviceTable> table = DeviceTable::load(f.table);
  if (!table) return exit_with(ExitCode::InputData, table.problems());
  const Result<double> there =
      table->seconds(f.device, f.model.empty() ? profile->model : f.model, profile->microbatch, f.leave);
  if (!there) return exit_with(ExitCode::InputData, there.problems());
  if (f.leave.extrapolate && !table->seconds(f.device, f.model.empty() ? profile->model : f.model,
                                             profile->microbatch, {.mix_stacks = f.leave.mix_stacks}))
    std::fprintf(stderr, "note: %s has no times around a microbatch of %d: the time is extrapolated\n",
                 f.table.c_str(), profile->microbatch);
  if (const Status free = may_replace(f.out, "millrace-profile"); !free)
    return exit_with(ExitCode::Usage, free.problems());
  const std::string file = std::filesystem::path(f.table).filename().string();
  const LayerGraph made = rescaled(*profile, *there, f.device + " (" + file + ")");
  if (const Status written = made.save(f.out); !written)
    return exit_with(ExitCode::RunFailed, written.problems());
  std::printf("%s, a microbatch of %d: %.3f ms on %s, %.3f ms on %s (%.2fx)\nwrote %s\n", made.model.c_str(),
              made.microbatch, *there * 1e3, f.device.c_str(), here * 1e3, profile->device.c_str(),
              here / *there, f.out.c_str());
  return 0;
}

}  // namespace

CommandSpec device_profile_spec() {
  return without_targets<DeviceProfileFlags>(spec_of);
}

int device_profile_command(const std::vector<std::string>& args) {
  DeviceProfileFlags flags;
  return run_command(spec_of(flags), args, [&](const Arguments&, const Problems& problems) {
    return problems.empty() ? rescale(flags) : exit_with(ExitCode::Usage, problems);
  });
}

}  // namespace millrace
