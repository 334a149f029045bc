// `launch` and `sweep` in the queue of PBS, whose programs are a script (fake_pbs).
#include <cstdlib>

#include "runtime/base/json.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class Pbs : public Jobs {
 protected:
  void SetUp() override {
    Jobs::SetUp();
    for (const char* name : {"qsub", "qstat", "qsig", "qdel"})
      fs::copy_file(MILLRACE_SOURCE_DIR "/tests/worker/fake_pbs", folder_ / name);
    write("job.yaml", std::string(kJob) + "steps: 12\n");
    // Long enough to be stopped in the middle, and to be finished.
    write("long.yaml", std::string(kJob) + "steps: 6000\nprint_every: 100000\n");
    ASSERT_EQ(run(std::string(kTrain) + "--steps 12 --output-dir one").code, 0);
  }

  static constexpr const char* kJob =
      "model: mlp\nwidth: 16\nstages: 2\nmicrobatch: 4\nmicrobatches: 4\nseed: 3\ntimeout: 60\non: pbs\n";
  static constexpr const char* kTrain =
      "train --model mlp --width 16 --stages 2 --microbatch 4 --microbatches 4 --seed 3 ";

  /// Runs a script where PBS's programs are in PATH. `keep NAME COMMAND...` writes a command's output to
  /// NAME.txt and its exit code to NAME.rc; `until_true COMMAND` repeats a command for a minute at most.
  void on_cluster(const std::string& script) {
    write("script", "cd " + folder_.string() +
                        "\nexport PATH=$PWD:$PATH\nmillrace=" MILLRACE_BIN_DIR
                        R"sh(/millrace
set -m  # else commands behind & ignore SIGINT
keep() { name=$1; shift; "$@" >$name.txt 2>&1; echo $? >$name.rc; }
until_true() {
  for _ in $(seq 600); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done
  echo "never: $*" >>never.txt
}
trains() { grep -q '"step":' $1/status.rank0.json; }
)sh" + script);
    const std::string command = "timeout 300 bash " + (folder_ / "script").string() + " >" +
                                (folder_ / "cluster.log").string() + " 2>&1 </dev/null";
    ASSERT_EQ(std::system(command.c_str()), 0) << bytes("cluster.log");
    EXPECT_FALSE(fs::exists(folder_ / "never.txt")) << bytes("never.txt") << bytes("cluster.log");
  }

  void expect_code(const std::string& name, int code) {
    EXPECT_EQ(bytes(name + ".rc"), std::to_string(code) + "\n")
        << name << ": " << bytes(name + ".txt") << bytes("pbs.log");
  }
  void expect_text(const std::string& name, const std::string& text) {
    EXPECT_NE(bytes(name).find(text), std::string::npos) << name << ": " << bytes(name) << bytes("pbs.log");
  }

  std::string losses(const std::string& folder) {
    const Result<Json> summary = read_json((folder_ / folder / "summary.json").string());
    const Json* found = summary ? summary->find("losses") : nullptr;
    return found ? found->dump() : "no summary in " + folder;
  }
};

TEST_F(Pbs, BatchJobsTrainAsOneProcess) {
  write("ssh", "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\necho $2 >>" +
                   (folder_ / "logins").string() + "\nshift 2\nexec \"$@\"\n");
  fs::permissions(folder_ / "ssh", fs::perms::owner_all);
  on_cluster(R"sh(
keep batch $millrace launch job.yaml --output-dir batch
keep listed $millrace launch job.yaml --hosts 127.0.0.2:1,127.0.0.3:1 --client $PWD/ssh --output-dir listed
keep refused $millrace launch job.yaml --output-dir refused --set pbs.queue=none
touch torque
keep by_torque $millrace launch job.yaml --output-dir by_torque --set pbs.nodes=1:ppn=2
)sh");
  for (const char* name : {"batch", "listed", "by_torque"}) {
    expect_code(name, 0);
    EXPECT_EQ(losses(name), losses("one")) << name;
  }
  expect_text("batch.txt", "2 ranks done");  // the story of the batch job is shown
  expect_text("batch/job.pbs", "#PBS -l select=2:ncpus=1:mpiprocs=1\n");
  expect_text("listed/job.pbs",
              "select=1:ncpus=1:mpiprocs=1:host=127.0.0.2+1:ncpus=1:mpiprocs=1:host=127.0.0.3\n");
  EXPECT_EQ(bytes("logins"), "127.0.0.2\n127.0.0.3\n");
  expect_code("refused", 2);
  expect_text("refused.txt", "qsub: Unknown queue");
}

TEST_F(Pbs, StopsSavesAndGoesOn) {
  ASSERT_EQ(run(std::string(kTrain) + "--steps 6000 --print-every 100000 --output-dir whole").code, 0);
  on_cluster(R"sh(
$millrace launch long.yaml --output-dir stopped >stopped.txt 2>&1 &
until_true trains stopped
kill -INT $!; wait $!; echo $? >stopped.rc
keep resumed $millrace launch long.yaml --output-dir stopped --set resume=stopped
keep detached $millrace launch long.yaml --requeue --detach --output-dir told
until_true trains told
keep running $millrace status told
qdel $(sed 's/.*"job": *"//; s/".*//' told/batch.json)  # as PBS stops it
until_true sh -c 'grep -q 75 told/pbs-*.code'
keep again $millrace launch long.yaml --requeue --output-dir told
$millrace launch long.yaml --output-dir killed >killed.txt 2>&1 &
until_true trains killed
kill -9 $(pgrep -f "train.*output-dir=killed" | head -1); wait $!; echo $? >killed.rc
)sh");
  expect_code("stopped", 75);
  const std::string whole = losses("whole");
  for (const char* name : {"stopped", "told"}) {
    const std::string rest = losses(name);
    EXPECT_LT(rest.size(), whole.size()) << name << " went on, and did not begin again";
    EXPECT_NE(whole.find(rest.substr(1)), std::string::npos) << name;
  }
  for (const char* name : {"resumed", "detached", "running", "again"}) expect_code(name, 0);
  expect_text("running.txt", " of PBS is RUNNING\ntold: running, process ");
  expect_text("told/job.pbs", "#PBS -r y\n");
  expect_code("killed", 137);
  expect_text("killed.txt", "failed first: killed by signal 9 (SIGKILL)");
}

TEST_F(Pbs, DetachedJobsAreEndedFromWhereTheyWereSubmitted) {
  on_cluster(R"sh(
keep told $millrace launch long.yaml --detach --output-dir told
until_true trains told
keep stopped $millrace stop told
keep waits $millrace launch long.yaml --detach --output-dir waits --set pbs.queue=later
keep waiting $millrace status waits
keep killed $millrace kill waits
keep gone $millrace status waits
)sh");
  for (const char* name : {"told", "stopped", "waits", "waiting", "killed"}) expect_code(name, 0);
  EXPECT_TRUE(fs::exists(folder_ / "told/checkpoints/latest"));
  expect_text("waiting.txt", " of PBS is QUEUED (Not Running: Insufficient amount of resource: ncpus)\n");
  expect_code("gone", 2);
}

TEST_F(Pbs, SweepsAreArrays) {
  const std::string job = "job: {model: mlp, width: 16, microbatch: 4, microbatches: 4, stages: 2, seed: 3";
  const std::string rest = "lists: {lr: [0.1, 0.2, 0.3]}\nmodes: [concurrent]\n";
  write("here.yaml", job + ", steps: 6}\n" + rest);
  write("far.yaml", job + ", steps: 6, on: pbs}\n" + rest);
  write("single.yaml", job + ", steps: 6, on: pbs}\nlists: {lr: [0.1]}\nmodes: [concurrent]\n");
  write("long.yaml", job + ", steps: 1000000, print_every: 1000000, on: pbs}\n" + rest);
  ASSERT_EQ(run("sweep here.yaml --output-dir here").code, 0);
  on_cluster(R"sh(
keep far $millrace sweep far.yaml --output-dir far
keep single $millrace sweep single.yaml --output-dir single
$millrace sweep long.yaml --output-dir stopped >stopped.txt 2>&1 &
for job in job0 job1 job2; do until_true trains stopped/results/concurrent/$job; done
kill -INT $!; wait $!; echo $? >stopped.rc
touch torque
keep by_torque $millrace sweep far.yaml --output-dir by_torque
)sh");
  for (const char* name : {"far", "single", "by_torque"}) expect_code(name, 0);
  for (const std::string run :
       {"/results/concurrent/job0", "/results/concurrent/job1", "/results/concurrent/job2"}) {
    EXPECT_EQ(losses("far" + run), losses("here" + run));
    EXPECT_EQ(losses("by_torque" + run), losses("here" + run));
    EXPECT_TRUE(fs::exists(folder_ / ("stopped" + run) / "checkpoints/latest")) << bytes("stopped.txt");
  }
  expect_text("far/results/concurrent/job0/array.pbs", "#PBS -J 0-2\n");
  expect_text("by_torque/results/concurrent/job0/array.pbs", "#PBS -t 0-2\n");
  EXPECT_EQ(losses("single/results/concurrent/job0"), losses("here/results/concurrent/job0"));
  expect_code("stopped", 75);
}

}  // namespace
}  // namespace millrace
