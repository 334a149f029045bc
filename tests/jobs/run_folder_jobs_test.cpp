// The run's folder as users meet it: used folders, two launches, killed saves, full disks, other flags.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <sstream>
#include <thread>

#include "runtime/base/json.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {
using std::chrono::milliseconds;

class RunFolders : public Jobs {
 protected:
  static constexpr const char* kModel = "--model mlp --width 32 --depth 3 --no-evaluation ";

  static void expect_parts(const Ran& ran, const std::vector<std::string>& parts) {
    for (const std::string& part : parts)
      EXPECT_NE(ran.output.find(part), std::string::npos) << part << " in\n" << ran.output;
  }
  bool wait_for(const std::string& name) const {
    const auto start = std::chrono::steady_clock::now();
    while (!fs::exists(folder_ / name)) {
      if (std::chrono::steady_clock::now() - start > std::chrono::seconds(60)) return false;
      std::this_thread::sleep_for(milliseconds(2));
    }
    return true;
  }
  /// Starts without waiting; the process group is its own.
  pid_t start(const std::string& arguments, const std::string& log, const std::string& environment = "") {
    const std::string line = "cd " + folder_.string() + " && exec env " + environment + " " +
                             MILLRACE_BIN_DIR "/millrace " + arguments + " >" + log + " 2>&1";
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::setpgid(0, 0);
      ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
      ::_exit(127);
    }
    ::setpgid(pid, pid);
    return pid;
  }
  static int end_of(pid_t pid) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
};

TEST_F(RunFolders, AFailedRunSaysWhyInItsReport) {
  const std::string diverges =
      std::string("train ") + kModel + "--stages 2 --lr 100000 --steps 60 --output-dir out";
  ASSERT_EQ(run(diverges).code, 6);
  const Ran report = run("report --run out");
  EXPECT_EQ(report.code, 0);
  expect_parts(report, {"The run failed after ", ": rank 1: step ", "the loss is "});
  expect_parts(run("report --run out --format json"), {"\"end\": \"failed\""});
  // The next run's end is another.
  ASSERT_EQ(run(std::string("train ") + kModel + "--stages 2 --steps 60 --overwrite --output-dir out").code,
            0);
  EXPECT_FALSE(fs::exists(folder_ / "out" / "failure.rank1.json"));
  const Ran good = run("report --run out");
  EXPECT_EQ(good.output.find("failed"), std::string::npos) << good.output;
}

TEST_F(RunFolders, StepsAreTracedEarlyInTheMiddleAndLate) {
  const auto traced = [&] {
    const Result<Json> trace = read_json((folder_ / "out" / "trace.rank0.json").string());
    std::set<std::int64_t> steps;
    std::int64_t pauses = 0;
    for (const Json& span : trace ? trace->find("spans")->items() : std::vector<Json>()) {
      if (span.find("kind")->as_string() == "evaluation")
        ++pauses;
      else
        steps.insert(span.find("step")->as_int());
    }
    return std::pair(steps, pauses);
  };
  const std::string model = "train --model mlp --width 32 --depth 3 --stages 2 --output-dir out ";
  ASSERT_EQ(run(model + "--steps 60 --evaluate-every 57 --checkpoint-at-end").code, 0);
  EXPECT_EQ(traced().first, (std::set<std::int64_t>{1, 2, 3, 4, 5, 28, 29, 30, 31, 32, 55, 56, 57, 58, 59}));
  EXPECT_EQ(traced().second, 1) << "it came between two traced steps";
  // A run that goes on has its own early and late steps.
  ASSERT_EQ(run(model + "--steps 160 --resume out").code, 0);
  EXPECT_EQ(*traced().first.begin(), 60);
  EXPECT_EQ(*traced().first.rbegin(), 159);
  EXPECT_EQ(traced().first.size(), 15u);
  expect_parts(run("report --run out"), {"12 traced steps"});
}

TEST_F(RunFolders, AUsedFolderIsRefusedAndItsCheckpointsAreSafe) {
  const std::string train = "train " + std::string(kModel) + "--output-dir out ";
  ASSERT_EQ(run(train + "--steps 30 --checkpoint-every 10").code, 0);
  const Ran refused = run(train + "--steps 5 --checkpoint-every 5");
  EXPECT_EQ(refused.code, 2) << refused.output;
  expect_parts(refused, {"out", "step-00000030", "--resume out", "--overwrite"});
  write("job.yaml", "model: mlp\nwidth: 32\ndepth: 3\nsteps: 5\noutput-dir: out\nstages: 2\n");
  for (const char* command : {"launch job.yaml", "launch job.yaml --dry-run"}) {
    const Ran launched = run(command);
    EXPECT_EQ(launched.code, 2) << launched.output;
    expect_parts(launched, {"step-00000030", "--overwrite"});
  }
  EXPECT_FALSE(fs::exists(folder_ / "out/job.yaml"));
  const Ran resumed = run(train + "--steps 31 --resume out");
  EXPECT_EQ(resumed.code, 0) << resumed.output;
  expect_parts(resumed, {"resumed step=30"});
  // An interrupted run whose steps are all done says so.
  const Ran nothing = run(train + "--steps 20 --resume out");
  EXPECT_EQ(nothing.code, 0) << nothing.output;
  expect_parts(nothing, {"steps 0: nothing was trained, the checkpoint is of step 30"});
  const Ran instead = run("launch job.yaml --overwrite");
  EXPECT_EQ(instead.code, 0) << instead.output;
  EXPECT_FALSE(fs::exists(folder_ / "out/checkpoints/step-00000030"));
}

TEST_F(RunFolders, ResumeAutoGoesOnIfThereIsSomething) {
  const std::string train = "train " + std::string(kModel) + "--stages 2 --output-dir out --resume auto ";
  const Ran begun = run(train + "--steps 4 --checkpoint-every 2");
  EXPECT_EQ(begun.code, 0) << begun.output;
  expect_parts(begun, {"holds no checkpoint: the run begins"});
  const Ran on = run(train + "--steps 6 --checkpoint-every 2");
  EXPECT_EQ(on.code, 0) << on.output;
  expect_parts(on, {"resumed step=4"});
  const Ran whole = run("train " + std::string(kModel) + "--stages 2 --output-dir whole --steps 6");
  const auto loss = [&](const std::string& folder) {
    return parse_json(bytes(folder + "/summary.json"), "summary")->find("final_loss")->as_double();
  };
  EXPECT_EQ(loss("out"), loss("whole")) << whole.output;
  write("job.yaml",
        "model: mlp\nwidth: 32\ndepth: 3\nno_evaluation: true\nstages: 2\nsteps: 7\n"
        "resume: auto\noutput_dir: out\n");
  const Ran launched = run("launch job.yaml");
  EXPECT_EQ(launched.code, 0) << launched.output;
  expect_parts(launched, {"resumed step=6"});
  // An attempt that was killed before its first checkpoint: logs, no summary.
  ASSERT_EQ(run("train " + std::string(kModel) + "--steps 3 --output-dir logs").code, 0);
  const std::string again = "train " + std::string(kModel) + "--steps 3 --output-dir logs --resume auto";
  const Ran done = run(again);
  EXPECT_EQ(done.code, 2) << "a run that is done is not deleted: " << done.output;
  fs::remove(folder_ / "logs/summary.json");
  const Ran anew = run(again + " --resume-changes lr");
  EXPECT_EQ(anew.code, 0) << anew.output;
  expect_parts(anew, {"the run begins, over what an attempt left (logs of steps)"});
  // Damage is no reason to begin anew.
  for (const auto& step : fs::directory_iterator(folder_ / "out/checkpoints"))
    if (step.is_directory()) fs::remove(step.path() / "manifest.json");
  EXPECT_EQ(run(train + "--steps 8").code, 4);
  EXPECT_EQ(run("train --model mlp --resume auto").code, 2) << "there is no output folder";
  EXPECT_EQ(run(train + "--steps 8 --overwrite").code, 2);
}

TEST_F(RunFolders, FoldersThatRanksDoNotShareAreFoundBeforeTheFirstStep) {
  const struct {
    const char* outputs;
    const char* named;
  } cases[] = {{"--output-dir out", "out"}, {"--save-weights w.safetensors", "rank1"}};
  for (const auto& [outputs, named] : cases) {
    fs::remove_all(folder_ / "store");
    for (const char* name : {"store", "rank0", "rank1"}) fs::create_directories(folder_ / name);
    const std::string train = "train " + std::string(kModel) + "--stages 2 --steps 3 " + outputs;
    const auto rank = [&](const std::string& number) {
      return start(train, "rank" + number + ".log",
                   "--chdir=rank" + number + " WORLD_SIZE=2 MILLRACE_STORE=../store RANK=" + number);
    };
    const pid_t ranks[] = {rank("0"), rank("1")};
    EXPECT_EQ(end_of(ranks[0]), 2) << bytes("rank0.log");
    EXPECT_EQ(end_of(ranks[1]), 2) << bytes("rank1.log");
    for (const char* log : {"rank0.log", "rank1.log"}) {
      const std::string text = bytes(log);
      for (const char* part : {"rank 1: ", "is not the folder that rank 0 has", "all hosts share", named})
        EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
      EXPECT_EQ(text.find("step="), std::string::npos) << text;
    }
    for (const auto& entry : fs::recursive_directory_iterator(folder_ / "rank0"))
      EXPECT_EQ(entry.path().string().find(".shared"), std::string::npos) << entry.path();
  }
}

TEST_F(RunFolders, TasksOfASchedulerAreTheRanks) {
  const std::string train = "train " + std::string(kModel) + "--stages 2 --steps 3 --output-dir out";
  const std::string slurm =
      "SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1 SLURM_JOB_ID=" + std::to_string(::getpid()) +
      " SLURM_PROCID=";
  const pid_t second = start(train, "rank1.log", slurm + "1 SLURM_LOCALID=1");
  const Ran first = run(train, slurm + "0 SLURM_LOCALID=0");
  EXPECT_EQ(end_of(second), 0) << bytes("rank1.log");
  EXPECT_EQ(first.code, 0) << first.output;
  EXPECT_TRUE(fs::exists(folder_ / "out/steps.rank1.jsonl")) << first.output;
  const Ran other = run("train --model mlp --steps 2", slurm + "0");
  EXPECT_EQ(other.code, 2);
  expect_parts(other, {"this job has 2", "SLURM_STEP_NUM_TASKS=2"});
}

TEST_F(RunFolders, ResumeComparesFlagsAndData) {
  ASSERT_EQ(run("train " + std::string(kModel) +
                "--microbatch 8 --data synthetic:640 --steps 4 --checkpoint-every 2 --output-dir out")
                .code,
            0);
  const struct {
    const char *flags, *message;
  } cases[] = {{"--microbatch 16 --data synthetic:640", "microbatch: 8 there, 16 here"},
               {"--data synthetic:1280", "data: synthetic, 640 samples"},
               {"--data synthetic:640 --lr 0.5", "lr: 0.01 there, 0.5 here"},
               {"--data synthetic:640 --dropout 0.5", "dropout: "}};
  for (const auto& [flags, message] : cases) {
    const Ran ran = run("train " + std::string(kModel) + "--steps 8 --resume out " + flags);
    EXPECT_EQ(ran.code, 4) << ran.output;
    expect_parts(ran, {message, "--resume-changes"});
  }
  const Ran allowed = run("train " + std::string(kModel) +
                          "--steps 8 --resume out --data synthetic:640 --lr 0.5 --resume-changes lr");
  EXPECT_EQ(allowed.code, 0) << allowed.output;
  expect_parts(allowed, {"other settings: lr: 0.01 there, 0.5 here"});
}

TEST_F(RunFolders, RanksWithOtherFlagsOrOtherDataAreToldApart) {
  const auto ranks = [&](const std::string& first, const std::string& second) {
    const std::string common = "train " + std::string(kModel) + "--stages 2 --steps 3 ";
    fs::remove_all(folder_ / "store");
    fs::create_directories(folder_ / "store");
    const std::string environment = "WORLD_SIZE=2 MILLRACE_STORE=store RANK=";
    const pid_t other = start(common + second, "rank1.log", environment + "1");
    const Ran ran = run(common + first, environment + "0");
    EXPECT_NE(end_of(other), 0);
    EXPECT_NE(ran.code, 0);
    return ran.output + bytes("rank1.log");
  };
  const std::string text = ranks("--lr 0.1", "--lr 0.2");
  EXPECT_NE(text.find("rank 1: was started with other settings than rank 0: lr: 0.1 there, 0.2 here"),
            std::string::npos)
      << text;
  const std::string data = ranks("--data synthetic:640", "--data synthetic:648");
  EXPECT_NE(data.find("data: synthetic, 640 samples, "), std::string::npos) << data;
}

TEST_F(RunFolders, AMissingFolderForTheWeightsIsMade) {
  const Ran ran =
      run("train " + std::string(kModel) + "--steps 2 --save-weights no/such/folder/w.safetensors");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_TRUE(fs::exists(folder_ / "no/such/folder/w.safetensors"));
  write("file", "x");
  const Ran refused =
      run("train " + std::string(kModel) + "--steps 100000000 --save-weights file/w.safetensors");
  EXPECT_EQ(refused.code, 2) << refused.output;
}

TEST_F(RunFolders, TwoLaunchesDoNotShareAFolder) {
  write("job.yaml",
        "model: mlp\nwidth: 32\nstages: 2\nsteps: 1000000\ncheckpoint-every: 50\noutput-dir: out\n");
  const pid_t first = start("launch job.yaml", "first.log");
  ASSERT_TRUE(wait_for("out/checkpoints/latest")) << bytes("first.log");
  for (const char* command : {"launch job.yaml --overwrite", "launch job.yaml --set resume=out"}) {
    const Ran second = run(command);
    EXPECT_EQ(second.code, 2) << second.output;
    expect_parts(second, {"out: is in use by", "process " + std::to_string(first)});
  }
  const Ran alone = run("train --model mlp --width 32 --steps 5 --output-dir out --overwrite");
  EXPECT_EQ(alone.code, 2) << alone.output;
  expect_parts(alone, {"in use by"});
  ::kill(first, SIGKILL);  // the launcher; its ranks follow it
  end_of(first);
  // A dead holder's lock is no obstacle, whatever it was doing.
  const Ran resumed =
      run("train --model mlp --width 32 --steps 1 --microbatches 4 --stages 2 --output-dir out "
          "--resume out");
  EXPECT_EQ(resumed.code, 0) << resumed.output;
}

TEST_F(RunFolders, AKilledSaveLeavesOneThatCanBeResumed) {
  const std::string job =
      "model: mlp\nwidth: 64\ndepth: 4\nstages: 2\nseed: 1\nno-evaluation: true\ncheckpoint-every: 1\n"
      "print-every: 100000\n";
  write("whole.yaml", job + "steps: 200\noutput-dir: whole\n");
  ASSERT_EQ(run("launch whole.yaml").code, 0);
  write("part.yaml", job + "steps: 200\noutput-dir: part\n");
  // Shortly after one save, at times that have nothing to do with the next: many fall into one.
  std::string resume;
  for (int kill = 0; kill < 4; ++kill) {
    const std::string before = bytes("part/checkpoints/latest");
    // Saves in the background are killed, too. The unbroken run does not save in the background.
    const std::string how = kill % 2 == 0 ? "" : " --set checkpoint-background=true";
    const pid_t launcher = start("launch part.yaml" + resume + how, "part.log");
    const auto begun = std::chrono::steady_clock::now();
    while (bytes("part/checkpoints/latest") == before &&
           std::chrono::steady_clock::now() - begun < std::chrono::seconds(60))
      std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(20'000 + 3'137 * kill));
    ::kill(launcher, SIGKILL);
    EXPECT_NE(end_of(launcher), 0) << "it was through before: give it more steps";
    resume = " --set resume=part";
  }
  const Ran rest = run("launch part.yaml" + resume + " --set checkpoint-background=true");
  ASSERT_EQ(rest.code, 0) << rest.output;
  // Every step is in the log once, with the unbroken run's loss.
  const auto losses_of = [&](const std::string& name) {
    std::vector<std::pair<std::int64_t, std::string>> losses;
    std::istringstream lines(bytes(name + "/steps.rank1.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const auto json = parse_json(line, name);
      if (const Json* step = json ? json->find("step") : nullptr)
        losses.emplace_back(step->as_int(), json->find("loss")->dump());
    }
    return losses;
  };
  EXPECT_EQ(losses_of("part"), losses_of("whole"));
  for (const char* shard : {"stage0.safetensors", "stage1.safetensors"}) {
    EXPECT_TRUE(bytes(std::string("part/checkpoints/step-00000200/") + shard) ==
                bytes(std::string("whole/checkpoints/step-00000200/") + shard));
  }
  for (const auto& entry : fs::directory_iterator(folder_ / "part/checkpoints"))
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
}

TEST_F(RunFolders, AFullDiskIsToldAndTrainingGoesOn) {
  const char* allowed = std::getenv("MILLRACE_MOUNTS");
  if (!allowed || !*allowed) GTEST_SKIP() << "MILLRACE_MOUNTS is not set (needs root, to mount a small disk)";
  // A disk of its own: room for logs, not for three checkpoints of 4 MB.
  const fs::path disk = folder_ / "disk";
  fs::create_directories(disk);
  ASSERT_EQ(::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=6m"), 0) << std::strerror(errno);
  const std::string train =
      "train --model mlp --width 512 --depth 4 --no-evaluation --data synthetic:64 --microbatch 2 ";
  const Ran ran = run(train + "--stages 2 --steps 6 --checkpoint-every 2 --output-dir disk/out");
  const std::string summary = bytes("disk/out/summary.json");
  EXPECT_EQ(::umount(disk.c_str()), 0);
  EXPECT_EQ(ran.code, 4) << ran.output;
  expect_parts(ran, {"checkpoint step=2 NOT saved", "No space left on device", "are free",
                     "steps 6, final loss", "could not be written: the checkpoint of step 6"});
  const auto json = parse_json(summary, "summary");
  ASSERT_TRUE(json) << summary;
  EXPECT_EQ(json->find("checkpoints_failed")->as_int(), 3);
  EXPECT_EQ(json->find("steps")->as_int(), 6);
}

TEST_F(RunFolders, AResultThatCannotBeWrittenIsAFailure) {
  const auto to_full = [&](const std::string& arguments) {
    const std::string line = "cd " + folder_.string() + " && timeout 100 " MILLRACE_BIN_DIR "/millrace " +
                             arguments + " >/dev/full 2>log";
    const int status = std::system(line.c_str());
    return Ran{.code = WEXITSTATUS(status), .output = bytes("log")};
  };
  for (const std::string& command :
       {"train " + std::string(kModel) + "--steps 2",
        std::string("simulate --schedule 1f1b --stages 2 --microbatches 4"), std::string("--help")}) {
    const Ran ran = to_full(command);
    EXPECT_EQ(ran.code, 1) << command << "\n" << ran.output;
    expect_parts(ran, {"stdout: the result could not be written", "No space left"});
  }
}

TEST_F(RunFolders, AJobWithSecretsIsPrivate) {
  write("job.yaml", "model: mlp\nwidth: 16\nsteps: 2\noutput-dir: out\nenv: {TOKEN: hunter2}\n");
  ASSERT_EQ(run("launch job.yaml").code, 0);
  struct stat info {};
  ASSERT_EQ(::stat((folder_ / "out/job.yaml").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

}  // namespace
}  // namespace millrace
