// The common part of sweep.yaml and tune.yaml: name, folder, seed, the job. LibTorch-free.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

#include "experiments/sweep/settings.h"
#include "experiments/sweep/swept_job.h"
#include "runtime/base/json.h"

namespace millrace {

struct SweptFile {
  std::string name, source;
  std::string output_dir;
  SweptJob job;
  std::uint64_t seed = 1117;
  Json identity;  ///< all that decides the results

  /// name, output_dir, seed.
  void read_head(ObjectReader& in, const std::string& path);
  /// job, tried with the settings of `varied` where nothing else is wrong. `fused`: as an array too. `verb`:
  /// what is done with it.
  void read_job(ObjectReader& in, const Varied& varied, const std::function<int()>& num_jobs, bool fused,
                const char* verb, Problems& problems);
  /// Sets the identity from the file, without its folder and the keys `beside`, which change no result.
  void set_identity(const Json& file, std::initializer_list<std::string_view> beside = {});
};

/// The file's mapping. Problem: it cannot be read, or is none; `what` it is then called.
Result<Json> read_swept_file(const std::string& path, const char* what);

}  // namespace millrace
