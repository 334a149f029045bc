// `launch` on a Slurm cluster of three nodes (slurm_cluster), and on them with mpirun of Open MPI and by
// PMIx.
#include <cstdlib>

#include "runtime/base/json.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class Slurm : public Jobs {
 protected:
  void SetUp() override {
    Jobs::SetUp();
    const char* allowed = std::getenv("MILLRACE_SLURM");
    if (!allowed || !*allowed) GTEST_SKIP() << "MILLRACE_SLURM is not set (needs root, ip, Slurm and munge)";
    write("job.yaml", std::string(kJob) + "steps: 12\ncheckpoint_every: 4\n");
    // Long enough to be stopped in the middle, and to be finished.
    write("long.yaml", std::string(kJob) + "steps: 6000\nprint_every: 100000\n");
    ASSERT_EQ(run(std::string(kTrain) + "--steps 12 --output-dir one").code, 0);
  }

  static constexpr const char* kJob =
      "model: mlp\nwidth: 16\nstages: 3\nmicrobatch: 4\nmicrobatches: 4\nseed: 3\ntimeout: 60\n"
      "slurm: {nodes: 3, ntasks-per-node: 1}\n";
  static constexpr const char* kTrain =
      "train --model mlp --width 16 --stages 3 --microbatch 4 --microbatches 4 --seed 3 ";

  /// Runs a script on the login host of a fresh cluster. `keep NAME COMMAND...` writes a command's output to
  /// NAME.txt and its exit code to NAME.rc; `until_true COMMAND` repeats a command for two minutes at most.
  /// Open MPI fails where an earlier process of it is just ending, because both make and remove one session
  /// directory: kept commands have one each. Launches in the background have millrace's second try.
  void on_cluster(const std::string& script) {
    write("script", "cd " + folder_.string() + "\nmillrace=" MILLRACE_BIN_DIR "/millrace\n" +
                        R"sh(set -m  # else commands behind & ignore SIGINT
keep() { name=$1; shift; OMPI_MCA_orte_tmpdir_base=$CLUSTER_FOLDER/mpi/$name "$@" >$name.txt 2>&1; echo $? >$name.rc; }
until_true() { for _ in $(seq 1200); do "$@" >/dev/null 2>&1 && return; sleep 0.1; done; echo "never: $*" >>never.txt; }
runs() { pgrep -f "train.*output-dir=$1 " || pgrep -f "train.*output-dir=$1\$"; }
trains() { grep -q '"step":' $1/status.rank0.json; }
)sh" + script);
    const std::string command = "timeout 500 " MILLRACE_SOURCE_DIR "/tests/worker/slurm_cluster bash " +
                                (folder_ / "script").string() + " >" + (folder_ / "cluster.log").string() +
                                " 2>&1 </dev/null";
    ASSERT_EQ(std::system(command.c_str()), 0) << bytes("cluster.log");
    EXPECT_FALSE(fs::exists(folder_ / "never.txt")) << bytes("never.txt") << bytes("cluster.log");
  }

  void expect_code(const std::string& name, int code) {
    EXPECT_EQ(bytes(name + ".rc"), std::to_string(code) + "\n")
        << name << ": " << bytes(name + ".txt") << bytes("cluster.log");
  }

  std::string losses(const std::string& folder) {
    const Result<Json> summary = read_json((folder_ / folder / "summary.json").string());
    const Json* found = summary ? summary->find("losses") : nullptr;
    return found ? found->dump() : "no summary in " + folder;
  }
};

TEST_F(Slurm, BatchJobsAndAllocationsTrainAsOneProcess) {
  on_cluster(R"sh(
keep batch $millrace launch job.yaml --on slurm --output-dir batch
keep listed $millrace launch job.yaml --on slurm --hosts node3,node1,node2 --output-dir listed
keep inside salloc -N2 -n3 $millrace launch job.yaml --on slurm --output-dir inside
keep again salloc -N2 -n3 $millrace launch job.yaml --on slurm --output-dir again --max-restarts 2 --set no_evaluation=true \
  --set env.MILLRACE_FAILPOINTS=forward:rank=1:hit=40:action=kill  # in step 9; a later process does fewer
keep small salloc -n1 $millrace launch job.yaml --on slurm --output-dir small
keep refused $millrace launch job.yaml --on slurm --output-dir refused --set slurm.partition=none
)sh");
  expect_code("batch", 0);
  EXPECT_EQ(losses("batch"), losses("one"));
  EXPECT_NE(bytes("batch.txt").find("3 ranks done"), std::string::npos)
      << "the story of the batch job is shown";
  EXPECT_NE(bytes("batch/job.sbatch").find("#SBATCH --nodes=3\n"), std::string::npos);
  expect_code("listed", 0);
  EXPECT_EQ(losses("listed"), losses("one"));
  EXPECT_NE(bytes("listed/job.sbatch").find("#SBATCH --nodelist=node3,node1,node2\n"), std::string::npos);
  expect_code("inside", 0);
  EXPECT_EQ(losses("inside"), losses("one"));
  expect_code("again", 0);
  EXPECT_NE(bytes("again.txt").find("from step-00000008; 2 of 3 ranks keep their processes"),
            std::string::npos)
      << bytes("again.txt");
  const std::string one = losses("one"), rest = losses("again");
  EXPECT_NE(one.find(rest.substr(1)), std::string::npos) << one << "\n" << rest;
  expect_code("small", 2);
  EXPECT_NE(bytes("small.txt").find("3 ranks, the hosts have room for 1"), std::string::npos)
      << bytes("small.txt");
  expect_code("refused", 2);
  EXPECT_NE(bytes("refused.txt").find("sbatch: "), std::string::npos) << bytes("refused.txt");
}

TEST_F(Slurm, MpirunTrainsStopsGoesOnAndNamesWhatFailed) {
  const char* mpi = std::getenv("MILLRACE_MPIRUN");
  if (!mpi || !*mpi) GTEST_SKIP() << "MILLRACE_MPIRUN is not set (needs root, ip, Slurm and Open MPI)";
  ASSERT_EQ(run(std::string(kTrain) + "--steps 6000 --print-every 100000 --output-dir whole").code, 0);
  on_cluster("train='" + std::string(kTrain) + "--steps 12'\n" + R"sh(
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PATH=${millrace%/*}:$PATH
allocate="salloc -N3 -n3"
on="--on mpi --hosts node1,node2,node3"
keep agents $allocate $millrace launch job.yaml $on --output-dir agents
$millrace launch job.yaml --hosts node1,node2,node3 --print mpi --output-dir printed >command
keep printed $allocate sh command
keep ranks $allocate mpirun -n 3 millrace $train --output-dir ranks  # they meet by PMIx: nobody names a host
keep srun $allocate srun --mpi=pmix millrace $train --output-dir srun
keep absent $allocate mpirun -n 3 sh -c '[ $OMPI_COMM_WORLD_RANK = 2 ] && exec sleep 9; exec millrace "$@"' rank $train --timeout 1 --output-dir absent
keep small salloc -N2 -n2 $millrace launch job.yaml --on mpi --hosts node1:1,node2:1 --output-dir small
$allocate $millrace launch long.yaml $on --output-dir stopped >stopped.txt 2>&1 &
until_true trains stopped
pkill -INT -f "^$millrace launch long.yaml.*stopped"; wait $!; echo $? >stopped.rc
keep resumed $allocate $millrace launch long.yaml $on --output-dir stopped --set resume=stopped
$allocate $millrace launch long.yaml $on --output-dir killed >killed.txt 2>&1 &
until_true trains killed
kill -9 $(runs killed | head -1); wait $!; echo $? >killed.rc
$allocate $millrace launch long.yaml $on --output-dir lost >lost.txt 2>&1 &
until_true trains lost
kill -9 $(cat $CLUSTER_FOLDER/node3.pid); wait $!; echo $? >lost.rc
)sh");
  for (const char* name : {"agents", "printed", "ranks", "srun"}) {
    expect_code(name, 0);
    EXPECT_EQ(losses(name), losses("one")) << name;
  }
  EXPECT_NE(bytes("absent.txt").find("some of the 3 processes did not start within 1 s"), std::string::npos)
      << bytes("absent.txt");
  expect_code("small", 2);
  EXPECT_NE(bytes("small.txt").find("3 ranks, the hosts have room for 2"), std::string::npos)
      << bytes("small.txt");
  expect_code("stopped", 75);
  expect_code("resumed", 0);
  const std::string whole = losses("whole"), rest = losses("stopped");
  EXPECT_LT(rest.size(), whole.size()) << "it went on, and did not begin again";
  EXPECT_NE(whole.find(rest.substr(1)), std::string::npos);
  expect_code("killed", 137);
  EXPECT_NE(bytes("killed.txt").find("failed first: killed by signal 9 (SIGKILL)"), std::string::npos)
      << bytes("killed.txt");
  expect_code("lost", 5);
  EXPECT_NE(bytes("lost.txt").find("host node3 is lost"), std::string::npos) << bytes("lost.txt");
  EXPECT_EQ(bytes("lost.txt").find("lost: ---"), std::string::npos) << bytes("lost.txt");
}

TEST_F(Slurm, SweepsAreJobArrays) {
  const std::string job = "job: {model: mlp, width: 16, microbatch: 4, microbatches: 4, stages: 2, seed: 3";
  const std::string rest = "lists: {lr: [0.1, 0.2, 0.3, 0.4, 0.5]}\nmodes: [concurrent]\n";
  write("here.yaml", job + ", steps: 6}\n" + rest);
  write("far.yaml", job + ", steps: 6, on: slurm}\n" + rest);
  write("wrong.yaml", job + ", steps: 6, on: slurm, slurm: {partition: none}}\n" + rest);
  write(
      "killed.yaml",
      job + ", steps: 1000000, print_every: 1000000, on: slurm}\nlists: {lr: [0.1]}\nmodes: [concurrent]\n");
  ASSERT_EQ(run("sweep here.yaml --output-dir here").code, 0);
  on_cluster(R"sh(
keep far $millrace sweep far.yaml --output-dir far
keep wrong $millrace sweep wrong.yaml --output-dir wrong
$millrace sweep killed.yaml --output-dir killed >killed.txt 2>&1 &
until_true trains killed/results/concurrent/job0
kill -9 $(pgrep -f "train.*output-dir=killed" | head -1); wait $!; echo $? >killed.rc
$millrace sweep killed.yaml --output-dir stopped >stopped.txt 2>&1 &
until_true trains stopped/results/concurrent/job0
kill -INT $!; wait $!; echo $? >stopped.rc
squeue -h >queue.txt
)sh");
  expect_code("far", 0);
  for (int i = 0; i < 5; ++i) {
    const std::string folder = "/results/concurrent/job" + std::to_string(i);
    EXPECT_EQ(losses("far" + folder), losses("here" + folder)) << i;
  }
  EXPECT_NE(bytes("far/results/concurrent/job0/array.sbatch").find("#SBATCH --array=0-4\n"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "far/results/concurrent/job1/array.sbatch"));
  EXPECT_NE(bytes("wrong.rc"), "0\n");
  EXPECT_NE(bytes("wrong.txt").find("sbatch: "), std::string::npos) << bytes("wrong.txt");
  EXPECT_NE(bytes("killed.rc"), "0\n");
  EXPECT_NE(bytes("killed.txt").find("SIGKILL"), std::string::npos) << bytes("killed.txt");
  expect_code("stopped", 75);
  EXPECT_TRUE(fs::exists(folder_ / "stopped/results/concurrent/job0/checkpoints/latest"))
      << bytes("stopped.txt");
  EXPECT_EQ(bytes("queue.txt"), "") << "a sweep that was stopped leaves nothing in the queue";
}

TEST_F(Slurm, StopsSavesAndGoesOn) {
  ASSERT_EQ(run(std::string(kTrain) + "--steps 6000 --print-every 100000 --output-dir whole").code, 0);
  on_cluster(R"sh(
$millrace launch long.yaml --on slurm --output-dir stopped >stopped.txt 2>&1 &
until_true trains stopped
kill -INT $!; wait $!; echo $? >stopped.rc
keep resumed $millrace launch long.yaml --on slurm --output-dir stopped --set resume=stopped
keep detached $millrace launch long.yaml --on slurm --requeue --detach --output-dir requeued
id=$(squeue -h -o %i)
until_true trains requeued
keep told scancel --batch --signal=TERM $id
until_true sh -c "scontrol show job $id | grep -q Restarts=1"
until_true sh -c '[ "$(sinfo -h -o %T%D)" = idle3 ]'; sleep 3  # the nodes clean up
until_true scontrol update JobId=$id StartTime=now  # Slurm would wait two minutes
until_true sh -c "scontrol show job $id | grep -q JobState=COMPLETED"
scontrol show job $id >after.txt
)sh");
  expect_code("stopped", 75);
  expect_code("resumed", 0);
  const std::string whole = losses("whole"), rest = losses("stopped"), again = losses("requeued");
  EXPECT_LT(rest.size(), whole.size()) << "it went on, and did not begin again";
  EXPECT_NE(whole.find(rest.substr(1)), std::string::npos);
  expect_code("detached", 0);
  EXPECT_LT(again.size(), whole.size()) << bytes("after.txt");
  EXPECT_NE(whole.find(again.substr(1)), std::string::npos) << bytes("after.txt");
}

TEST_F(Slurm, DetachedJobsAreEndedFromWhereTheyWereSubmitted) {
  on_cluster(R"sh(
keep told $millrace launch long.yaml --on slurm --detach --output-dir told
until_true trains told
keep running $millrace status told
keep stopped $millrace stop told
keep waits $millrace launch long.yaml --on slurm --detach --output-dir waits --set slurm.begin=now+1hour
keep waiting $millrace status waits
keep killed $millrace kill waits
keep gone $millrace status waits
keep refused $millrace launch long.yaml --on slurm --requeue --overwrite --output-dir told
squeue -h >queue.txt
)sh");
  for (const char* name : {"told", "running", "stopped", "waits", "waiting", "killed"}) expect_code(name, 0);
  EXPECT_NE(bytes("running.txt").find(" of Slurm is RUNNING\ntold: running, process "), std::string::npos)
      << bytes("running.txt");
  EXPECT_NE(bytes("stopped.txt").find("has ended; stopped at step "), std::string::npos)
      << bytes("stopped.txt");
  EXPECT_TRUE(fs::exists(folder_ / "told/checkpoints/latest"));
  EXPECT_NE(bytes("waiting.txt").find(" of Slurm is PENDING (BeginTime)\n"), std::string::npos)
      << bytes("waiting.txt");
  expect_code("gone", 2);
  expect_code("refused", 2);
  EXPECT_NE(bytes("refused.txt").find("would delete its own"), std::string::npos) << bytes("refused.txt");
  EXPECT_TRUE(fs::exists(folder_ / "told/checkpoints/latest"));
  EXPECT_EQ(bytes("queue.txt"), "");
}

TEST_F(Slurm, AKilledRankAndALostNodeAreNamed) {
  on_cluster(R"sh(
$millrace launch long.yaml --on slurm --output-dir killed >killed.txt 2>&1 &
until_true trains killed
kill -9 $(runs killed | head -1); wait $!; echo $? >killed.rc
$millrace launch long.yaml --on slurm --output-dir lost >lost.txt 2>&1 &
until_true trains lost
kill -9 $(cat $CLUSTER_FOLDER/node3.pid); wait $!; echo $? >lost.rc
)sh");
  expect_code("killed", 137);
  EXPECT_NE(bytes("killed.txt").find("failed first: killed by signal 9 (SIGKILL)"), std::string::npos)
      << bytes("killed.txt");
  expect_code("lost", 5);
  EXPECT_NE(bytes("lost.txt").find("host node3 is lost"), std::string::npos) << bytes("lost.txt");
}

}  // namespace
}  // namespace millrace
