#include "runtime/train/step_log.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/train/trainer.h"

namespace millrace {
StepLog::StepLog(const std::filesystem::path& folder, int rank, int stage, int ranks, bool append)
    : file_(folder / ("steps.rank" + std::to_string(rank) + ".jsonl"), append) {
  file_.write_line(
      Json::object({{"format", "millrace-steps-1"}, {"rank", rank}, {"stage", stage}, {"ranks", ranks}})
          .dump());
}

void StepLog::write(const StepRecord& r) {
  if (!file_.is_open()) return;
  const StepTimes& t = r.times;
  const double busy = t.forward + t.backward + t.update;
  Json line = Json::object({{"step", r.step}});
  line["loss"] = Json();
  if (r.losses) {
    for (const auto& [name, value] : r.losses->values) line[name] = value;
  }
  line["samples_per_s"] = r.samples_per_s;
  line["step_s"] = r.step_s;
  line["forward_s"] = t.forward;
  line["backward_s"] = t.backward;
  line["send_s"] = t.send;
  line["receive_s"] = t.receive;
  line["wait_s"] = t.wait;
  line["all_reduce_s"] = t.all_reduce;
  line["update_s"] = t.update;
  line["data_s"] = t.data;
  line["bubble_share"] = r.step_s > 0 ? std::max(0.0, 1 - busy / r.step_s) : 0.0;
  line["peak_memory_bytes"] = r.peak_memory_bytes;
  line["resident_memory_bytes"] = r.resident_memory_bytes;
  line["weight_versions"] = r.weight_versions;
  line["stashed_microbatches"] = r.stashed;
  line["lr"] = r.lr;
  file_.write_line(line.dump());
}

namespace {
/// "loss=2.3037 top1=0.094"
std::string text_of(const NamedValues& values) {
  std::string all;
  for (const auto& [name, value] : values) {
    char text[64];
    std::snprintf(text, sizeof text, " %s=%.4f", name.c_str(), value);
    all += text;
  }
  return all;
}
}  // namespace

void StepLog::print(const StepRecord& r, std::int64_t total) {
  char rest[128];
  std::snprintf(rest, sizeof rest, " samples/s=%.1f step=%.1fms lr=%.4g", r.samples_per_s, r.step_s * 1e3,
                r.lr);
  const std::string text = "step=" + std::to_string(r.step + 1) + "/" + std::to_string(total) +
                           text_of(r.losses ? r.losses->values : NamedValues{}) + rest;
  static const bool terminal = ::isatty(STDERR_FILENO);
  if (!terminal) return log_info(text);
  std::fprintf(stderr, "\r\x1b[K%s %s%s", progress_bar(r.step + 1, total).c_str(), text.c_str(),
               r.step + 1 >= total ? "\n" : "");
}

void StepLog::print(const EvaluationReport& e) {
  log_info("evaluation step=" + std::to_string(e.step) + text_of(e.values) +
           " samples=" + std::to_string(static_cast<std::int64_t>(e.samples)));
}

}  // namespace millrace
