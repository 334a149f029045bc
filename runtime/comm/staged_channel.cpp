#include "runtime/comm/staged_channel.h"

#include <ATen/ops/empty.h>

namespace millrace {
namespace {

/// Page-locked where there is a device to copy from or to.
at::Tensor buffer_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(),
                   at::TensorOptions(tensor.scalar_type()).pinned_memory(!tensor.device().is_cpu()));
}

class StagedReceive final : public Pending {
 public:
  StagedReceive(at::Tensor tensor, at::Tensor buffer, std::unique_ptr<Pending> message)
      : tensor_(std::move(tensor)), buffer_(std::move(buffer)), message_(std::move(message)) {}
  void wait() override {
    if (!message_) return;
    message_->wait();
    message_.reset();
    // Page-locked memory is reused only after the copy; the caller's next kernels come after it.
    tensor_.copy_(buffer_, /*non_blocking=*/true);
    buffer_.reset();
  }

 private:
  at::Tensor tensor_, buffer_;
  std::unique_ptr<Pending> message_;
};

class StagedChannel final : public ForwardingChannel {
 public:
  StagedChannel(std::shared_ptr<Channel> host, Staging staging)
      : ForwardingChannel(std::move(host)), staging_(staging) {}

  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (staging_ == Staging::DeviceTensors && transfer.tensor.device().is_cpu())
      return ForwardingChannel::post(transfer);
    Transfer staged = transfer;
    staged.tensor = buffer_like(transfer.tensor);
    if (transfer.direction == Direction::Send) {
      staged.tensor.copy_(transfer.tensor);  // waits for the device
      return ForwardingChannel::post(staged);
    }
    return std::make_unique<StagedReceive>(transfer.tensor, staged.tensor, ForwardingChannel::post(staged));
  }

 private:
  Staging staging_;
};

}  // namespace

std::shared_ptr<Channel> make_staged_channel(std::shared_ptr<Channel> host, Staging staging) {
  return std::make_shared<StagedChannel>(std::move(host), staging);
}

}  // namespace millrace
