// Writes a model down layer by layer.
#pragma once

#include <string>
#include <utility>

#include "runtime/layers/basic_layers.h"
#include "runtime/stage/layered_model.h"

namespace millrace {

class Chain {
 public:
  explicit Chain(LayeredModel& model) : model_(model) {}
  /// Appends a layer that reads `input` (the previous layer's output if empty); returns its name.
  std::string then(std::string name, LayerPtr layer, std::string input = {}) {
    model_.layers.push_back({name, std::move(layer), {input.empty() ? last_ : std::move(input)}});
    return last_ = name;
  }
  std::string join(std::string name, LayerPtr layer, std::string first, std::string second) {
    model_.layers.push_back({name, std::move(layer), {std::move(first), std::move(second)}});
    return last_ = name;
  }
  const std::string& last() const { return last_; }

 private:
  LayeredModel& model_;
  std::string last_ = "input";
};

}  // namespace millrace
