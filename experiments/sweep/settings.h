// What a sweep varies: lists, grids and distributions of settings, made into one list of settings for each
// job. Pure. LibTorch-free.
//   lists:  {lr: [0.1, 0.2], seed: [1, 2]}          one value each to a job
//   grid:   {momentum: [0, 0.9]}                    every combination, with every job of the lists
//   sample: {weight_decay: {uniform: [0, 0.3]}}     drawn for each job
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "runtime/base/result.h"

namespace millrace {

/// Jobs whose settings are tried before anything runs: the values of lists and grids come again and again.
inline constexpr int kMostTriedJobs = 4096;

/// One flag of `train`, with dashes but without those in front, and its value as the user would write it.
struct Setting {
  std::string flag;
  std::string text;
  std::string where;  ///< `sweep.yaml:3:7`
};
/// The settings of one job beside those that all jobs have, in the order of the file.
using JobSettings = std::vector<Setting>;

/// A distribution from which the values of a setting are drawn.
class SettingDistribution {
 public:
  enum class Kind { Uniform, LogUniform, Integers, Choice };
  /// Problems: unknown name, not two bounds, no width (bounds that are equal, one choice), wrong order.
  static Result<SettingDistribution> from(const Json& json, const std::string& name);

  /// The text of a flag's value: reads back exactly.
  std::string draw(RandomStream& random) const;
  /// Values that bound what is drawn, or all choices: what a flag must accept.
  std::vector<std::string> ends() const;
  bool operator==(const SettingDistribution&) const = default;

  Kind kind() const { return kind_; }
  const std::vector<std::string>& choices() const { return choices_; }

 private:
  Kind kind_ = Kind::Uniform;
  double low_ = 0, high_ = 0;
  std::int64_t first_ = 0, last_ = 0, step_ = 1;
  std::vector<std::string> choices_;
};

struct Sampled {
  std::string flag;
  SettingDistribution distribution;
  std::string where;
};

/// All of what varies.
struct Varied {
  struct Values {
    std::string flag;
    JobSettings values;
  };
  std::vector<Values> lists;  ///< of one length
  std::vector<Values> grid;
  std::vector<Sampled> sample;

  /// Every flag that varies, each once.
  std::vector<std::string> flags() const;
  /// Jobs that lists and grid make; 0 if there are none.
  std::size_t combinations() const;
};

/// Members `lists`, `grid` and `sample` of `file` (any may be null). Problems: lists of different lengths, a
/// flag twice, an empty list, what is wrong with a distribution.
Varied read_varied(const Json* lists, const Json* grid, const Json* sample, Problems& problems);

/// The settings of job `job`: row of lists and grid (the grid's last flag runs fastest, the lists slowest),
/// and draws that depend on (seed, flag, job) alone.
JobSettings settings_of(const Varied& varied, std::uint64_t seed, std::size_t job);

/// "lr=0.1 momentum=0.9"
std::string settings_text(const JobSettings& settings);

/// "weight_decay" as the flag is called: "weight-decay".
std::string flag_name(std::string key);

}  // namespace millrace
