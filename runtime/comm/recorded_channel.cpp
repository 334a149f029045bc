#include "runtime/comm/recorded_channel.h"

#include <utility>

namespace millrace {
namespace {

/// A message under way, and its record.
class Recorded {
 public:
  Recorded(FlightRecorder& recorder, const Transfer& transfer)
      : recorder_(recorder),
        what_(transfer.what),
        number_(recorder.message(
            transfer.direction == Direction::Send ? FlightRecord::Kind::Send : FlightRecord::Kind::Receive,
            transfer.peer.value, static_cast<std::int64_t>(transfer.tensor.nbytes()), transfer.tag)) {}
  void wait_for(Pending& message) {
    if (number_ == 0) return message.wait();
    recorder_.wait(number_, what_.text());
    try {
      message.wait();
    } catch (...) {
      recorder_.end(number_, FlightRecord::State::Failed);
      throw;
    }
    recorder_.end(number_, FlightRecord::State::Done);
  }

 private:
  FlightRecorder& recorder_;
  LazyText what_;
  std::uint64_t number_;
};

class RecordedPending final : public Pending {
 public:
  RecordedPending(Recorded record, std::unique_ptr<Pending> inner)
      : record_(std::move(record)), inner_(std::move(inner)) {}
  void wait() override { record_.wait_for(*inner_); }

 private:
  Recorded record_;
  std::unique_ptr<Pending> inner_;
};

class RecordedArrival final : public Arrival {
 public:
  RecordedArrival(Recorded record, std::unique_ptr<Arrival> inner)
      : record_(std::move(record)), inner_(std::move(inner)) {}
  void wait() override { record_.wait_for(*inner_); }
  at::Tensor message() const override { return inner_->message(); }

 private:
  Recorded record_;
  std::unique_ptr<Arrival> inner_;
};

class RecordedChannel final : public ForwardingChannel {
 public:
  RecordedChannel(std::shared_ptr<Channel> inner, FlightRecorder& recorder)
      : ForwardingChannel(inner), inner_(std::move(inner)), recorder_(recorder) {}
  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (!recorder_.is_open()) return inner_->post(transfer);
    Recorded record(recorder_, transfer);
    return std::make_unique<RecordedPending>(std::move(record), inner_->post(transfer));
  }
  std::unique_ptr<Arrival> receive(const Transfer& transfer) override {
    if (!recorder_.is_open()) return inner_->receive(transfer);
    Recorded record(recorder_, transfer);
    return std::make_unique<RecordedArrival>(std::move(record), inner_->receive(transfer));
  }

 private:
  std::shared_ptr<Channel> inner_;
  FlightRecorder& recorder_;
};

}  // namespace

std::shared_ptr<Channel> make_recorded_channel(std::shared_ptr<Channel> channel, FlightRecorder& recorder) {
  return std::make_shared<RecordedChannel>(std::move(channel), recorder);
}

}  // namespace millrace
