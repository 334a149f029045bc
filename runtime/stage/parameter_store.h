// The weights of one stage on one rank, by version. Stashing lives here and nowhere else.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/ids.h"
#include "runtime/model/stage_layout.h"

namespace millrace {

/// Where a parameter lives in the flat tensors. Offsets are multiples of 64 elements (256 bytes): every
/// element meets the same vector kernel whatever the partition, which keeps updates bitwise independent of
/// the plan.
struct ParameterSlot {
  std::string name;  ///< "layer.weight"
  Shape shape;
  std::int64_t offset = 0;
  std::int64_t elements = 0;
  ParameterKind kind = ParameterKind::Weight;
  std::vector<std::string> also{};  ///< ParameterSpec::also
  int job = -1;                     ///< ParameterSpec::job
};

/// A layer of this stage uses a parameter that another layer owns. Its gradient is kept by itself, whether
/// the owner is in this stage or not, and added to the owner's before the update: the same sum in every plan.
struct TiedUse {
  std::string owner;  ///< full name
  int layer = 0;      ///< of the use: index in the model
  int slot = -1;      ///< of the owner, if it is in this stage, else -1
  at::Tensor mirror;  ///< the owner's values, where it is in another stage; else undefined
  at::Tensor gradient;
};

/// Each published version is one flat tensor [N], float32 or float64; parameters are views into it. A
/// microbatch pins the version of its forward until its last backward; an old version is freed when it is
/// neither pinned nor to be kept. If that holds for the current version an update happens in place (one
/// version, no copy). Not thread-safe.
class ParameterStore {
 public:
  /// Initial values depend on (seed, parameter name) only: they are drawn on the CPU and then moved to
  /// `device`, where everything lives from then on.
  ParameterStore(const StageLayout& layout, StageId stage, std::uint64_t seed, at::Device device = at::kCPU,
                 at::ScalarType dtype = at::kFloat)
      : ParameterStore(layout, stage, std::vector{seed}, device, dtype) {}
  /// `seeds` has a seed for each job. The flat tensors hold job 0, then job 1, and so on; each job is laid
  /// out as it would be by itself.
  ParameterStore(const StageLayout& layout, StageId stage, const std::vector<std::uint64_t>& seeds,
                 at::Device device, at::ScalarType dtype = at::kFloat);

  int jobs() const { return jobs_; }
  /// Returns the part of a flat tensor that belongs to one job: a view.
  at::Tensor of_job(const at::Tensor& flat, int job) const {
    return jobs_ == 1 ? flat : flat.narrow(0, job * (flat.size(0) / jobs_), flat.size(0) / jobs_);
  }
  /// One job's parameters, buffers and ties as a store by itself, under their names of the array; values are
  /// shared, and those of versions that are published later are not in it. For rules and checkpoints.
  ParameterStore job(int job) const;
  /// Returns the same under the names of job `as`. This store then holds a part of a larger array's jobs.
  ParameterStore job(int job, int as) const;
  /// Returns the layers [first, end) of the stage as a store by itself; only for a store of one job. Their
  /// parameters are `flat_range` of the flat tensors. It shares tensors as job() does.
  ParameterStore part(std::size_t first, std::size_t end,
                      std::pair<std::int64_t, std::int64_t> flat_range) const;

  VersionId current() const { return current_; }
  VersionId pin(MicrobatchId microbatch);                ///< the current version
  void pin(MicrobatchId microbatch, VersionId version);  ///< a version that is kept
  /// This version and all that follow stay, pinned or not, until a later call says otherwise.
  void keep_from(VersionId oldest);
  void release(MicrobatchId microbatch);
  VersionId version_of(MicrobatchId microbatch) const;
  int live_versions() const { return static_cast<int>(versions_.size()); }

  /// Parameters of layer `i` of the stage (position within the stage): views, and behind those of the jobs of
  /// an array each parameter of all jobs, [B, ...] (not where one is tied); or where the layer computes in a
  /// lower precision copies in that; and behind them what it has of Layer::copies(). Copies are made at the
  /// first call for a version and live as long as it.
  std::span<const at::Tensor> parameters(VersionId version, int layer) const;
  /// From now on layers have their Layer::copies(): where `microbatches` of this rank read a version and that
  /// is enough to be worth it.
  void make_copies(const StageLayout& layout, StageId stage, int microbatches);
  /// Makes the copies that parameters() needs for a version of a layer, and returns their bytes.
  std::int64_t bytes_of_copies(int layer) const;
  /// Values were written behind the store's back: copies are made anew.
  void weights_changed();
  std::span<const at::Tensor> current_parameters(int layer) const { return parameters(current_, layer); }
  std::span<at::Tensor> buffers(int layer) { return buffers_[layer]; }
  using Buffers = std::vector<std::vector<at::Tensor>>;  ///< by layer
  Buffers copy_of_buffers() const;
  bool has_buffers() const;
  void exchange_buffers(Buffers& buffers) { buffers_.swap(buffers); }

  /// Views, in the order of parameters().
  std::span<at::Tensor> gradients(int layer) { return gradients_[layer]; }
  at::Tensor flat_gradient() const { return flat_gradient_; }
  at::Tensor flat_weights() const { return versions_.at(current_).flat; }
  /// Flat range [first, end) of the gradients of layer `i`, of each job; empty if it has none.
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
  const Ranges& gradient_ranges(int layer) const { return ranges_[layer]; }

  /// Applies `update` to the current weights and makes the result the current version; zeroes the gradients.
  void publish(const std::function<void(at::Tensor weights, const at::Tensor& gradient)>& update);

  const std::vector<ParameterSlot>& slots() const { return slots_; }
  const std::vector<TiedUse>& tied() const { return tied_; }
  /// Adds the gradient of a tied use, this stage's or one that was received, to its owner's.
  void add_tied_gradient(std::size_t slot, const at::Tensor& gradient);
  /// View of slot `i` in any flat tensor laid out like the weights (rule state).
  at::Tensor view(const at::Tensor& flat, std::size_t slot) const;
  /// Buffers by full name, shared.
  std::vector<std::pair<std::string, at::Tensor>> named_buffers() const;
  void set_current(VersionId version);  ///< renames the current version (resume); nothing may be pinned
  /// Live versions before the current one, the newest first, with their flat tensors; shared.
  std::vector<std::pair<VersionId, at::Tensor>> older_versions() const;
  /// Adds a version before the current one (resume), with its flat tensor [N] to be filled; it is kept.
  at::Tensor add_older_version(VersionId version);

 private:
  struct Version {
    at::Tensor flat;
    std::vector<std::vector<at::Tensor>> by_layer;
    /// Copies by layer that stand in place of the parameters, or behind them; empty: none are made yet.
    mutable std::vector<std::vector<at::Tensor>> copied;
    int pins = 0;
  };
  std::vector<std::vector<at::Tensor>> views_of(const at::Tensor& flat) const;
  bool is_needed(VersionId version) const;

  ParameterStore() = default;
  struct LayerPlace {
    int position, index;  ///< in the stage, in the model
  };
  void add_layer(const StageLayout& layout, const LayerPlace& where, int job,
                 const std::vector<std::uint64_t>& seeds, const at::TensorOptions& options,
                 std::vector<at::Tensor>& initial);
  void add_tied_use(const StageLayout& layout, int layer, const std::string& owner,
                    const std::vector<std::uint64_t>& seeds, const at::TensorOptions& options);
  void join_buffers();

  int jobs_ = 1;
  std::vector<ParameterSlot> slots_;
  at::ScalarType lower_;
  std::vector<char> is_lowered_;  ///< by layer
  struct Copying {
    LayerPtr layer;  ///< null: it has no copies
    Shape input;
  };
  mutable std::vector<Copying> copying_;  ///< by layer
  std::vector<TiedUse> tied_;
  std::vector<std::vector<int>> slots_of_layer_;  ///< in slots_; -1 - k: in tied_
  std::vector<Ranges> ranges_;                    ///< by layer
  std::vector<std::vector<at::Tensor>> buffers_;
  std::vector<std::vector<std::string>> buffer_names_;
  at::Tensor flat_gradient_;
  std::vector<std::vector<at::Tensor>> gradients_;
  std::map<VersionId, Version> versions_;
  std::unordered_map<MicrobatchId, VersionId> pinned_;
  VersionId keep_from_{std::numeric_limits<std::int64_t>::max()};
  VersionId current_{0};
};

}  // namespace millrace
