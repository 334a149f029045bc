// The report of a run, or of all runs of a folder, as a browser asks for them. LibTorch-free.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/launch/run_state.h"
#include "experiments/runs/run_data.h"

namespace millrace {

struct ServedRunsOptions {
  std::string run;    ///< its report is "/"; empty: `index`
  std::string index;  ///< "/" is the table of the runs below; "/NAME/report.html" is one's report
  std::vector<std::string> against;  ///< shown beside `run`
  int reload_s = 5;                  ///< after which a browser asks again, while a run goes on
};

/// Makes each page from what the runs have written until then. Paths are looked up among the runs, and never
/// opened as files. Not thread-safe.
class ServedRuns {
 public:
  explicit ServedRuns(ServedRunsOptions options) : options_(std::move(options)) {}

  /// Returns the page at "/..."; nothing: there is none.
  std::optional<std::string> page(const std::string& path);

 private:
  /// When a run's files changed last. Equal stamps: what was made of the run is still right.
  struct Stamp {
    RunPhase phase = RunPhase::None;
    std::filesystem::file_time_type written{};
    bool operator==(const Stamp&) const = default;
  };
  struct Known {
    Stamp stamp{};
    std::optional<RunData> run{};  ///< nothing: it cannot be read yet
    std::string page{};            ///< empty: nobody has asked for it
  };
  Known& known(const std::filesystem::path& folder);
  std::string report(const std::filesystem::path& folder);
  std::string index();

  ServedRunsOptions options_;
  std::map<std::filesystem::path, Known> known_;
};

/// Returns when the ranks of a run wrote last.
std::filesystem::file_time_type last_written(const std::filesystem::path& run);

}  // namespace millrace
