#include "runtime/emulation/emulated_memory.h"

#include <c10/core/Allocator.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/text.h"
#include "runtime/base/units.h"
#include "runtime/device/failures.h"

namespace millrace {
namespace {

std::string mib(std::int64_t bytes) {
  return printed("%.1f MiB", double(bytes) / double(kMiB));
}

/// The accounting entry of a tensor, until it is freed.
struct Counted {
  std::shared_ptr<EmulatedMemory> memory;
  std::int64_t bytes;
};

thread_local std::shared_ptr<EmulatedMemory> of_thread;

/// Allocates no memory for meta tensors, like LibTorch's own allocator, and counts their bytes.
class MetaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (!of_thread || bytes == 0)
      return {nullptr, nullptr, &MetaAllocator::release, c10::Device(c10::DeviceType::Meta)};
    const auto counted = static_cast<std::int64_t>(bytes);
    of_thread->take(counted);
    return {nullptr, new Counted{of_thread, counted}, &MetaAllocator::release,
            c10::Device(c10::DeviceType::Meta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &MetaAllocator::release; }
  void copy_data(void*, const void*, std::size_t) const override {}

 private:
  static void release(void* counted) {
    if (!counted) return;
    const std::unique_ptr<Counted> one(static_cast<Counted*>(counted));
    one->memory->give_back(one->bytes);
  }
};

}  // namespace

void EmulatedMemory::take(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  current_ += std::exchange(soon_, 0);
  if (limit_ > 0 && current_ + bytes > limit_)
    throw OutOfMemory("out of memory on the emulated device" + whose_ + ": no room for " + mib(bytes) + "; " +
                          mib(current_) + " of " + mib(limit_) + " are taken",
                      kLessMemory);
  current_ += bytes;
  peak_ = std::max(peak_, current_);
}

void EmulatedMemory::give_back(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  current_ -= bytes;
}

void EmulatedMemory::take_soon(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  soon_ += bytes;
}

DeviceMemory EmulatedMemory::now() const {
  const std::lock_guard lock(mutex_);
  return {.current = current_ + soon_, .peak = std::max(peak_, current_ + soon_), .total = limit_};
}

void EmulatedMemory::reset_peak() {
  const std::lock_guard lock(mutex_);
  peak_ = current_ + soon_;
}

void EmulatedMemory::count_tensors_of_thread(std::shared_ptr<EmulatedMemory> memory) {
  static const bool installed = [] {
    // Never deleted: tensors in statics outlive destructors.
    c10::SetAllocator(c10::DeviceType::Meta, new MetaAllocator);
    return true;
  }();
  static_cast<void>(installed);
  of_thread = std::move(memory);
}

}  // namespace millrace
