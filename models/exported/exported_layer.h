// A run of calls of an exported graph as a layer.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "models/exported/call_runner.h"
#include "runtime/layers/layer.h"

namespace millrace {

/// The values that the symbols of a program may have.
struct SymbolTable {
  /// Symbol -> all that are the same length in every batch: PyTorch gives each input its own.
  std::map<std::string, std::vector<std::string>> same;
  std::map<std::string, SymbolRange> ranges;
  std::string advice;  ///< how to export with dynamic dimensions
  /// Lengths that the exporter froze although the calls take any (ExportedFields): sizes of that value say
  /// nothing, and shapes are found by running the calls on zeros.
  std::set<std::int64_t> frozen;
};

/// A tensor that goes in or out.
struct ExportedPort {
  std::string name;
  std::vector<SizeExpression> sizes;  ///< as outside the layer: of complex numbers [..., 2]
  at::ScalarType dtype = at::kFloat;  ///< as outside the layer
  bool is_complex = false;            ///< inside the layer
  bool differentiable = false;        ///< of an output
  bool is_field = false;              ///< of an input
};

struct ExportedLayerParts {
  std::string kind;
  CastPolicy cast_policy = CastPolicy::Float32;
  std::vector<ExportedPort> inputs, outputs;
  std::vector<ParameterSpec> parameters;  ///< trainable ones first
  std::vector<at::Tensor> constants;
  std::shared_ptr<const CallRunner> calls;  ///< gets inputs, parameters, buffers, constants
  std::shared_ptr<const SymbolTable> symbols;
};

/// Backward by autograd over the calls; weight gradients of linear maps, convolutions and embeddings wait for
/// backward_weight.
LayerPtr exported_layer(ExportedLayerParts parts);

/// The loss that a graph computes, the mean over the samples of a microbatch, as its own head. Inputs: the
/// loss [], and a field whose size along `batch_dimension` is the number of samples.
class Head;
std::shared_ptr<const Head> graph_loss_head(int batch_dimension);

}  // namespace millrace
