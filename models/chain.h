// Describes a model layer by layer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/layers/basic_layers.h"
#include "runtime/layers/image_layers.h"
#include "runtime/model/layered_model.h"

namespace millrace {

class Chain {
 public:
  explicit Chain(LayeredModel& model) : model_(model) {}
  /// Appends a layer that reads `input` (the previous layer's output if empty); returns its name.
  std::string then(std::string name, LayerPtr layer, std::string input = {}) {
    model_.layers.push_back({name, std::move(layer), {input.empty() ? last_ : std::move(input)}});
    return last_ = name;
  }
  /// Appends a layer with several inputs.
  std::string join(std::string name, LayerPtr layer, std::vector<std::string> inputs) {
    model_.layers.push_back({name, std::move(layer), std::move(inputs)});
    return last_ = name;
  }
  /// Appends a dropout layer, unless the probability is 0.
  void drop(std::string name, double probability) {
    if (probability > 0) then(std::move(name), dropout(probability));
  }
  /// Ties a parameter of the layer appended last to another layer's parameter (NamedLayer::tied). A layer
  /// may have several ties, one for each of its parameters.
  void tie(std::string parameter, std::string to) {
    model_.layers.back().tied.emplace_back(std::move(parameter), std::move(to));
  }
  const std::string& last() const { return last_; }
  /// Makes the layer that is appended next read this tensor: a branch has ended.
  void go_back_to(std::string tensor) { last_ = std::move(tensor); }

 private:
  LayeredModel& model_;
  std::string last_ = "input";
};

}  // namespace millrace
