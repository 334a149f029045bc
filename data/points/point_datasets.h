// Clouds of points with a class (field "target") or a part for each point (field "labels").
#pragma once

#include <memory>
#include <string>

#include "data/loading/dataset.h"

namespace millrace {

/// A model of SampleForm::Points: "points", float32 [P, 3], and one of the two labels.
bool reads_points(const std::vector<FieldSpec>& fields);

/// ShapeNet-part as its own archive has it. `text` is FOLDER, or FOLDER,CATEGORY,... for some of its
/// categories: FOLDER/synsetoffset2category.txt (name and id), ID/points/U.pts, ID/points_label/U.seg (parts
/// from 1), train_test_split/shuffled_{train,test}_file_list.json. Classes are numbered in the order of the
/// names of all categories that are read; parts need one category. A sample is as many points as the model
/// reads, drawn with replacement, centred, scaled into the unit ball; in training also turned about the y
/// axis and shifted by N(0, 0.02) each. Null: no list for the split. What is damaged in a file: DataError
/// when it is read.
Result<std::shared_ptr<const Dataset>> make_shape_net(const DatasetOptions& options, const std::string& text);

/// `size` clouds, a function of (seed, split, index): on the surfaces of solids, another one for each class;
/// the part of a point is its height.
std::shared_ptr<const Dataset> make_synthetic_points(const DatasetOptions& options, std::int64_t size);

/// Centres points [P, 3] (float32, contiguous) and scales them into the unit ball.
void normalise_points_(const at::Tensor& points);

}  // namespace millrace
