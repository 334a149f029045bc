// The interface through which the NCCL communicator uses NCCL and CUDA's streams. nccl_library.cpp implements
// it with the libraries; tests use one that moves bytes between threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

namespace millrace {

/// NCCL for one rank and its device. No call blocks: communicators are non-blocking, and events are polled.
/// The caller makes sure that one thread at a time calls for one communicator.
class NcclApi {
 public:
  enum class State { Done, Working, Failed };
  struct Answer {
    State state = State::Done;
    std::string text;  ///< why it failed
  };
  using Comm = void*;
  using Stream = void*;
  using Event = std::shared_ptr<void>;

  virtual ~NcclApi() = default;

  /// `tensor` lives on this rank's device; others are the host's business.
  virtual bool owns(const at::Tensor& tensor) const = 0;

  virtual at::Tensor scratch() = 0;  ///< a few bytes on the device, of any content

  virtual std::string unique_id() = 0;  ///< bytes; throws PeerError
  /// Starts to join `size` ranks; `comm` is set, and done once state() says so.
  virtual Answer init(Comm& comm, const std::string& id, int size, int rank) = 0;
  virtual Answer state(Comm comm) = 0;           ///< ncclCommGetAsyncError
  virtual void abort(Comm comm) noexcept = 0;    ///< ends its kernels and frees it
  virtual void destroy(Comm comm) noexcept = 0;  ///< after its last operation; frees it

  virtual Answer group_start() = 0;
  virtual Answer group_end() = 0;
  /// Contiguous tensors, bytes. NCCL has no tags: `tag` is there for those who check the order.
  virtual Answer send(const at::Tensor& tensor, int peer, std::uint64_t tag, Comm comm, Stream stream) = 0;
  virtual Answer receive(const at::Tensor& tensor, int peer, std::uint64_t tag, Comm comm, Stream stream) = 0;

  virtual Stream new_stream() = 0;
  virtual void free_stream(Stream stream) noexcept = 0;
  /// Returns an event after everything given to `stream` so far; null: the stream on which this thread
  /// computes.
  virtual Event mark(Stream stream) = 0;
  virtual void follow(Stream stream, const Event& event) = 0;  ///< what comes later waits for the event
  virtual bool reached(const Event& event) = 0;
  /// Runs ATen ops on `stream`, in order with its other work.
  virtual void run(Stream stream, std::function<void()> ops) = 0;
};

}  // namespace millrace
