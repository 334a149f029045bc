// What the programs of queues answer, as records of jobs and tasks.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "driver/launch/job_spec.h"
#include "driver/queues/engine.h"
#include "runtime/base/files.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

/// Scripts in the place of PBS's programs.
class PbsQueue : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("PATH", (folder_.path() + ":" + path_).c_str(), 1); }
  void TearDown() override { ::setenv("PATH", path_.c_str(), 1); }

  void program(const std::string& name, const std::string& script) {
    std::filesystem::permissions(folder_.write(name, "#!/bin/sh\n" + script),
                                 std::filesystem::perms::owner_all);
  }
  /// "0 over 137 (reason)|1 runs|..."
  std::string asked(const std::string& id) {
    const auto records = find_engine("pbs")->queue->ask(id, folder_.path());
    if (!records) return to_string(records.problems());
    std::string text;
    for (const QueueRecord& record : *records)
      text += (text.empty() ? "" : "|") + std::to_string(record.task) + " " + record.state +
              (record.is_over ? " " + std::to_string(record.exit_code) : "") +
              (record.reason.empty() ? "" : " (" + record.reason + ")") + (record.is_running ? " runs" : "");
    return text;
  }

  TemporaryFolder folder_;
  const std::string path_ = std::getenv("PATH");
};

TEST_F(PbsQueue, ReportsJobsAndTasksThatItKnows) {
  program("qstat", R"sh(cat <<'END'
Job Id: 7[].server
    job_state = B
    Exit_status = 1

Job Id: 7[0].server
    job_state = R
Job Id: 7[1].server
    job_state = Q
    comment = Not Running: no
	 room
Job Id: 7[2].server
    job_state = X
    Exit_status = 265
    comment = walltime exceeded
Job Id: 7[3].server
    job_state = F
    Exit_status = -3
END
)sh");
  EXPECT_EQ(asked("7[].server"),
            "0 RUNNING runs|1 QUEUED (Not Running: no room)|2 FINISHED 137 (walltime exceeded)|3 FINISHED 1");
  // What a task has left counts more, of one that runs again not.
  folder_.write("pbs-7[3].server.code", "75\n");
  folder_.write("pbs-7[0].server.code", "5\n");
  folder_.write("pbs-7[4].server.code", "0\n");
  folder_.write("pbs-77[5].server.code", "0\n");
  EXPECT_EQ(asked("7[].server"),
            "0 RUNNING runs|1 QUEUED (Not Running: no room)|2 FINISHED 137 (walltime exceeded)|3 FINISHED 75|"
            "4 FINISHED 0");
}

TEST_F(PbsQueue, ReportsWhatItHasForgotten) {
  program("qstat", "echo qstat: Unknown Job Id $2 >&2; exit 153\n");
  EXPECT_EQ(
      asked("7.server"),
      "-2 FINISHED (it left the queue without an exit code) 1 (it left the queue without an exit code)");
  folder_.write("pbs-7.server.code", "75\n");
  EXPECT_EQ(asked("7.server"), "0 FINISHED 75");
  program("qstat",
          "[ $1 = -x ] || { echo qstat: 7.server Job has finished >&2; exit 35; }\n"
          "echo 'Job Id: 7.server'; echo '    job_state = F'; echo '    Exit_status = 93'\n");
  EXPECT_EQ(asked("7.server"), "0 FINISHED 75");
  program("qstat", "echo qstat: cannot connect to server >&2; exit 111\n");
  EXPECT_NE(asked("7.server").find("cannot connect"), std::string::npos);
}

TEST_F(PbsQueue, StopsWhatRunsAndCancelsWhatWaits) {
  program("qstat",
          "for i in 0 1 2 3; do echo \"Job Id: 7[$i].s\"; echo \"    job_state = $(echo RQRX | cut -c$((i + "
          "1)))\"; done\n");
  for (const char* name : {"qdel", "qsig"})
    program(name, "echo $(basename $0) \"$@\" >>" + folder_.path("log") + "\n");
  const BatchQueue& queue = *find_engine("pbs")->queue;
  ASSERT_TRUE(queue.stop("7[].s", false));
  ASSERT_TRUE(queue.stop("7[].s", true));
  EXPECT_EQ(*read_file(folder_.path("log")), "qdel 7[1].s\nqsig -s INT 7[0].s 7[2].s\nqdel 7[].s\n");
}

TEST(PbsOptions, AreLettersNamesAndResources) {
  const auto job_of = [](const std::string& section) {
    const Result<Json> json =
        parse_yaml("model: mlp\nstages: 4\nname: 4 long names of a job\n" + section, "job.yaml");
    return job_from(*json, "job.yaml", {}, {});
  };
  const auto script = [&](const std::string& section) {
    const Result<JobSpec> job = job_of(section);
    return job ? *find_engine("pbs")->queue->script(*job, {"/opt/millrace", "launch"})
               : to_string(job.problems());
  };
  const std::string text = script(
      "pbs: {queue: gpu, walltime: 2:00:00, accelerator_type: a100, m: n}\nthreads: 2\ndevice: cuda\n");
  EXPECT_TRUE(text.starts_with("#!/bin/sh\n#PBS -N job_4_long_name\n#PBS -j oe\n#PBS -o ")) << text;
  EXPECT_NE(text.find("#PBS -r n\n#PBS -S /bin/sh\n#PBS -V\n#PBS -l select=4:ncpus=2:mpiprocs=1:ngpus=1\n"
                      "#PBS -q gpu\n#PBS -l walltime=2:00:00\n#PBS -l accelerator_type=a100\n#PBS -m n\n"),
            std::string::npos)
      << text;
  EXPECT_EQ(script("pbs: {nodes: \"2:ppn=2\"}\n").find("select"), std::string::npos);
  EXPECT_EQ(job_of("pbs: {queue: gpu}\n")->hosts.on, "pbs");
  EXPECT_NE(
      to_yaml(*job_of("pbs: {queue: gpu}\nrequeue: true\n")).find("pbs:\n  queue: gpu\nrequeue: true\n"),
      std::string::npos);
  for (const char* bad : {"pbs: {I: x}", "pbs: {t: 0-3}", "pbs: {q: \"a'b\"}", "pbs: {\"-q\": x}"})
    EXPECT_NE(script(bad).find("is no option or resource of qsub"), std::string::npos) << bad << script(bad);
}

}  // namespace
}  // namespace millrace
