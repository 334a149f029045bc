// What the parts of the stand-in share. The CUDA runtime's stand-in defines it, the others are linked against
// that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

namespace standin {

/// The environment, read once. docs: README.md.
struct Settings {
  int gpus = 2;
  std::size_t bytes = std::size_t{4} << 30;  ///< of each GPU
  int major = 9, minor = 0;                  ///< compute capability
  bool late = false;                         ///< work waits for a random time, or until somebody asks for it
  std::uint64_t seed = 0;                    ///< of those times
  bool races = false;                        ///< the race detector watches
  bool lazy = false;  ///< the first use of an operator on a GPU waits until the GPU has done all work
  bool malloc_waits = false, host_waits = false;  ///< so does new memory of a GPU, or page-locked memory
  bool nccl_slow = false;                         ///< NCCL takes a group some time after it was given
};
const Settings& settings();

/// Prints "standin: text" in one piece.
void say(const std::string& text);
/// A name that is not here: says so and returns cudaErrorNotSupported.
cudaError_t missing(const char* name);

/// Counts a call of `name` on the current device. Returns the error that STANDIN_FAIL wants of it, or a
/// sticky one.
cudaError_t count_call(const char* name);
/// Keeps the error for cudaGetLastError and returns it.
cudaError_t failed(cudaError_t error);

/// Bytes that a piece of work reads or writes.
struct Access {
  const void* address = nullptr;
  std::size_t bytes = 0;
  bool writes = false;
};

/// Something that a stream does in its turn.
struct Work {
  std::string name;
  std::vector<Access> accesses;
  std::function<void()> run;  ///< may block; runs on the caller's thread or on the stream's
  bool waits = false;         ///< run() may wait for others, so it never runs on the caller's thread
};

/// Gives `work` to a stream. It runs at once if the stream is idle and nothing is late.
cudaError_t give(cudaStream_t stream, Work work);
/// Waits until the stream has done all that was given to it. Its work is then ordered before the caller's.
void drain(cudaStream_t stream);
/// Whether the stream has nothing to do and nothing is late.
bool is_free(cudaStream_t stream);
/// The GPU of a stream; of the default stream, the calling thread's.
int device_of(cudaStream_t stream);
/// Tells the race detector of work that the caller has done on the stream, without running anything.
void note(cudaStream_t stream, const std::string& name, const std::vector<Access>& accesses);
/// Tells the race detector that LibTorch's allocator gives out memory, or takes it back for the next who asks
/// on that stream of the device.
void note_given_out(const Access& memory);
void note_taken_back(int device, cudaStream_t stream, const Access& memory);

/// With STANDIN_LAZY: a kernel that the calling thread's GPU has not used before is loaded, which waits until
/// that GPU has done all work.
void load_kernel(const std::string& name);

struct Block {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  int device = -1;  ///< -1: page-locked memory of the host
};
/// The block that holds the address; of 0 bytes if there is none.
Block block_of(const void* address);

int current_device();
/// The number that the GPU has on this machine: CUDA_VISIBLE_DEVICES changes the order.
int physical_device(int device);

}  // namespace standin
