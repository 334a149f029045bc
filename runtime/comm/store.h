// Rendezvous: a small key-value store that all ranks reach. Torch-free, gloo-free.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"

namespace millrace {

/// Thread-safe. Values are bytes.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits for the key; throws PeerError naming the key and the elapsed time.
  virtual std::string get(const std::string& key, std::chrono::milliseconds deadline) = 0;
};

/// Agrees on one value among `ranks` (ascending), which all call it with the same `key`. The first of them
/// reads what each one `says`. It sets what `decide` makes of these texts, in the order of `ranks`, and the
/// others read that value only. A `rank` that is not among `ranks` reads it, too. Throws PeerError on all
/// callers, with the ranks that are missing at the deadline.
std::string agree(Store& store, const std::string& key, const std::vector<int>& ranks, int rank,
                  const std::string& says, std::chrono::milliseconds deadline, Clock& clock,
                  const std::function<std::string(const std::vector<std::string>&)>& decide);

/// Returns the texts with a line end between any two: a `decide` for texts without line ends.
std::string joined_lines(const std::vector<std::string>& texts);

/// Makes a store for the threads of one process.
std::shared_ptr<Store> make_memory_store(Clock& clock = steady_clock());
/// Makes a store with one file for each key (write, rename) in a folder that all ranks see. It polls with a
/// back-off up to 2 ms.
std::shared_ptr<Store> make_file_store(const std::string& folder, Clock& clock = steady_clock());

/// One rank of a job that meets over TCP.
struct TcpStoreOptions {
  std::string address;         ///< host name, IPv4 or IPv6 address
  bool all_addresses = false;  ///< rank 0 serves on every address of its host: `address` is loopback there
  int port = 0;                ///< under torchrun MASTER_PORT + 1: its agent owns MASTER_PORT
  int rank = 0;                ///< rank 0 serves the others, on `address` only
  int size = 1;
  std::string job;       ///< the same on all ranks; tells the jobs of one port apart
  std::string token;     ///< secret of the job: without the same one nobody joins; empty: none
  bool encrypt = false;  ///< all bytes go through TLS with a key of the token; the same on all ranks
  std::chrono::milliseconds deadline{60'000};
  Clock& clock = steady_clock();
};

/// Limits of one job's use of a store that its rank 0 serves.
struct TcpStoreLimits {
  static constexpr std::uint32_t kKeyBytes = 512;
  static constexpr std::uint32_t kValueBytes = 1 << 20;
  /// Gloo stores one key for each rank, TCP and shared memory a few, NCCL two for each pair.
  static std::size_t keys(int size) {
    return 1024 + 4 * static_cast<std::size_t>(size) * static_cast<std::size_t>(size);
  }
  static std::size_t bytes(int size) {
    return (std::size_t{16} << 20) + static_cast<std::size_t>(size) * kValueBytes;
  }
};

/// Both ends prove that they know the token (HMAC of a challenge); each rank joins once; rank 0 stops
/// listening when all have. Throws ConfigError (port in use; another job's port; wrong token) and, at the
/// deadline, PeerError.
std::shared_ptr<Store> make_tcp_store(const TcpStoreOptions& options);
std::shared_ptr<Store> make_prefix_store(const std::string& prefix, std::shared_ptr<Store> inner);

}  // namespace millrace
