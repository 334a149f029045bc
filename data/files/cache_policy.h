// Caches of whole files under a training loader: which reads hit, and what is evicted. The same object serves
// a simulation and a real run. Sources: CoorDL (MinIO, partitioned caches), PVLDB 14(5).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/base/choices.h"
#include "runtime/base/units.h"

namespace millrace {

/// The reaction to a read file that does not fit into the cache.
/// none: nothing is ever kept. random: a random file leaves, the model of the kernel's page cache. lru: the
/// one that was not read for longest leaves. fifo: the one that came first leaves. minio: the new file is not
/// kept, and none ever leaves.
enum class CachePolicy { None, Random, Lru, Fifo, MinIo };
constexpr auto names_of(CachePolicy) {
  return std::to_array<std::string_view>({"none", "random", "lru", "fifo", "minio"});
}

/// Not thread-safe.
class Cache {
 public:
  virtual ~Cache() = default;
  /// Returns whether file `item` is cached. Then applies the policy to it. `size`: its bytes.
  virtual bool read(std::int64_t item, Bytes size) = 0;
  /// Bytes that are kept now; at most the capacity.
  virtual Bytes used() const = 0;
};

/// `capacity` in bytes; a file that is larger is never kept. `seed` chooses what leaves a random cache.
std::unique_ptr<Cache> make_cache(CachePolicy policy, Bytes capacity, std::uint64_t seed);

/// The epochs after which a cache is as it stays: one that evicts needs some to settle.
inline int fills_of(CachePolicy policy) {
  return policy != CachePolicy::MinIo && policy != CachePolicy::None ? 3 : 1;
}

/// The share of reads that hit in the long run, where files have one size, each epoch is a new permutation,
/// and the cache holds the share `fraction` of them. Nothing for fifo, which has no closed form here. minio:
/// x. lru: x + (1 - x) ln(1 - x). random: h with h = ((1 - exp(-a)) / a)^2 and a = (1 - h) / x.
std::optional<double> expected_hit_ratio(CachePolicy policy, double fraction);

/// Reads of one epoch, counted over all nodes.
struct EpochReads {
  std::int64_t hits = 0, peer_hits = 0, misses = 0;  ///< files
  Bytes hit_bytes = 0, peer_bytes = 0, miss_bytes = 0;
  double hit_ratio() const;
};

struct CacheStudy {
  std::vector<Bytes> sizes;  ///< of the files
  CachePolicy policy = CachePolicy::MinIo;
  Bytes capacity = 0;        ///< of each node
  int nodes = 1;             ///< each reads its share of every epoch, at random
  bool partitioned = false;  ///< a node reads a missing file from the other nodes' caches before storage
  int epochs = 10;
  std::uint64_t seed = 1;
};

/// Plays the epochs through. Deterministic for a seed.
std::vector<EpochReads> simulate_cache(const CacheStudy& study);

}  // namespace millrace
