// `--device emulated` of `train`: the run's models and ranks on emulated devices.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "driver/worker/train_spec.h"
#include "runtime/base/clock.h"
#include "runtime/emulation/emulated_device.h"
#include "runtime/emulation/emulated_transfers.h"
#include "runtime/emulation/shared_timeline.h"
#include "runtime/plan/cluster_spec.h"
#include "runtime/plan/layer_graph.h"

namespace millrace {

class Json;

/// The virtual time and the devices that several jobs of this process share, or several ranks of one job. A
/// device has the number of the first rank that uses it. Thread-safe.
class SharedWorld {
 public:
  Clock& clock() { return clock_; }
  std::shared_ptr<SharedTimeline> timeline(RankId rank);
  /// Registers `ranks` more ranks; all registered ranks of all jobs begin together.
  void expect(int ranks);
  /// Returns when all registered ranks have arrived. Virtual time does not advance until then.
  void arrive();
  /// Removes ranks that will not arrive.
  void leave(int ranks);

 private:
  VirtualClock clock_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  int missing_ = 0;
  std::map<RankId, std::shared_ptr<SharedTimeline>> timelines_;
};

/// The fields of a batch that layers read, by layer. The last layer has those that the heads read.
struct FieldReads {
  struct Read {
    Bytes bytes = 0;  ///< of the field in a microbatch of nominal lengths
    int turns = 1;    ///< the number of turns in which the layer reads it
  };
  std::map<std::string, std::map<std::string, Read>> of_layers;
};

/// The profile, plan, links and clock that the ranks of an emulated run share. Immutable but for the clock,
/// which is thread-safe.
class Emulation {
 public:
  /// Reads the profile of `--device-profile` and lets the models of `spec` run on emulated devices, with its
  /// times. Problems: a profile that cannot be read or does not fit the run, flags that need values
  /// (weights, checkpoints, BLEU), a job array of a size that the profile does not have.
  static Status set_up(TrainSpec& spec);

  Clock& clock() const { return *clock_; }
  /// A rank's thread calls it before its work: the ranks of jobs that share the devices begin together.
  void begin() const {
    if (flags_.world) flags_.world->arrive();
  }
  bool is_virtual() const;
  /// Makes the device of a rank of the plan.
  std::shared_ptr<EmulatedDevice> device(RankId rank) const;
  /// Returns the decorators of each rank's channel, the innermost first. `device_of` returns the device
  /// of a rank, which must outlive the channel.
  std::vector<ChannelDecorator> decorators(std::function<EmulatedDevice&(int rank)> device_of) const;
  /// Returns `batches`, with devices that count the time for which a rank's thread waits for one.
  MakeBatches counted(MakeBatches batches) const;
  /// Returns its entry of summary.json (docs/formats.md).
  Json as_json() const;
  /// Returns how the profile was measured.
  const Measured& measured() const { return profile_.measured; }

 private:
  Emulation() = default;
  Bytes batches_of(RankId rank, std::size_t array) const;
  Status read_cluster(const TrainSpec& spec);
  Status take_times_of_kinds(LayerGraph& costs, std::size_t array) const;
  Status slow_stragglers(const EmulatedStragglers& stragglers);
  /// Kinds of devices that have a profile of their own.
  struct Kind {
    std::string file;
    LayerGraph profile;
    std::vector<LayerGraph> arrays;
  };
  const Kind* kind_of(RankId rank) const;

  EmulationFlags flags_;
  LayerGraph profile_;
  std::vector<LayerGraph> arrays_;  // the profile of each array; a single job is one of one job
  ClusterSpec cluster_;             // of --emulate-links; empty without
  std::map<std::string, Kind> kinds_;
  std::vector<FieldReads> reads_;  // by array
  Plan plan_;
  std::vector<ChannelDecorator> links_;  // of --emulate-links
  SharedMemory shared_ = SharedMemory::None;
  std::vector<std::int64_t> memory_;  // by rank, of the cluster file's devices; 0: unlimited
  bool free_host_ = false;            // EmulatedCosts::free_host
  std::vector<double> slowdown_;      // by rank: factor on all times
  double jitter_ = 0;
  bool clips_ = false;  // by a norm of gradients: a pass over them before each update
  std::uint64_t seed_ = 0;
  std::shared_ptr<Clock> clock_;
};

}  // namespace millrace
