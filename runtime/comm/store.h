// Rendezvous: a small key-value store that all ranks reach. Torch-free, gloo-free.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace millrace {

/// Thread-safe. Values are bytes.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits for the key; throws PeerError naming the key and the elapsed time.
  virtual std::string get(const std::string& key, std::chrono::milliseconds deadline) = 0;
};

/// In one process (threads).
std::shared_ptr<Store> make_memory_store();
/// One file a key (write, rename) in a folder that all ranks see; polls with back-off up to 2 ms.
std::shared_ptr<Store> make_file_store(const std::string& folder);
/// Rank 0 listens on `address:port` (that address only; ConfigError "port in use"), others connect, with
/// retries until the deadline. For MASTER_ADDR/MASTER_PORT under torchrun pass `port + 1` when torchrun's
/// agent owns the port.
std::shared_ptr<Store> make_tcp_store(const std::string& address, int port, bool is_server,
                                      std::chrono::milliseconds deadline);
std::shared_ptr<Store> make_prefix_store(const std::string& prefix, std::shared_ptr<Store> inner);

}  // namespace millrace
