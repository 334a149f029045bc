// Times of whole models on devices, as published by OSRE's GPU emulator and its group's gpufs project.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/plan/layer_graph.h"

namespace millrace {

/// The time of a device for one batch of a model: forward, backward and update, in seconds.
struct DeviceTime {
  int batch = 0;  ///< samples
  double seconds = 0;
  double copy_s = 0;  ///< copy of the batch to the device; 0: unknown
  int line = 0;       ///< line in the file, from 1
  std::string stack;  ///< the software of the measurement, from the table's twelfth column; empty: unknown
};

/// Extensions of a look-up beyond the table, enabled by the user.
struct TableLeave {
  bool extrapolate = false;  ///< allow batches outside the table's range
  bool mix_stacks = false;   ///< allow interpolation between measurements with different software
  std::string batch_option = "profile --microbatch";  ///< the option that sets the batch; for hints
};

/// Returns the time of a batch, interpolated from smaller and larger ones, which are ascending by batch.
/// There must be at least one, and `batch` must be within their range. The result is monotonic where they
/// are. Consider a batch and at most its double, between which the time grows as a power of 0.7 to 0.9 of the
/// batch. There the throughput is linear: the device is not full yet, and samples beyond the smaller batch
/// use it poorly. Elsewhere the time is linear.
double interpolated(const std::vector<DeviceTime>& times, int batch);

/// A table of such times. Pure value.
class DeviceTable {
 public:
  /// Reads tab-separated lines without a header: device, memory, model, batch, input size, memory of the
  /// model, seconds of the copy, seconds of the computation, and up to four more columns. Of these, only the
  /// twelfth is read: it names the software. Devices and models are compared without regard to case. A cell
  /// without a figure (N/A, #VALUE!, #DIV/0!, empty) is skipped. Returns an error for too few columns, for
  /// other cells that are not numbers, and for two different figures for one device, model and batch.
  static Result<DeviceTable> load(const std::string& path);
  static Result<DeviceTable> parse(std::string_view text, const std::string& name);

  /// Returns the seconds of a batch of `batch` samples, by interpolated(). Returns an error if there is no
  /// such device or model (listing the known ones), if the batch is outside the table's range, or if it is
  /// between two of different stacks. Beyond the range, if allowed, the line through the two nearest batches
  /// is extended; with a single batch, the time is proportional to the batch.
  Result<double> seconds(const std::string& device, const std::string& model, int batch,
                         const TableLeave& leave = {}) const;
  /// Returns the seconds of the copy of such a batch to the device, in proportion to the nearest batch of the
  /// table; 0 if none is known. The device and the model must be in the table.
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

/// Returns `profile` scaled to a device that takes `seconds` for a microbatch: each layer, the loss and the
/// update keep their share of the time. `device`: its name in the result.
LayerGraph rescaled(LayerGraph profile, double seconds, std::string device);

/// Returns the seconds of one microbatch on one rank: forward and backward of all layers, loss and update.
double batch_seconds(const LayerGraph& profile);

}  // namespace millrace
