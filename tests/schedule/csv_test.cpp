// PyTorch's schedule files.
#include "runtime/schedule/csv.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/base/random.h"
#include "tests/schedule/every_shape.h"

namespace millrace {
namespace {

using Kind = ScheduleKind;

/// FNV-1a, 64 bits: PyTorch's files are not ours to copy, their hashes say whether ours are equal.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 14695981039346656037ull;
  for (unsigned char c : text) hash = (hash ^ c) * 1099511628211ull;
  return hash;
}

std::string written(Kind kind, const PipelineShape& shape, CsvContent content = CsvContent::Computations) {
  const Result<std::string> text =
      schedule_csv(*make_schedule(kind, shape, Transport::Rendezvous), shape, content);
  EXPECT_TRUE(text) << to_string(text.problems());
  return text ? *text : "";
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

std::vector<std::vector<Action>> computations(const Schedule& schedule) {
  auto ranks = schedule.ranks;
  for (auto& actions : ranks) std::erase_if(actions, [](const Action& a) { return !is_compute(a.op); });
  return ranks;
}

TEST(ScheduleCsv, EqualsPyTorchsFiles) {
  // test/distributed/pipelining/artifacts of pytorch/pytorch: dualpipev_4rank_10mb.csv at a2af973f, byte for
  // byte, and zb1p_2rank_2stagep_compute.csv at 15380b18 without idle steps and with B written as I.
  EXPECT_EQ(hash_of(written(Kind::DualPipeV, v_shape(4, 10))), 0xd8e3ec6872fc0c24ull);
  EXPECT_EQ(hash_of(written(Kind::ZeroBubbleH1, interleaved_shape(2, 2, 8))), 0x85e0f211e4d84b65ull);
}

TEST(ScheduleCsv, Golden) {
  EXPECT_EQ(written(Kind::OneFOneB, chain_shape(2, 2)), "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(written(Kind::OneFOneB, chain_shape(2, 1), CsvContent::Transfers),
            "0F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n");
}

TEST(ScheduleCsv, WhatIsWrittenReadsTheSame) {
  for_every_shape(4, 9, 1, 3, [](const ShapeCase& c) {
    if (!is_defined(c) || is_asynchronous(c.kind) || c.kind == Kind::AutoOrder) return;
    const Schedule schedule = *make_schedule(c.kind, c.shape());
    for (CsvContent content : {CsvContent::Computations, CsvContent::Transfers}) {
      const std::string text = written(c.kind, c.shape(), content);
      const Result<CsvSchedule> read = read_schedule_csv(text, "s.csv");
      ASSERT_TRUE(read) << c.name() << "\n" << to_string(read.problems()) << "\n" << text;
      EXPECT_EQ(read->schedule.kind, Kind::Custom);
      EXPECT_EQ(computations(read->schedule), computations(schedule)) << c.name();
      EXPECT_EQ(read->schedule.ranks, schedule.ranks) << c.name();  // lowered alike
      EXPECT_EQ(read->shape.ranks_of_stage, c.shape().ranks_of_stage);
      EXPECT_EQ(read->shape.microbatches, c.microbatches);
      EXPECT_TRUE(read->notes.empty());
    }
  });
}

TEST(ScheduleCsv, ReadsWhatPyTorchAndSpreadsheetsWrite) {
  const std::string plain = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
  const auto expected = read_schedule_csv(plain, "s")->schedule.ranks;
  for (const char* variant :
       {"0F0,0F1,0B0,0B1\r\n1F0,1B0,1F1,1B1\r\n", "0F0,0F1,,,0B0,0B1,,\n,1F0,1B0,1F1,1B1",
        "\xef\xbb\xbf"
        "0F0, 0F1 ,0B0,0B1\n1F0,1B0,1F1,1B1\n\n",
        "0F0,0F1,0BW0,0BW1\n1F0,1BW0,1F1,1BW1\n", "0F0,0F1,0B0,0B1\n1F0,1B0,(1F1;1B1)OVERLAP_F_B\n"}) {
    const Result<CsvSchedule> read = read_schedule_csv(variant, "s");
    ASSERT_TRUE(read) << variant << to_string(read.problems());
    EXPECT_EQ(read->schedule.ranks, expected) << variant;
  }
}

TEST(ScheduleCsv, ShardsAreNotedAndOldNamesUnderstood) {
  const Result<CsvSchedule> sharded =
      read_schedule_csv("0UNSHARD,0F0,0RESHARD,0B0,0REDUCE_GRAD\n1F0,1B0,1REDUCE_GRAD\n", "s");
  ASSERT_TRUE(sharded) << to_string(sharded.problems());
  EXPECT_EQ(sharded->schedule.ranks, read_schedule_csv("0F0,0B0\n1F0,1B0\n", "s")->schedule.ranks);
  ASSERT_EQ(sharded->notes.size(), 1u);
  EXPECT_NE(sharded->notes[0].find("2 UNSHARD and RESHARD"), std::string::npos);

  const PipelineShape shape = interleaved_shape(2, 2, 8);
  const std::string old = with(written(Kind::ZeroBubbleH1, shape), "I", "B");
  const Result<CsvSchedule> read = read_schedule_csv(old, "s");
  ASSERT_TRUE(read) << to_string(read.problems());
  EXPECT_EQ(read->schedule.ranks, make_schedule(Kind::ZeroBubbleH1, shape)->ranks);
  EXPECT_EQ(read->notes.size(), 1u);
}

TEST(ScheduleCsv, ReplicasAndGivenShapes) {
  for (Kind kind : {Kind::OneFOneB, Kind::ZeroBubbleH1, Kind::GPipe}) {
    const Result<CsvSchedule> read =
        read_schedule_csv(written(kind, chain_shape(3, 4)), "s", {.replicas = 2});
    ASSERT_TRUE(read) << to_string(read.problems());
    EXPECT_EQ(read->shape.ranks_of_stage, chain_shape(3, 8, 2).ranks_of_stage);
    EXPECT_EQ(read->schedule.ranks.size(), 6u);
    for (Transport transport : {Transport::Buffered, Transport::Rendezvous})
      EXPECT_EQ(to_string(check(for_rendezvous(read->schedule, read->shape), read->shape, transport)), "");
  }
  // A reduce stands where the file has it.
  const Result<CsvSchedule> early =
      read_schedule_csv("0F0,0B0,0REDUCE_GRAD\n1F0,1I0,1W0,1REDUCE_GRAD\n", "s", {.replicas = 2});
  ASSERT_TRUE(early) << to_string(early.problems());
  EXPECT_EQ(std::ranges::count(early->schedule.ranks[0], Op::Reduce, &Action::op), 1);

  PipelineShape given = v_shape(2, 4);
  given.ranks_of_stage = {{RankId(1)}, {RankId(0)}, {RankId(0)}, {RankId(1)}};
  given.links = {
      {StageId(0), StageId(1)}, {StageId(0), StageId(3)}, {StageId(1), StageId(2)}, {StageId(2), StageId(3)}};
  const Result<CsvSchedule> placed =
      read_schedule_csv(written(Kind::ZeroBubbleV, v_shape(2, 4)), "s", {.shape = &given});
  ASSERT_TRUE(placed) << to_string(placed.problems());
  EXPECT_EQ(placed->shape.links, given.links);
  EXPECT_EQ(to_string(placed->schedule.ranks[1].front()), "0F0");
}

TEST(ScheduleCsv, ErrorsNameTheirPlace) {
  const PipelineShape other = chain_shape(3, 2), more = chain_shape(2, 4), v = v_shape(1, 2);
  struct Row {
    const char* text;
    const char* where;
    const char* what;
    const PipelineShape* shape = nullptr;
  };
  const Row rows[] = {
      {"", "f.csv", "has no actions"},
      {"\n", "f.csv", "has no actions"},
      {"0F0,0B0\n\n1F0,1B0\n", "f.csv:2:1", "rank 1 has no actions"},
      {"0F0,0B0,x\n", "f.csv:1:9", "'x' is not an action"},
      {"0F0,0B0\n1F0,1G0\n", "f.csv:2:5", "'1G0' is not an action"},
      {"0F0, 0B\n", "f.csv:1:6", "'0B' is not an action"},
      {"0F0,-1B0\n", "f.csv:1:5", "'-1B0' is not an action"},
      {"0F0,0F99999999\n", "f.csv:1:5", "is not an action"},
      {"0F0,\"0B0\"\n", "f.csv:1:5", "is not an action"},
      {"(0F0;0B0OVERLAP_F_B\n", "f.csv:1:1", "is not an action"},
      {"(0F0;0SEND_F0)OVERLAP_F_B\n", "f.csv:1:6", "'0SEND_F0' is not an action of a pair"},
      {"(0F0;)OVERLAP_F_B\n", "f.csv:1:6", "'' is not an action of a pair"},
      {"0F0,0B0\n1F0,0F1,1B0\n", "f.csv:2:5", "stage 0 is on this rank and on rank 0"},
      {"0F0,0B0\n2F0,2B0\n", "f.csv", "has no stage 1"},
      {"0F0,0F0,0B0\n", "f.csv:1:5", "0F0 is there twice"},
      {"0F0,0F2,0B0,0B2\n", "f.csv", "stage 0 has no forward of microbatch 1"},
      {"0F0,0F1000000,0B0\n", "f.csv", "stage 0 has no forward of microbatch 1"},
      {"0F0\n1F0,1B0\n", "f.csv:1:1", "0F0 has no backward"},
      {"0F0,0I0\n", "f.csv:1:1", "0F0 has no weight gradient"},
      {"0F0,0F1,0I0,0W0,0B1,0W1\n", "f.csv:1:17", "has an I or W as well"},
      {"0B0,0F0\n", "f.csv: rank 0, 0B0", "comes before its forward"},
      {"0F0,0W0,0I0\n", "f.csv: rank 0, 0W0", "comes before its input gradient"},
      {"0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "f.csv: rank 0", "is stuck at"},
      {"0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "f.csv: link 0 to 1",
       "is sent 0 and received 1 times"},
      {"0F0,0SEND_F0,0B0,0RECV_B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "f.csv: rank 0, 0B0",
       "was not received before"},
      {"0SEND_F0,0F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n", "f.csv: rank 0, 0SEND_F0",
       "comes before the computation"},
      {"0RECV_F0,0F0,0B0\n", "f.csv: rank 0, 0RECV_F0", "no link joins these stages"},
      {"0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n", "f.csv", "has 2 stages, expected 3", &other},
      {"0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n", "f.csv", "has 2 microbatches, expected 4", &more},
      {"0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1B1\n", "f.csv", "has 2 ranks, expected 1", &v},
  };
  for (const Row& row : rows) {
    const Result<CsvSchedule> read = read_schedule_csv(row.text, "f.csv", {.shape = row.shape});
    ASSERT_FALSE(read) << row.text;
    const Problem& problem = read.problems().front();
    EXPECT_TRUE(problem.where.starts_with(row.where)) << row.text << to_string(problem);
    EXPECT_NE(problem.what.find(row.what), std::string::npos) << row.text << to_string(problem);
  }
}

TEST(ScheduleCsv, WritingRefusesWhatTheFormatCannotSay) {
  const auto refusal = [](Kind kind, const PipelineShape& shape, CsvContent content) {
    const Result<std::string> text = schedule_csv(*make_schedule(kind, shape), shape, content);
    EXPECT_FALSE(text);
    return to_string(text.problems());
  };
  PipelineShape skip = chain_shape(3, 2);
  skip.links = {{StageId(0), StageId(1)}, {StageId(0), StageId(2)}, {StageId(1), StageId(2)}};
  EXPECT_NE(refusal(Kind::PipeDream, chain_shape(2, 4), CsvContent::Computations).find("in the middle"),
            std::string::npos);
  EXPECT_NE(refusal(Kind::GPipe, chain_shape(2, 4, 2), CsvContent::Computations).find("one replica"),
            std::string::npos);
  EXPECT_NE(refusal(Kind::GPipe, skip, CsvContent::Transfers).find("next stage only"), std::string::npos);
  EXPECT_TRUE(schedule_csv(*make_schedule(Kind::GPipe, skip), skip));
}

std::string notes_of(const CsvSchedule& read) {
  std::string all;
  for (const std::string& note : read.notes) all += note + "\n";
  return all;
}

TEST(ScheduleCsv, BlankLinesAtTheEndAreNoRanks) {
  const std::string good = written(Kind::OneFOneB, chain_shape(3, 4), CsvContent::Computations);
  for (const char* tail : {"", "\n", "\n\n", "\r\n\r\n", "   \n", ",,,\n"}) {
    const Result<CsvSchedule> read = read_schedule_csv(good + tail, "f");
    ASSERT_TRUE(read) << to_string(read.problems());
    EXPECT_EQ(read->shape.num_ranks(), 3);
  }
  const Result<CsvSchedule> gap = read_schedule_csv("0F0,0B0\n\n1F0,1B0\n", "f");
  ASSERT_FALSE(gap);
  EXPECT_EQ(to_string(gap.problems()).rfind("f:2:1: rank 1 has no actions", 0), 0u);
}

/// PyTorch's Schedule1F1B: the last rank's forwards are 1 .. m, its backwards 0 .. m - 1.
TEST(ScheduleCsv, ForwardsThatAreNumberedFromOneAreReadFromZero) {
  for (int places = 1; places <= 4; ++places) {
    for (int m = places; m <= 6; ++m) {
      const std::string good = written(Kind::OneFOneB, chain_shape(places, m), CsvContent::Computations);
      std::string shifted = good;
      const std::string last = std::to_string(places - 1) + "F";
      for (std::size_t at = 0; (at = shifted.find(last, at)) != std::string::npos; at += last.size())
        shifted.replace(at + last.size(), 1, std::to_string(shifted[at + last.size()] - '0' + 1));
      const Result<CsvSchedule> read = read_schedule_csv(shifted, "f");
      ASSERT_TRUE(read) << shifted << to_string(read.problems());
      EXPECT_EQ(to_string(read->schedule), to_string(read_schedule_csv(good, "f")->schedule));
      EXPECT_NE(notes_of(*read).find("numbered from 1"), std::string::npos);
    }
  }
  EXPECT_FALSE(read_schedule_csv("0F1,0F2,0B1,0B2\n", "f"));  // backwards too: microbatch 0 is missing
}

/// Weights that are summed in another order are equal to rounding only: the file says so before it runs.
TEST(ScheduleCsv, NotesSumsInAnotherOrder) {
  const Result<CsvSchedule> reversed = read_schedule_csv("0F0,0F1,0B1,0B0\n", "f");
  ASSERT_TRUE(reversed) << to_string(reversed.problems());
  EXPECT_NE(notes_of(*reversed).find("stage 0 adds the weight gradient of microbatch 0 after that of 1"),
            std::string::npos)
      << notes_of(*reversed);
  for (Kind kind : {Kind::GPipe, Kind::OneFOneB, Kind::ZeroBubbleH1, Kind::ZeroBubbleV, Kind::DualPipeV}) {
    const std::string good =
        written(kind, is_v_shaped(kind) ? v_shape(3, 6) : chain_shape(3, 6), CsvContent::Computations);
    EXPECT_EQ(notes_of(*read_schedule_csv(good, "f")).find("adds the weight gradient"), std::string::npos);
  }
}

/// Damaged files are refused or read as something valid; never a crash, never an invalid schedule.
TEST(ScheduleCsv, DamageIsRefusedOrHarmless) {
  RandomStream random(3);
  const std::string letters = "0123456789FBIW,;()\n\r SENDRCVUHAG_OL-";
  for (CsvContent content : {CsvContent::Computations, CsvContent::Transfers}) {
    for (Kind kind : {Kind::OneFOneB, Kind::ZeroBubbleV, Kind::DualPipeV}) {
      const std::string good = written(kind, is_v_shaped(kind) ? v_shape(2, 3) : chain_shape(3, 3), content);
      for (int round = 0; round < 2000; ++round) {
        std::string bad = good;
        const std::size_t at = random.below(bad.size());
        if (random.below(2))
          bad[at] = letters[random.below(letters.size())];
        else
          bad.erase(at, 1 + random.below(4));
        const Result<CsvSchedule> read = read_schedule_csv(bad, "f");
        if (!read) {
          ASSERT_FALSE(read.problems().front().what.empty());
          continue;
        }
        ASSERT_EQ(to_string(check(read->schedule, read->shape, Transport::Buffered)), "") << bad;
      }
    }
  }
}

}  // namespace
}  // namespace millrace
