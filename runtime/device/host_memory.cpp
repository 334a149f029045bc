#include "runtime/device/host_memory.h"

#include <c10/core/CPUAllocator.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "runtime/base/cpu_time.h"
#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/device/failures.h"

namespace millrace {
namespace {

constexpr std::size_t kAlignment = 64;  // LibTorch's gAlignment
// Bytes of freed memory that may be cached beyond the peak of live bytes.
constexpr std::int64_t kCachedBytes = std::int64_t{64} << 20;
// A free block may serve a tensor of half its size. If lengths differ between microbatches, steps would
// otherwise keep requesting new sizes and touch fresh pages.
constexpr int kLargerClasses = 8;

/// Returns the size class of a block. Blocks of one class are interchangeable. Sizes grow in eighths of a
/// power of two, so at most 1/8 is wasted.
int size_class(std::size_t bytes) {
  bytes = std::max(bytes, std::size_t{64});
  const int exponent = std::bit_width(bytes - 1) - 1;  // 2^exponent < bytes <= 2^(exponent + 1)
  const std::size_t eighth = std::max<std::size_t>(1, (std::size_t{1} << exponent) / 8);
  const std::size_t step = (bytes - (std::size_t{1} << exponent) + eighth - 1) / eighth;  // 1..8
  return exponent * 8 + static_cast<int>(step) - 1;
}

std::size_t class_bytes(int index) {
  const std::size_t power = std::size_t{1} << (index / 8);
  const std::size_t bytes =
      power + std::max<std::size_t>(1, power / 8) * static_cast<std::size_t>(index % 8 + 1);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

thread_local int uncounted = 0;  // number of this thread's live UncountedTensors

class HostAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &HostAllocator::release, c10::Device(c10::DeviceType::CPU)};
    void* data = take(size_class(bytes), uncounted > 0 ? 0 : static_cast<std::int64_t>(bytes));
    return {data, data, &HostAllocator::release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &HostAllocator::release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  HostMemory memory() {
    std::lock_guard lock(mutex_);
    return memory_;
  }
  void reset_peak() {
    std::lock_guard lock(mutex_);
    memory_.peak = memory_.live;
  }
  /// Returns all blocks that hold no tensor to the system.
  void free_all_kept() {
    std::lock_guard lock(mutex_);
    for (auto& blocks : free_) {
      for (void* data : blocks) std::free(static_cast<char*>(data) - kAlignment);
      blocks.clear();
    }
    memory_.cached = 0;
  }
  static HostAllocator& instance() {
    // The allocator is never deleted, because tensors in statics outlive destructors.
    static HostAllocator* const allocator = new HostAllocator;
    return *allocator;
  }

 private:
  /// The header before every block, in its own cache line.
  struct Header {
    int size_class;
    std::int64_t asked;  ///< the bytes that count as live: the size of the tensor in the block
  };
  static Header& header_of(void* data) {
    return *reinterpret_cast<Header*>(static_cast<char*>(data) - kAlignment);
  }

  /// Takes a block of a size class. `bytes` is the size that counts as live.
  void* take(int index, std::int64_t bytes) {
    {
      std::lock_guard lock(mutex_);
      memory_.live += bytes;
      memory_.peak = std::max(memory_.peak, memory_.live);
      for (int larger = index; larger <= std::min(index + kLargerClasses, kClasses - 1); ++larger) {
        auto& blocks = free_[larger];
        if (blocks.empty()) continue;
        void* data = blocks.back();
        blocks.pop_back();
        memory_.cached -= static_cast<std::int64_t>(class_bytes(larger));
        header_of(data).asked = bytes;
        return data;
      }
    }
    void* block = std::aligned_alloc(kAlignment, kAlignment + class_bytes(index));
    if (!block) {
      free_all_kept();
      block = std::aligned_alloc(kAlignment, kAlignment + class_bytes(index));
    }
    if (!block) {
      {
        std::lock_guard lock(mutex_);
        memory_.live -= bytes;
      }
      throw OutOfMemory(out_of_memory_text(class_bytes(index)), kLessMemory);
    }
    new (block) Header{index, bytes};
    return static_cast<char*>(block) + kAlignment;
  }

  static void release(void* data) {
    if (data) instance().give_back(data);
  }

  void give_back(void* data) {
    void* block = static_cast<char*>(data) - kAlignment;
    const int index = header_of(data).size_class;
    const auto bytes = static_cast<std::int64_t>(class_bytes(index));
    {
      std::lock_guard lock(mutex_);
      memory_.live -= header_of(data).asked;
      if (memory_.cached + bytes <= memory_.peak + kCachedBytes) {
        memory_.cached += bytes;
        free_[index].push_back(data);
        return;
      }
    }
    std::free(block);
  }

  std::mutex mutex_;  // guards the members below
  static constexpr int kClasses = 8 * 64;
  std::array<std::vector<void*>, kClasses> free_;
  HostMemory memory_;
};

std::atomic<bool> installed{false};

}  // namespace

UncountedTensors::UncountedTensors() {
  ++uncounted;
}
UncountedTensors::~UncountedTensors() {
  --uncounted;
}

void install_host_allocator() {
  if (installed.exchange(true)) return;
  c10::SetCPUAllocator(&HostAllocator::instance(), /*priority=*/1);
}

std::int64_t peak_resident_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

double process_cpu_seconds() {
  return Seconds(cpu_time(CLOCK_PROCESS_CPUTIME_ID)).count();
}

void reset_host_peak() {
  if (installed.load()) HostAllocator::instance().reset_peak();
}

void free_host_cache() {
  if (installed.load()) HostAllocator::instance().free_all_kept();
}

HostMemory host_memory() {
  return installed ? HostAllocator::instance().memory() : HostMemory{};
}

}  // namespace millrace
