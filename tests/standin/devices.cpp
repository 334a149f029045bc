// GPUs and their memory: as many as STANDIN_GPUS says, each with STANDIN_BYTES of the host's memory.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>

#include "counts.h"
#include "entry.h"
#include "races.h"
#include "standin.h"

namespace standin {
namespace {

thread_local int device_now = 0;

/// CUDA_VISIBLE_DEVICES as CUDA reads it: it ends before the first number that is no GPU.
const std::vector<int>& visible() {
  static const std::vector<int> found = [] {
    std::vector<int> list;
    const char* text = std::getenv("CUDA_VISIBLE_DEVICES");
    if (!text) {
      for (int gpu = 0; gpu < settings().gpus; ++gpu) list.push_back(gpu);
      return list;
    }
    std::istringstream numbers(text);
    for (std::string one; std::getline(numbers, one, ',');) {
      char* end = nullptr;
      const long gpu = std::strtol(one.c_str(), &end, 10);
      if (end == one.c_str() || *end != 0 || gpu < 0 || gpu >= settings().gpus) break;
      list.push_back(static_cast<int>(gpu));
    }
    return list;
  }();
  return found;
}

std::mutex memory_lock;
std::map<std::uintptr_t, Block>& blocks() {
  static auto* const all = new std::map<std::uintptr_t, Block>;  // used until the process ends
  return *all;
}
std::array<std::size_t, 64> used{};

Block find(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  auto after = blocks().upper_bound(at);
  if (after == blocks().begin()) return {};
  const Block& block = std::prev(after)->second;
  return at < block.begin + block.bytes ? block : Block{};
}

/// Whole pages that nothing else shares. What nobody wrote is NaN in every type of numbers.
void* take(std::size_t bytes, int device) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  std::memset(memory, 0xFF, bytes);
  const std::lock_guard lock(memory_lock);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  blocks()[begin] = {begin, bytes, device};
  return memory;
}

/// Gives back the block that begins at `memory`, if it is one of the host's or one of a GPU's.
cudaError_t give_back(void* memory, bool of_host) {
  if (!memory) return cudaSuccess;
  Block block;
  {
    const std::lock_guard lock(memory_lock);
    const auto at = blocks().find(reinterpret_cast<std::uintptr_t>(memory));
    if (at == blocks().end() || (at->second.device < 0) != of_host) return failed(cudaErrorInvalidValue);
    block = at->second;
    blocks().erase(at);
    if (!of_host) used[static_cast<std::size_t>(block.device)] -= block.bytes;
  }
  races::forget(block);
  munmap(memory, block.bytes);
  return cudaSuccess;
}

}  // namespace

int current_device() {
  return device_now;
}
int physical_device(int device) {
  return visible().empty() ? 0 : visible().at(static_cast<std::size_t>(device));
}

Block block_of(const void* address) {
  const std::lock_guard lock(memory_lock);
  return find(address);
}

}  // namespace standin

using namespace standin;

namespace {
int num_devices() {
  return static_cast<int>(visible().size());
}
bool is_device(int device) {
  return device >= 0 && device < num_devices();
}
}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = num_devices();
  if (*count == 0) return failed(cudaErrorNoDevice);
  return load_operators();
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  STANDIN_ENTER("cudaSetDevice");
  if (!is_device(device)) return failed(cudaErrorInvalidDevice);
  device_now = device;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!is_device(device)) return failed(cudaErrorInvalidDevice);
  *properties = {};
  cudaDeviceProp& p = *properties;
  std::snprintf(p.name, sizeof p.name, "Stand-in");
  p.totalGlobalMem = settings().bytes;
  p.major = settings().major;
  p.minor = settings().minor;
  p.multiProcessorCount = 132;
  p.warpSize = 32;
  p.maxThreadsPerBlock = 1024;
  p.maxThreadsPerMultiProcessor = 2048;
  p.sharedMemPerBlock = 48 << 10;
  p.sharedMemPerBlockOptin = 227 << 10;
  p.sharedMemPerMultiprocessor = 228 << 10;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 2147483647;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.pciBusID = physical_device(device) + 1;
  p.l2CacheSize = 50 << 20;
  p.textureAlignment = 512;
  p.memPitch = 2147483647;
  p.concurrentKernels = p.unifiedAddressing = p.managedMemory = 1;
  p.asyncEngineCount = 3;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!is_device(device)) return failed(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = settings().major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = settings().minor;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = 132;
      return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      return cudaSuccess;
    case cudaDevAttrWarpSize:
      *value = 32;
      return cudaSuccess;
    default:
      say("attribute " + std::to_string(attribute) + " of a device");
      return missing("cudaDeviceGetAttribute");
  }
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (!is_device(device)) return failed(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", physical_device(device) + 1);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  STANDIN_ENTER("cudaMalloc");
  counts::add(counts::Kind::Allocation, "cudaMalloc", bytes);
  if (settings().malloc_waits) drain_device();
  const auto device = static_cast<std::size_t>(current_device());
  {
    const std::lock_guard lock(memory_lock);
    if (used[device] + bytes > settings().bytes) return failed(cudaErrorMemoryAllocation);
    used[device] += bytes;
  }
  *memory = bytes > 0 ? take(bytes, current_device()) : nullptr;
  if (bytes == 0 || *memory) return cudaSuccess;
  const std::lock_guard lock(memory_lock);
  used[device] -= bytes;
  return failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* memory) {
  STANDIN_ENTER("cudaFree");
  counts::add(counts::Kind::Wait, "cudaFree");
  drain_device();  // the real one waits for the device, too
  return give_back(memory, false);
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const std::lock_guard lock(memory_lock);
  *total = settings().bytes;
  *free = settings().bytes - used[static_cast<std::size_t>(current_device())];
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned) {
  STANDIN_ENTER("cudaHostAlloc");
  counts::add(counts::Kind::Allocation, "cudaHostAlloc", bytes);
  if (settings().host_waits) drain_device();
  *memory = bytes > 0 ? take(bytes, -1) : nullptr;
  return bytes == 0 || *memory ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) {
  return cudaHostAlloc(memory, bytes, 0);
}
cudaError_t cudaFreeHost(void* memory) {
  return give_back(memory, true);
}
cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  const std::lock_guard lock(memory_lock);
  if (find(memory).bytes > 0) return failed(cudaErrorHostMemoryAlreadyRegistered);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  blocks()[begin] = {begin, bytes, -1};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  const std::lock_guard lock(memory_lock);
  return blocks().erase(reinterpret_cast<std::uintptr_t>(memory)) == 1
             ? cudaSuccess
             : failed(cudaErrorHostMemoryNotRegistered);
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* address) {
  *attributes = {};
  const Block block = block_of(address);
  if (block.bytes == 0) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;
    return cudaSuccess;
  }
  attributes->type = block.device < 0 ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  attributes->device = std::max(block.device, 0);
  attributes->devicePointer = const_cast<void*>(address);
  attributes->hostPointer = block.device < 0 ? const_cast<void*>(address) : nullptr;
  return cudaSuccess;
}
}
