// What hosts with folders of their own may send, and what of it comes into the launcher's folder.
#include "driver/launch/host_results.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "driver/hosts/frames.h"
#include "driver/launch/held_checkpoints.h"
#include "runtime/base/files.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

TEST(ResultFiles, AreThoseOfTheHostsRanks) {
  constexpr auto None = ResultForm::None, Whole = ResultForm::Whole, Growing = ResultForm::Growing;
  struct Case {
    const char* path;
    ResultForm host0, host1;  // with ranks 0 and 1, and with ranks 2 and 13, of which 13 owns the loss
  };
  for (const Case& c : {
           Case{"steps.rank0.jsonl", Growing, None},
           Case{"steps.rank13.jsonl", None, Growing},
           Case{"counters.rank1.jsonl", Growing, None},
           Case{"round2/counters.rank1.jsonl", Growing, None},
           Case{"status.rank2.json", None, Whole},
           Case{"trace.rank0.json", Whole, None},
           Case{"failure.rank0.json", Whole, None},
           Case{"flight.rank13.bin", None, Whole},
           Case{"plan.json", Whole, None},
           Case{"schedule.csv", Whole, None},
           Case{"measured.yaml", Whole, None},
           Case{"bleu/step-12", Whole, None},
           Case{"round1/plan.json", Whole, None},
           Case{"summary.json", None, Whole},
           Case{"jobs.csv", None, Growing},
           Case{"round1/summary.json", None, Whole},
       }) {
    EXPECT_EQ(result_form(c.path, {0, 1}, 13), c.host0) << c.path;
    EXPECT_EQ(result_form(c.path, {2, 13}, 13), c.host1) << c.path;
  }
  for (const char* path : {"",
                           "run.lock",
                           "job.yaml",
                           "job.sbatch",
                           "launch-manifest.json",
                           "failure.json",
                           "report.html",
                           "latest",
                           "cluster.yaml",
                           "logs/rank_0.err",
                           "inputs/x",
                           "checkpoints/latest",
                           "checkpoints/step-00000004/manifest.json",
                           "/steps.rank0.jsonl",
                           "./steps.rank0.jsonl",
                           "../steps.rank0.jsonl",
                           "round1/../job.yaml",
                           "round1//plan.json",
                           "round1/round2/plan.json",
                           "round-1/plan.json",
                           "round01/plan.json",
                           "roundx/plan.json",
                           "bleu/step-",
                           "bleu/step-1/../../job.yaml",
                           "bleu/step-1x",
                           "steps.rank00.jsonl",
                           "steps.rank+0.jsonl",
                           "steps.rank0.jsonl.tmp.7",
                           "steps.rank-0.jsonl",
                           "steps.rank0.jsonl/",
                           "status.rank9.json"})
    EXPECT_EQ(result_form(path, {0, 1, 2, 13}, -1), None) << path;
  EXPECT_EQ(result_form("summary.json", {2}, -1), Whole) << "nobody knows whose the loss is";
}

TEST(ResultFiles, LinesBehindTheLastOneThatTheLauncherHas) {
  const std::string log = "a\nb\nc\nd\nhal";
  EXPECT_EQ(lines_behind(log, "b"), "c\nd\n");
  EXPECT_EQ(lines_behind(log, "d"), "");
  EXPECT_EQ(lines_behind(log, ""), "a\nb\nc\nd\n");
  EXPECT_EQ(lines_behind(log, "x"), "") << "another log";
  EXPECT_EQ(lines_behind("xa\na\ny\n", "a"), "y\n") << "whole lines only";
  EXPECT_EQ(lines_behind("", "a"), "");
}

TEST(ResultFiles, LogsComeInOrderAndInWholeLines) {
  const TemporaryFolder folder;
  const std::string log = folder.write("steps.rank0.jsonl", "of an earlier job\n");
  GrowingLogs logs(folder.path(""), {0});
  EXPECT_FALSE(fs::exists(log));
  EXPECT_TRUE(logs.next().empty());
  const std::string first(kPiece - 10, 'x'), second(2 * kPiece + 5, 'y');
  folder.write("steps.rank0.jsonl", first + "\n" + second + "\nhalf");
  std::string all;
  int pieces = 0;
  for (std::vector<GrowingLogs::Piece> next; !(next = logs.next()).empty(); ++pieces) {
    ASSERT_EQ(next.size(), 1u);
    EXPECT_EQ(next[0].path, "steps.rank0.jsonl");
    EXPECT_EQ(next[0].offset, static_cast<std::int64_t>(all.size()));
    EXPECT_LE(next[0].bytes.size(), kPiece);
    all += next[0].bytes;
  }
  EXPECT_EQ(all, first + "\n" + second + "\n");
  EXPECT_GE(pieces, 4);
}

class Received : public testing::Test {
 protected:
  HostResults results(std::optional<std::int64_t> from_step = {}, bool keeps_all = false) {
    return HostResults({.folder = folder_.path(""),
                        .ranks = {{0}, {1}},
                        .loss_rank = 1,
                        .from_step = from_step,
                        .keeps_all = keeps_all});
  }
  std::string text(const std::string& name) {
    return fs::exists(folder_.path(name)) ? folder_.read(name) : "none";
  }

  TemporaryFolder folder_;
};

TEST_F(Received, NothingButAHostsOwnFilesIsWritten) {
  for (const char* name : {"run.lock", "job.yaml", "steps.rank1.jsonl", "summary.json"})
    folder_.write(name, "mine");
  fs::create_directory_symlink(folder_.path("elsewhere"), folder_.path("round1"));
  fs::create_directory(folder_.path("elsewhere"));
  fs::create_symlink(folder_.path("job.yaml"), folder_.path("steps.rank0.jsonl"));
  fs::create_symlink(folder_.path("job.yaml"), folder_.path("status.rank0.json"));
  HostResults received = results();
  for (const char* name : {"run.lock", "job.yaml", "summary.json", "../x", "round1/plan.json"})
    received.whole(0, name, "theirs");
  for (const char* name : {"steps.rank1.jsonl", "steps.rank0.jsonl", "job.yaml"})
    received.grown(0, name, 0, "theirs\n");
  received.whole(0, "status.rank0.json", "{}");
  received.whole(7, "status.rank0.json", "of no host");
  for (const char* name : {"run.lock", "job.yaml", "steps.rank1.jsonl", "summary.json"})
    EXPECT_EQ(text(name), "mine") << name;
  EXPECT_TRUE(fs::is_empty(folder_.path("elsewhere")));
  EXPECT_EQ(text("status.rank0.json"), "{}") << "in the place of the link";
}

constexpr const char* kEarlier =
    "{\"format\":\"millrace-steps-1\",\"run\":\"aa\"}\n{\"step\":0}\n{\"step\":1}\n{\"step\":2}\n";

TEST_F(Received, ALogGoesOnBehindTheStepThatItIsResumedFrom) {
  folder_.write("steps.rank1.jsonl", kEarlier);
  folder_.write("jobs.csv", "step,job,loss,lr,status\n0,0,1.5,0.1,ok\n1,0,1.4,0.1,ok\n2,0,1.3,0.1,ok\n");
  folder_.write("counters.rank1.jsonl", "{}\n");
  HostResults received = results(2);
  received.grown(1, "steps.rank1.jsonl", 0, "{\"run\":\"aa\"}\n");
  received.grown(1, "steps.rank1.jsonl", 13, "{\"step\":2,\"again\":1}\n");
  received.grown(1, "jobs.csv", 0, "step,job,loss,lr,status\n2,0,1.25,0.1,ok\n");
  received.grown(1, "counters.rank1.jsonl", 0, "{\"t\":1}\n");
  EXPECT_EQ(text("steps.rank1.jsonl"),
            "{\"format\":\"millrace-steps-1\",\"run\":\"aa\"}\n{\"step\":0}\n{\"step\":1}\n{\"run\":\"aa\"}\n"
            "{\"step\":2,\"again\":1}\n");
  EXPECT_EQ(text("jobs.csv"), "step,job,loss,lr,status\n0,0,1.5,0.1,ok\n1,0,1.4,0.1,ok\n2,0,1.25,0.1,ok\n");
  EXPECT_EQ(text("counters.rank1.jsonl"), "{}\n{\"t\":1}\n");
}

TEST_F(Received, ALogOfAnotherRunBeginsAnew) {
  folder_.write("steps.rank1.jsonl", kEarlier);
  HostResults received = results();
  received.grown(1, "steps.rank1.jsonl", 0, "{\"run\":\"bb\"}\n");
  EXPECT_EQ(text("steps.rank1.jsonl"), "{\"run\":\"bb\"}\n");
}

TEST_F(Received, ALargeFileComesInPiecesAndTakesThePlaceOfAnEarlierOne) {
  folder_.write("trace.rank1.json", "of an earlier attempt");
  HostResults received = results(2);
  const std::string first(kPiece, 'a'), sent = folder_.write("sent", first + "\nthe rest");
  std::int64_t offset = 0;
  for (std::string piece; !(piece = piece_of_file(sent, offset)).empty(); offset += std::ssize(piece))
    received.grown(1, "trace.rank1.json", offset, piece);
  EXPECT_EQ(text("trace.rank1.json"), first + "\nthe rest");
}

TEST_F(Received, APieceThatIsOutOfOrderEndsTheLog) {
  HostResults received = results();
  received.grown(1, "steps.rank1.jsonl", 0, "a\n");
  for (const std::int64_t offset : {4, 2, 0, 10, -1}) received.grown(1, "steps.rank1.jsonl", offset, "b\n");
  EXPECT_EQ(text("steps.rank1.jsonl"), "a\n");
  HostResults late = results();
  late.grown(0, "steps.rank0.jsonl", 7, "b\n");
  late.grown(0, "steps.rank0.jsonl", 9, "c\n");
  EXPECT_EQ(text("steps.rank0.jsonl"), "none");
}

TEST_F(Received, WhatAKilledLauncherLacksGoesBehindItsLastWholeLine) {
  folder_.write("steps.rank1.jsonl", std::string(kEarlier) + "{\"ste");
  EXPECT_EQ(last_whole_line(folder_.path("steps.rank1.jsonl")), "{\"step\":2}");
  EXPECT_EQ(last_whole_line(folder_.path("absent")), "");
  HostResults received = results({}, true);
  received.grown(1, "steps.rank1.jsonl", 0, "{\"step\":3}\n");
  EXPECT_EQ(text("steps.rank1.jsonl"), std::string(kEarlier) + "{\"step\":3}\n");
  EXPECT_EQ(run_in(folder_.path("")), "aa");
}

std::string manifest_of(const std::string& run, std::int64_t step, const std::string& more = "") {
  Json shards = Json::array();
  for (const char* file : {"stage0.safetensors", "stage1.safetensors", "stage2.safetensors"})
    shards.push_back(
        Json::object({{"file", file}, {"bytes", 1}, {"xxh3_128", xxh3(file, 1 + more.size()).hex()}}));
  return sealed_manifest(
      Json::object({{"format", kCheckpointFormat}, {"run", run}, {"step", step}, {"shards", shards}}));
}

TEST(HeldCheckpoints, TheNewestThatAllHostsHoldTogetherComesFirst) {
  const auto held = [](const std::string& manifest, std::vector<int> stages) {
    HeldCheckpoint one{.manifest = manifest, .files = {}};
    for (const int stage : stages) one.files.push_back(shard_name(stage));
    return one;
  };
  const std::string m10 = manifest_of("aa", 10), m15 = manifest_of("aa", 15), m20 = manifest_of("aa", 20);
  using Hosts = std::vector<std::vector<HeldCheckpoint>>;
  const Hosts three{{held(m10, {0}), held(m15, {0}), held(m20, {0})},
                    {held(m10, {1}), held(m15, {1}), held(m20, {1})},
                    {held(m10, {2}), held(m15, {2}), held(m20, {2})}};
  EXPECT_EQ(whole_checkpoints(three, "aa", -1), (std::vector<std::string>{m20, m15, m10}));
  EXPECT_EQ(whole_checkpoints(three, "aa", 15), std::vector<std::string>{m20}) << "the launcher has 15";
  EXPECT_TRUE(whole_checkpoints(three, "aa", 20).empty());
  EXPECT_TRUE(whole_checkpoints(three, "bb", -1).empty()) << "another run's";
  Hosts one_late = three;
  one_late[2].pop_back();
  EXPECT_EQ(whole_checkpoints(one_late, "aa", -1), (std::vector<std::string>{m15, m10}));
  Hosts branches = three;  // the same step of two branches is not joined
  branches[1].back() = held(manifest_of("aa", 20, "x"), {1});
  EXPECT_EQ(whole_checkpoints(branches, "aa", -1), (std::vector<std::string>{m15, m10}));
  Hosts lost = three;
  lost[0].clear();
  EXPECT_TRUE(whole_checkpoints(lost, "aa", -1).empty());
  EXPECT_TRUE(whole_checkpoints({{{.manifest = "{}", .files = {}, .prefix = {}}}}, "aa", -1).empty());
  EXPECT_EQ(whole_checkpoints({{held(m10, {0, 1})}, {held(m10, {1, 2})}}, "aa", -1),
            std::vector<std::string>{m10});
}

}  // namespace
}  // namespace millrace
