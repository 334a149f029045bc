#include "driver/plan/device_table_command.h"

#include <cstdio>
#include <utility>

#include "driver/cli/command_support.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/plan/device_table_check.h"

namespace millrace {
namespace {

struct DeviceTableFlags {
  std::vector<std::string> tables;
  OutputFormat format = OutputFormat::Text;
};

CommandSpec spec_of(DeviceTableFlags& f) {
  CommandSpec spec;
  spec.command = "device-table";
  spec.summary =
      "Check tables of devices: labels that cannot be right, and the error of times between the measured "
      "batches.";
  spec.flags = {
      device_table_flag(into::texts(f.tables)),
      flag("", "format", "text|json", "How to print the result.", into::choice(f.format, "format"))};
  spec.flags.front().help += " Several are compared to each other.";
  spec.flags.front().repeatable = true;
  spec.examples = {"millrace device-table --table gpus.tsv",
                   "millrace device-table --table mine.tsv --table gpus.tsv"};
  return spec;
}

std::string percent(double share) {
  return printed("%.2f %%", 100 * share);
}

void print_text(const DeviceReport& report, const std::vector<HeldOut>& errors) {
  if (!report.pairs.empty()) {
    std::vector<std::vector<std::string>> lines{{"DEVICE", "BESIDE", "POINTS", "RATIO", "SPREAD", ""}};
    for (const DevicePair& pair : report.pairs)
      lines.push_back({pair.one, pair.other, std::to_string(pair.common), printed("%.3f", pair.ratio),
                       percent(pair.spread), pair.alike() ? "alike" : ""});
    print_columns(lines);
    std::printf("\n");
  }
  if (!errors.empty()) {
    std::vector<std::vector<std::string>> lines{
        {"DEVICE", "MODEL", "KNOWN", "HELD OUT", "MEAN", "95 %", "MOST", "LINES", "PROPORTION"}};
    for (const HeldOut& one : errors)
      lines.push_back({one.device, one.model, std::to_string(one.known), std::to_string(one.held_out),
                       percent(one.mean), percent(one.p95), percent(one.most), percent(one.line),
                       percent(one.proportional)});
    print_columns(lines);
    std::printf("\n");
  }
  if (report.suspects.empty()) std::printf("nothing suspect\n");
  for (const Problem& suspect : report.suspects) std::printf("suspect: %s\n", to_string(suspect).c_str());
}

void print_json(const DeviceReport& report, const std::vector<HeldOut>& errors) {
  Json pairs = Json::array(), held = Json::array(), suspects = Json::array();
  for (const DevicePair& pair : report.pairs)
    pairs.push_back(Json::object({{"device", pair.one},
                                  {"beside", pair.other},
                                  {"points", pair.common},
                                  {"ratio", pair.ratio},
                                  {"spread", pair.spread},
                                  {"alike", pair.alike()}}));
  for (const HeldOut& one : errors)
    held.push_back(Json::object({{"device", one.device},
                                 {"model", one.model},
                                 {"known", one.known},
                                 {"held_out", one.held_out},
                                 {"mean_error", one.mean},
                                 {"p95_error", one.p95},
                                 {"most_error", one.most},
                                 {"mean_error_of_lines", one.line},
                                 {"mean_error_of_proportion", one.proportional}}));
  for (const Problem& suspect : report.suspects) suspects.push_back(to_string(suspect));
  std::printf("%s\n", Json::object({{"pairs", std::move(pairs)},
                                    {"held_out", std::move(held)},
                                    {"suspects", std::move(suspects)}})
                          .dump(1)
                          .c_str());
}

int check(const DeviceTableFlags& flags) {
  std::vector<DeviceTable> tables;
  std::vector<HeldOut> errors;
  Problems problems;
  for (const std::string& file : flags.tables) {
    Result<DeviceTable> table = DeviceTable::load(file);
    if (!table) {
      append(problems, table.problems());
      continue;
    }
    for (HeldOut& one : held_out_errors(*table)) errors.push_back(std::move(one));
    tables.push_back(*std::move(table));
  }
  if (!problems.empty()) return exit_with(ExitCode::InputData, problems);
  const DeviceReport report = check_devices(tables);
  flags.format == OutputFormat::Text ? print_text(report, errors) : print_json(report, errors);
  return report.suspects.empty() ? 0 : static_cast<int>(ExitCode::InputData);
}

}  // namespace

CommandSpec device_table_spec() {
  return without_targets<DeviceTableFlags>(spec_of);
}

int device_table_command(const std::vector<std::string>& args) {
  DeviceTableFlags flags;
  return run_command(spec_of(flags), args, [&](const Arguments&, const Problems& problems) {
    return problems.empty() ? check(flags) : exit_with(ExitCode::Usage, problems);
  });
}

}  // namespace millrace
