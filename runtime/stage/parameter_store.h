// Holds the weights of one stage on one rank, by version. Weight stashing is implemented only here.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "runtime/base/ids.h"
#include "runtime/model/stage_layout.h"

namespace millrace {

struct FlatRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const FlatRange&) const = default;
};

/// The location of a parameter in the flat tensors. Offsets are multiples of 64 elements (256 bytes). Every
/// element is therefore processed by the same vector kernel for any partition, and updates are bitwise
/// independent of the plan.
struct ParameterSlot {
  std::string name;  ///< "layer.weight"
  Shape shape;
  std::int64_t offset = 0;
  std::int64_t elements = 0;
  ParameterKind kind = ParameterKind::Weight;
  std::vector<std::string> also{};  ///< ParameterSpec::also
  int job = -1;                     ///< ParameterSpec::job
  std::size_t layer = 0;            ///< index in the stage
  bool written = false;             ///< ParameterSpec::written
};

/// A use, by a layer of this stage, of a parameter that another layer owns. Its gradient is separate, whether
/// or not the owner is in this stage. It is added to the owner's before the update, which gives the same sum
/// in every plan.
struct TiedUse {
  std::string owner;  ///< full name
  int layer = 0;      ///< index in the model of the layer that uses it
  int slot = -1;      ///< index in slots() of the owner's parameter, if the owner is in this stage, else -1
  at::Tensor mirror;  ///< copy of the owner's values, if the owner is in another stage; else undefined
  at::Tensor gradient;
};

/// The weights and gradients of a stage. Each version of the weights is one flat tensor [N], float32 or
/// float64; parameters are views into it. Not thread-safe.
/// A microbatch pins the version of its forward until its last backward. An old version is freed when it is
/// not pinned and keep_from() does not require it. If that is true of the current version too, an update is
/// done in place: there is one version, and nothing is copied.
class ParameterStore {
 public:
  /// Makes a stage's store with its initial values, which depend only on (seed, parameter name). They are
  /// drawn on the CPU and then moved to `device`, which holds all tensors.
  ParameterStore(const StageLayout& layout, StageId stage, std::uint64_t seed, at::Device device = at::kCPU,
                 at::ScalarType dtype = at::kFloat)
      : ParameterStore(layout, stage, std::vector{seed}, device, dtype) {}
  /// `seeds` has one seed per job. The flat tensors hold job 0, then job 1, and so on; each job has the
  /// layout of its own run.
  ParameterStore(const StageLayout& layout, StageId stage, const std::vector<std::uint64_t>& seeds,
                 at::Device device, at::ScalarType dtype = at::kFloat);

  int jobs() const { return jobs_; }
  /// Returns a view of one job's part of a flat tensor.
  at::Tensor of_job(const at::Tensor& flat, int job) const {
    return jobs_ == 1 ? flat : flat.narrow(0, job * (flat.size(0) / jobs_), flat.size(0) / jobs_);
  }
  /// Returns one job's parameters, buffers and ties as a separate store, under their names in the array.
  /// Values are shared. Later versions are not included. For rules and checkpoints.
  ParameterStore job(int job) const;
  /// Returns one job's store under the names of job `as`, for a store that holds some of a larger array's
  /// jobs.
  ParameterStore job(int job, int as) const;
  /// Returns the layers [first, end) of the stage as a separate store; only for a store of one job. Their
  /// parameters are `flat_range` of the flat tensors. It shares tensors as job() does.
  ParameterStore part(std::size_t first, std::size_t end,
                      std::pair<std::int64_t, std::int64_t> flat_range) const;

  VersionId current() const { return current_; }
  VersionId pin(MicrobatchId microbatch);                ///< pins the current version
  void pin(MicrobatchId microbatch, VersionId version);  ///< pins a version that is kept
  /// Keeps this version and all later ones, pinned or not, until a later call.
  void keep_from(VersionId oldest);
  void release(MicrobatchId microbatch);
  VersionId version_of(MicrobatchId microbatch) const;
  int live_versions() const { return static_cast<int>(versions_.size()); }

  /// Returns the parameters of layer `layer` of the stage (index in the stage) as views.
  /// In an array, the combined parameters of all jobs, [B, ...], follow the parameters of the single jobs,
  /// unless tied. If the layer computes in a lower precision, copies in that precision replace the
  /// parameters. The copies of Layer::copies() are last, if the layer has them. Copies are made in the first
  /// call for a version and live as long as the version.
  std::span<const at::Tensor> parameters(VersionId version, int layer) const;
  /// Enables Layer::copies() from now on, if `microbatches`, the number that this rank runs with one version,
  /// is large enough for them to pay off.
  void make_copies(const StageLayout& layout, StageId stage, int microbatches);
  /// Makes the copies that parameters() needs for a layer, and returns their bytes.
  std::int64_t bytes_of_copies(int layer) const;
  /// Reports that weights were written without the store: their copies are made anew.
  void weights_changed();
  std::span<const at::Tensor> current_parameters(int layer) const { return parameters(current_, layer); }
  std::span<at::Tensor> buffers(int layer) { return buffers_[layer]; }
  using Buffers = std::vector<std::vector<at::Tensor>>;  ///< by layer
  Buffers copy_of_buffers() const;
  bool has_buffers() const;
  void exchange_buffers(Buffers& buffers) { buffers_.swap(buffers); }

  /// Returns the gradients of a layer as views, in the order of parameters().
  std::span<at::Tensor> gradients(int layer) { return gradients_[layer]; }
  at::Tensor flat_gradient() const { return flat_gradient_; }
  at::Tensor flat_weights() const { return versions_.at(current_).flat; }
  /// Returns the flat range [first, end) of the gradients of layer `layer`, one for each job; empty if the
  /// layer has no parameters.
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
  const Ranges& gradient_ranges(int layer) const { return ranges_[layer]; }

  /// Reports that layer `layer` adds to its gradients: to these rows of its only parameter
  /// (Layer::rows_of_gradient), or to all of them if `rows` is undefined.
  void touch(int layer, const at::Tensor& rows);
  /// Returns the slot of layer `layer` if it is a table whose gradients replicas exchange by rows. A table is
  /// an embedding of many rows that is the layer's only parameter, on the CPU, and not in a job array.
  std::optional<std::size_t> table(int layer) const;
  /// Returns float32 [rows] with ones for the touched rows of a table, zeros elsewhere.
  at::Tensor touched_mask(std::size_t slot) const;
  /// Reports that other ranks have added to gradients: to these rows of the tables among them, and to all of
  /// every other parameter. `rows` are int64 by slot.
  void touch_all(const std::map<std::size_t, at::Tensor>& rows);
  /// Returns the parts of the flat gradient that may be nonzero, ascending. A parameter is one whole part
  /// unless only some of its rows were touched.
  std::vector<FlatRange> touched() const;

  /// Applies `update` to the current weights and makes the result the current version; zeroes the gradients.
  /// `touched` are the parts of the flat gradient that are nonzero after `update`; null: any may be.
  void publish(const std::function<void(at::Tensor weights, const at::Tensor& gradient)>& update,
               const std::vector<FlatRange>* touched = nullptr);

  const std::vector<ParameterSlot>& slots() const { return slots_; }
  const std::vector<TiedUse>& tied() const { return tied_; }
  /// Adds the gradient of a tied use, local or received, to the gradient of its owner.
  void add_tied_gradient(std::size_t slot, const at::Tensor& gradient);
  /// Returns the view of slot `slot` in a flat tensor with the weights' layout (rule state).
  at::Tensor view(const at::Tensor& flat, std::size_t slot) const;
  /// Returns the buffers by full name; they share memory.
  std::vector<std::pair<std::string, at::Tensor>> named_buffers() const;
  void set_current(VersionId version);  ///< renames the current version (resume); nothing may be pinned
  /// Returns the live versions before the current one, newest first, with their flat tensors, which are
  /// shared.
  std::vector<std::pair<VersionId, at::Tensor>> older_versions() const;
  /// Adds a version before the current one (resume), whose flat tensor [N] the caller fills; it is kept.
  at::Tensor add_older_version(VersionId version);

 private:
  struct Version {
    at::Tensor flat;
    std::vector<std::vector<at::Tensor>> by_layer;
    /// Copies by layer, which replace or follow the parameters; empty: not made yet.
    mutable std::vector<std::vector<at::Tensor>> copied;
    int pins = 0;
  };
  std::vector<std::vector<at::Tensor>> views_of(const at::Tensor& flat) const;
  bool is_needed(VersionId version) const;

  ParameterStore() = default;
  struct LayerPlace {
    int position, index;  ///< index in the stage, index in the model
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
    LayerPtr layer;  ///< null: the layer has no copies
    Shape input;
  };
  mutable std::vector<Copying> copying_;  ///< by layer
  std::vector<TiedUse> tied_;
  /// by layer: index in slots_, or -1 - k for entry k of tied_
  std::vector<std::vector<int>> slots_of_layer_;
  std::vector<Ranges> ranges_;  ///< by layer
  std::vector<std::vector<at::Tensor>> buffers_;
  std::vector<std::vector<std::string>> buffer_names_;
  at::Tensor flat_gradient_;
  std::vector<std::vector<at::Tensor>> gradients_;
  /// By slot, since the last update: the touched rows. A slot without entries is whole.
  std::vector<std::vector<at::Tensor>> touched_rows_;
  std::vector<char> touched_whole_;  ///< by slot
  std::map<VersionId, Version> versions_;
  std::unordered_map<MicrobatchId, VersionId> pinned_;
  VersionId keep_from_{std::numeric_limits<std::int64_t>::max()};
  VersionId current_{0};
};

}  // namespace millrace
