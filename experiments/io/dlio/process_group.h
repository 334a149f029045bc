// The processes of one emulated job on one host: a barrier and an exchange of numbers through shared memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace millrace {

/// Numbers that each process brings to an exchange, at most.
inline constexpr int kExchanged = 64;

/// One process's handle. All of them open the same file; the first `create`s it. Not thread-safe.
class ProcessGroup {
 public:
  struct Options {
    std::chrono::milliseconds timeout{
        300'000};                        ///< of each wait: longer is a PeerError that names who is missing
    std::chrono::microseconds spin{50};  ///< before a wait sleeps; 0 where processes share cores
  };
  static void create(const std::string& path, int processes);
  ProcessGroup(const std::string& path, int process, const Options& options);
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;
  ~ProcessGroup();

  int process() const { return process_; }
  int size() const { return size_; }
  /// Returns when all processes have called it. `what` names it in messages.
  void barrier(const char* what);
  /// values[p] of all processes, in their order. All bring the same count.
  std::vector<std::vector<double>> exchange(std::span<const double> mine, const char* what);
  double maximum(double mine, const char* what);

 private:
  struct Segment;
  struct Place;
  Place& place(int process) const;
  Segment* segment_ = nullptr;
  int process_, size_ = 0;
  std::size_t bytes_ = 0;
  Options options_;
  std::uint32_t round_ = 0;
};

}  // namespace millrace
