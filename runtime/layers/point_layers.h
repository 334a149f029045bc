// Layers over point clouds (PointNet, arXiv 1612.00593). N is the number of clouds in a microbatch, P of
// points, F of features.
#pragma once

#include "runtime/layers/head.h"
#include "runtime/layers/layer.h"

namespace millrace {

LayerPtr max_over_points();  ///< [N, P, F] -> [N, F]; of equal maxima the first point's
/// [N, K K] -> [N, K, K]: the matrix computed by a spatial transformer, plus the identity.
LayerPtr transform_matrix(std::int64_t size);
LayerPtr transform_points();  ///< points [N, P, K], matrices [N, K, K] -> points times matrices
/// features of the cloud [N, G], features of its points [N, P, F] -> [N, P, G + F]
LayerPtr concat_global();

/// Cross-entropy of a label per point, for one category of shapes with `parts` parts. Inputs: scores [N, P,
/// parts], labels int64 [N, P].
/// Metrics: loss and accuracy (means over points); mean_iou (mean over clouds); and part<c>, the accuracy on
/// the points of part c. A cloud's IoU is the mean over the parts of intersection / union of predicted and
/// labelled points. A part with neither has IoU 1.
HeadPtr point_cross_entropy_head(std::int64_t parts);

/// The mean over the microbatch of the Frobenius norm ||T T' - I||. Input: T [N, K, K]. Metric: loss (the
/// feature transform's regulariser, PointNet's equation 2 without the square).
HeadPtr orthogonality_head();

}  // namespace millrace
