// The profile of a model: layers, the tensors between them, and what each costs for one microbatch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/base/units.h"

namespace millrace {

class Json;

/// Times of one layer for one microbatch, in seconds.
struct LayerSeconds {
  double forward = 0;
  double backward_input = 0;
  double backward_weight = 0;
};

/// One layer. Times are seconds for one microbatch of `LayerGraph::microbatch` samples.
struct LayerNode {
  std::string name;  ///< unique; equals the layer's name in the model
  std::string kind;  ///< e.g. "conv2d", or PipeDream's description
  double forward_s = 0;
  double backward_input_s = 0;
  double backward_weight_s = 0;
  Bytes parameter_bytes = 0;
  Bytes lowered_bytes = 0;     ///< of a version's copies of them: lower precision, or Layer::copies()
  Bytes field_bytes = 0;       ///< of the batch that it reads; of the last layer, and that the heads read
  Bytes activation_bytes = 0;  ///< output
  Bytes saved_bytes = 0;       ///< kept from forward to backward (output of others included once)
  Bytes workspace_bytes = 0;   ///< at most during its backward, what it saved aside: gradients, temporaries
  /// Times by LayerGraph::microbatches. The times above are their means. Empty: not known.
  std::vector<LayerSeconds> of_microbatches{};

  double backward_s() const { return backward_input_s + backward_weight_s; }
};

/// Tensor `tensor` goes from nodes[producer] to nodes[consumer].
struct LayerEdge {
  int producer = -1;
  int consumer = -1;
  std::string tensor;
  Bytes bytes = 0;
  std::vector<Bytes> of_microbatches{};   ///< by LayerGraph::microbatches; empty: all have `bytes`
  std::optional<Bytes> gradient_bytes{};  ///< what comes back; none: `bytes`
};

/// How a profile was measured.
struct Measured {
  int ranks = 1;   ///< that computed at the same time on the host
  int blocks = 0;  ///< times that all layers were measured anew, minutes or seconds apart; 0: not known
  double spread =
      0;  ///< half the distance between the slowest and the fastest block, as a share of the median
};

/// A microbatch that the times were measured with, of a model whose microbatches differ in length.
struct MeasuredMicrobatch {
  std::vector<std::int64_t> lengths;  ///< by LayerGraph::dimensions
  double seconds = 0;                 ///< forward and backward of all layers, and the loss
  double loss_s = 0;                  ///< of it, the loss; 0: not known
};

/// How long the microbatches are that times hold for.
struct LengthRange {
  std::string dimension;
  std::int64_t least = 0;
  std::int64_t most = 0;
  double mean = 0;
  bool operator==(const LengthRange&) const = default;
};
/// "source_length 8..41 (mean 17.3), target_length 12"
std::string to_string(const std::vector<LengthRange>& lengths);

/// A directed acyclic graph with unique node names; nodes are stored in execution (topological) order
/// when written by our profiler. Pure value.
struct LayerGraph {
  std::string model;
  int microbatch = 1;  ///< samples per microbatch the costs were measured with
  std::string device = "cpu";
  std::string precision = "float32";  ///< that it was measured in: train --precision
  double loss_s = 0;                  ///< loss and its gradient, for one microbatch
  double update_s_per_byte = 0;       ///< update rule in place, seconds per parameter byte
  /// The additional time of an update while a microbatch still needs the version before: the update then
  /// works on a copy.
  double update_copy_s_per_byte = 0;
  bool sync_batch_norm = false;  ///< measured as train --sync-batch-norm computes, without its exchanges
  double norm_s_per_byte = 0;    ///< of the gradient: its norm, where gradients are clipped by it
  double data_s = 0;             ///< to load one microbatch, beside the computation; 0: not known
  /// Jobs of the job array that was measured: times and bytes are those of all, for `microbatch` samples
  /// each.
  int jobs = 1;
  Bytes rule_state_bytes = 0;  ///< that the update rule kept for all parameters; 0: not known
  /// Profiles of the same model as arrays of more jobs, by number of jobs (array_profiles.h). They have no
  /// arrays of their own.
  std::vector<LayerGraph> arrays;
  /// The profiles of the turns of a model that is trained in turns (runtime/model/turns.h), in their order.
  /// The times of this profile are sums over them; memory that a layer keeps or works in is the most of
  /// any. `parameter_bytes` of layers that a turn does not train are 0, and so are tensors that it does not
  /// make. A turn has no turns, arrays or microbatches of its own.
  std::vector<LayerGraph> turns;
  std::string turn;  ///< of a turn its name
  Measured measured;
  std::vector<std::string> dimensions;  ///< what the model's microbatches differ in; empty: nothing
  /// The measured microbatches, as they follow each other in steps. Times, and the bytes of edges and
  /// activations, are means over them. Memory that is kept or worked in is that of the longest microbatch
  /// of the data.
  std::vector<MeasuredMicrobatch> microbatches;
  std::vector<LayerNode> nodes;
  std::vector<LayerEdge> edges;

  /// Reads the JSON form; all problems (cycle, duplicate name, dangling edge, negative cost) at once.
  static Result<LayerGraph> load(const std::string& path);
  static Result<LayerGraph> parse(std::string_view json, const std::string& name);
  /// Makes a graph of JSON that has been read. `name` is the file, or the place in it, for messages.
  static Result<LayerGraph> from(const Json& json, const std::string& name);
  std::string to_json() const;
  Json as_json() const;
  Status save(const std::string& path) const;

  /// How long each of `microbatches` takes as a multiple of their mean; {1} if there are none or their times
  /// are not known.
  std::vector<double> length_factors() const;
  /// Returns the lengths that the profile holds for. Empty: the model has no dimensions.
  std::vector<LengthRange> length_ranges() const;
  std::string lengths_text() const { return to_string(length_ranges()); }
  /// The profile of each of `microbatches` by itself: what each layer, the loss and each tensor took with it,
  /// or where that is not known the mean times its length_factors(). Empty where all are alike.
  std::vector<LayerGraph> by_microbatch() const;

  /// Node indices, every producer before its consumers; ties by index. Problem on a cycle.
  Result<std::vector<int>> topological_order() const;

  /// Edges from a node inside `stage_of == a` to one inside `stage_of == b`, each *tensor* (producer)
  /// once: the bytes stage b needs from stage a.
  Bytes bytes_between(const std::vector<int>& stage_of, int a, int b) const;

  /// 64-bit FNV-1a of the JSON form, as 16 hex digits: provenance in plans.
  std::string fingerprint() const;
};

}  // namespace millrace
