#include "runtime/profile/network_profiler.h"

#include <algorithm>
#include <array>
#include <functional>
#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/check.h"
#include "runtime/base/median.h"

namespace millrace {
namespace {

constexpr Bytes kSmall = 8;       // bytes; the time of such a message is all latency
constexpr int kWarmupTrips = 20;  // uncounted round trips; the first ones wake processors and map memory
constexpr int kPasses = 3;  // passes over latency and all sizes, because a disturbance lasts for some time
constexpr int kMostRepetitions = 200;   // most trips of one size in one direction
constexpr double kSlowMessage = 0.5;    // seconds; larger sizes are skipped after a slower message
constexpr double kSlowForPasses = 0.1;  // seconds; if the largest message is slower, one pass is long enough
// Messages rotate through a buffer of this size, which exceeds a core's caches: in training, ranks compute
// between messages.
constexpr Bytes kRotation = 16 * kMiB;
constexpr int kReduces = 7;
enum Tag : std::uint64_t { kOrder = 1, kPing = 2, kPong = 3 };

std::vector<Bytes> sweep_of(Bytes largest) {
  std::vector<Bytes> sizes;
  for (Bytes bytes = kSmallestSweep; bytes < largest; bytes *= 2) sizes.push_back(bytes);
  sizes.push_back(std::max(largest, kSmallestSweep));
  return sizes;
}

/// Messages of any size. Each one has another address than the previous message.
class Messages {
 public:
  Messages(Bytes room, at::Device where)
      : room_(at::zeros({room}, at::TensorOptions().dtype(at::kByte).device(where))) {}
  at::Tensor next(Bytes bytes) {
    if (at_ + bytes > room_.numel()) at_ = 0;
    at::Tensor message = room_.narrow(0, at_, bytes);
    at_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return message;
  }

 private:
  static constexpr Bytes kAlignment = 64;  // the alignment of tensors
  at::Tensor room_;
  Bytes at_ = 0;
};

/// One end of a pair of ranks. Each order of the driver specifies the next message to the other end. The
/// driver alone therefore decides how often a message is repeated.
class Pair {
 public:
  Pair(Communicator& communicator, Device& device, Clock& clock, RankId peer, Bytes largest)
      : communicator_(communicator),
        device_(device),
        clock_(clock),
        peer_(peer),
        sent_(std::max(kRotation, largest), device.where()),
        received_(std::max(kRotation, largest), device.where()) {}

  /// Appends the seconds of each of `count` round trips, with `out` bytes to the peer and `in` bytes back.
  /// One uncounted trip precedes them, because the peer has just read the order.
  void trips(Bytes out, Bytes in, int count, std::vector<double>& seconds) {
    order({out, in, count + 1});
    for (int i = 0; i <= count; ++i) {
      const at::Tensor ping = sent_.next(out), pong = received_.next(in);
      const TimePoint start = clock_.now();
      const Transfer transfers[] = {{Direction::Receive, peer_, kPong, pong, "answer of network profile"},
                                    {Direction::Send, peer_, kPing, ping, "message of network profile"}};
      communicator_.exchange(transfers)->wait();
      finish();
      if (i > 0) seconds.push_back(Seconds(clock_.now() - start).count());
    }
  }

  void end() { order({0, 0, 0}); }

  /// Runs the other end: it serves orders until the driver ends.
  void answer() {
    for (;;) {
      const at::Tensor next = at::zeros({3}, at::kLong);
      receive(next, kOrder, "order of network profile");
      const auto* numbers = next.const_data_ptr<std::int64_t>();
      if (numbers[2] == 0) return;
      for (std::int64_t i = 0; i < numbers[2]; ++i) {
        receive(received_.next(numbers[0]), kPing, "message of network profile");
        finish();
        send(sent_.next(numbers[1]), kPong, "answer of network profile");
      }
    }
  }

 private:
  void order(const std::array<std::int64_t, 3>& numbers) {
    const at::Tensor next = at::zeros({3}, at::kLong);
    std::copy(numbers.begin(), numbers.end(), next.mutable_data_ptr<std::int64_t>());
    send(next, kOrder, "order of network profile");
  }
  void send(const at::Tensor& tensor, std::uint64_t tag, const char* what) {
    const Transfer transfer{Direction::Send, peer_, tag, tensor, what};
    communicator_.exchange({&transfer, 1})->wait();
  }
  void receive(const at::Tensor& tensor, std::uint64_t tag, const char* what) {
    const Transfer transfer{Direction::Receive, peer_, tag, tensor, what};
    communicator_.exchange({&transfer, 1})->wait();
  }
  /// Waits for the device: its copies may still run after a message has arrived.
  void finish() { device_.synchronize(); }

  Communicator& communicator_;
  Device& device_;
  Clock& clock_;
  RankId peer_;
  Messages sent_, received_;
};

/// A row of the table that all ranks sum: the results of one pair, written by its driver. It holds the
/// median, minimum and maximum latency, then the seconds there and back for each size.
class Row {
 public:
  static std::int64_t width(std::size_t sizes) { return 3 + 2 * static_cast<std::int64_t>(sizes); }
  Row(double* values, const std::vector<Bytes>& sizes) : values_(values), sizes_(sizes) {}

  void set_latency(std::vector<double> round_trips) {
    values_[0] = median(round_trips) / 2;
    const auto [least, most] = std::minmax_element(round_trips.begin(), round_trips.end());
    values_[1] = *least / 2;
    values_[2] = *most / 2;
  }
  double latency() const { return values_[0]; }
  /// Sets the one-way seconds. The small reply took one latency of the round trip.
  void set_there(std::size_t size, double round_trip) { values_[3 + 2 * size] = one_way(round_trip); }
  void set_back(std::size_t size, double round_trip) { values_[4 + 2 * size] = one_way(round_trip); }

  LinkMeasurement measurement(RankId from, RankId to) const {
    LinkMeasurement m{from, to, values_[0], values_[1], values_[2]};
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (values_[3 + 2 * i] > 0) m.there.push_back({sizes_[i], values_[3 + 2 * i]});
      if (values_[4 + 2 * i] > 0) m.back.push_back({sizes_[i], values_[4 + 2 * i]});
    }
    return m;
  }

 private:
  double one_way(double round_trip) const { return std::max(round_trip - latency(), 1e-9); }
  double* values_;
  const std::vector<Bytes>& sizes_;
};

/// One size in one direction, over all passes.
struct Sweep {
  Bytes out = 0;
  Bytes in = 0;
  int count = 1;  ///< trips in a pass
  std::vector<double> seconds;
};

/// Returns how many trips of `once` seconds fit into one pass's share of `seconds_a_size`.
int count_of(double once, double seconds_a_size) {
  const double fitting = seconds_a_size / kPasses / std::max(once, 1e-9);
  return static_cast<int>(std::clamp(fitting, 1.0, double(kMostRepetitions / kPasses)));
}

/// Runs the first pass: measures each size in both directions and chooses the number of its trips per pass.
/// Larger sizes are skipped after a slow message.
std::vector<Sweep> first_pass(Pair& pair, const std::vector<Bytes>& sizes, double seconds_a_size) {
  std::vector<Sweep> sweeps;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    double slowest = 0;
    for (const auto& [out, in] : {std::pair{sizes[i], kSmall}, std::pair{kSmall, sizes[i]}}) {
      Sweep sweep{.out = out, .in = in};
      pair.trips(out, in, 1, sweep.seconds);
      slowest = std::max(slowest, sweep.seconds[0]);
      sweep.count = count_of(sweep.seconds[0], seconds_a_size);
      pair.trips(out, in, sweep.count, sweep.seconds);
      sweeps.push_back(std::move(sweep));
    }
    if (i >= 2 && slowest > kSlowMessage) break;
  }
  return sweeps;
}

void drive(Pair& pair, const std::vector<Bytes>& sizes, const NetworkOptions& options, Row row) {
  std::vector<double> small;
  pair.trips(kSmall, kSmall, kWarmupTrips, small);
  small.clear();
  std::vector<Sweep> sweeps;
  for (int pass = 0; pass < kPasses; ++pass) {
    const int share = options.round_trips * (pass + 1) / kPasses - options.round_trips * pass / kPasses;
    if (share > 0) pair.trips(kSmall, kSmall, share, small);
    if (pass == 0) {
      sweeps = first_pass(pair, sizes, options.seconds_a_size);
    } else if (sweeps.back().seconds[0] < kSlowForPasses) {
      for (Sweep& sweep : sweeps) pair.trips(sweep.out, sweep.in, sweep.count, sweep.seconds);
    }
  }
  pair.end();
  row.set_latency(std::move(small));
  for (std::size_t i = 0; i < sweeps.size(); i += 2) {
    row.set_there(i / 2, median(sweeps[i].seconds));
    row.set_back(i / 2, median(sweeps[i + 1].seconds));
  }
}

/// Returns the median seconds of an action that all ranks start together, without its first, slow time.
double median_seconds(Communicator& communicator, Clock& clock, const std::function<void()>& action) {
  std::vector<double> seconds;
  for (int i = 0; i < kReduces + 1; ++i) {
    communicator.barrier();
    const TimePoint start = clock.now();
    action();
    if (i > 0) seconds.push_back(Seconds(clock.now() - start).count());
  }
  return median(seconds);
}

std::vector<ReduceMeasurement> time_reduces(Communicator& communicator, Device& device, Clock& clock,
                                            Bytes largest) {
  std::vector<ReduceMeasurement> result;
  for (const Bytes bytes : {kSmallestSweep, std::max(largest, kSmallestSweep)}) {
    if (!result.empty() && result.back().bytes == bytes) break;
    const at::Tensor tensor =
        at::zeros({bytes / 4}, at::TensorOptions().dtype(at::kFloat).device(device.where()));
    result.push_back({bytes, median_seconds(communicator, clock, [&] {
                        communicator.all_reduce(tensor, "all-reduce of network profile")->wait();
                        device.synchronize();
                      })});
  }
  return result;
}

/// Calls `action` for every pair of ranks with from < to, in the order of NetworkMeasurement::links.
void for_each_pair(int ranks, const std::function<void(RankId from, RankId to)>& action) {
  for (int from = 0; from < ranks; ++from) {
    for (int to = from + 1; to < ranks; ++to) action(RankId(from), RankId(to));
  }
}

}  // namespace

NetworkMeasurement profile_network(Communicator& communicator, Device& device, Clock& clock,
                                   const NetworkOptions& options) {
  at::NoGradGuard no_grad;
  MILLRACE_CHECK(communicator.size() >= 2);
  MILLRACE_CHECK(options.round_trips >= 1);
  communicator.connect(all_traffic(communicator.size()));
  const std::vector<Bytes> sizes = sweep_of(options.largest);
  const std::int64_t ranks = communicator.size(), width = Row::width(sizes.size());
  const at::Tensor table = at::zeros({ranks * (ranks - 1) / 2, width}, at::kDouble);
  double* row = table.mutable_data_ptr<double>();
  for_each_pair(communicator.size(), [&](RankId from, RankId to) {
    communicator.barrier();
    if (communicator.rank() == from) {
      Pair pair(communicator, device, clock, to, sizes.back());
      drive(pair, sizes, options, Row(row, sizes));
    } else if (communicator.rank() == to) {
      Pair(communicator, device, clock, from, sizes.back()).answer();
    }
    row += width;
  });
  communicator.barrier();
  NetworkMeasurement measurement{.reduces = time_reduces(communicator, device, clock, options.largest)};
  // One rank filled each row, and the others have zeros there: the sum is exact.
  communicator.all_reduce(table, "results of network profile")->wait();
  row = table.mutable_data_ptr<double>();
  for_each_pair(communicator.size(), [&](RankId from, RankId to) {
    measurement.links.push_back(Row(row, sizes).measurement(from, to));
    row += width;
  });
  return measurement;
}

}  // namespace millrace
