// Clicks: fields "dense" float32 [D], "category0", "category1", ... and "label", which are integers.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "data/loading/dataset.h"

namespace millrace {

/// Returns whether the model reads SampleForm::Clicks.
bool reads_clicks(const std::vector<FieldSpec>& fields);

/// Makes a data set of Criteo's clicks. `text` is one path for both splits, or TRAIN,TEST. A path is
/// - a folder with one *_train.bin and perhaps one *_test.bin, as the I/O kit and Meta's DLRM have them, or
///   such a file. A row is little-endian int32: label, dense features, categories. A dense feature x becomes
///   ln(1 + x), with negative ones 0.
/// - a folder with train/ and perhaps test/, or such a part itself, as NVIDIA's DLRM has them: label.bin (one
///   byte a sample), numerical.bin (float16, taken as they are), cat_0.bin, ... (1, 2 or 4 bytes a sample).
/// - a text file of label, dense features and categories between commas or tabs, with or without a header.
///   Categories are numbered from 1 in the order in which they first occur, modulo their table's rows; empty
///   ones are 0. Empty and negative dense features are 0, then ln(1 + x). If it is the only path, its last
///   tenth is the test split.
/// Epochs of binary files permute steps, not samples, so that reads stay long. Returns null if there is no
/// test split. Problems: files that are missing, cut short or of other numbers of samples, counts of
/// categories (day_fea_count.npz) beyond the model's tables, lines that do not fit. Reading throws DataError
/// for a label that is not 0 or 1 and for a category beyond its table, with the file and the row.
Result<std::shared_ptr<const Dataset>> make_criteo(const DatasetOptions& options, const std::string& text);

/// Makes `size` rows of a click model (data/made_up/clicks.h) with the rows of the model's tables. A row is
/// a function of (seed, split, index); both splits have the same hidden model.
std::shared_ptr<const Dataset> make_synthetic_clicks(const DatasetOptions& options, std::int64_t size);

}  // namespace millrace
