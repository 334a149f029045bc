// Layers over clouds of points (PointNet, arXiv 1612.00593). N clouds of a microbatch, P points, F features.
#pragma once

#include "runtime/layers/head.h"
#include "runtime/layers/layer.h"

namespace millrace {

LayerPtr max_over_points();  ///< [N, P, F] -> [N, F], the first point where several are the greatest
/// [N, K K] -> [N, K, K], plus the identity: what a spatial transformer has found.
LayerPtr transform_matrix(std::int64_t size);
LayerPtr transform_points();  ///< points [N, P, K], matrices [N, K, K] -> points times matrices
LayerPtr concat_global();     ///< of the cloud [N, G], of its points [N, P, F] -> [N, P, G + F]

/// Cross-entropy of a label for each point, of one category of shapes with `parts` parts. Inputs: scores
/// [N, P, parts], labels int64 [N, P]. Shown: loss and accuracy (means over points), mean_iou (of each cloud
/// the mean over the parts of intersection / union of points found and points labelled, 1 for a part with
/// neither; mean over clouds), and part<c>, the accuracy on the points of part c.
HeadPtr point_cross_entropy_head(std::int64_t parts);

/// Mean over the microbatch of ||T T' - I||, Frobenius. Input: T [N, K, K]. Metric: loss (the feature
/// transform's regulariser, PointNet's equation 2 without the square).
HeadPtr orthogonality_head();

}  // namespace millrace
