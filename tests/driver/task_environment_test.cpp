// Tests how the variables of a scheduler tell this process its task, and cases in which they do not suffice.
#include "driver/launch/task_environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace millrace {
namespace {

using Environment = std::map<std::string, std::string>;

/// Asks while these are the only variables of schedulers.
template <class Ask>
auto asked(const Environment& environment, Ask ask) {
  std::vector<std::string> names;
  for (char** entry = environ; *entry; ++entry) {
    const std::string name = std::string(*entry).substr(0, std::string(*entry).find('='));
    for (const char* prefix : {"SLURM_", "OMPI_", "PMI_", "PMIX_", "MPI_", "MASTER_", "ENVIRONMENT"})
      if (name.starts_with(prefix)) names.push_back(name);
  }
  for (const std::string& name : names) ::unsetenv(name.c_str());
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  auto answer = ask();
  for (const auto& [name, value] : environment) ::unsetenv(name.c_str());
  return answer;
}

Result<std::optional<TaskPlace>> task_of(const Environment& environment) {
  return asked(environment, task_of_environment);
}

Environment with(Environment all, const Environment& more) {
  for (const auto& [name, value] : more) all[name] = value;
  return all;
}

const Environment kStep{{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_NTASKS", "8"},
                        {"SLURM_PROCID", "3"},         {"SLURM_LOCALID", "1"},
                        {"SLURM_JOB_ID", "1234567"},   {"SLURM_STEP_ID", "2"},
                        {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NODELIST", "gpu[01-02]"}};
const Environment kMpi{{"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};

TEST(Tasks, OneProcessIsNone) {
  for (const Environment& alone :
       {Environment{},
        {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "8"}},  // salloc's shell
        with(kStep, {{"SLURM_STEP_NUM_TASKS", "1"}}),
        with(kStep, {{"OMPI_COMM_WORLD_SIZE", "1"}}),  // mpirun -n 1 in a step
        {{"ENVIRONMENT", "BATCH"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}}}) {
    const auto task = task_of(alone);
    ASSERT_TRUE(task) << to_string(task.problems());
    EXPECT_FALSE(*task) << (*task)->variables;
  }
}

TEST(Tasks, SlurmSaysItAll) {
  const auto task = task_of(kStep);
  ASSERT_TRUE(task) << to_string(task.problems());
  ASSERT_TRUE(*task);
  const TaskPlace& place = **task;
  EXPECT_EQ(place.rank, 3);
  EXPECT_EQ(place.size, 4);
  EXPECT_EQ(place.local_rank, 1);
  EXPECT_FALSE(place.one_host);
  EXPECT_EQ(place.host, "gpu01");
  EXPECT_EQ(place.port, 24569) << "two steps of one node do not meet";
  EXPECT_EQ(place.job, "slurm 1234567.2");
  EXPECT_EQ((*task_of(with(kStep, {{"MASTER_ADDR", "10.0.0.9"}})))->host, "10.0.0.9");
  // srun --mpi=pmi2 sets both.
  EXPECT_EQ((*task_of(with(kStep, {{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}})))->host, "gpu01");
}

TEST(Tasks, MpiOnOneHostIsEnough) {
  const auto task = task_of(kMpi);
  ASSERT_TRUE(task) << to_string(task.problems());
  EXPECT_EQ((*task)->rank, 1);
  EXPECT_TRUE((*task)->one_host);
  EXPECT_EQ((*task)->host, "127.0.0.1");
  // mpirun in an allocation of Slurm: its own daemons are Slurm's tasks.
  EXPECT_EQ((*task_of(with(kStep, kMpi)))->size, 2);
  const auto pmi = task_of({{"PMI_SIZE", "2"}, {"PMI_RANK", "1"}, {"MPI_LOCALNRANKS", "2"}});
  ASSERT_TRUE(pmi) << to_string(pmi.problems());
  EXPECT_EQ((*pmi)->local_rank, 1);
}

TEST(Tasks, WhatIsNotSaidIsAskedFor) {
  const struct {
    Environment environment;
    std::vector<std::string> parts;
  } cases[] = {
      {with(kMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}),
       {"Open MPI", "on which host task 0 is", "OMPI_COMM_WORLD_RANK=1", "MASTER_ADDR"}},
      {{{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}}, {"PMI_SIZE=4", "which one of its host", "LOCAL_RANK"}},
      {with(kStep, {{"SLURM_PROCID", "4"}}), {"not which one", "SLURM_PROCID=4", "WORLD_SIZE"}},
      {with(kStep, {{"SLURM_STEP_NUM_TASKS", "many"}}), {"SLURM_STEP_NUM_TASKS=many"}},
      {with(kStep, {{"SLURM_DISTRIBUTION", "arbitrary"}}), {"SLURM_DISTRIBUTION=arbitrary", "MASTER_ADDR"}},
      {with(kStep, {{"SLURM_HET_SIZE", "2"}}), {"SLURM_HET_SIZE=2", "MASTER_ADDR"}},
      {{{"SLURM_NTASKS", "2"}, {"SLURM_PROCID", "1"}, {"SLURM_LOCALID", "0"}},
       {"SLURM_NTASKS=2", "MASTER_ADDR"}},
  };
  for (const auto& [environment, parts] : cases) {
    const auto task = task_of(environment);
    ASSERT_FALSE(task) << parts.front();
    const std::string text = to_string(task.problems());
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
}

TEST(Tasks, OfPmixAreThoseThatNobodyElseKnowsBetter) {
  const Environment pmix{{"PMIX_NAMESPACE", "job-1"}, {"PMIX_RANK", "1"}};
  const auto is_task = [](const Environment& all) { return asked(all, is_task_of_pmix); };
  EXPECT_FALSE(is_task({}));
  EXPECT_FALSE(is_task({{"PMIX_NAMESPACE", "job-1"}}));
  EXPECT_TRUE(is_task(pmix));              // prterun
  EXPECT_TRUE(is_task(with(pmix, kMpi)));  // mpirun
  EXPECT_FALSE(is_task(with(with(pmix, kMpi), {{"MASTER_ADDR", "node1"}})));
  EXPECT_FALSE(is_task(with(with(pmix, kMpi), {{"OMPI_COMM_WORLD_SIZE", "1"}})));
  // A launcher inside the one that speaks PMIx.
  EXPECT_FALSE(is_task(with(pmix, {{"PMI_SIZE", "4"}, {"PMI_RANK", "3"}})));
}

TEST(Tasks, TheFirstHostOfAList) {
  const std::map<std::string, std::string> lists{{"n1", "n1"},
                                                 {"node-a,node-b", "node-a"},
                                                 {"gpu[01-04,07],login", "gpu01"},
                                                 {"gpu[7]", "gpu7"},
                                                 {"rack[1-2]n[03,5-9]", "rack1n03"},
                                                 {"x[2,4]-ib", "x2-ib"},
                                                 {"", ""},
                                                 {"broken[1", ""}};
  for (const auto& [list, host] : lists) EXPECT_EQ(first_host(list), host) << list;
}

}  // namespace
}  // namespace millrace
