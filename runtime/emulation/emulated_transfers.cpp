#include "runtime/emulation/emulated_transfers.h"

#include <cstring>
#include <functional>
#include <optional>
#include <string>

#include <ATen/ops/zeros.h>

#include "runtime/comm/shared_memory.h"

namespace millrace {
namespace {

/// A message without values carries this: Transfer::moment, and the host whose clock it is of.
struct Stamp {
  TimePoint moment{};
  std::uint64_t host = 0;
};

/// Processes of one host have one clock. Never 0.
std::uint64_t this_host() {
  static const std::uint64_t number = std::hash<std::string>()(shared_memory_domain()) | 1;
  return number;
}

/// A wait that the host spends on a message, and not on the device.
class HostWait final : public Pending {
 public:
  /// `moment`: Transfer::moment of a receive, which the wait sets; null: not known.
  HostWait(std::unique_ptr<Pending> inner, std::shared_ptr<const TimePoint> moment, Clock& clock,
           EmulatedDevice& device)
      : inner_(std::move(inner)), moment_(std::move(moment)), clock_(clock), device_(device) {}
  void wait() override {
    const TimePoint start = clock_.now();
    inner_->wait();
    const bool known = moment_ && *moment_ != TimePoint();
    device_.host_waited(start, known ? std::optional(*moment_) : std::nullopt);
  }

 private:
  std::unique_ptr<Pending> inner_;
  std::shared_ptr<const TimePoint> moment_;
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
    if (is_collective_tag(transfer.tag))
      return std::make_unique<HostWait>(ForwardingChannel::post(transfer), nullptr, clock(), device_);
    Transfer timed = transfer;
    timed.moment = std::make_shared<TimePoint>();
    const bool is_send = transfer.direction == Direction::Send;
    if (is_send) *timed.moment = device_.wait();
    return std::make_unique<HostWait>(ForwardingChannel::post(timed), is_send ? nullptr : timed.moment,
                                      clock(), device_);
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

/// A receive of a stamp.
class Stamped final : public Pending {
 public:
  Stamped(std::unique_ptr<Pending> received, at::Tensor stamp, std::shared_ptr<TimePoint> moment)
      : received_(std::move(received)), stamp_(std::move(stamp)), moment_(std::move(moment)) {}
  void wait() override {
    received_->wait();
    Stamp stamp;
    std::memcpy(&stamp, stamp_.const_data_ptr(), sizeof stamp);
    if (stamp.host == this_host()) *moment_ = stamp.moment;
  }

 private:
  std::unique_ptr<Pending> received_;
  at::Tensor stamp_;
  std::shared_ptr<TimePoint> moment_;
};

class Valueless final : public ForwardingChannel {
 public:
  Valueless(std::shared_ptr<Channel> inner, EmulatedPayload payload)
      : ForwardingChannel(std::move(inner)), payload_(payload) {}
  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (!transfer.tensor.is_meta()) return ForwardingChannel::post(transfer);
    Transfer carried = transfer;
    if (payload_ == EmulatedPayload::Bytes) {  // their real time counts too, so there is no stamp
      carried.tensor = at::zeros(transfer.tensor.sizes(), transfer.tensor.options().device(at::kCPU));
      return ForwardingChannel::post(carried);
    }
    carried.tensor = at::zeros({std::int64_t(sizeof(Stamp))}, at::kByte);
    if (transfer.moment && transfer.direction == Direction::Send) {
      const Stamp stamp{.moment = *transfer.moment, .host = this_host()};
      std::memcpy(carried.tensor.mutable_data_ptr(), &stamp, sizeof stamp);
    }
    std::unique_ptr<Pending> posted = ForwardingChannel::post(carried);
    if (!transfer.moment || transfer.direction == Direction::Send) return posted;
    return std::make_unique<Stamped>(std::move(posted), carried.tensor, transfer.moment);
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
