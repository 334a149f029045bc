#include "runtime/emulation/emulated_transfers.h"

#include <ATen/ops/zeros.h>

namespace millrace {
namespace {

/// A wait that the host spends on a message, and not on the device.
class HostWait final : public Pending {
 public:
  HostWait(std::unique_ptr<Pending> inner, Clock& clock, EmulatedDevice& device)
      : inner_(std::move(inner)), clock_(clock), device_(device) {}
  void wait() override {
    const TimePoint start = clock_.now();
    inner_->wait();
    device_.host_waited(clock_.now() - start);
  }

 private:
  std::unique_ptr<Pending> inner_;
  Clock& clock_;
  EmulatedDevice& device_;
};

/// A message without values that takes no memory: whatever has its shape stands for it.
class InPlace final : public Arrival {
 public:
  InPlace(at::Tensor like, std::unique_ptr<Pending> received)
      : like_(std::move(like)), received_(std::move(received)) {}
  void wait() override { received_->wait(); }
  at::Tensor message() const override { return like_; }

 private:
  at::Tensor like_;
  std::unique_ptr<Pending> received_;
};

class DeviceOrdered final : public ForwardingChannel {
 public:
  DeviceOrdered(std::shared_ptr<Channel> inner, EmulatedDevice& device, SharedMemory shared)
      : ForwardingChannel(std::move(inner)), device_(device), shared_(shared), hosts_(hosts()) {}
  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (!transfer.tensor.is_meta()) return ForwardingChannel::post(transfer);
    // A collective waits for the device when it begins. Its messages do not wait again: the device may have
    // got other work since.
    if (transfer.direction == Direction::Send && !is_collective_tag(transfer.tag)) device_.wait();
    return std::make_unique<HostWait>(ForwardingChannel::post(transfer), clock(), device_);
  }
  void begin_collective(const at::Tensor& tensor, std::int64_t added) override {
    if (tensor.is_meta()) {
      device_.wait();
      device_.add_up(added);
    }
    ForwardingChannel::begin_collective(tensor, added);
  }
  std::unique_ptr<Arrival> receive(const Transfer& transfer) override {
    if (!transfer.tensor.is_meta()) return receive_within(transfer);
    if (shared_ == SharedMemory::WithinHosts && is_near(transfer.peer))
      return std::make_unique<InPlace>(transfer.tensor, post(transfer));
    return Channel::receive(transfer);
  }

 private:
  bool is_near(RankId peer) const {
    return hosts_.empty() ||
           hosts_.at(static_cast<std::size_t>(rank())) == hosts_.at(static_cast<std::size_t>(peer.value));
  }

  EmulatedDevice& device_;
  SharedMemory shared_;
  std::vector<int> hosts_;
};

class Valueless final : public ForwardingChannel {
 public:
  Valueless(std::shared_ptr<Channel> inner, EmulatedPayload payload)
      : ForwardingChannel(std::move(inner)), payload_(payload) {}
  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (!transfer.tensor.is_meta()) return ForwardingChannel::post(transfer);
    Transfer carried = transfer;
    carried.tensor = payload_ == EmulatedPayload::Bytes
                         ? at::zeros(transfer.tensor.sizes(), transfer.tensor.options().device(at::kCPU))
                         : at::zeros({1}, at::kByte);
    return ForwardingChannel::post(carried);
  }
  std::unique_ptr<Arrival> receive(const Transfer& transfer) override {
    return transfer.tensor.is_meta() ? Channel::receive(transfer) : receive_within(transfer);
  }

 private:
  EmulatedPayload payload_;
};

}  // namespace

std::shared_ptr<Channel> make_device_ordered(std::shared_ptr<Channel> inner, EmulatedDevice& device,
                                             SharedMemory shared) {
  return std::make_shared<DeviceOrdered>(std::move(inner), device, shared);
}

std::shared_ptr<Channel> make_valueless(std::shared_ptr<Channel> inner, EmulatedPayload payload) {
  return std::make_shared<Valueless>(std::move(inner), payload);
}

}  // namespace millrace
