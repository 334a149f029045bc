// What ranks that are left write after a failure, joined to a checkpoint.
#include "runtime/saved/rescued.h"

#include <gtest/gtest.h>

#include <cstring>

#include "driver/launch/restarts.h"
#include "runtime/base/files.h"
#include "runtime/plan/plan.h"
#include "runtime/saved/manifest.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr int kStages = 2;

class Rescued : public testing::Test {
 protected:
  /// Writes the part of a rank that holds one stage.
  void part(int rank, int stage, std::int64_t step, const std::string& model = "mlp") {
    const fs::path folder = rescue_folder(checkpoints(), step, "feed");
    fs::create_directories(folder);
    TensorFileWriter file((folder / rescued_shard_name(rank, stage)).string(),
                          {{"w" + std::to_string(stage), ElementType::I64, {1}}});
    const std::int64_t value = 10 * step + stage;
    file.add(&value, sizeof value);
    const FileDigest digest = file.commit();
    const CheckpointInfo info{.run = "feed", .model = model, .step = step};
    ASSERT_TRUE(write_rescued_part(folder, rank, kStages, manifest_of(info, {{shard_name(stage), digest}})));
  }
  std::optional<std::int64_t> published(bool accepts = true) {
    const auto step = publish_rescued(checkpoints(), [&](std::int64_t) { return accepts; });
    for (const auto& entry : fs::directory_iterator(checkpoints()))
      EXPECT_EQ(entry.path().filename().string().find(".tmp"), std::string::npos) << "no part stays";
    return step;
  }
  fs::path checkpoints() const { return folder_.path("checkpoints"); }

  TemporaryFolder folder_;
};

TEST_F(Rescued, IsTheNewestStepOfWhichEveryStageIsThere) {
  part(1, 0, 12);
  part(2, 1, 12);
  part(3, 1, 13);
  part(0, 0, 12);
  EXPECT_EQ(published(), 12);
  const fs::path step = checkpoints() / step_name(12);
  const Result<ManifestHead> manifest = read_manifest_head(step);
  ASSERT_TRUE(manifest) << to_string(manifest.problems());
  EXPECT_EQ(manifest->shards.size(), 2u);
  EXPECT_EQ(manifest->json.find("stages"), nullptr);
  EXPECT_TRUE(check_shards(step, *manifest).empty());
  const Result<TensorFile> shard = TensorFile::open((step / shard_name(1)).string());
  ASSERT_TRUE(shard);
  std::int64_t value = 0;
  std::memcpy(&value, shard->elements("w1").data(), sizeof value);
  EXPECT_EQ(value, 121);
  const Result<Latest> latest = read_latest(checkpoints());
  ASSERT_TRUE(latest);
  EXPECT_EQ(latest->step, step_name(12));
  // The same step again is there already.
  part(1, 0, 12);
  part(2, 1, 12);
  EXPECT_EQ(published(), std::nullopt);
}

TEST_F(Rescued, IsNothingWhereSomethingIsMissing) {
  part(1, 0, 12);
  part(3, 1, 13);
  EXPECT_EQ(published(), std::nullopt) << "stages after different steps";
  part(1, 0, 12);
  part(2, 1, 12, "another");
  EXPECT_EQ(published(), std::nullopt) << "parts of two runs";
  part(1, 0, 12);
  part(2, 1, 12);
  EXPECT_EQ(published(false), std::nullopt) << "the log does not go so far";
  part(1, 0, 12);
  part(2, 1, 12);
  fs::remove(rescue_folder(checkpoints(), 12, "feed") / rescued_shard_name(2, 1));
  EXPECT_EQ(published(), std::nullopt);
  part(1, 0, 12);
  part(2, 1, 12);
  ASSERT_TRUE(write_file_atomically(rescue_folder(checkpoints(), 12, "feed") / "rank1.json", "{}"));
  EXPECT_EQ(published(), std::nullopt) << "a part that did not end";
  EXPECT_TRUE(fs::is_empty(checkpoints()));
  EXPECT_EQ(publish_rescued(folder_.path("nowhere"), [](std::int64_t) { return true; }), std::nullopt);
}

/// Rank 2 was killed between its last update and its line. Its replica, rank 3, has the losses, too.
TEST_F(Rescued, ALogThatLacksTheStepGetsTheLineOfAReplica) {
  ASSERT_TRUE(
      uniform_plan("mlp", {"a", "b"}, 2, 2, 2, ScheduleKind::OneFOneB).save(folder_.path("plan.json")));
  const auto log = [&](int rank) { return "steps.rank" + std::to_string(rank) + ".jsonl"; };
  const auto line = [](int rank, int step) {
    return "{\"step\":" + std::to_string(step) + ",\"loss\":" + (rank < 2 ? "null" : "0.1") + "}\n";
  };
  for (int rank = 0; rank < 4; ++rank) {
    folder_.write(log(rank), "{\"rank\":" + std::to_string(rank) + "}\n" + line(rank, 10) +
                                 (rank == 2 ? "{\"step\":11,\"lo" : line(rank, 11)));
    if (rank != 2) part(rank, rank / 2, 12);
  }
  JobSpec job;
  job.output_dir = folder_.path();
  job.restarts.most = 1;
  EXPECT_EQ(keep_what_is_left({.first_failure = 2}, job), 12);
  EXPECT_EQ(folder_.read(log(2)),
            "{\"rank\":2}\n" + line(2, 10) + "{\"step\":11,\"loss\":0.1,\"copied_from\":\"rank3\"}\n");
  EXPECT_EQ(folder_.read(log(3)), "{\"rank\":3}\n" + line(3, 10) + line(3, 11));
  // No replica has the next step's.
  part(0, 0, 13);
  part(3, 1, 13);
  EXPECT_EQ(keep_what_is_left({.first_failure = 2}, job), std::nullopt);
}

}  // namespace
}  // namespace millrace
