// The compute precision of a run, and its loss scale: a factor on gradients that keeps float16 values from
// underflowing (arXiv 1710.03740, section 3.2). LibTorch-free.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/choices.h"
#include "runtime/base/result.h"

namespace millrace {

/// The precision of matrix products and of other layers that CastPolicy lists. Weights and their updates are
/// float32.
enum class Precision { Float32, BFloat16, Float16 };
constexpr auto names_of(Precision) {
  return std::to_array<std::string_view>({"float32", "bfloat16", "float16"});
}

enum class LossScaling { None, Fixed, Dynamic };

/// The choice of --loss-scale.
struct LossScaleKind {
  LossScaling scaling = LossScaling::None;
  double fixed = 1;  ///< for Fixed
};
/// Converts "none", "dynamic" or a number above 0 to a LossScaleKind, and back.
Result<LossScaleKind> loss_scale_from(const std::string& text);
std::string to_string(const LossScaleKind& kind);

/// The defaults are those of torch.amp.GradScaler.
struct LossScaleOptions {
  std::optional<LossScaleKind> kind;  ///< absent: dynamic with float16, otherwise none
  double initial = 65'536;            ///< for Dynamic, as the members below
  double growth = 2;
  double backoff = 0.5;
  std::int64_t growth_interval = 2'000;  ///< consecutive updates after which the scale grows
};

LossScaleKind kind_of(Precision precision, const LossScaleOptions& options);

/// Returns an error for each number out of range, and for a loss scale with an asynchronous schedule, whose
/// stages update at different times.
Problems validate(Precision precision, const LossScaleOptions& options, bool asynchronous);

/// The state of a LossScaler, for checkpoints.
struct LossScaleState {
  double scale = 1;
  std::int64_t since_growth = 0;  ///< updates after the last change of the scale
  std::int64_t skipped = 0;       ///< skipped steps since the job's first step
  std::int64_t skipped_in_a_row = 0;

  bool operator==(const LossScaleState&) const = default;
};

/// The loss scale as it changes over steps. Every rank has one and passes it the same results, so all ranks
/// agree. Not thread-safe.
class LossScaler {
 public:
  LossScaler(Precision precision, const LossScaleOptions& options);

  /// Returns whether steps with a gradient that is not finite are skipped.
  bool active() const { return scaling_ != LossScaling::None; }
  double scale() const { return state_.scale; }
  /// Returns 1 / scale(), rounded to float32 as in GradScaler.
  double unscale() const;
  /// Must be called after each step. `finite`: every element of the whole model's gradient was finite, and
  /// the weights were updated. Otherwise nothing was updated. This is GradScaler.update(), also in float32.
  void completed(bool finite);

  const LossScaleState& state() const { return state_; }
  void set_state(const LossScaleState& state) { state_ = state; }

 private:
  LossScaling scaling_;
  LossScaleOptions options_;
  LossScaleState state_;
};

}  // namespace millrace
