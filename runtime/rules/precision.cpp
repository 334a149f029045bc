#include "runtime/rules/precision.h"

#include <cmath>

#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr double kGreatestScale = 0x1p100;  // a float32 gradient times this scale usually remains finite

bool in_range(double scale) {
  return scale > 0 && scale <= kGreatestScale;
}

/// Returns the value rounded to float32.
double rounded(double value) {
  return static_cast<double>(static_cast<float>(value));
}

}  // namespace

Result<LossScaleKind> loss_scale_from(const std::string& text) {
  if (text == "none") return LossScaleKind{};
  if (text == "dynamic") return LossScaleKind{.scaling = LossScaling::Dynamic};
  const auto scale = number_of<double>(text);
  if (!scale || !in_range(rounded(*scale)))
    return Problem{"", "'" + text + "' is no scale of the loss", "none, dynamic, or a number such as 1024"};
  return LossScaleKind{.scaling = LossScaling::Fixed, .fixed = *scale};
}

std::string to_string(const LossScaleKind& kind) {
  switch (kind.scaling) {
    case LossScaling::None:
      break;
    case LossScaling::Fixed:
      return printed("%.9g", kind.fixed);
    case LossScaling::Dynamic:
      return "dynamic";
  }
  return "none";
}

LossScaleKind kind_of(Precision precision, const LossScaleOptions& options) {
  const LossScaling usual = precision == Precision::Float16 ? LossScaling::Dynamic : LossScaling::None;
  return options.kind.value_or(LossScaleKind{.scaling = usual});
}

Problems validate(Precision precision, const LossScaleOptions& options, bool asynchronous) {
  Problems problems;
  const LossScaleKind kind = kind_of(precision, options);
  const auto refuse = [&](const char* flag, double value, const char* expected) {
    problems.push_back({flag, "is " + printed("%g", value) + ", must be " + expected, ""});
  };
  if (kind.scaling == LossScaling::Fixed && !in_range(rounded(kind.fixed)))
    refuse("--loss-scale", kind.fixed, "above 0 and at most 2^100");
  if (!in_range(rounded(options.initial)))
    refuse("--loss-scale-initial", options.initial, "above 0 and at most 2^100");
  if (!(options.growth > 1)) refuse("--loss-scale-growth", options.growth, "above 1");
  if (!(options.backoff > 0 && options.backoff < 1))
    refuse("--loss-scale-backoff", options.backoff, "between 0 and 1");
  if (options.growth_interval < 1)
    refuse("--loss-scale-growth-interval", static_cast<double>(options.growth_interval), "at least 1");
  const LossScaleOptions usual;
  const bool given = options.initial != usual.initial || options.growth != usual.growth ||
                     options.backoff != usual.backoff || options.growth_interval != usual.growth_interval;
  if (given && kind.scaling != LossScaling::Dynamic)
    problems.push_back({"--loss-scale-initial, -growth, -backoff, -growth-interval",
                        "say nothing where the scale is " + to_string(kind), "give --loss-scale dynamic"});
  if (asynchronous && kind.scaling != LossScaling::None)
    problems.push_back(
        {"--loss-scale",
         std::string(options.kind ? "" : "float16 scales the loss: ") +
             "without a flush the stages update at different times and cannot agree on which steps to skip",
         "give --precision bfloat16, --loss-scale none, or a schedule that flushes"});
  return problems;
}

LossScaler::LossScaler(Precision precision, const LossScaleOptions& options)
    : scaling_(kind_of(precision, options).scaling), options_(options) {
  if (scaling_ == LossScaling::Fixed) state_.scale = rounded(kind_of(precision, options).fixed);
  if (scaling_ == LossScaling::Dynamic) state_.scale = rounded(options.initial);
}

double LossScaler::unscale() const {
  return rounded(1 / state_.scale);
}

void LossScaler::completed(bool finite) {
  if (!active()) return;
  state_.skipped += !finite;
  state_.skipped_in_a_row = finite ? 0 : state_.skipped_in_a_row + 1;
  if (scaling_ != LossScaling::Dynamic) return;
  if (!finite) {
    state_.scale = rounded(state_.scale * options_.backoff);
    state_.since_growth = 0;
  } else if (++state_.since_growth == options_.growth_interval) {
    if (const double grown = rounded(state_.scale * options_.growth); std::isfinite(grown))
      state_.scale = grown;
    state_.since_growth = 0;
  }
}

}  // namespace millrace
