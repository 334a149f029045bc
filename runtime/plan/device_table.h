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
  int line = 0;  ///< of the file, from 1
};

/// A table of such times. Pure value.
class DeviceTable {
 public:
  /// Reads tab-separated lines without a header: device, memory, model, batch, input size, memory of the
  /// model, seconds of the copy, seconds of the computation, and up to four columns that are not read.
  /// Devices and models are compared without regard to case. A cell without a figure (N/A, #VALUE!, #DIV/0!,
  /// empty) is skipped. Problems: too few columns, a cell that is neither a number nor one of those, two
  /// figures for one device, model and batch that differ.
  static Result<DeviceTable> load(const std::string& path);
  static Result<DeviceTable> parse(std::string_view text, const std::string& name);

  /// Returns the seconds of a batch of `batch` samples. Between two batches of the table it is a straight
  /// line. Problem: no such device or model (with those that there are), or a batch outside of the table's.
  Result<double> seconds(const std::string& device, const std::string& model, int batch) const;
  std::vector<std::string> devices() const;

 private:
  std::string name_;
  /// by device and model, in lower case; ascending by batch
  std::map<std::string, std::map<std::string, std::vector<DeviceTime>>> times_;
};

/// Returns `profile` as it would be on a device that takes `seconds` for a microbatch: each layer, the loss
/// and the update take the share of that time that they have in `profile`. `device`: its name in the result.
LayerGraph rescaled(LayerGraph profile, double seconds, std::string device);

/// Returns the seconds of one microbatch on one rank: forward and backward of all layers, loss and update.
double batch_seconds(const LayerGraph& profile);

}  // namespace millrace
