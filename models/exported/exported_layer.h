// A layer made of consecutive calls of an exported graph.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "models/exported/call_runner.h"
#include "runtime/layers/layer.h"
#include "runtime/layers/soft_cross_entropy.h"

namespace millrace {

/// The values that the symbols of a program may have.
struct SymbolTable {
  /// Symbol -> all symbols of the same length in every batch: PyTorch gives each input its own symbols.
  std::map<std::string, std::vector<std::string>> same;
  std::map<std::string, SymbolRange> ranges;
  std::string advice;  ///< how to export with dynamic dimensions
  /// Lengths that the exporter froze although the calls take any length (find_fields). Sizes of such a value
  /// are not reliable: shapes are found by running the calls on zeros.
  std::set<std::int64_t> frozen;
};

/// An input or output of a layer.
struct ExportedPort {
  std::string name;
  std::vector<SizeExpression> sizes;  ///< sizes outside the layer; complex numbers are [..., 2]
  at::ScalarType dtype = at::kFloat;  ///< type outside the layer
  bool is_complex = false;            ///< the calls see complex numbers
  bool differentiable = false;        ///< an output that has a gradient
  bool is_field = false;              ///< an input that is a field of the model
};

struct ExportedLayerParts {
  std::string kind;
  CastPolicy cast_policy = CastPolicy::Float32;
  std::vector<ExportedPort> inputs, outputs;
  std::vector<ParameterSpec> parameters;  ///< trainable ones first
  std::vector<at::Tensor> constants;
  std::shared_ptr<const CallRunner> calls;  ///< run() gets inputs, parameters, buffers, constants
  std::shared_ptr<const SymbolTable> symbols;
  bool draws = true;  ///< CallPass::draws
};

/// Makes a layer. Its backward is autograd over the calls. Weight gradients of linear maps, convolutions and
/// embeddings wait for backward_weight.
LayerPtr exported_layer(ExportedLayerParts parts);

/// The labels that a graph's loss is the mean over.
struct CountedLabels {
  std::string field;
  std::int64_t ignored = -100;  ///< labels with this value do not count
  /// by dimension of a sample: how many labels in front and behind do not count
  std::vector<std::pair<std::int64_t, std::int64_t>> cut;
};

/// Makes the head of a graph that computes its own loss, the mean over a microbatch. Inputs: the loss [], and
/// a field whose size along `batch_dimension` is the number of samples. With `labels`, that field is theirs,
/// and the head is a WeighsLabels. Otherwise it is an IgnoresLabels of `ignored`.
std::shared_ptr<const Head> graph_loss_head(int batch_dimension, std::optional<CountedLabels> labels,
                                            std::vector<IgnoredLabels> ignored);

}  // namespace millrace
