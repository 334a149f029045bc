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

class DeviceOrdered final : public ForwardingChannel {
 public:
  DeviceOrdered(std::shared_ptr<Channel> inner, EmulatedDevice& device)
      : ForwardingChannel(std::move(inner)), device_(device) {}
  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (!transfer.tensor.is_meta()) return ForwardingChannel::post(transfer);
    if (transfer.direction == Direction::Send) device_.wait();
    return std::make_unique<HostWait>(ForwardingChannel::post(transfer), clock(), device_);
  }
  std::unique_ptr<Arrival> receive(const Transfer& transfer) override {
    return transfer.tensor.is_meta() ? Channel::receive(transfer) : receive_within(transfer);
  }

 private:
  EmulatedDevice& device_;
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

std::shared_ptr<Channel> make_device_ordered(std::shared_ptr<Channel> inner, EmulatedDevice& device) {
  return std::make_shared<DeviceOrdered>(std::move(inner), device);
}

std::shared_ptr<Channel> make_valueless(std::shared_ptr<Channel> inner, EmulatedPayload payload) {
  return std::make_shared<Valueless>(std::move(inner), payload);
}

}  // namespace millrace
