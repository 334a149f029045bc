// The precision that a run computes in, and the scale of its loss: a factor on gradients, so that those of
// float16 do not vanish (arXiv 1710.03740, section 3.2). LibTorch-free.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/base/choices.h"
#include "runtime/base/result.h"

namespace millrace {

/// The precision of matrix products and other layers on the lists (CastPolicy). Weights and their updates are
/// float32.
enum class Precision { Float32, BFloat16, Float16 };
constexpr auto names_of(Precision) {
  return std::to_array<std::string_view>({"float32", "bfloat16", "float16"});
}

enum class LossScaling { None, Fixed, Dynamic };

/// The choice of --loss-scale.
struct LossScaleKind {
  LossScaling scaling = LossScaling::None;
  double fixed = 1;  ///< with Fixed
};
/// "none", "dynamic" or a number above 0; and back.
Result<LossScaleKind> loss_scale_from(const std::string& text);
std::string to_string(const LossScaleKind& kind);

/// Defaults are torch.amp.GradScaler's.
struct LossScaleOptions {
  std::optional<LossScaleKind> kind;  ///< absent: dynamic with float16, else none
  double initial = 65'536;            ///< with Dynamic, as those below
  double growth = 2;
  double backoff = 0.5;
  std::int64_t growth_interval = 2'000;  ///< updates in a row after which the scale grows
};

LossScaleKind kind_of(Precision precision, const LossScaleOptions& options);

/// Finds numbers outside their range, and a loss scale beside an asynchronous schedule, whose stages update
/// at different times.
Problems validate(Precision precision, const LossScaleOptions& options, bool asynchronous);

/// The state of a LossScaler, for checkpoints.
struct LossScaleState {
  double scale = 1;
  std::int64_t since_growth = 0;  ///< updates since the scale changed
  std::int64_t skipped = 0;       ///< steps without an update, since the first step of the job
  std::int64_t skipped_in_a_row = 0;

  bool operator==(const LossScaleState&) const = default;
};

/// The scale from step to step. Every rank has one and tells it the same, so all agree. Not thread-safe.
class LossScaler {
 public:
  LossScaler(Precision precision, const LossScaleOptions& options);

  /// Whether steps whose gradient is not finite are skipped.
  bool active() const { return scaling_ != LossScaling::None; }
  double scale() const { return state_.scale; }
  /// 1 / scale(), rounded to float32 as GradScaler's.
  double unscale() const;
  /// After each step: whether every element of the whole model's gradient was finite. If so the weights were
  /// updated, else nothing was. GradScaler.update(), in float32 as there.
  void completed(bool finite);

  const LossScaleState& state() const { return state_; }
  void set_state(const LossScaleState& state) { state_ = state; }

 private:
  LossScaling scaling_;
  LossScaleOptions options_;
  LossScaleState state_;
};

}  // namespace millrace
