#include "experiments/io/dlio/dlio_output.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <numeric>

#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

double sum(const std::vector<double>& values, std::size_t first, std::size_t end) {
  return std::accumulate(values.begin() + static_cast<std::ptrdiff_t>(first),
                         values.begin() + static_cast<std::ptrdiff_t>(end), 0.0);
}

}  // namespace

Counted counted_steps(const DlioConfig& config, std::size_t steps) {
  const auto skip = [&](std::int64_t n) { return std::min(steps, static_cast<std::size_t>(n)); };
  const std::size_t first = skip(config.output.exclude_start), last = skip(config.output.exclude_end);
  return {first, std::max(first, steps - last)};
}

BlockMetrics block_metrics(const DlioConfig& config, const RankBlock& block, std::int64_t batch,
                           double own_cost_s) {
  const Counted counted = counted_steps(config, block.compute.size());
  if (counted.steps() == 0) return {};
  const double compute = sum(block.compute, counted.first, counted.end);
  double total =
      block.wall - sum(block.proc, 0, counted.first) - sum(block.proc, counted.end, block.proc.size());
  total = std::max({total - own_cost_s * static_cast<double>(counted.steps()), compute, 1e-12});
  return {100 * compute / total, static_cast<double>(counted.steps()) * static_cast<double>(batch) / total,
          block.asked.size() == block.compute.size()
              ? 100 * sum(block.asked, counted.first, counted.end) / total
              : 0};
}

double compute_error(double au, double au_asked) {
  return au_asked > 0 ? 100 * (au / au_asked - 1) : 0;
}

const char* au_verdict(double au, double au_asked, double expected) {
  if (std::abs(compute_error(au, au_asked)) > kMostComputeError) return "invalid";
  return au >= expected * 100 ? "success" : "fail";
}

double average_of(const std::vector<double>& values) {
  return values.empty() ? 0 : sum(values, 0, values.size()) / static_cast<double>(values.size());
}

double spread_of(const std::vector<double>& values) {
  const double mean = average_of(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return values.empty() ? 0 : std::sqrt(squares / static_cast<double>(values.size()));
}

std::string stamp(double unix_s) {
  const auto micros = static_cast<std::int64_t>(std::floor(unix_s * 1e6));
  const std::time_t seconds = micros / 1'000'000;
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  return std::string(text) + printed(".%06lld", static_cast<long long>(micros % 1'000'000));
}

Json proc_lines(const std::string& path) {
  Json lines = Json::object();
  const Result<std::string> text = read_file(path);
  if (!text) return lines;
  const auto trimmed = [](std::string word) {
    const auto blank = " \t\r";
    word.erase(0, std::min(word.find_first_not_of(blank), word.size()));
    word.erase(word.find_last_not_of(blank) + 1);
    return word;
  };
  std::size_t at = 0;
  while (at < text->size()) {
    const std::size_t end = std::min(text->find('\n', at), text->size());
    const std::string line = text->substr(at, end - at);
    at = end + 1;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string key = trimmed(line.substr(0, colon));
    if (key != "processor" && !key.empty()) lines[key] = trimmed(line.substr(colon + 1));
  }
  return lines;
}

void write_json_file(const std::string& path, const Json& json) {
  if (const Status written = write_file_atomically(path, json.dump(4) + "\n"); !written)
    throw DataError(to_string(written.problems()));
}

void write_hydra_files(const DlioConfig& config, const std::string& folder, int ranks) {
  const std::filesystem::path hydra = std::filesystem::path(folder) / ".hydra";
  std::filesystem::create_directories(hydra);
  // DLIO's postprocessor asks for the length by an older name.
  Json tree = config.tree;
  tree["dataset"]["record_length"] = config.dataset.record_length;
  // JSON is YAML.
  write_json_file((hydra / "config.yaml").string(), Json::object({{"workload", tree}}));
  // One a line: DLIO's postprocessor reads it line by line.
  std::string words = "- workload=" + config.workload + "\n";
  for (const std::string& word : config.overrides) words += "- " + word + "\n";
  if (const Status written = write_file_atomically(hydra / "overrides.yaml", words); !written)
    throw DataError(to_string(written.problems()));
  write_json_file(
      (hydra / "hydra.yaml").string(),
      Json::object({{"hydra", Json::object({{"run", Json::object({{"dir", folder}})}, {"ranks", ranks}})}}));
}

}  // namespace millrace
