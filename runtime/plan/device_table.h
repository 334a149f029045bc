// Times of whole models on devices, as the GPU emulator of OSRE and its group's gpufs project published them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/layer_graph.h"

namespace millrace {

/// The time that a device takes for one batch of a model: forward, backward and update, in seconds.
struct DeviceTime {
  int batch = 0;  ///< samples
  double seconds = 0;
  double copy_s = 0;  ///< of the copy of the batch to the device; 0: not told
  int line = 0;       ///< of the file, from 1
  std::string
      stack;  ///< the software of the measurement, as the table's twelfth column says; empty: not told
};

/// What a look-up may do beyond the table, because the user said so.
struct TableLeave {
  bool extrapolate = false;  ///< times of batches outside of the table's
  bool mix_stacks = false;   ///< a time between two that were measured with different software
  std::string batch_option = "profile --microbatch";  ///< what sets the batch; for hints
};

/// Returns the time of a batch from those of smaller and larger ones, ascending by batch; at least one, and
/// `batch` is not outside of them. Never falls where they rise. Between a batch and at most its double, over
/// which the time grows as a power from 0.7 to 0.9 of the batch, the throughput is a straight line: the
/// device is not full yet, and what goes beyond the smaller batch fills it badly. Elsewhere the time is a
/// straight line.
double interpolated(const std::vector<DeviceTime>& times, int batch);

/// A table of such times. Pure value.
class DeviceTable {
 public:
  /// Reads tab-separated lines without a header: device, memory, model, batch, input size, memory of the
  /// model, seconds of the copy, seconds of the computation, and up to four columns that are not read.
  /// Devices and models are compared without regard to case. A cell without a figure (N/A, #VALUE!, #DIV/0!,
  /// empty) is skipped. Problems: too few columns, a cell that is neither a number nor one of those, two
  /// figures for one device, model and batch that differ. The twelfth column names the software.
  static Result<DeviceTable> load(const std::string& path);
  static Result<DeviceTable> parse(std::string_view text, const std::string& name);

  /// Returns the seconds of a batch of `batch` samples, by interpolated(). Problem: no such device or model
  /// (with those that there are), a batch outside of the table's, or one between two of different stacks.
  /// Beyond the table, if that is allowed, the line through the two nearest batches goes on; with a single
  /// one, the time grows as the batch.
  Result<double> seconds(const std::string& device, const std::string& model, int batch,
                         const TableLeave& leave = {}) const;
  /// Returns the seconds of the copy of such a batch to the device, in proportion to that of the nearest
  /// batch of the table; 0 where none is told. The device and the model are there.
  double copy_seconds(const std::string& device, const std::string& model, int batch) const;
  bool has(const std::string& device, const std::string& model) const;
  std::vector<std::string> devices() const;
  const std::string& name() const { return name_; }
  /// By device and model, in lower case; ascending by batch.
  const std::map<std::string, std::map<std::string, std::vector<DeviceTime>>>& times() const {
    return times_;
  }

 private:
  std::string name_;
  std::map<std::string, std::map<std::string, std::vector<DeviceTime>>> times_;
};

/// Returns `profile` as it would be on a device that takes `seconds` for a microbatch: each layer, the loss
/// and the update take the share of that time that they have in `profile`. `device`: its name in the result.
LayerGraph rescaled(LayerGraph profile, double seconds, std::string device);

/// Returns the seconds of one microbatch on one rank: forward and backward of all layers, loss and update.
double batch_seconds(const LayerGraph& profile);

}  // namespace millrace
