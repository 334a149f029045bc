// One row of clicks, and the sample that is made of it.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "data/clicks/click_datasets.h"
#include "data/loading/samples.h"

namespace millrace {

/// A row as files have it. `dense` holds what the model reads.
struct ClickRow {
  std::int64_t label = 0;
  std::vector<float> dense;
  std::vector<std::int64_t> categories;
};

/// The places of the fields in a model.
struct ClickFields {
  explicit ClickFields(const std::vector<FieldSpec>& of)
      : specs(of), dense(field_index(of, "dense")), label(field_index(of, "label")) {
    while (field_index(of, name_of_next()) >= 0) categories.push_back(field_index(of, name_of_next()));
  }
  std::int64_t num_dense() const { return specs[dense].shape[0]; }
  std::size_t num_categories() const { return categories.size(); }
  /// Returns the rows of each table.
  std::vector<std::int64_t> limits() const {
    std::vector<std::int64_t> rows;
    for (const int field : categories) rows.push_back(specs[field].limit);
    return rows;
  }
  /// Returns the sample of a row whose values are in range.
  Sample sample_of(const ClickRow& row, Wanted wanted) const {
    Sample sample(specs.size());
    if (wanted[dense]) {
      sample[dense].tensor = at::empty({num_dense()}, at::kFloat);
      std::copy(row.dense.begin(), row.dense.end(), sample[dense].tensor.mutable_data_ptr<float>());
    }
    sample[label].number = row.label;
    for (std::size_t k = 0; k < categories.size(); ++k) sample[categories[k]].number = row.categories[k];
    return sample;
  }

  std::vector<FieldSpec> specs;
  int dense, label;
  std::vector<int> categories;

 private:
  std::string name_of_next() const { return "category" + std::to_string(categories.size()); }
};

/// Meta's transform of a dense feature.
inline float log_of_count(double count) {
  return static_cast<float>(std::log1p(std::max(count, 0.0)));
}

}  // namespace millrace
