// A stream has the lists of make_schedule at any length, and lets all ranks rest at its cuts.
#include "runtime/schedule/schedule_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "runtime/schedule/message.h"

namespace millrace {
namespace {

PipelineShape shape_with(const std::vector<int>& replicas, bool skip_link = false) {
  PipelineShape shape;
  int rank = 0;
  for (int count : replicas) {
    auto& ranks = shape.ranks_of_stage.emplace_back();
    for (int i = 0; i < count; ++i) ranks.emplace_back(rank++);
  }
  if (skip_link) {
    shape.links = shape.all_links();
    shape.links.push_back({StageId(0), StageId(shape.num_stages() - 1)});
  }
  return shape;
}

const std::vector<ScheduleKind> kAsynchronous = named_kinds(true);
constexpr Transport kBothTransports[] = {Transport::Buffered, Transport::Rendezvous};

std::vector<PipelineShape> shapes() {
  std::vector<PipelineShape> result;
  for (const auto& replicas : std::vector<std::vector<int>>{
           {1},       {1, 1},    {1, 1, 1},    {1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1},
           {2},       {3},       {2, 2},       {2, 1},       {1, 2},
           {3, 1},    {1, 3},    {2, 3},       {3, 2},       {2, 1, 1},
           {4, 2, 2}, {1, 2, 1}, {1, 3, 2, 1}, {2, 2, 2, 2}, {15, 1},
           {8, 4, 4}, {5, 2},    {2, 5}})
    for (bool skip : {false, true})
      if (!skip || replicas.size() > 2) result.push_back(shape_with(replicas, skip));
  return result;
}

std::string text(ScheduleKind kind, const PipelineShape& shape, Transport transport) {
  std::string result = to_string(kind) + (transport == Transport::Buffered ? " buffered" : " rendezvous");
  for (const auto& ranks : shape.ranks_of_stage) result += " " + std::to_string(ranks.size());
  return result + (shape.links.empty() ? "" : " with a skip");
}

void drop_from(std::vector<Action>& actions, std::int64_t end) {
  std::erase_if(actions, [end](const Action& a) { return a.microbatch.value >= end; });
}

TEST(ScheduleStream, IsAValidScheduleOfAnyLengthHoweverItIsRead) {
  int made = 0;
  for (ScheduleKind kind : kAsynchronous) {
    for (Transport transport : kBothTransports) {
      for (PipelineShape shape : shapes()) {
        const std::string what = text(kind, shape, transport);
        const auto stream = ScheduleStream::make(kind, shape, transport);
        shape.microbatches = 1;
        for (const auto& ranks : shape.ranks_of_stage) shape.microbatches *= static_cast<int>(ranks.size());
        if (!stream) {
          const auto list = make_schedule(kind, shape, transport);
          EXPECT_TRUE(kind == ScheduleKind::PipeDreamVSync) << what << to_string(stream.problems());
          EXPECT_FALSE(list) << what;
          continue;
        }
        ++made;
        const std::int64_t period = stream->period();
        for (std::int64_t periods : {1, 2, 3, 7}) {
          shape.microbatches = static_cast<int>(periods * period);
          Schedule schedule{.kind = kind};
          for (int r = 0; r < shape.num_ranks(); ++r) {
            auto& actions = schedule.ranks.emplace_back();
            const std::int64_t half = periods / 2 * period;
            for (const auto& [from, to] : {std::pair{std::int64_t{0}, half}, {half, periods * period}}) {
              const auto part = stream->actions(RankId(r), from, to);
              actions.insert(actions.end(), part.begin(), part.end());
            }
            drop_from(actions, periods * period);
          }
          const Problems problems = check(schedule, shape, transport);
          EXPECT_TRUE(problems.empty()) << what << ", " << periods << " periods: " << to_string(problems);
        }
      }
    }
  }
  EXPECT_GT(made, 100);
}

/// The messages under way at a cut are exactly those that were sent before it and are received behind it.
TEST(ScheduleStream, KnowsWhatIsUnderWayAtACut) {
  int under_way = 0;
  for (ScheduleKind kind : kAsynchronous) {
    for (PipelineShape shape : shapes()) {
      const auto stream = ScheduleStream::make(kind, shape, Transport::Buffered);
      if (!stream) continue;
      shape.microbatches = static_cast<int>(stream->period() * 40);
      const MessageIndex messages(shape);
      for (std::int64_t cut = stream->period(); cut <= 9 * stream->period(); cut += stream->period()) {
        std::set<std::int64_t> open;
        for (int r = 0; r < shape.num_ranks(); ++r)
          for (const Action& a : stream->actions(RankId(r), 0, cut))
            if (is_send(a.op)) open.insert(messages.of(a));
        for (int r = 0; r < shape.num_ranks(); ++r)
          for (const Action& a : stream->actions(RankId(r), 0, cut)) {
            if (is_transfer(a.op) && !is_send(a.op)) {
              EXPECT_EQ(open.erase(messages.of(a)), 1u);
            }
          }
        for (int r = 0; r < shape.num_ranks(); ++r)
          for (const Action& a : stream->under_way(RankId(r), cut)) {
            EXPECT_EQ(open.erase(messages.of(a)), 1u) << text(kind, shape, Transport::Buffered);
            ++under_way;
          }
        EXPECT_TRUE(open.empty()) << text(kind, shape, Transport::Buffered) << " cut " << cut;
      }
    }
  }
  EXPECT_GT(under_way, 0);
}

TEST(ScheduleStream, VersionsInClosedFormAreThoseOfTheList) {
  for (ScheduleKind kind : kAsynchronous) {
    for (PipelineShape shape : shapes()) {
      const auto stream = ScheduleStream::make(kind, shape, Transport::Buffered);
      if (!stream) continue;
      shape.microbatches = static_cast<int>(stream->period() * 6);
      const auto schedule = make_schedule(kind, shape);
      ASSERT_TRUE(schedule);
      const auto versions = forward_versions(*schedule, shape);
      for (int s = 0; s < shape.num_stages(); ++s) {
        const VersionRule rule = version_rule(kind, shape, StageId(s));
        for (int m = 0; m < shape.microbatches; ++m)
          ASSERT_EQ(versions[s * shape.microbatches + m],
                    std::max<std::int64_t>(0, m / rule.per_version - rule.lag))
              << text(kind, shape, Transport::Buffered) << " stage " << s << " microbatch " << m;
      }
    }
  }
}

TEST(ScheduleStream, RefusesWhatNoListCouldHold) {
  PipelineShape shape = shape_with({1, 1});
  shape.update_every = 1 << 30;
  EXPECT_FALSE(ScheduleStream::make(ScheduleKind::PipeDream2BW, shape, Transport::Buffered));
  EXPECT_FALSE(ScheduleStream::make(ScheduleKind::OneFOneB, shape_with({1, 1}), Transport::Buffered));
  EXPECT_FALSE(ScheduleStream::make(ScheduleKind::PipeDreamVSync, shape_with({2, 1}), Transport::Buffered));
}

}  // namespace
}  // namespace millrace
