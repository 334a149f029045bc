// Generated runs and their processing, for the tests of the traces.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "experiments/io/trace/generate_run.h"
#include "experiments/io/trace/preprocess.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {

inline std::string file_text(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/// A raw run of 4,000 rows in FOLDER/<name>.
inline std::string make_run(const TemporaryFolder& folder, const std::string& name,
                            GenerateRunOptions options = {}) {
  options.folder = folder.path(name);
  if (options.rows == 20'000) options.rows = 4'000;
  const Result<GeneratedRun> run = generate_run(options);
  EXPECT_TRUE(run) << to_string(run.problems());
  return options.folder;
}

inline PreprocessOptions preprocess_options(const TemporaryFolder& folder, const std::string& raw) {
  return {.folder = raw, .out = folder.path("out")};
}

inline std::string combined_of(const PreprocessReport& report) {
  return file_text(report.folder + "/timeline/pid/all_combined/combined.log");
}

inline std::string problems_of(const Result<PreprocessReport>& report) {
  return report ? "" : to_string(report.problems());
}

}  // namespace millrace
