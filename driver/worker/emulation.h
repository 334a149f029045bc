// `--device emulated` of `train`: the run's models and ranks, with devices that are not there.
#pragma once

#include <memory>
#include <vector>

#include "driver/worker/train_spec.h"
#include "runtime/emulation/emulated_device.h"
#include "runtime/emulation/emulated_transfers.h"
#include "runtime/plan/layer_graph.h"

namespace millrace {

class Json;

/// The profile, plan, links and clock that the ranks of an emulated run share. Immutable but for the clock,
/// which is thread-safe.
class Emulation {
 public:
  /// Reads the profile of `--device-profile` and lets the models of `spec` run on emulated devices, with its
  /// times. Problems: a profile that cannot be read or does not fit the run, flags that ask for values
  /// (weights, checkpoints, BLEU), a job array.
  static Status set_up(TrainSpec& spec);

  Clock& clock() const { return *clock_; }
  bool is_virtual() const;
  /// Makes the device of a rank of the plan.
  std::shared_ptr<EmulatedDevice> device(RankId rank) const;
  /// Returns what stands around the channel of each rank, the innermost first. `device_of` returns the device
  /// of a rank, which must outlive the channel.
  std::vector<ChannelDecorator> decorators(std::function<EmulatedDevice&(int rank)> device_of) const;
  /// Returns what summary.json says of it: "profile", "device", "clock", "payload".
  Json as_json() const;

 private:
  Emulation() = default;

  EmulationFlags flags_;
  LayerGraph profile_;
  Plan plan_;
  std::vector<ChannelDecorator> links_;  // of --emulate-links
  SharedMemory shared_ = SharedMemory::None;
  std::vector<std::int64_t> memory_;  // by rank, of the cluster file's devices; 0: unlimited
  std::shared_ptr<Clock> clock_;
};

}  // namespace millrace
