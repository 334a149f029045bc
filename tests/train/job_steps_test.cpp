#include "runtime/train/job_steps.h"

#include <array>

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(JobSteps, AFreshRunIsAtTheStepsOfItsJobs) {
  const JobSteps jobs({3, 5}, false);
  EXPECT_FALSE(jobs.apart());
  EXPECT_TRUE(jobs.end_apart());
  EXPECT_EQ(jobs.last(), 5);
  EXPECT_EQ(jobs.own(0, 2), 2);
  EXPECT_EQ(jobs.own(0, 4), 3) << "it stays where it ended";
  EXPECT_TRUE(jobs.ended_at(2).empty());
  EXPECT_EQ(jobs.ended_at(3), (std::vector<char>{1, 0}));
}

TEST(JobSteps, JobsThatGoOnAtDifferentStepsHaveTheirOwnCounts) {
  JobSteps jobs({10, 10, 10}, false);
  jobs.resume(6, std::array<std::int64_t, 3>{6, 2, 10}, std::array{2, 1});
  EXPECT_TRUE(jobs.apart());
  EXPECT_EQ(jobs.joined(1), 4);
  EXPECT_EQ(jobs.own(1, 9), 5);
  EXPECT_EQ(jobs.end(1), 14);
  EXPECT_TRUE(jobs.ended_before_run(2));
  EXPECT_EQ(jobs.own(2, 14), 10);
  EXPECT_EQ(jobs.last(), 14) << "who has ended keeps nobody";
  EXPECT_EQ(jobs.ended_at(12), (std::vector<char>{1, 0, 1}));
}

TEST(JobSteps, WhoHasEndedJoinsThoseOfItsArrayThatGoOn) {
  JobSteps jobs({4, 10}, false);
  jobs.resume(6, std::array<std::int64_t, 2>{4, 3}, std::array{2});
  EXPECT_EQ(jobs.joined(0), jobs.joined(1)) << "they read the same microbatches";
  EXPECT_EQ(jobs.own(0, 6), 4);
}

TEST(JobSteps, ARunThatDidMoreThanItIsNowToDoKeepsItsCount) {
  JobSteps one({3}, false);
  one.resume(5, std::array<std::int64_t, 1>{5}, std::array{1});
  EXPECT_EQ(one.own(0, 5), 5);
  EXPECT_FALSE(one.ended_before_run(0)) << "a single job is the run";
}

TEST(JobSteps, AsynchronousJobsEndTogether) {
  JobSteps jobs({3, 3}, true);
  EXPECT_EQ(jobs.own(0, 4), 4) << "the cycle is finished";
  EXPECT_TRUE(jobs.ended_at(4).empty());
}

}  // namespace
}  // namespace millrace
