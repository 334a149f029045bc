// A device that is not there: its time line, its memory, and messages that wait for it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <thread>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include "runtime/base/error.h"
#include "runtime/base/units.h"
#include "runtime/comm/emulated_links.h"
#include "runtime/emulation/emulated_device.h"
#include "runtime/emulation/emulated_transfers.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

double seconds(const Clock& clock) {
  return Seconds(clock.now().time_since_epoch()).count();
}

TEST(EmulatedDevice, DoesWorkInItsOrderWhileTheHostGoesOn) {
  VirtualClock clock;
  EmulatedDevice device(clock, "test", {});
  device.compute(2);
  const auto middle = device.mark();
  device.compute(3);
  const auto end = device.mark();
  EXPECT_EQ(seconds(clock), 0) << "handing over takes the host no time";
  EXPECT_FALSE(end->is_reached());
  middle->wait();
  EXPECT_EQ(seconds(clock), 2);
  EXPECT_EQ(end->seconds_since(*middle), 3);
  end->wait();
  EXPECT_EQ(seconds(clock), 5);
  clock.advance(milliseconds(500));  // nothing to do
  device.compute(1);
  device.synchronize();
  EXPECT_EQ(seconds(clock), 6.5);
}

/// The host's threads wake up too late.
class LateClock final : public Clock {
 public:
  TimePoint now() const override { return clock_.now(); }
  void sleep_until(TimePoint when) override {
    if (when <= now()) return;
    clock_.sleep_until(when);
    clock_.advance(milliseconds(300));
  }
  bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, TimePoint until,
                  const std::function<bool()>& ready) override {
    return clock_.wait_until(lock, changed, until, ready);
  }
  void notify_all(std::condition_variable& changed) override { clock_.notify_all(changed); }
  void advance(milliseconds by) { clock_.advance(by); }

 private:
  VirtualClock clock_;
};

TEST(EmulatedDevice, ALateWakeUpDelaysNoWork) {
  LateClock clock;
  EmulatedDevice device(clock, "test", {});
  for (int i = 0; i < 10; ++i) {
    device.compute(1);
    device.wait();
  }
  EXPECT_NEAR(seconds(clock), 10.3, 1e-9) << "only the last wake-up is late";
  // What the host does by itself between two pieces of work does delay the second one.
  clock.advance(milliseconds(2000));
  device.compute(1);
  const auto end = device.mark();
  // Part of it was a message: there is nothing to catch up with then.
  device.host_waited(clock.now() - milliseconds(2000), {});
  device.compute(1);
  EXPECT_NEAR(device.mark()->seconds_since(*end), 1, 1e-9);
  device.wait();
  EXPECT_NEAR(seconds(clock), 14.3, 1e-9) << "12 + 2 s, and one late wake-up";
}

/// Returns the seconds by which the host delays the device if it does not look after it for so long. `waits`:
/// it waits for something else, and says so.
double delay_by(const EmulatedCosts& costs, microseconds busy, bool waits = false) {
  SteadyClock clock;
  EmulatedDevice device(clock, "test", costs);
  device.bind_thread();
  device.compute(0.002);
  device.wait();
  const auto first = device.mark();  // the moment at which the host goes on
  const TimePoint begin = clock.now();
  while (clock.now() < begin + busy) {
  }
  if (waits) device.host_waited(begin, {});
  return device.mark()->seconds_since(*first);
}

TEST(EmulatedDevice, OnAWallClockTheHostsOwnWorkIsFree) {
  double free = 1, counted = 1, waited = 1, long_work = 1;
  std::thread([&] {                 // a device binds its thread
    for (int i = 0; i < 20; ++i) {  // where other programs take the core meanwhile, that does delay work
      free = std::min(free, delay_by({.free_host = true}, microseconds(500)));
      counted = std::min(counted, delay_by({}, milliseconds(1)));
      waited = std::min(waited, delay_by({.free_host = true}, milliseconds(1), true));
      long_work = std::min(long_work, delay_by({.free_host = true}, milliseconds(12)));
    }
  })
      .join();
  EXPECT_LT(free, 0.0002);
  EXPECT_GE(counted, 0.001);
  EXPECT_GE(waited, 0.0009) << "a wait for data is no work";
  EXPECT_GT(long_work, 0.0055) << "a host that is slower than its device sets the pace";
}

TEST(EmulatedDevice, JitterMakesTheSlowerOfTwoTakeLongerThanTheMean) {
  constexpr double kSigma = 0.2;
  constexpr int kSteps = 4000;
  VirtualClock clock;
  EmulatedDevice one(clock, "one", {.jitter = kSigma, .seed = 1}),
      other(clock, "other", {.jitter = kSigma, .seed = 2});
  double sum = 0;  // of the first device
  for (int step = 0; step < kSteps; ++step) {
    const TimePoint start = clock.now();
    for (EmulatedDevice* device : {&one, &other}) {
      device->mark();
      device->compute(0.25);  // two layers of an action have one factor
      device->compute(0.75);
    }
    one.wait();
    sum += Seconds(clock.now() - start).count();
    other.wait();
  }
  // Each step begins when both are done, so the clock has the sum of the maxima. For two log-normal factors
  // of mean 1 the mean of the larger one is 2 Phi(sigma / sqrt(2)).
  const double larger = 1 + std::erf(kSigma / 2), deviation = 0.17;
  EXPECT_NEAR(seconds(clock) / kSteps, larger, 3 * deviation / std::sqrt(double(kSteps)));
  EXPECT_GT(larger, 1.11);
  EXPECT_NEAR(sum / kSteps, 1, 0.02) << "the mean of one device is as profiled";
}

TEST(EmulatedDevice, CountsItsMemoryAndRunsOutOfIt) {
  VirtualClock clock;
  EmulatedDevice device(
      clock, "test",
      {.updates = {{1, {.s_per_byte = 1e-3, .copy_s_per_byte = 2e-3}}}, .memory = 1000, .fixed_bytes = 300});
  EXPECT_EQ(device.memory().current, 300);
  {
    const EmulatedDevice::Block stash(device, 500);
    EXPECT_EQ(device.memory().current, 800);
    device.touch(200);
    EXPECT_THROW(device.touch(201), OutOfMemory);
    EXPECT_THROW(EmulatedDevice::Block(device, 201), OutOfMemory);
  }
  EXPECT_EQ(device.memory().current, 300);
  EXPECT_EQ(device.memory().peak, 1000);
  device.reset_peak_memory();
  EXPECT_EQ(device.memory().peak, 300);
  device.updated({.stage = 0, .bytes = 100, .copied = true});
  device.synchronize();
  EXPECT_NEAR(seconds(clock), 0.3, 1e-9);
}

/// An array of two jobs and a job by itself share a device. Each has its own costs.
TEST(EmulatedDevice, EachArrayUpdatesAtItsOwnPace) {
  VirtualClock clock;
  EmulatedDevice device(
      clock, "test",
      {.updates = {{1, {.s_per_byte = 1e-3}},
                   {2, {.s_per_byte = 4e-3, .norm_s_per_byte = 1e-3, .untouched_bytes = {{0, 50}}}}}});
  device.updated({.stage = 0, .jobs = 2, .bytes = 200});
  device.synchronize();
  EXPECT_NEAR(seconds(clock), 0.8, 1e-9) << "150 bytes of 4 ms, and a norm of 200";
  device.updated({.stage = 0, .jobs = 1, .bytes = 100});
  device.synchronize();
  EXPECT_NEAR(seconds(clock), 0.9, 1e-9) << "and 100 of 1 ms";
}

TEST(EmulatedDevice, TensorsHaveShapesAndNoValues) {
  VirtualClock clock;
  EmulatedDevice device(clock, "test", {});
  const at::Tensor there = device.upload(at::ones({3, 4}));
  EXPECT_TRUE(there.is_meta());
  EXPECT_EQ(there.sizes(), at::IntArrayRef({3, 4}));
  EXPECT_EQ(to_host(there).sum().item<float>(), 0);
  EXPECT_THROW(EmulatedDevice::of_thread(), InternalError);
  device.bind_thread();
  EXPECT_EQ(&EmulatedDevice::of_thread(), &device);
}

TEST(EmulatedDevice, TensorsCountInTheMemoryOfTheThreadsDevice) {
  VirtualClock clock;
  EmulatedDevice device(clock, "test", {.memory = 10'000});
  const auto made = [](std::int64_t floats) {
    return at::empty({floats}, at::TensorOptions(at::kFloat).device(at::kMeta));
  };
  std::jthread([&] {
    device.bind_thread();
    {
      const at::Tensor one = made(100);
      const at::Tensor view = one.view({10, 10});
      EXPECT_EQ(device.memory().current, 400) << "a view takes nothing";
      {
        // What a layer keeps of a tensor that goes: the two are not there at one time.
        const EmulatedDevice::Block kept(device, 400, true);
        { const at::Tensor gone = made(100); }
        EXPECT_EQ(device.memory().current, 800);
      }
      EXPECT_THROW(made(2401), OutOfMemory);
    }
    EXPECT_EQ(device.memory().current, 0);
    EXPECT_EQ(device.memory().peak, 1200);
    EmulatedMemory::count_tensors_of_thread(nullptr);
    const at::Tensor other = made(5000);
    EXPECT_EQ(device.memory().current, 0);
  });
}

TEST(EmulatedDevice, JobsThatShareItTakeTurns) {
  const TemporaryFolder folder;
  VirtualClock clock;
  const auto timeline = [&] { return *SharedTimeline::open(folder.path("device0"), clock.now()); };
  for (const int jobs : {1, 2, 3}) {
    std::vector<std::unique_ptr<EmulatedDevice>> devices;
    for (int job = 0; job < jobs; ++job) {
      devices.push_back(std::make_unique<EmulatedDevice>(clock, "test", EmulatedCosts{}));
      devices.back()->share(timeline());
    }
    const double start = seconds(clock);
    std::vector<std::unique_ptr<DeviceMark>> ends(devices.size());
    for (int step = 0; step < 10; ++step) {
      for (std::size_t job = 0; job < devices.size(); ++job) {
        if (ends[job]) ends[job]->wait();
        devices[job]->compute(1);
        ends[job] = devices[job]->mark();
      }
    }
    for (const auto& end : ends) end->wait();
    EXPECT_NEAR(seconds(clock) - start, 10 * jobs, 1e-9) << jobs << " jobs";
  }
  EXPECT_FALSE(SharedTimeline::open(folder.path("absent/device0"), clock.now()));
}

// Two ranks that had half of a core each while they were measured took twice as long as each of them
// computes.
TEST(EmulatedDevice, TimesOfASharedCoreAreTakenApart) {
  VirtualClock clock;
  EmulatedDevice device(clock, "test", {.factor = 0.5});
  const double start = seconds(clock);
  device.compute(3);
  device.mark()->wait();
  EXPECT_NEAR(seconds(clock) - start, 1.5, 1e-9);
}

/// Remembers what was posted, and when.
class Recorder final : public Channel {
 public:
  explicit Recorder(Clock& clock) : clock_(clock) {}
  int rank() const override { return 0; }
  int size() const override { return 2; }
  milliseconds deadline() const override { return milliseconds(1000); }
  Clock& clock() const override { return clock_; }
  bool buffers_sends() const override { return true; }
  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    posted.push_back({transfer.tensor, seconds(clock_)});
    return std::make_unique<NothingPending>();
  }
  void abort(const std::string&) noexcept override {}

  std::vector<std::pair<at::Tensor, double>> posted;

 private:
  Clock& clock_;
};

TEST(EmulatedTransfers, AMessageCarriesTheMomentAtWhichTheDeviceWasDone) {
  const at::Tensor activation = at::empty({8}, at::TensorOptions(at::kFloat).device(at::kMeta));
  for (const EmulatedPayload payload : {EmulatedPayload::None, EmulatedPayload::Bytes}) {
    LateClock clock;
    clock.advance(milliseconds(5000));
    const auto channels = make_local_channels(2, milliseconds(10'000), clock);
    EmulatedDevice device(clock, "test", {});
    device.compute(1);
    make_device_ordered(make_valueless(channels[0], payload), device)
        ->post({Direction::Send, RankId(1), 0, activation, "s"});
    EXPECT_NEAR(seconds(clock), 6.3, 1e-9) << "the host woke up too late";
    Transfer receive{Direction::Receive, RankId(0), 0, activation, "r"};
    receive.moment = std::make_shared<TimePoint>();
    make_valueless(channels[1], payload)->post(receive)->wait();
    // A payload is a real message: what it takes counts, from when it is sent until it is noticed.
    EXPECT_EQ(Seconds(receive.moment->time_since_epoch()).count(), payload == EmulatedPayload::None ? 6 : 0);
  }
}

/// Its messages come after a second, and are noticed 0.3 seconds later.
class NoticedLate final : public ForwardingChannel {
 public:
  NoticedLate(std::shared_ptr<Channel> inner, LateClock& late)
      : ForwardingChannel(std::move(inner)), late_(late) {}
  std::unique_ptr<Pending> post(const Transfer& transfer) override {
    if (transfer.direction == Direction::Send) return std::make_unique<NothingPending>();
    return std::make_unique<Message>(late_, transfer.moment);
  }

 private:
  class Message final : public Pending {
   public:
    Message(LateClock& clock, std::shared_ptr<TimePoint> moment)
        : clock_(clock), moment_(std::move(moment)) {}
    void wait() override {
      *moment_ = clock_.now() + std::chrono::seconds(1);
      clock_.advance(milliseconds(1300));
    }

   private:
    LateClock& clock_;
    std::shared_ptr<TimePoint> moment_;
  };
  LateClock& late_;
};

TEST(EmulatedTransfers, AMessageThatIsNoticedLateDelaysNoWork) {
  LateClock clock;
  clock.advance(milliseconds(5000));
  EmulatedDevice device(clock, "test", {});
  const auto channel =
      make_device_ordered(std::make_shared<NoticedLate>(std::make_shared<Recorder>(clock), clock), device);
  const at::Tensor activation = at::empty({8}, at::TensorOptions(at::kFloat).device(at::kMeta));
  channel->post({Direction::Receive, RankId(1), 0, activation, "r"})->wait();
  EXPECT_NEAR(seconds(clock), 6.3, 1e-9);
  for (int layer = 0; layer < 10; ++layer) device.compute(0.1);  // each is shorter than the host is late
  device.synchronize();
  EXPECT_NEAR(seconds(clock), 7.3, 1e-9) << "6 + 1 s, and one late wake-up";
}

TEST(EmulatedTransfers, ACollectiveThatIsNoticedLateDelaysNoWork) {
  for (const bool has_values : {false, true}) {
    LateClock clock;
    clock.advance(milliseconds(5000));
    EmulatedDevice device(clock, "test", {.free_host = true});
    const auto communicator = make_channel_communicator(
        make_device_ordered(std::make_shared<NoticedLate>(std::make_shared<Recorder>(clock), clock), device));
    const auto where = at::TensorOptions(at::kFloat).device(has_values ? at::kCPU : at::kMeta);
    communicator->all_reduce(at::empty({8}, where), "sum")->wait();
    EXPECT_NEAR(seconds(clock), 6.3, 1e-9);
    for (int layer = 0; layer < 10; ++layer) device.compute(0.1);
    device.synchronize();
    EXPECT_NEAR(seconds(clock), 7.3, 1e-9) << "6 + 1 s, and one late wake-up";
  }
}

/// Returns the seconds that each of three ranks takes for three times two sums. A message takes 20 ms. The
/// threads of ranks look after their sums late.
std::array<double, 3> seconds_of_sums() {
  constexpr int kRanks = 3;
  const at::Tensor large = at::empty({1 << 20}, at::TensorOptions(at::kFloat).device(at::kMeta));
  SteadyClock clock;
  const auto channels = make_local_channels(kRanks, milliseconds(10'000), clock);
  const EmulatedNetwork network{.wire = [](int, int) { return EmulatedWire{.latency_s = 0.02}; },
                                .hosts = std::vector<int>(kRanks, 0)};
  std::array<double, kRanks> took{};
  std::vector<std::jthread> ranks;
  for (int r = 0; r < kRanks; ++r) {
    ranks.emplace_back([&, r] {
      EmulatedDevice device(clock, "test", {.free_host = true});
      device.bind_thread();
      const auto communicator = make_channel_communicator(make_device_ordered(
          make_emulated_links(make_valueless(channels[r], EmulatedPayload::None), network), device));
      communicator->barrier();
      const auto start = device.mark();
      for (int sum = 0; sum < 3; ++sum) {
        const auto first = communicator->all_reduce(large, "first"),
                   second = communicator->all_reduce(large, "second");
        std::this_thread::sleep_for(microseconds(700 * r));
        first->wait();
        second->wait();
      }
      took[r] = device.mark()->seconds_since(*start);
    });
  }
  ranks.clear();
  return took;
}

TEST(EmulatedTransfers, SumsTakeTheTimeOfTheirMessagesWhateverTheHostDoes) {
  // The second of two sums begins when the first has ended. Each takes two messages in a row.
  constexpr double kPlanned = 3 * 2 * 2 * 0.02;
  double off = 1;
  for (int i = 0; i < 10 && off > 0.001; ++i) {  // where other programs take the core meanwhile, that delays
    const auto [least, most] = std::ranges::minmax(seconds_of_sums());
    EXPECT_GT(least, kPlanned - 0.001);
    off = std::min(off, most - kPlanned);
  }
  EXPECT_LT(off, 0.001);
}

TEST(EmulatedTransfers, ASendWaitsForTheDeviceAndAReceiveDoesNot) {
  VirtualClock clock;
  EmulatedDevice device(clock, "test", {});
  const auto recorder = std::make_shared<Recorder>(clock);
  const auto channel = make_device_ordered(recorder, device);
  const at::Tensor activation = at::empty({8}, at::TensorOptions(at::kFloat).device(at::kMeta));
  device.compute(2);
  channel->post({Direction::Receive, RankId(1), 0, activation, "r"});
  channel->post({Direction::Send, RankId(1), 1, at::ones({1}), "a vote, which the host made"});
  channel->post({Direction::Send, RankId(1), 2, activation, "s"});
  ASSERT_EQ(recorder->posted.size(), 3u);
  EXPECT_EQ(recorder->posted[0].second, 0);
  EXPECT_EQ(recorder->posted[1].second, 0);
  EXPECT_EQ(recorder->posted[2].second, 2);
}

TEST(EmulatedTransfers, AMessageOfThisHostIsReadWhereItIs) {
  VirtualClock clock;
  EmulatedDevice device(clock, "test", {});
  const at::Tensor gradient = at::empty({8}, at::TensorOptions(at::kFloat).device(at::kMeta));
  for (const SharedMemory shared : {SharedMemory::None, SharedMemory::WithinHosts}) {
    const auto recorder = std::make_shared<Recorder>(clock);
    const auto arrival = make_device_ordered(recorder, device, shared)
                             ->receive({Direction::Receive, RankId(1), 0, gradient, "r"});
    arrival->wait();
    ASSERT_EQ(recorder->posted.size(), 1u);
    EXPECT_EQ(arrival->message().is_same(gradient), shared == SharedMemory::WithinHosts);
    EXPECT_EQ(arrival->message().sizes(), gradient.sizes());
  }
}

TEST(EmulatedTransfers, MessagesHaveAStampOrAllBytes) {
  VirtualClock clock;
  const at::Tensor activation = at::empty({8, 2}, at::TensorOptions(at::kFloat).device(at::kMeta));
  for (const auto& [payload, bytes] :
       {std::pair(EmulatedPayload::None, 16u), {EmulatedPayload::Bytes, 64u}}) {
    const auto recorder = std::make_shared<Recorder>(clock);
    const auto channel = make_valueless(recorder, payload);
    channel->post({Direction::Send, RankId(1), 0, activation, "s"});
    channel->post({Direction::Send, RankId(1), 1, at::ones({2}), "values stay"});
    ASSERT_EQ(recorder->posted.size(), 2u);
    EXPECT_TRUE(recorder->posted[0].first.is_cpu());
    EXPECT_EQ(recorder->posted[0].first.nbytes(), bytes);
    EXPECT_EQ(recorder->posted[1].first.sum().item<float>(), 2);
    channel->post({.tensor = at::ones({2}), .moment = std::make_shared<TimePoint>()});
    EXPECT_EQ(recorder->posted[2].first.nbytes(), payload == EmulatedPayload::None ? 8 + 16u : 8u);
  }
}

}  // namespace
}  // namespace millrace
