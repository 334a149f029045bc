// The only file with nccl.h. No logic: nccl_communicator.cpp has it, and is tested without this.
#include "runtime/comm/nccl_library.h"

#include <chrono>
#include <cstring>
#include <thread>

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// Thread blocks of one communicator, at most. A kernel that waits for its peer keeps that many
// multiprocessors from computing (an H200 has 132), and a rank may have a few such kernels waiting. Never
// measured: where transfers are exposed, raise it.
constexpr int kBlocks = 4;
// After the last operation a communicator ends in milliseconds unless a peer is gone.
constexpr std::chrono::seconds kFarewell{5};

ncclComm_t comm_of(NcclApi::Comm comm) {
  return static_cast<ncclComm_t>(comm);
}

class NcclLibrary final : public NcclApi {
 public:
  explicit NcclLibrary(at::Device device) : device_(device.index()) {
    int version = 0;
    if (ncclGetVersion(&version) != ncclSuccess || version / 10000 != NCCL_MAJOR)
      throw PeerError(
          "NCCL " + std::to_string(version) + " does not fit the headers that this was built with",
          "rebuild with the nccl.h of the library");
  }

  bool owns(const at::Tensor& tensor) const override {
    return tensor.is_cuda() && tensor.device().index() == device_;
  }

  at::Tensor scratch() override {
    return at::empty({16}, at::TensorOptions(at::kFloat).device(at::Device(at::kCUDA, device_)));
  }

  std::string unique_id() override {
    ncclUniqueId id;
    if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
      throw PeerError(std::string("NCCL cannot start: ") + ncclGetErrorString(result),
                      "NCCL_SOCKET_IFNAME chooses the network interface");
    return {id.internal, sizeof id.internal};
  }

  Answer init(Comm& comm, const std::string& bytes, int size, int rank) override {
    ncclUniqueId id;
    if (bytes.size() != sizeof id.internal) return {State::Failed, "the rendezvous gave a damaged id"};
    std::memcpy(id.internal, bytes.data(), bytes.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.minCTAs = 1;
    config.maxCTAs = kBlocks;
    const c10::cuda::CUDAGuard guard(device_);
    ncclComm_t made = nullptr;
    const ncclResult_t result = ncclCommInitRankConfig(&made, size, id, rank, &config);
    comm = made;
    return answer(result);
  }

  Answer state(Comm comm) override {
    ncclResult_t state = ncclSuccess;
    if (const ncclResult_t result = ncclCommGetAsyncError(comm_of(comm), &state); result != ncclSuccess)
      return answer(result, comm);
    return answer(state, comm);
  }

  void abort(Comm comm) noexcept override { static_cast<void>(ncclCommAbort(comm_of(comm))); }

  /// The peers finalize too; one that is gone must not hold this process up.
  void destroy(Comm comm) noexcept override {
    const auto start = std::chrono::steady_clock::now();
    ncclResult_t state = ncclCommFinalize(comm_of(comm));
    while (state == ncclInProgress && std::chrono::steady_clock::now() - start < kFarewell) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (ncclCommGetAsyncError(comm_of(comm), &state) != ncclSuccess) break;
    }
    if (state == ncclSuccess)
      static_cast<void>(ncclCommDestroy(comm_of(comm)));
    else
      abort(comm);
  }

  Answer group_start() override { return answer(ncclGroupStart()); }
  Answer group_end() override { return answer(ncclGroupEnd()); }

  Answer send(const at::Tensor& tensor, int peer, std::uint64_t, Comm comm, Stream stream) override {
    return answer(
        ncclSend(tensor.const_data_ptr(), tensor.nbytes(), ncclUint8, peer, comm_of(comm), stream_of(stream)),
        comm);
  }
  Answer receive(const at::Tensor& tensor, int peer, std::uint64_t, Comm comm, Stream stream) override {
    return answer(ncclRecv(tensor.mutable_data_ptr(), tensor.nbytes(), ncclUint8, peer, comm_of(comm),
                           stream_of(stream)),
                  comm);
  }

  /// Makes a stream outside LibTorch's pool, because the pool has 32 streams and reuses them.
  Stream new_stream() override {
    const c10::cuda::CUDAGuard guard(device_);
    cudaStream_t stream = nullptr;
    int lowest = 0, highest = 0;
    C10_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    // Messages before computation: a peer waits for them.
    C10_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest));
    return stream;
  }
  void free_stream(Stream stream) noexcept override {
    static_cast<void>(cudaStreamDestroy(stream_of(stream)));
  }

  Event mark(Stream stream) override {
    const c10::cuda::CUDAGuard guard(device_);
    cudaEvent_t event = nullptr;
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    Event owned(event, [](void* e) { static_cast<void>(cudaEventDestroy(static_cast<cudaEvent_t>(e))); });
    C10_CUDA_CHECK(cudaEventRecord(
        event, stream ? stream_of(stream) : c10::cuda::getCurrentCUDAStream(device_).stream()));
    return owned;
  }
  void follow(Stream stream, const Event& event) override {
    const c10::cuda::CUDAGuard guard(device_);
    C10_CUDA_CHECK(cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(event.get()), 0));
  }
  bool reached(const Event& event) override {
    const cudaError_t state = cudaEventQuery(static_cast<cudaEvent_t>(event.get()));
    if (state == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      return false;
    }
    C10_CUDA_CHECK(state);
    return true;
  }

  /// Memory that the ops allocate belongs to `stream`, as LibTorch's allocator wants it.
  void run(Stream stream, std::function<void()> ops) override {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(stream_of(stream), device_));
    ops();
  }

 private:
  static cudaStream_t stream_of(Stream stream) { return static_cast<cudaStream_t>(stream); }

  static Answer answer(ncclResult_t result, Comm comm = nullptr) {
    if (result == ncclSuccess) return {State::Done, {}};
    if (result == ncclInProgress) return {State::Working, {}};
    std::string text = ncclGetErrorString(result);
    if (const char* more = ncclGetLastError(comm_of(comm)); more && *more)
      text += std::string(" (") + more + ")";
    return {State::Failed, std::move(text)};
  }

  c10::DeviceIndex device_;
};

}  // namespace

std::shared_ptr<NcclApi> make_nccl_library(at::Device device) {
  return std::make_shared<NcclLibrary>(device);
}

}  // namespace millrace
