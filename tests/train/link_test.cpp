// Trains over emulated links with a simulated clock: the run takes the simulator's time, and the weights are
// the same. Also trains over links that fail.
#include <gtest/gtest.h>

#include <barrier>

#include "runtime/base/error.h"
#include "runtime/comm/emulated_links.h"
#include "runtime/schedule/simulate.h"
#include "tests/harness/fault_injector.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

ChannelDecorator over(const EmulatedNetwork& network) {
  return [network](std::shared_ptr<Channel> inner) { return make_emulated_links(std::move(inner), network); };
}

std::uint64_t message_tag(const Action& a) {
  const bool gradient = a.op == Op::SendGradient || a.op == Op::RecvGradient;
  const StageId from = is_send(a.op) ? a.stage : a.peer_stage;
  return ((static_cast<std::uint64_t>(a.microbatch.value) << 12) + static_cast<std::uint64_t>(from.value)) *
             2 +
         gradient;
}

/// Walks the lists with computations that only take time, each rank a thread, over emulated links. Seconds.
double run_in_virtual_time(const Schedule& schedule, const ScheduleCosts& costs,
                           const EmulatedNetwork& network, std::int64_t bytes) {
  VirtualClock clock;
  const auto size = static_cast<int>(schedule.ranks.size());
  auto ranks = make_local_communicators(size, std::chrono::hours(10), {over(network)}, clock);
  std::barrier all_here(size);
  std::vector<double> ended(size);
  {
    std::vector<std::jthread> threads;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      threads.emplace_back([&, r, own = std::move(ranks[r])]() mutable {
        const ClockUser user(clock);
        at::set_num_threads(1);
        all_here.arrive_and_wait();
        const TimePoint start = clock.now();
        const at::Tensor tensor = at::empty({bytes}, at::kByte);
        const auto compute = [&](const std::vector<double>& seconds, const Action& a) {
          const double s = seconds[a.stage.value];
          clock.sleep_until(clock.now() + std::chrono::nanoseconds(std::llround(s * 1e9)));
        };
        for (const Action& a : schedule.ranks[r]) {
          if (is_transfer(a.op)) {
            const Transfer transfer{is_send(a.op) ? Direction::Send : Direction::Receive, a.peer,
                                    message_tag(a), tensor, LazyText([a] { return to_string(a); })};
            own->exchange({&transfer, 1})->wait();
          } else if (a.op == Op::Forward) {
            compute(costs.forward, a);
          } else if (a.op == Op::Backward) {
            compute(costs.backward_input, a);
            compute(costs.backward_weight, a);
          } else if (a.op == Op::BackwardInput) {
            compute(costs.backward_input, a);
          } else if (a.op == Op::BackwardWeight) {
            compute(costs.backward_weight, a);
          }
        }
        ended[r] = Seconds(clock.now() - start).count();
        own.reset();
      });
    }
  }
  return *std::ranges::max_element(ended);
}

TEST(VirtualTime, ManyRanksTakeExactlyTheSimulatorsTime) {
  constexpr double kLatency = 0.004;
  constexpr std::int64_t kBytes = 3000;
  const EmulatedNetwork network{.wire = [](int from, int to) {
    return EmulatedWire{.latency_s = kLatency, .seconds_per_byte = 1e-6 * (1 + (from + to) % 5)};
  }};
  for (const auto& [kind, shape] : {std::pair{ScheduleKind::OneFOneB, chain_shape(128, 12)},
                                    {ScheduleKind::GPipe, chain_shape(64, 8)},
                                    {ScheduleKind::ZeroBubbleH1, chain_shape(16, 24)},
                                    {ScheduleKind::Interleaved, interleaved_shape(8, 2, 16)}}) {
    const Schedule schedule = *make_schedule(kind, shape, Transport::Buffered);
    const auto stages = static_cast<std::size_t>(shape.num_stages());
    ScheduleCosts costs;
    for (std::size_t s = 0; s < stages; ++s) {
      costs.forward.push_back(1e-3 * double(3 + s % 4));
      costs.backward_input.push_back(1e-3 * double(4 + s % 3));
      costs.backward_weight.push_back(1e-3 * double(2 + s % 5));
    }
    SimulationOptions links;
    for (const StageLink& link : shape.all_links()) {
      const int from = shape.rank_of(link.from, MicrobatchId(0)).value,
                to = shape.rank_of(link.to, MicrobatchId(0)).value;
      links.latency.push_back(kLatency);
      links.bytes.push_back(double(kBytes));
      links.bandwidth.push_back(1 / network.wire(from, to).seconds_per_byte);
    }
    EXPECT_NEAR(run_in_virtual_time(schedule, costs, network, kBytes),
                simulate(schedule, shape, costs, links).makespan, 1e-6)
        << to_string(kind);
  }
}

class Links : public Pipeline {
 protected:
  void use(std::vector<ChannelDecorator> decorators, milliseconds deadline = milliseconds(60'000)) {
    make_ranks_ = [=](int size, milliseconds) {
      return make_local_communicators(size, deadline, decorators);
    };
  }
  /// Trains over the faulty link and returns the error text; empty: no error. Fails if the fault did not
  /// happen.
  std::string error_of(const Plan& plan, const FaultOptions& fault) {
    const auto hits = std::make_shared<std::atomic<int>>(0);
    use({inject(fault, hits)}, milliseconds(2'000));
    std::string text;
    try {
      train(small_model(), plan, options(6));
    } catch (const PeerError& error) {
      text = error.what();
    }
    EXPECT_EQ(hits->load(), 1);
    return text;
  }
};

TEST_F(Links, WeightsDoNotNoticeASlowLink) {
  const LayeredModel model = small_model();
  for (const auto& [replicas, kind] : {std::pair{std::vector<int>{1, 1, 1}, ScheduleKind::OneFOneB},
                                       {{2, 2}, ScheduleKind::GPipe},
                                       {{1, 1}, ScheduleKind::PipeDream}}) {
    const Plan plan = plan_for(model, replicas, 4, kind);
    use({});
    const Outcome expected = train(model, plan, options(4));
    use({over({.wire = [](int from, int to) {
      return EmulatedWire{.latency_s = 1e-3 * (from + to), .seconds_per_byte = 1e-6};
    }})});
    expect_equal(train(model, plan, options(4)), expected, to_string(kind));
  }
}

TEST_F(Links, AFaultInTrainingNamesTheActionAndTheMessage) {
  const Plan plan = plan_for(small_model(), {1, 1}, 4, ScheduleKind::OneFOneB);
  // Rank 0 makes the settings known, then sends activations. Whoever gives up first is heard: without a
  // gradient rank 0 sends no further activation.
  const std::string lost = error_of(plan, {.fault = Fault::Drop, .rank = 1, .message = 12});
  for (const char* part : {"step ", "action ", "rank ", " from rank ", "no message after"})
    EXPECT_NE(lost.find(part), std::string::npos) << lost;
  const std::string cut = error_of(plan, {.fault = Fault::Cut, .rank = 0, .message = 14});
  EXPECT_NE(cut.find("no message after"), std::string::npos) << cut;
  const std::string wrong = error_of(plan, {.fault = Fault::WrongLength, .rank = 0, .message = 14});
  EXPECT_NE(wrong.find("elements, expected"), std::string::npos) << wrong;
  EXPECT_EQ(error_of(plan, {.fault = Fault::Delay, .rank = 0, .message = 14, .delay = milliseconds(100)}),
            "");
}

}  // namespace
}  // namespace millrace
