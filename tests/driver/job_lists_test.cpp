// Flags with a value for each job of a job array.
#include <gtest/gtest.h>

#include "driver/flags/compute_specs.h"
#include "driver/flags/job_lists.h"

namespace millrace {
namespace {

using Words = std::vector<std::string>;

TEST(JobLists, EachJobIsACommandLineOfItsOwn) {
  const auto lists =
      take_job_lists(train_spec(), {"--lr", "0.1", "0.2", "--seed=1", "2", "--fused", "--steps", "5",
                                    "--momentum", "0.9", "--weight-decay", "0", "-0.0"});
  ASSERT_TRUE(lists) << to_string(lists.problems());
  ASSERT_EQ(lists->args.size(), 2u);
  EXPECT_EQ(lists->args[0], (Words{"--lr=0.1", "--seed=1", "--fused", "--steps", "5", "--momentum", "0.9",
                                   "--weight-decay=0"}));
  EXPECT_EQ(lists->args[1], (Words{"--lr=0.2", "--seed=2", "--fused", "--steps", "5", "--momentum", "0.9",
                                   "--weight-decay=-0.0"}));
  EXPECT_TRUE(lists->has("lr"));
  EXPECT_FALSE(lists->has("momentum"));
}

TEST(JobLists, WithoutAListNothingIsTakenApart) {
  const Words words{"--model", "mlp", "--lr", "0.1", "-j", "2"};
  const auto one = take_job_lists(train_spec(), words);
  ASSERT_TRUE(one);
  EXPECT_EQ(one->args, (std::vector<Words>{words}));
  const auto jobs = take_job_lists(train_spec(), {"--fused", "--jobs", "3", "--lr", "0.1"});
  ASSERT_TRUE(jobs);
  EXPECT_EQ(jobs->args.size(), 3u);
}

TEST(JobLists, WhatCannotBeAnArrayIsRefusedWithItsFlag) {
  const struct {
    Words words;
    const char* says;
  } cases[] = {
      {{"--lr", "1", "2", "--seed", "1", "2", "3", "--fused"}, "--seed: is for 3 jobs, --lr for 2"},
      {{"--jobs", "4", "--lr", "1", "2", "--fused"}, "--lr: is for 2 jobs, --jobs for 4"},
      {{"--microbatch", "8", "16", "--fused"}, "--microbatch: cannot differ"},
      {{"--stages", "1", "2", "--fused"}, "--stages: cannot differ"},
      {{"--lr", "1", "2"}, "give --fused"},
      {{"--jobs", "3"}, "give --fused"},
      {{"--jobs", "x", "--fused"}, "--jobs"},
      {{"--lr", "1", "2", "--lr", "3", "4", "--fused"}, "given twice"},
  };
  for (const auto& c : cases) {
    const auto lists = take_job_lists(train_spec(), c.words);
    ASSERT_FALSE(lists) << c.says;
    EXPECT_NE(to_string(lists.problems()).find(c.says), std::string::npos) << to_string(lists.problems());
  }
}

}  // namespace
}  // namespace millrace
