// The flags of emulated devices, links and storage, and the structs that they fill. LibTorch-free.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/files/cache_policy.h"
#include "data/files/storage_model.h"
#include "runtime/base/flag.h"
#include "runtime/device/compute_device.h"

namespace millrace {

class SharedWorld;

/// How much the times of emulated work vary.
struct EmulatedJitter {
  bool of_profile = false;  ///< the profile's value
  double sigma = 0;         ///< of a log-normal factor of mean 1; 0: not at all
};
/// "none", "profile" or a number.
Result<EmulatedJitter> jitter_from(const std::string& text);

/// A rank whose work takes so many times as long.
struct Straggler {
  int rank = 0;
  double factor = 1;
};
/// "RANK:FACTOR", several separated by commas.
Result<std::vector<Straggler>> stragglers_from(const std::string& text);

/// How much slower some emulated ranks are.
struct EmulatedStragglers {
  bool of_profile = false;  ///< ranks differ as those of the profile did
  std::vector<Straggler> of_ranks;
};
/// "profile", or what stragglers_from() reads.
Result<EmulatedStragglers> emulated_stragglers_from(const std::string& text);
/// Problem: a straggler that is none of `ranks` ranks.
Status check(const Straggler& straggler, int ranks);

/// Emulated links, and the emulated devices of `--device emulated`.
struct EmulationFlags {
  std::string links;    ///< cluster file; empty: messages take their own time
  std::string profile;  ///< file; empty: not given
  EmulatedClock clock = EmulatedClock::Wall;
  EmulatedPayload payload = EmulatedPayload::None;
  int devices = 0;    ///< of the job: rank r has device r modulo this; 0: each rank has one of its own
  std::string share;  ///< folder of the time lines of devices that other processes use too; empty: none do
  EmulatedJitter jitter;
  EmulatedStragglers stragglers;
  std::shared_ptr<SharedWorld> world;  ///< of jobs in one virtual time; null: the job is alone
};

/// A modelled storage for the training data.
struct StorageFlags {
  std::optional<StorageSpec> storage;  ///< empty: data is read as fast as this machine does
  double cache = 0;                    ///< share of the data's bytes that a rank's cache holds
  CachePolicy policy = CachePolicy::MinIo;
};

std::vector<Flag> emulation_flags(EmulationFlags& emulation, StorageFlags& storage);

}  // namespace millrace
