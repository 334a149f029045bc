// Holds the weights of one stage on one rank, by version. Weight stashing is implemented here and nowhere
// else.
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

/// The place of a parameter in the flat tensors. Offsets are multiples of 64 elements (256 bytes). So every
/// element meets the same vector kernel whatever the partition, and updates are bitwise independent of the
/// plan.
struct ParameterSlot {
  std::string name;  ///< "layer.weight"
  Shape shape;
  std::int64_t offset = 0;
  std::int64_t elements = 0;
  ParameterKind kind = ParameterKind::Weight;
  std::vector<std::string> also{};  ///< ParameterSpec::also
  int job = -1;                     ///< ParameterSpec::job
  std::size_t layer = 0;            ///< position in the stage
  bool written = false;             ///< ParameterSpec::written
};

/// A use, by a layer of this stage, of a parameter that another layer owns. Its gradient is kept apart,
/// whether or not the owner is in this stage. It is added to the owner's before the update, which gives the
/// same sum in every plan.
struct TiedUse {
  std::string owner;  ///< full name
  int layer = 0;      ///< index in the model of the layer that uses it
  int slot = -1;      ///< index in slots() of the owner's parameter, if the owner is in this stage, else -1
  at::Tensor mirror;  ///< copy of the owner's values, if the owner is in another stage; else undefined
  at::Tensor gradient;
};

/// The weights and gradients of a stage. Each version of the weights is one flat tensor [N], float32 or
/// float64; parameters are views into it. Not thread-safe.
/// A microbatch pins the version of its forward until its last backward. An old version is freed when nothing
/// pins it and keep_from() does not ask for it. If that holds for the current version too, an update happens
/// in place: there is one version, and nothing is copied.
class ParameterStore {
 public:
  /// Makes the store of a stage with its initial values, which depend only on (seed, parameter name). They
  /// are drawn on the CPU and then moved to `device`, where all tensors stay.
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
  /// Returns one job's parameters, buffers and ties as a store by itself, under their names in the array.
  /// Values are shared. Versions that are published later are not in it. For rules and checkpoints.
  ParameterStore job(int job) const;
  /// Returns the store of one job under the names of job `as`. It is for a store that holds a part of a
  /// larger array's jobs.
  ParameterStore job(int job, int as) const;
  /// Returns the layers [first, end) of the stage as a store by itself; only for a store of one job. Their
  /// parameters are `flat_range` of the flat tensors. It shares tensors as job() does.
  ParameterStore part(std::size_t first, std::size_t end,
                      std::pair<std::int64_t, std::int64_t> flat_range) const;

  VersionId current() const { return current_; }
  VersionId pin(MicrobatchId microbatch);                ///< pins the current version
  void pin(MicrobatchId microbatch, VersionId version);  ///< pins a version that is kept
  /// Keeps this version and all that follow, pinned or not, until a later call.
  void keep_from(VersionId oldest);
  void release(MicrobatchId microbatch);
  VersionId version_of(MicrobatchId microbatch) const;
  int live_versions() const { return static_cast<int>(versions_.size()); }

  /// Returns the parameters of layer `layer` of the stage (position within the stage) as views.
  /// In an array, each parameter of all jobs together, [B, ...], follows the parameters of the single jobs,
  /// unless it is tied. If the layer computes in a lower precision, copies in that precision take the place
  /// of the parameters. The copies of Layer::copies() come last, if the layer has them. Copies are made at
  /// the first call for a version and live as long as the version.
  std::span<const at::Tensor> parameters(VersionId version, int layer) const;
  /// Lets layers have their Layer::copies() from now on, if `microbatches`, the number that this rank runs
  /// with one version, is large enough to be worth it.
  void make_copies(const StageLayout& layout, StageId stage, int microbatches);
  /// Makes the copies that parameters() needs for a version of a layer, and returns their bytes.
  std::int64_t bytes_of_copies(int layer) const;
  /// Tells that weights were written without the store: their copies are made anew.
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

  /// Tells that layer `layer` adds to its gradients: to these rows of its only parameter (Layer::
  /// rows_of_gradient), or to all of them if `rows` is undefined.
  void touch(int layer, const at::Tensor& rows);
  /// Returns the slot of layer `layer` if it is a table whose gradients replicas exchange by rows: an
  /// embedding of many rows that is all of the layer's parameters, on the CPU, and not of a job array.
  std::optional<std::size_t> table(int layer) const;
  /// Returns a float32 [rows] with ones for the rows of a table that were touched, zeros elsewhere.
  at::Tensor touched_mask(std::size_t slot) const;
  /// Tells that others have added to gradients: to these rows of the tables among them, and to all of every
  /// other parameter. `rows` are int64 by slot.
  void touch_all(const std::map<std::size_t, at::Tensor>& rows);
  /// Returns the parts of the flat gradient that may differ from zero, ascending. Parameters are whole parts
  /// unless only some of their rows were touched.
  std::vector<FlatRange> touched() const;

  /// Applies `update` to the current weights and makes the result the current version; zeroes the gradients.
  /// `touched` are the parts of the flat gradient that are not zero after `update`; null: any may be.
  void publish(const std::function<void(at::Tensor weights, const at::Tensor& gradient)>& update,
               const std::vector<FlatRange>* touched = nullptr);

  const std::vector<ParameterSlot>& slots() const { return slots_; }
  const std::vector<TiedUse>& tied() const { return tied_; }
  /// Adds the gradient of a tied use, of this stage or received, to the gradient of its owner.
  void add_tied_gradient(std::size_t slot, const at::Tensor& gradient);
  /// Returns the view of slot `slot` in a flat tensor laid out like the weights (rule state).
  at::Tensor view(const at::Tensor& flat, std::size_t slot) const;
  /// Returns the buffers by full name; they share memory.
  std::vector<std::pair<std::string, at::Tensor>> named_buffers() const;
  void set_current(VersionId version);  ///< renames the current version (resume); nothing may be pinned
  /// Returns the live versions before the current one, newest first, with their flat tensors, which are
  /// shared.
  std::vector<std::pair<VersionId, at::Tensor>> older_versions() const;
  /// Adds a version before the current one (resume), with its flat tensor [N] to be filled; it is kept.
  at::Tensor add_older_version(VersionId version);

 private:
  struct Version {
    at::Tensor flat;
    std::vector<std::vector<at::Tensor>> by_layer;
    /// Copies by layer, which stand in place of the parameters or behind them; empty: none are made yet.
    mutable std::vector<std::vector<at::Tensor>> copied;
    int pins = 0;
  };
  std::vector<std::vector<at::Tensor>> views_of(const at::Tensor& flat) const;
  bool is_needed(VersionId version) const;

  ParameterStore() = default;
  struct LayerPlace {
    int position, index;  ///< position in the stage, index in the model
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
  /// By slot, since the last update: the rows that were touched. A slot without entries is whole.
  std::vector<std::vector<at::Tensor>> touched_rows_;
  std::vector<char> touched_whole_;  ///< by slot
  std::map<VersionId, Version> versions_;
  std::unordered_map<MicrobatchId, VersionId> pinned_;
  VersionId keep_from_{std::numeric_limits<std::int64_t>::max()};
  VersionId current_{0};
};

}  // namespace millrace
