// Clouds of points with a class (field "target") or a part for each point (field "labels").
#pragma once

#include <memory>
#include <string>

#include "data/loading/dataset.h"

namespace millrace {

/// Returns whether the model reads SampleForm::Points: "points", float32 [P, 3], and one of the two labels.
bool reads_points(const std::vector<FieldSpec>& fields);

/// Makes a data set of the files in ShapeNet-part's archive. `text` is FOLDER, or FOLDER,CATEGORY,... for
/// some of its categories. The folder has synsetoffset2category.txt (name and id), ID/points/U.pts,
/// ID/points_label/U.seg (parts from 1), and train_test_split/shuffled_{train,test}_file_list.json. Classes
/// are numbered in the order of the names of all categories that are read. A model of parts needs exactly one
/// category. A sample has as many points as the model reads. They are drawn with replacement, centred, and
/// scaled into the unit ball. In training the cloud is also turned about the y axis, and each point is
/// shifted by N(0, 0.02). Returns null if there is no list for the split. Reading a damaged file throws
/// DataError.
Result<std::shared_ptr<const Dataset>> make_shape_net(const DatasetOptions& options, const std::string& text);

/// Makes `size` clouds of points on the surfaces of solids. Each class has another solid. The part of a point
/// follows from its height. A cloud is a function of (seed, split, index).
std::shared_ptr<const Dataset> make_synthetic_points(const DatasetOptions& options, std::int64_t size);

/// Centres points [P, 3] (float32, contiguous) and scales them into the unit ball.
void normalise_points_(const at::Tensor& points);

}  // namespace millrace
