// The profile of a model: layers, the tensors between them, and their costs for one microbatch.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/base/units.h"
#include "runtime/plan/profile_origin.h"

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
  /// Bytes of its parameters that an update skips: rows of a table that the microbatch did not read.
  Bytes untouched_bytes = 0;
  /// Bytes of the copies of its parameters in each weight version (copies in lower precision, or
  /// Layer::copies()), plus the gradients of parameters that other layers own (tied).
  Bytes lowered_bytes = 0;
  /// Bytes of the batch fields that the layer reads. The last layer's also include the fields that the heads
  /// read.
  Bytes field_bytes = 0;
  /// `field_bytes` by field: layers that read the same field need it once. Empty: only the sum is known.
  std::map<std::string, Bytes> fields{};
  Bytes activation_bytes = 0;  ///< output
  /// Bytes kept from forward to backward. Kept outputs of other layers count once.
  Bytes saved_bytes = 0;
  /// The outputs and the inputs among `saved_bytes`; absent: unknown.
  std::optional<Bytes> saved_output_bytes{}, saved_input_bytes{};
  /// Bytes kept from the gradient of its inputs to that of its weights, if a schedule computes them
  /// separately; absent: `saved_bytes`.
  std::optional<Bytes> between_bytes{};
  /// The layer that owns parameters of this one (tied), and their bytes. A stage without the owner holds its
  /// own copy of the values. Empty: it owns all of them.
  std::string tied_to{};
  Bytes tied_bytes = 0;
  /// Peak bytes of its backward's workspace (gradients, temporaries), in addition to the saved bytes.
  Bytes workspace_bytes = 0;
  /// `workspace_bytes` of the backward for its inputs alone, and the bytes that the backward for its weights
  /// allocates in addition; absent: unknown.
  std::optional<Bytes> input_workspace_bytes{}, weight_workspace_bytes{};
  /// Times by LayerGraph::microbatches. The times above are their means. Empty: unknown.
  std::vector<LayerSeconds> of_microbatches{};

  double backward_s() const { return backward_input_s + backward_weight_s; }
  Bytes touched_bytes() const { return parameter_bytes - untouched_bytes; }
  /// Returns the maximum bytes of its parameters that an update touches after this many microbatches, each of
  /// which may have read other rows.
  double updated_bytes(int microbatches) const {
    return std::min(static_cast<double>(parameter_bytes),
                    static_cast<double>(microbatches) * static_cast<double>(touched_bytes()));
  }
  Bytes kept_between() const { return between_bytes.value_or(saved_bytes); }
  Bytes input_workspace() const { return input_workspace_bytes.value_or(workspace_bytes); }
};

/// Tensor `tensor` is passed from nodes[producer] to nodes[consumer].
struct LayerEdge {
  int producer = -1;
  int consumer = -1;
  std::string tensor;
  Bytes bytes = 0;
  std::vector<Bytes> of_microbatches{};   ///< by LayerGraph::microbatches; empty: all have `bytes`
  std::optional<Bytes> gradient_bytes{};  ///< bytes of the returned gradient; absent: `bytes`
  /// Bytes of it that the consumer keeps until its backward and that are not among the consumer's saved
  /// bytes, because they count in an earlier layer; absent: `bytes`.
  std::optional<Bytes> kept_bytes{};
};

/// How a profile was measured.
struct Measured {
  int ranks = 1;  ///< ranks that computed at the same time on the host
  /// Each thread of the ranks had this share of a processor core. Below 1, times are processor time divided
  /// by it: the expected elapsed time if other work is interleaved.
  double core_share = 1;
  /// Number of times that all layers were measured, seconds or minutes apart; 0: unknown.
  int blocks = 0;
  /// Half the difference between the slowest and the fastest block, as a share of the median.
  double spread = 0;
  /// Sigma of a log-normal factor. The median difference of two draws equals that of two passes of one block,
  /// forward or backward. 0: unknown.
  double jitter = 0;
  /// The time of a microbatch on each rank: forward, backward and loss. The layers' times are means over the
  /// ranks. Empty: unknown.
  std::vector<double> rank_seconds;
  ProfileOrigin origin{};
};

/// A microbatch for which times were measured. Only models whose microbatches differ in length have them.
struct MeasuredMicrobatch {
  std::vector<std::int64_t> lengths;  ///< by LayerGraph::dimensions
  double seconds = 0;                 ///< forward and backward of all layers, and the loss
  double loss_s = 0;                  ///< the loss's part of `seconds`; 0: unknown
};

/// The lengths of microbatches, in one dimension, for which a profile's times are valid.
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
  int microbatch = 1;  ///< samples in the measured microbatch
  std::string device = "cpu";
  std::string precision = "float32";  ///< the precision of the measurement, as in train --precision
  double loss_s = 0;                  ///< loss and its gradient, for one microbatch
  double update_s_per_byte = 0;       ///< update rule in place, seconds per touched parameter byte
  /// The additional time of an update while a microbatch still needs the previous version: the update then
  /// writes to a copy.
  double update_copy_s_per_byte = 0;
  bool sync_batch_norm = false;  ///< measured like train --sync-batch-norm, without its exchanges
  double norm_s_per_byte = 0;    ///< seconds per gradient byte for the norm by which gradients are clipped
  /// Seconds per byte of gradients that a rank adds to its own, including shared-memory copies, with
  /// `measured.ranks` replicas on one host of CPUs; 0: unknown.
  double sum_s_per_byte = 0;
  double data_s = 0;  ///< seconds to load one microbatch during computation; 0: unknown
  /// The number of jobs in the measured job array. Times and bytes are those of all jobs together, with
  /// `microbatch` samples for each job.
  int jobs = 1;
  Bytes rule_state_bytes = 0;  ///< kept by the update rule for all parameters; 0: unknown
  /// Profiles of the same model as arrays of more jobs, by number of jobs (array_profiles.h). They have no
  /// nested arrays.
  std::vector<LayerGraph> arrays;
  /// The profile of each turn, in order, if the model is trained in turns (runtime/model/turns.h). The outer
  /// profile's times are sums over the turns. Its saved and workspace bytes of a layer are the maximum over
  /// the turns. In a turn's profile, `parameter_bytes` is 0 for a layer that the turn does not train, and the
  /// bytes of a tensor are 0 if the turn does not compute it. The profiles of turns have no nested turns,
  /// arrays or microbatches.
  std::vector<LayerGraph> turns;
  std::string turn;  ///< the turn's name, in the profile of a turn; else empty
  Measured measured;
  std::vector<std::string>
      dimensions;  ///< names of the lengths in which microbatches differ; empty: all are equal
  /// The measured microbatches, in step order. Times and the bytes of edges and activations are means over
  /// them. Saved and workspace bytes are those of the longest microbatch of the data.
  std::vector<MeasuredMicrobatch> microbatches;
  std::vector<LayerNode> nodes;
  std::vector<LayerEdge> edges;

  /// Reads the JSON form, and returns all errors at once (cycle, duplicate name, dangling edge, negative
  /// cost).
  static Result<LayerGraph> load(const std::string& path);
  static Result<LayerGraph> parse(std::string_view json, const std::string& name);
  /// Makes a graph from parsed JSON. `name` is the file, or the location in it, for messages.
  static Result<LayerGraph> from(const Json& json, const std::string& name);
  std::string to_json() const;
  Json as_json() const;
  Status save(const std::string& path) const;

  /// Returns the bytes of a microbatch's fields that the layers read, each field counted once. `already`:
  /// fields that count elsewhere; the fields of these layers are added to it.
  Bytes bytes_of_fields(const std::vector<int>& layers, std::map<std::string, Bytes>& already) const;
  /// Returns whether several turns read a field, so that a step keeps its batches for the later ones.
  bool is_read_in_turns(const std::string& field) const;
  /// Returns the time of each of `microbatches` as a multiple of their mean; {1} if there are none or their
  /// times are unknown.
  std::vector<double> length_factors() const;
  /// Returns the lengths for which the profile is valid; empty without dimensions.
  std::vector<LengthRange> length_ranges() const;
  std::string lengths_text() const { return to_string(length_ranges()); }
  /// Returns a profile for each of `microbatches`, with the costs of its layers, loss and tensors. A cost
  /// that is unknown for single microbatches is the mean times the length factor. Empty if all microbatches
  /// are equal.
  std::vector<LayerGraph> by_microbatch() const;

  /// Returns the node indices with every producer before its consumers, and otherwise in ascending order.
  /// Returns an error if there is a cycle.
  Result<std::vector<int>> topological_order() const;

  /// Returns the 64-bit FNV-1a hash of the JSON form as 16 hexadecimal digits. Plans record it.
  std::string fingerprint() const;
};

}  // namespace millrace
