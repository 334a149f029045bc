#include "runtime/comm/wire_checksum.h"

#define XXH_INLINE_ALL
#include <ATen/ops/empty.h>
#include <xxhash.h>

#include <utility>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// Tells the hash of a message from the message. Collectives reach this bit after 2^27 of them; what is then
// under way has other numbers.
constexpr std::uint64_t kHashTag = std::uint64_t{1} << 47;

std::int64_t hash_of(const at::Tensor& tensor) {
  return static_cast<std::int64_t>(XXH3_64bits(tensor.const_data_ptr(), tensor.nbytes()));
}

/// A message and its hash under way.
class Checked final : public Pending {
 public:
  Checked(Channel& channel, Transfer message, at::Tensor hash, std::unique_ptr<Pending> content,
          std::unique_ptr<Pending> of_hash)
      : channel_(channel),
        message_(std::move(message)),
        hash_(std::move(hash)),
        content_(std::move(content)),
        of_hash_(std::move(of_hash)),
        start_(channel.clock().now()) {}
  void wait() override {
    content_->wait();
    of_hash_->wait();
    if (message_.direction == Direction::Send ||
        hash_of(message_.tensor) == *hash_.const_data_ptr<std::int64_t>())
      return;
    throw PeerError(wait_message(channel_.rank(), message_, channel_.clock(), start_,
                                 "the " + std::to_string(message_.tensor.nbytes()) +
                                     " bytes that came are not those that were sent (checksum)"),
                    "a network card, a cable or a memory changes bytes: look at both hosts, and --resume");
  }

 private:
  Channel& channel_;
  Transfer message_;
  at::Tensor hash_;  // [1], int64
  std::unique_ptr<Pending> content_, of_hash_;
  TimePoint start_;
};

class CheckedChannel final : public ForwardingChannel {
 public:
  using ForwardingChannel::ForwardingChannel;
  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (transfer.tensor.nbytes() == 0) return ForwardingChannel::post(transfer);
    Transfer hash = transfer;
    hash.tag ^= kHashTag;
    hash.tensor = at::empty({1}, at::kLong);
    if (transfer.direction == Direction::Send)
      *hash.tensor.mutable_data_ptr<std::int64_t>() = hash_of(transfer.tensor);
    auto content = ForwardingChannel::post(transfer);
    return std::make_unique<Checked>(*this, transfer, hash.tensor, std::move(content),
                                     ForwardingChannel::post(hash));
  }
};

}  // namespace

std::shared_ptr<Channel> make_checked_channel(std::shared_ptr<Channel> channel) {
  return std::make_shared<CheckedChannel>(std::move(channel));
}

}  // namespace millrace
