// Every schedule that `check` accepts runs over every transport: the messages of its lists, without the
// computation, and a training over shared memory.
#include <gtest/gtest.h>

#include <random>

#include "runtime/schedule/csv.h"
#include "tests/train/pipeline_fixture.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;

/// Stage s on rank s mod p, `chunks` stages a rank, all microbatches of a stage before those of the next:
/// "looped BFS". The first rank runs ahead of the second by all microbatches.
std::string looped_breadth_first(int p, int chunks, int microbatches) {
  std::string csv;
  for (int rank = 0; rank < p; ++rank) {
    std::string line;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int m = 0; m < microbatches; ++m)
        line += std::to_string(rank + chunk * p) + "F" + std::to_string(m) + ",";
    }
    for (int chunk = chunks; chunk-- > 0;) {
      for (int m = 0; m < microbatches; ++m)
        line += std::to_string(rank + chunk * p) + "B" + std::to_string(m) + ",";
    }
    line.back() = '\n';
    csv += line;
  }
  return csv;
}

std::uint64_t tag_of(const Action& a) {
  const bool gradient = a.op == Op::SendGradient || a.op == Op::RecvGradient;
  const bool sends = a.op == Op::SendActivation || a.op == Op::SendGradient;
  const StageId from = sends ? a.stage : a.peer_stage, to = sends ? a.peer_stage : a.stage;
  return ((static_cast<std::uint64_t>(a.microbatch.value) * 64 + static_cast<std::uint64_t>(from.value)) *
              64 +
          static_cast<std::uint64_t>(to.value)) *
             2 +
         gradient;
}

/// Walks the lists as an executor does that never has more than `in_flight` sends of a link unfinished.
void run_messages(const Schedule& schedule, std::size_t in_flight) {
  const int size = static_cast<int>(schedule.ranks.size());
  auto ranks = joined_ranks(Backend::SharedMemory, size, milliseconds(20'000));
  std::mutex mutex;
  std::exception_ptr first;
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        Communicator& c = *ranks[r];
        std::map<int, std::deque<std::unique_ptr<Pending>>> sends;
        const at::Tensor tensor = at::empty({1}, at::kFloat);
        try {
          for (const Action& a : schedule.ranks[r]) {
            if (!is_transfer(a.op)) continue;
            const bool is_send = a.op == Op::SendActivation || a.op == Op::SendGradient;
            const Transfer transfer{is_send ? Direction::Send : Direction::Receive, a.peer, tag_of(a), tensor,
                                    to_string(a)};
            auto pending = c.exchange({&transfer, 1});
            if (!is_send) {
              pending->wait();
              continue;
            }
            auto& link = sends[a.peer_stage.value];
            for (; link.size() >= in_flight; link.pop_front()) link.front()->wait();
            link.push_back(std::move(pending));
          }
          for (auto& [stage, link] : sends) {
            for (auto& pending : link) pending->wait();
          }
        } catch (const std::exception& error) {
          {
            const std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
          }
          c.abort(error.what());
        }
      });
    }
  }
  if (first) std::rethrow_exception(first);
}

TEST(TransportBounds, EveryGeneratedScheduleThatCheckAcceptsRuns) {
  int run = 0;
  for (const ScheduleKind kind :
       {ScheduleKind::GPipe, ScheduleKind::OneFOneB, ScheduleKind::Interleaved, ScheduleKind::ZeroBubbleH1,
        ScheduleKind::ZeroBubbleH2, ScheduleKind::ZeroBubbleV, ScheduleKind::VHalf, ScheduleKind::VMin,
        ScheduleKind::DualPipeV, ScheduleKind::AutoOrder, ScheduleKind::PipeDream,
        ScheduleKind::PipeDreamVSync, ScheduleKind::PipeDream2BW}) {
    for (const int microbatches : {8, 200, 1200}) {
      const bool v = is_v_shaped(kind);
      const PipelineShape shape = v                                   ? v_shape(3, microbatches)
                                  : kind == ScheduleKind::Interleaved ? interleaved_shape(2, 2, microbatches)
                                                                      : chain_shape(3, microbatches);
      const auto schedule = make_schedule(kind, shape, Transport::Buffered);
      if (!schedule || !check(*schedule, shape, Transport::Buffered).empty()) continue;
      ASSERT_NO_THROW(run_messages(*schedule, 64)) << to_string(kind) << " " << microbatches;
      ++run;
    }
  }
  EXPECT_GE(run, 36);
}

/// Orders that no generator makes: any order of computations that respects what depends on what.
TEST(TransportBounds, EveryOrderThatCheckAcceptsRuns) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 12; ++trial) {
    const int p = 2 + trial % 2, chunks = 1 + trial % 3, microbatches = trial < 6 ? 40 : 1500;
    const PipelineShape shape = interleaved_shape(p, chunks, microbatches);
    const int stages = shape.num_stages();
    // A random walk: pick a stage whose next forward or backward may run, in bursts.
    std::vector<int> forwards(stages), backwards(static_cast<std::size_t>(stages));
    std::vector<std::vector<Action>> lists(p);
    for (int left = 2 * stages * microbatches; left > 0;) {
      const auto s = static_cast<std::size_t>(random() % static_cast<unsigned>(stages));
      const bool forward = random() % 2 == 0;
      int burst = 1 + static_cast<int>(random() % (trial % 4 == 0 ? 1500 : 70));
      auto& done = forward ? forwards[s] : backwards[s];
      for (; burst-- > 0 && done < microbatches; --left) {
        const int limit = forward ? (s == 0 ? microbatches : forwards[s - 1])
                          : s + 1 == static_cast<std::size_t>(stages) ? forwards[s]
                                                                      : backwards[s + 1];
        if (done >= limit) break;
        lists[s % static_cast<std::size_t>(p)].push_back({forward ? Op::Forward : Op::Backward,
                                                          StageId(static_cast<int>(s)),
                                                          MicrobatchId(done++),
                                                          {},
                                                          {}});
      }
    }
    const Schedule schedule = lower(ScheduleKind::Custom, shape, std::move(lists));
    ASSERT_TRUE(check(schedule, shape, Transport::Buffered).empty());
    ASSERT_NO_THROW(run_messages(schedule, 64)) << "trial " << trial;
  }
}

TEST_F(Pipeline, LoopedBreadthFirstTrainsOverSharedMemory) {
  constexpr int kMicrobatches = 300;
  const LayeredModel model = small_model();
  const ScheduleFile file{.name = "looped.csv", .text = looped_breadth_first(2, 2, kMicrobatches)};
  Plan plan = uniform_plan(model.name, model.layer_names(), 4, 1, kMicrobatches, ScheduleKind::Custom, 2);
  TrainOptions looped = options(1);
  looped.schedule = file;
  const Outcome threads = train(model, plan, looped);
  make_ranks_ = std::bind_front(joined_ranks, Backend::SharedMemory);
  expect_equal(train(model, plan, looped), threads, "shared memory");
}

}  // namespace
}  // namespace millrace
