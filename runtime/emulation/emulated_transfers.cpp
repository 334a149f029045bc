#include "runtime/emulation/emulated_transfers.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <string>

#include <ATen/ops/zeros.h>

#include "runtime/comm/shared_memory.h"

namespace millrace {
namespace {

/// Appended to a message's values: Transfer::moment, and the host whose clock it refers to.
struct Stamp {
  TimePoint moment{};
  std::uint64_t host = 0;
};

/// Returns the id of this host, whose processes share one clock. Never 0.
std::uint64_t this_host() {
  static const std::uint64_t number = std::hash<std::string>()(shared_memory_domain()) | 1;
  return number;
}

/// Reports to the device that the host has waited since `start` for an event that occurred at `moment`.
void tell(EmulatedDevice& device, TimePoint start, TimePoint moment) {
  device.host_waited(start, moment == kUnknownMoment ? std::nullopt : std::optional(moment));
}

std::shared_ptr<TimePoint> unknown_moment() {
  return std::make_shared<TimePoint>(kUnknownMoment);
}

/// The host's wait for a message, as opposed to the device.
class HostWait final : public Pending {
 public:
  /// `moment`: a receive's Transfer::moment, which the wait sets; for a send it remains unknown.
  HostWait(std::unique_ptr<Pending> inner, std::shared_ptr<const TimePoint> moment, Clock& clock,
           EmulatedDevice& device)
      : inner_(std::move(inner)), moment_(std::move(moment)), clock_(clock), device_(device) {}
  void wait() override {
    const TimePoint start = clock_.now();
    inner_->wait();
    tell(device_, start, *moment_);
  }

 private:
  std::unique_ptr<Pending> inner_;
  std::shared_ptr<const TimePoint> moment_;
  Clock& clock_;
  EmulatedDevice& device_;
};

/// A receive of a collective: on arrival, the collective's time advances to that of the message.
class CollectiveReceive final : public Pending {
 public:
  CollectiveReceive(std::unique_ptr<Pending> inner, std::shared_ptr<const TimePoint> arrived,
                    std::shared_ptr<TimePoint> moment)
      : inner_(std::move(inner)), arrived_(std::move(arrived)), moment_(std::move(moment)) {}
  void wait() override {
    inner_->wait();
    const bool known = *arrived_ != kUnknownMoment && *moment_ != kUnknownMoment;
    *moment_ = known ? std::max(*moment_, *arrived_) : kUnknownMoment;
  }

 private:
  std::unique_ptr<Pending> inner_;
  std::shared_ptr<const TimePoint> arrived_;
  std::shared_ptr<TimePoint> moment_;
};

/// A message without values that takes no memory: any tensor of its shape represents it.
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
    const bool is_send = transfer.direction == Direction::Send;
    const bool is_collective = transfer.moment != nullptr;
    if (is_collective ? is_send : !transfer.tensor.is_meta()) return ForwardingChannel::post(transfer);
    Transfer timed = transfer;
    if (is_collective) {
      timed.moment = unknown_moment();
      return std::make_unique<CollectiveReceive>(ForwardingChannel::post(timed), timed.moment,
                                                 transfer.moment);
    }
    timed.moment = is_send ? std::make_shared<TimePoint>(device_.wait()) : unknown_moment();
    return std::make_unique<HostWait>(ForwardingChannel::post(timed),
                                      is_send ? unknown_moment() : timed.moment, clock(), device_);
  }
  /// A collective waits for the device when it starts. Its messages do not wait again: the device may have
  /// received other work since.
  std::shared_ptr<TimePoint> begin_collective(const at::Tensor& tensor, std::int64_t added) override {
    // In virtual time no host is late. A stamp on each vote of a thousand ranks would cost time and memory.
    if (!tensor.is_meta() && !device_.host_is_free()) return nullptr;
    if (!tensor.is_meta()) return std::make_shared<TimePoint>(device_.host_now());
    const auto moment = std::make_shared<TimePoint>(device_.wait());
    device_.add_up(added);
    return moment;
  }
  void end_collective(TimePoint start, const std::shared_ptr<TimePoint>& moment) override {
    tell(device_, start, moment ? *moment : kUnknownMoment);
  }
  std::unique_ptr<Arrival> receive(const Transfer& transfer) override {
    if (!transfer.tensor.is_meta() && !transfer.moment) return receive_within(transfer);
    if (transfer.tensor.is_meta() && shared_ == SharedMemory::WithinHosts && is_near(transfer.peer))
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

/// A receive of values, if there are any, and of a stamp after them.
class Stamped final : public Pending {
 public:
  Stamped(std::unique_ptr<Pending> received, at::Tensor carried, Transfer transfer)
      : received_(std::move(received)), carried_(std::move(carried)), transfer_(std::move(transfer)) {}
  void wait() override {
    received_->wait();
    const auto* bytes = static_cast<const std::byte*>(carried_.const_data_ptr());
    const std::size_t values = carried_.nbytes() - sizeof(Stamp);
    if (values > 0) std::memcpy(transfer_.tensor.mutable_data_ptr(), bytes, values);
    Stamp stamp;
    std::memcpy(&stamp, bytes + values, sizeof stamp);
    if (transfer_.moment && stamp.host == this_host()) *transfer_.moment = stamp.moment;
  }

 private:
  std::unique_ptr<Pending> received_;
  at::Tensor carried_;
  Transfer transfer_;
};

class Valueless final : public ForwardingChannel {
 public:
  Valueless(std::shared_ptr<Channel> inner, EmulatedPayload payload)
      : ForwardingChannel(std::move(inner)), payload_(payload) {}
  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    const bool has_values = !transfer.tensor.is_meta();
    if (payload_ == EmulatedPayload::Bytes) {  // their real time counts too, so there is no stamp
      Transfer carried = transfer;
      if (!has_values)
        carried.tensor = at::zeros(transfer.tensor.sizes(), transfer.tensor.options().device(at::kCPU));
      return ForwardingChannel::post(carried);
    }
    if (has_values && !transfer.moment) return ForwardingChannel::post(transfer);
    const std::size_t values = has_values ? transfer.tensor.nbytes() : 0;
    Transfer carried = transfer;
    carried.tensor = at::zeros({std::int64_t(values + sizeof(Stamp))}, at::kByte);
    if (transfer.direction == Direction::Receive)
      return std::make_unique<Stamped>(ForwardingChannel::post(carried), carried.tensor, transfer);
    auto* bytes = static_cast<std::byte*>(carried.tensor.mutable_data_ptr());
    if (values > 0) std::memcpy(bytes, transfer.tensor.const_data_ptr(), values);
    if (transfer.moment) {
      const Stamp stamp{.moment = *transfer.moment, .host = this_host()};
      std::memcpy(bytes + values, &stamp, sizeof stamp);
    }
    return ForwardingChannel::post(carried);
  }
  std::unique_ptr<Arrival> receive(const Transfer& transfer) override {
    const bool is_stamped = transfer.tensor.is_meta() || transfer.moment;
    return is_stamped ? Channel::receive(transfer) : receive_within(transfer);
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
