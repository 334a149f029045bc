// A positive quantity (mean or spread of a step) as a function of (ranks, batch). Pure.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

struct ScalingPoint {
  double ranks = 1, batch = 1, value = 0;
};

/// Never negative for ranks and batch of at least 1, by construction.
struct Scaling {
  enum class Form {
    Plane,  ///< a ranks + b batch + c with a, b, c >= 0
    Power,  ///< exp(c) ranks^a batch^b
  } form = Form::Plane;
  double a = 0, b = 0, c = 0;
  double r2 = 0;            ///< on the points; NaN where one point is all there is
  double median_error = 0;  ///< relative, each point predicted from the others; NaN likewise
  double worst_error = 0;
  /// Quantities that differed among the points. The form says nothing of a quantity that was the same in
  /// all.
  bool ranks_varied = false, batch_varied = false;

  double at(double ranks, double batch) const;
  std::string text() const;  ///< "0.0021 * ranks + 0.274 * batch + 0.277"
  Json json() const;
};

/// Fits both forms by least squares of relative errors, so that short steps count as much as long ones, and
/// returns the one that predicts left-out points better. It has fewer coefficients than points; one point
/// gives a constant. Values must be >= 0; a power law needs all of them > 0, and ranks and batch that both
/// differ. Problem: no points.
Result<Scaling> fit_scaling(const std::vector<ScalingPoint>& points);

}  // namespace millrace
