// What the launcher's folder holds while checkpoints of hosts with disks of their own come in: the old one or
// the new one, whatever was received last.
#include "driver/launch/checkpoint_collector.h"

#include <gtest/gtest.h>

#include <vector>

#include "driver/hosts/delivered_checkpoint.h"
#include "driver/hosts/own_shards.h"
#include "runtime/base/files.h"
#include "runtime/saved/manifest.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

/// A safetensors file that is larger than a piece of a frame.
std::string shard_content(std::int64_t step, int stage) {
  const std::int64_t bytes = 600'000 + stage;
  const std::string end = std::to_string(bytes);
  const std::string header =
      "{\"w\":{\"dtype\":\"U8\",\"shape\":[" + end + "],\"data_offsets\":[0," + end + "]}}";
  std::string text(8, '\0');
  text[0] = static_cast<char>(header.size());
  return text + header +
         std::string(static_cast<std::size_t>(bytes), static_cast<char>('a' + step % 20 + stage));
}

std::string manifest_of(std::int64_t step, const std::string& run = "aa") {
  std::vector<ShardEntry> shards;
  for (int stage = 0; stage < 3; ++stage) {
    const std::string content = shard_content(step, stage);
    shards.push_back(
        {shard_name(stage),
         {.bytes = static_cast<std::int64_t>(content.size()), .hash = xxh3(content.data(), content.size())}});
  }
  return sealed_manifest(manifest_of(CheckpointInfo{.run = run, .model = "m", .step = step}, shards));
}

class Collecting : public ::testing::Test {
 protected:
  fs::path own(int host) const { return fs::path(folder_.path()) / ("host" + std::to_string(host)); }
  fs::path gathered() const { return fs::path(folder_.path()) / "checkpoints"; }

  /// Host 0 has stage 0, host 1 the others.
  void save(int host, std::int64_t step) {
    const fs::path temporary = own(host) / "temporary";
    ASSERT_TRUE(make_writable_folder(temporary));
    for (int stage = 0; stage < 3; ++stage) {
      if ((stage == 0) != (host == 0)) continue;
      ASSERT_TRUE(write_file_atomically(temporary / shard_name(stage), shard_content(step, stage)));
    }
    ASSERT_TRUE(publish_checkpoint(own(host), temporary, manifest_of(step), Retention{.newest = 2},
                                   Shards::OfThisHost));
  }

  /// The step that a reader of the launcher's folder takes; -1: none. It must be whole.
  std::int64_t found() const {
    const Result<CheckpointChoice> choice = checkpoints_at(gathered().string());
    if (!choice) return -1;
    const Result<ManifestHead> head = read_manifest_head(choice->steps.front());
    EXPECT_TRUE(head);
    EXPECT_TRUE(check_shards(choice->steps.front(), *head).empty());
    return head->step;
  }

  CheckpointCollector collector() const {
    return CheckpointCollector({.folder = gathered(), .num_hosts = 2, .keep = {.newest = 2}});
  }

  TemporaryFolder folder_;
};

struct Piece {
  int host;
  OwnShards::Piece piece;
};

/// All that the hosts send of a step, one piece of each host in turn.
std::vector<Piece> pieces_of(std::vector<OwnShards>& hosts, const std::string& step) {
  std::vector<Piece> pieces;
  for (OwnShards& host : hosts) host.collect(step);
  while (hosts[0].is_sending() || hosts[1].is_sending()) {
    for (int host = 0; host < 2; ++host)
      if (hosts[host].is_sending()) pieces.push_back({host, hosts[host].next()});
  }
  return pieces;
}

TEST_F(Collecting, EveryPrefixOfWhatComesLeavesTheOldOrTheNewOne) {
  std::vector<OwnShards> hosts;
  for (int host = 0; host < 2; ++host) hosts.emplace_back(own(host));
  std::vector<std::string> manifests;
  std::vector<std::vector<Piece>> of_step;
  for (const std::int64_t step : {4, 8}) {
    for (int host = 0; host < 2; ++host) {
      save(host, step);
      const std::optional<std::string> announced = hosts[host].look();
      ASSERT_TRUE(announced);
      EXPECT_EQ(*announced, manifest_of(step));
      EXPECT_FALSE(hosts[host].look()) << "it was told before";
    }
    manifests.push_back(manifest_of(step));
    of_step.push_back(pieces_of(hosts, step_name(step)));
    ASSERT_GT(of_step.back().size(), 8u) << "shards go in pieces";
  }
  const std::size_t all = of_step[1].size();
  for (std::size_t cut = 0; cut <= all; ++cut) {
    fs::remove_all(gathered());
    {
      CheckpointCollector first = collector();
      for (std::size_t s = 0; s < 2; ++s) {
        first.saved(0, manifests[s]);
        EXPECT_FALSE(first.next()) << "only one host has it";
        first.saved(1, manifests[s]);
        ASSERT_EQ(first.next(), step_name(s == 0 ? 4 : 8));
        for (std::size_t i = 0; i < (s == 0 ? of_step[0].size() : cut); ++i)
          first.take(of_step[s][i].host, of_step[s][i].piece.path, of_step[s][i].piece.bytes);
      }
    }  // the launcher is killed: nothing is tidied up
    const std::int64_t step = found();
    EXPECT_TRUE(step == 4 || step == 8) << cut;
    EXPECT_EQ(step == 8, cut >= all - 1) << cut << ": the last piece only ends the step";
  }
  EXPECT_FALSE(fs::exists(gathered() / "step-00000008.tmp.aa"));
}

TEST_F(Collecting, WhatIsMissingDamagedOrTooLongLeavesTheOldOne) {
  std::vector<OwnShards> hosts;
  for (int host = 0; host < 2; ++host) hosts.emplace_back(own(host));
  const auto gather = [&](std::int64_t step, const std::function<void(std::vector<Piece>&)>& fault) {
    for (int host = 0; host < 2; ++host) {
      save(host, step);
      hosts[host].look();
    }
    CheckpointCollector one = collector();
    for (int host = 0; host < 2; ++host) one.saved(host, manifest_of(step));
    const std::optional<std::string> name = one.next();
    ASSERT_TRUE(name);
    std::vector<Piece> pieces = pieces_of(hosts, *name);
    fault(pieces);
    for (const Piece& piece : pieces) one.take(piece.host, piece.piece.path, piece.piece.bytes);
    EXPECT_FALSE(one.is_busy());
    EXPECT_FALSE(fs::exists(gathered() / (*name + ".tmp.aa")));
  };
  gather(4, [](auto&) {});
  ASSERT_EQ(found(), 4);
  gather(5, [](auto& pieces) { pieces[3].piece.bytes[100] ^= 1; });
  EXPECT_EQ(found(), 4);
  gather(6, [](auto& pieces) { pieces.insert(pieces.begin() + 2, pieces[2]); });
  EXPECT_EQ(found(), 4);
  gather(7, [](auto& pieces) {
    std::erase_if(pieces, [](const Piece& p) { return p.piece.path.ends_with(shard_name(2)); });
  });
  EXPECT_EQ(found(), 4);
  gather(8, [](auto& pieces) {  // names of others are not written
    for (const char* name : {"../canary", "step-00000008/../../canary", "/canary", "step-00000008/canary"})
      pieces.insert(pieces.begin(), {0, {name, "x"}});
  });
  EXPECT_EQ(found(), 8);
  EXPECT_FALSE(fs::exists(folder_.path("canary")));
  EXPECT_FALSE(fs::exists(gathered() / "step-00000008/canary"));
}

/// A host writes its manifests, and seals them, as it likes.
TEST_F(Collecting, AManifestDoesNotLeadOutOfTheFolder) {
  const std::string outside = folder_.path("outside");
  ASSERT_TRUE(make_writable_folder(outside));
  for (const std::string& manifest :
       {manifest_of(4, "x/../../outside"), manifest_of(4, "/../../outside"), manifest_of(4, "a\nb"),
        manifest_of(4, std::string(65, 'a')), manifest_of(-4)}) {
    CheckpointCollector one = collector();
    for (int host = 0; host < 2; ++host) one.saved(host, manifest);
    EXPECT_FALSE(one.next()) << manifest;
    one.take(0, step_name(4) + "/" + shard_name(0), shard_content(4, 0));
  }
  EXPECT_TRUE(fs::is_empty(outside));
  EXPECT_FALSE(fs::exists(gathered()));
}

TEST_F(Collecting, ALostHostLeavesTheOldOne) {
  CheckpointCollector one = collector();
  for (int host = 0; host < 2; ++host) one.saved(host, manifest_of(4));
  ASSERT_TRUE(one.next());
  one.take(0, step_name(4) + "/" + shard_name(0), "aaa");
  one.lost(1);
  EXPECT_FALSE(one.is_busy());
  EXPECT_EQ(found(), -1);
  for (int host = 0; host < 2; ++host) one.saved(host, "{}");
  EXPECT_FALSE(one.next()) << "no manifest";
}

TEST_F(Collecting, AHostTakesWhatItHasAndAsksForTheRest) {
  for (int host = 0; host < 2; ++host) save(host, 4);
  const fs::path there = folder_.path("there");
  Result<DeliveredCheckpoint> one =
      DeliveredCheckpoint::begin({.folder = there.string(), .manifest = manifest_of(4)}, own(0), 0);
  ASSERT_TRUE(one);
  ASSERT_EQ(one->missing().size(), 2u) << "stage 0 is its own";
  for (const std::string& path : one->missing()) {
    EXPECT_TRUE(one->wants(path));
    const std::string content = shard_content(4, path.ends_with(shard_name(1)) ? 1 : 2);
    EXPECT_TRUE(one->take(path, content.substr(0, 1000)));
    EXPECT_TRUE(one->take(path, content.substr(1000)));
    EXPECT_TRUE(one->take(path, ""));
  }
  ASSERT_TRUE(one->finish());
  const Result<ManifestHead> head = read_manifest_head(there / step_name(4));
  ASSERT_TRUE(head);
  EXPECT_TRUE(check_shards(there / step_name(4), *head).empty());
  // A second time nothing is missing; a damaged file is fetched again.
  EXPECT_TRUE(DeliveredCheckpoint::begin({there.string(), manifest_of(4)}, own(0), 0)->missing().empty());
  ASSERT_TRUE(write_file_atomically(there / step_name(4) / shard_name(2), shard_content(5, 2)));
  EXPECT_EQ(DeliveredCheckpoint::begin({there.string(), manifest_of(4)}, own(0), 0)->missing().size(), 1u);
  EXPECT_FALSE(DeliveredCheckpoint::begin({there.string(), "{}"}, own(0), 0));
}

}  // namespace
}  // namespace millrace
