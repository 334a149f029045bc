// The program as users type it: dispatch, help, and a launch with a stand-in for the worker.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>

#include "driver/bleu/bleu_command.h"
#include "driver/flags/compute_specs.h"
#include "driver/flags/job_lists.h"
#include "driver/flags/translate_spec.h"
#include "driver/launch/launch_command.h"
#include "driver/launch/model_flags.h"
#include "driver/plan/plan_command.h"
#include "driver/simulate/simulate_command.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "tests/driver/temporary_folder.h"
#include "tests/harness/shell.h"

namespace millrace {
namespace {

/// A copy of the program and of millrace-io, beside a worker that is a shell script.
class Program : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"millrace", "millrace-io"}) {
      const std::filesystem::path built = std::filesystem::path(MILLRACE_BIN_DIR) / name;
      if (!std::filesystem::exists(built)) GTEST_SKIP() << built << " is not built";
      std::filesystem::copy_file(built, folder_.path(name));
    }
  }
  void worker(const std::string& script) {
    folder_.write("millrace-worker", "#!/bin/sh\n" + script);
    ::chmod(folder_.path("millrace-worker").c_str(), 0755);
  }
  Answer millrace(const std::string& arguments) {
    return shell("cd " + folder_.path() + " && ./millrace " + arguments);
  }
  TemporaryFolder folder_;
};

TEST_F(Program, Dispatches) {
  const Answer help = millrace("--help");
  EXPECT_EQ(help.code, 0);
  for (const char* command : {"profile", "plan", "simulate", "train", "launch", "report", "bleu"}) {
    EXPECT_NE(help.text.find(std::string("\n  ") + command + " "), std::string::npos) << command;
    const Answer own = millrace(std::string(command) + " --help");
    EXPECT_EQ(own.code, 0) << command << own.text;
    EXPECT_NE(own.text.find(std::string("\nExamples:\n  millrace ") + command), std::string::npos) << command;
  }
  for (const char* asked : {"--version", "-V", "version"})
    EXPECT_EQ(millrace(asked).text.rfind("millrace ", 0), 0u) << asked;
  EXPECT_EQ(millrace("help plan").text, millrace("plan --help").text);
  EXPECT_EQ(millrace("").code, 2);
  const Answer unknown = millrace("lanch");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_NE(unknown.text.find("did you mean `millrace launch`?"), std::string::npos);
}

TEST_F(Program, HandsTrainToTheWorkerBesideIt) {
  const Answer absent = millrace("train --model mlp");
  EXPECT_EQ(absent.code, 2);
  EXPECT_NE(absent.text.find("/millrace-worker: No such file"), std::string::npos) << absent.text;
  worker("echo worker \"$@\"; exit 4");
  const Answer answer = millrace("train --model mlp 'a b'");
  EXPECT_EQ(answer.code, 4);
  EXPECT_EQ(answer.text, "worker train --model mlp a b\n");
  EXPECT_EQ(shell("cd " + folder_.path() + " && MILLRACE_WORKER=/bin/echo ./millrace profile x").text,
            "profile x\n");
}

TEST_F(Program, HandsTheIoStudiesToTheirProgram) {
  const Answer plot = millrace("trace plot --help all");
  EXPECT_EQ(plot.code, 0) << plot.text;
  EXPECT_NE(plot.text.find("Usage: millrace trace plot [FLAGS]"), std::string::npos) << plot.text;
  EXPECT_EQ(millrace("help trace plot all").text, plot.text);
  for (const char* command : {"data check", "dlio", "stalls job", "experiment"})
    EXPECT_EQ(millrace(std::string("help ") + command).text, millrace(std::string(command) + " --help").text);
  EXPECT_NE(millrace("data").text.find("\n  text "), std::string::npos) << "of two programs";
  const std::string list = millrace("--help").text, whole = millrace("completion bash").text;
  for (const char* flag : {"'trace plot --formats'", "'data generate -w'", "'stalls job --storage'"})
    EXPECT_NE(whole.find(flag), std::string::npos) << flag;
  EXPECT_EQ(millrace("help --man man").code, 0);
  EXPECT_NE(folder_.read("man/millrace-stalls-cache.1").find("[default: 10000]"), std::string::npos);

  folder_.write("millrace-io", "#!/bin/sh\necho io \"$@\"; exit 3");
  const Answer given = millrace("dlio workload=x 'a b'");
  EXPECT_EQ(given.code, 3);
  EXPECT_EQ(given.text, "io dlio workload=x a b\n");
  EXPECT_EQ(millrace("data check folder").text, "io data check folder\n");
  std::filesystem::remove(folder_.path("millrace-io"));
  const Answer absent = millrace("dlio workload=x");
  EXPECT_EQ(absent.code, 2);
  for (const char* part :
       {"/millrace-io: No such file", "Hint: `scripts/build release millrace-io` builds it"})
    EXPECT_NE(absent.text.find(part), std::string::npos) << absent.text;
  EXPECT_EQ(millrace("--help").text, list);
  EXPECT_NE(millrace("completion bash").text.find("note: without the flags of the I/O studies: "),
            std::string::npos);
}

TEST_F(Program, ADeviceHasItsOwnWorker) {
  worker("echo cpu \"$@\"");
  for (const char* command : {"train --model mlp --device cuda", "profile --model mlp --device=cuda"}) {
    const Answer absent = millrace(command);
    EXPECT_EQ(absent.code, 2) << absent.text;
    for (const char* part :
         {"millrace-worker-cuda: No such file", "Hint: `scripts/build cuda`", "--device cpu"})
      EXPECT_NE(absent.text.find(part), std::string::npos) << absent.text;
  }
  folder_.write("job.yaml", "model: mlp\nranks: 2\ndevice: cuda\n");
  const Answer refused = millrace("launch job.yaml --dry-run");
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.text.find("millrace-worker-cuda: is missing"), std::string::npos) << refused.text;
  EXPECT_NE(refused.text.find("`scripts/build cuda`"), std::string::npos) << refused.text;
  folder_.write("millrace-worker-cuda", "#!/bin/sh\necho cuda \"$@\"");
  ::chmod(folder_.path("millrace-worker-cuda").c_str(), 0755);
  EXPECT_EQ(millrace("train --device cuda").text, "cuda train --device cuda\n");
  EXPECT_EQ(millrace("train --device cpu").text, "cpu train --device cpu\n");
  const Answer planned = millrace("launch job.yaml --dry-run");
  EXPECT_NE(planned.text.find("/millrace-worker-cuda train --model=mlp"), std::string::npos) << planned.text;
  EXPECT_NE(millrace("launch job.yaml --dry-run --set device=tpu").text.find("unknown device 'tpu'"),
            std::string::npos);
}

TEST_F(Program, AsksTheWorkerWhatItsModelsTake) {
  const std::string models = to_json({{.name = "mlp",
                                       .summary = "Small.",
                                       .options = {integer_option("wdth", 1, {1, 9}, "Of layers.")}}})
                                 .dump();
  worker("echo \"$@\" >> asked\nif [ $1 = models ]; then echo '" + models + "'; fi");
  folder_.write("job.yaml", "model: mlp\nwdth: 3\nranks: 1\n");
  const Answer planned = millrace("launch job.yaml --dry-run");
  EXPECT_EQ(planned.code, 0) << planned.text;
  EXPECT_NE(planned.text.find("--model=mlp --wdth=3"), std::string::npos) << planned.text;
  const std::string asked = folder_.read("asked");
  EXPECT_TRUE(asked.starts_with("models --format=json\ntrain --model=mlp")) << asked;
  EXPECT_EQ(asked.find("models", 1), std::string::npos) << "once\n" << asked;
  EXPECT_EQ(millrace("launch job.yaml --dry-run --set wdth=10").code, 2);
  const Answer ranks = millrace("profile --model mlp --ranks 2 --wodth 3");
  EXPECT_EQ(ranks.code, 2);
  EXPECT_NE(ranks.text.find("did you mean --wdth?"), std::string::npos) << ranks.text;
  // The worker prints the help of train.
  EXPECT_EQ(millrace("train --help").code, 0);
  EXPECT_NE(folder_.read("asked").find("train --help\n"), std::string::npos);
  worker("echo no list; exit 0");
  const Answer silent = millrace("launch job.yaml --dry-run");
  EXPECT_EQ(silent.code, 2);
  EXPECT_NE(silent.text.find("millrace-worker models:1:"), std::string::npos) << silent.text;
  worker("exit 3");
  EXPECT_NE(millrace("launch job.yaml --dry-run").text.find("did not list its models"), std::string::npos);
}

constexpr const char* kJob = "model: mlp\nranks: 2\nsteps: 3\nenv: {COLOUR: blue}\n";

TEST_F(Program, LaunchStartsEveryRankWithItsEnvironment) {
  worker(
      "echo \"$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $COLOUR $OMP_NUM_THREADS $1\" > "
      "out/seen.$RANK\n"
      "test $(stat -c %a $MILLRACE_STORE) = 700 || exit 9\ntest $PPID = $MILLRACE_LAUNCHER_PID || exit "
      "8\necho $MILLRACE_STORE > out/store\necho \"$@\" > out/args");
  folder_.write("job.yaml", kJob);
  const Answer answer = millrace("launch job.yaml --output-dir out --set seed=4");
  EXPECT_EQ(answer.code, 0) << answer.text;
  EXPECT_EQ(folder_.read("out/seen.0"), "0/2 0/2 127.0.0.1 blue 1 train\n");
  EXPECT_EQ(folder_.read("out/seen.1"), "1/2 1/2 127.0.0.1 blue 1 train\n");
  EXPECT_NE(folder_.read("out/args").find("--seed=4"), std::string::npos);
  std::string store = folder_.read("out/store");
  store.pop_back();
  EXPECT_FALSE(std::filesystem::exists(store)) << "the store is gone";
  EXPECT_TRUE(std::filesystem::exists(folder_.path("out/logs/rank_1.err")));
  // The job file in the output folder can be launched again.
  EXPECT_EQ(millrace("launch out/job.yaml").code, 0);
}

TEST_F(Program, LaunchNamesTheRankThatFailed) {
  worker(
      "echo '{\"rank\":1,\"stage\":1,\"step\":7,\"action\":\"1B2\"}' > out/status.rank1.json\n"
      "if [ $RANK = 1 ]; then echo boom >&2; kill -9 $$; fi\nwhile :; do :; done");
  folder_.write("job.yaml", kJob);
  std::filesystem::create_directories(folder_.path("out/checkpoints/step-00000005"));
  folder_.write("out/summary.json", "stale");
  const Answer answer = millrace("launch job.yaml --output-dir out --set resume=job.yaml");
  EXPECT_EQ(answer.code, 137);
  for (const char* expected :
       {"[rank 1] boom", "rank 1 (stage 1) failed first: killed by signal 9 (SIGKILL) at step 7, action 1B2",
        "| boom", "resume: millrace launch job.yaml --output-dir out --set resume=out\n"}) {
    EXPECT_NE(answer.text.find(expected), std::string::npos) << expected << "\n" << answer.text;
  }
  worker("rm -f job.yaml\nexit 1");
  const Answer gone = millrace("launch job.yaml --output-dir out --set resume=job.yaml");
  EXPECT_NE(gone.text.find("resume: millrace launch out/job.yaml --output-dir out --set resume=out\n"),
            std::string::npos)
      << gone.text;
  // The ranks remove it when they take the folder: these never did.
  EXPECT_EQ(folder_.read("out/summary.json"), "stale");
}

TEST_F(Program, LaunchStartsAFailedJobAgain) {
  // Each run comes a step further and is killed; the third one ends well.
  worker(
      "echo x >> out/runs.$RANK\nruns=$(wc -l < out/runs.$RANK)\n"
      "echo '{\"rank\":'$RANK',\"stage\":0,\"step\":'$runs',\"action\":\"1B2\"}' > "
      "out/status.rank$RANK.json\n"
      "echo \"$@\" > out/args\n[ $RANK = 0 ] || [ $runs = 3 ] || kill -9 $$\n[ $RANK = 1 ] || [ $runs = 3 ] "
      "|| sleep 60");
  folder_.write("job.yaml", kJob);
  const Answer answer = millrace("launch job.yaml --output-dir out --max-restarts 5");
  EXPECT_EQ(answer.code, 0) << answer.text;
  EXPECT_NE(answer.text.find("restart 1 of 5 in 1 s, from the start"), std::string::npos) << answer.text;
  EXPECT_NE(answer.text.find("restart 2 of 5"), std::string::npos) << answer.text;
  EXPECT_EQ(answer.text.find("restart 3 of 5"), std::string::npos) << answer.text;
  EXPECT_NE(folder_.read("out/args").find("--resume=auto"), std::string::npos);
}

/// Its first rank is killed before the job has a checkpoint of its own.
TEST_F(Program, LaunchStartsAgainFromWhereItWasTold) {
  folder_.write("job.yaml", "model: mlp\nranks: 1\nsteps: 3\nmax_restarts: 1\n");
  const std::string killed = "\nkill -9 $$",
                    begun = "\necho '{\"rank\":0,\"step\":1}' > out/status.rank0.json";
  const auto second_run = [&](const std::string& first, const std::string& flags) {
    worker("echo \"$@\" > out/args\n[ -e out/ran ] && rm out/ran && exit 0\ntouch out/ran" + first + killed);
    const Answer answer = millrace("launch job.yaml --output-dir out " + flags);
    EXPECT_EQ(answer.code, 0) << answer.text;
    return folder_.read("out/args") + answer.text;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  std::filesystem::create_directories(folder_.path("other/checkpoints/step-00000002"));
  const std::string resumed = second_run(begun, "--set resume=other");
  EXPECT_TRUE(has(resumed, "--resume=other") && has(resumed, "in 1 s, from other")) << resumed;
  // The ranks had not yet deleted the earlier run that is to go.
  std::filesystem::create_directories(folder_.path("out/checkpoints/step-00000005"));
  const std::string fresh = second_run("", "--overwrite");
  EXPECT_TRUE(has(fresh, "--overwrite") && has(fresh, "from the start")) << fresh;
  EXPECT_FALSE(has(fresh, "--resume")) << fresh;
  // They had, and saved.
  const std::string own = second_run(begun, "--overwrite");
  EXPECT_TRUE(has(own, "--resume=auto") && has(own, "from step-00000005")) << own;
  EXPECT_FALSE(has(own, "--overwrite")) << own;
}

TEST_F(Program, LaunchLeavesARestartWhatIsLeftOfTheTime) {
  folder_.write("job.yaml", "model: mlp\nranks: 1\nsteps: 3\nmax_restarts: 1\n");
  worker(
      "echo $MILLRACE_SPENT \"$@\" > out/args\n[ -e out/ran ] && rm out/ran && exit 0\ntouch out/ran\nkill "
      "-9 $$");
  const Answer enough = millrace("launch job.yaml --output-dir out --set time_limit=2h");
  EXPECT_EQ(enough.code, 0) << enough.text;
  const std::string args = folder_.read("out/args");
  EXPECT_NE(args.find(" --time-limit=2h"), std::string::npos) << args;
  EXPECT_GE(std::stod(args), 1) << "seconds since the launcher's start: the restart comes a second later";
  const Answer late = millrace("launch job.yaml --output-dir out --set time_limit=10s");
  EXPECT_EQ(late.code, 137) << late.text;
  EXPECT_NE(late.text.find("the time limit leaves too little for a restart"), std::string::npos) << late.text;
}

/// Its ranks have written nothing yet.
TEST_F(Program, StopFindsADetachedRunAtOnce) {
  folder_.write("job.yaml", kJob);
  worker("exec sleep 1000");
  ASSERT_EQ(millrace("launch job.yaml --output-dir out --detach").code, 0);
  const Answer stopped = millrace("stop out");
  EXPECT_EQ(stopped.code, 0);
  EXPECT_EQ(stopped.text, "out: stopped before its first step\n");
}

TEST_F(Program, LaunchGivesUpWhereRestartsDoNotHelp) {
  folder_.write("job.yaml", kJob);
  worker("exit 6");  // numbers that are not finite: another run has the same
  EXPECT_EQ(millrace("launch job.yaml --output-dir numbers --max-restarts 5").code, 6);
  worker("exit 1");
  const Answer few = millrace("launch job.yaml --output-dir few --max-restarts 1");
  EXPECT_EQ(few.code, 1) << few.text;
  EXPECT_NE(few.text.find("restart 1 of 1"), std::string::npos) << few.text;
  EXPECT_NE(few.text.find("no restart is left of --max-restarts 1"), std::string::npos) << few.text;
  const Answer breaker = millrace("launch job.yaml --output-dir many --max-restarts 9");
  EXPECT_EQ(breaker.code, 93) << breaker.text;
  EXPECT_NE(breaker.text.find("restart 2 of 9 in 4 s"), std::string::npos) << breaker.text;
  EXPECT_NE(breaker.text.find("no further"), std::string::npos) << breaker.text;
}

TEST_F(Program, LaunchIsStartedOnce) {
  worker("case \"$*\" in *--dry-run*) exit 0;; esac\ntouch out/ran");
  folder_.write("job.yaml", kJob);
  const std::string job = "launch job.yaml --output-dir out";
  for (const auto& [name, value] : {std::pair{"SLURM_STEP_NUM_TASKS", "2"},
                                    {"SLURM_PROCID", "0"},
                                    {"SLURM_LOCALID", "0"},
                                    {"SLURM_STEP_NODELIST", "n[1-2]"}})
    ::setenv(name, value, 1);
  const Answer refused = millrace(job);
  const Answer dry = millrace(job + " --dry-run");
  ::setenv("SLURM_STEP_NUM_TASKS", "1", 1);
  const Answer alone = millrace(job);
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NODELIST"})
    ::unsetenv(name);
  EXPECT_EQ(refused.code, 2) << refused.text;
  for (const char* part : {"2 times", "SLURM_STEP_NUM_TASKS=2", "millrace train"})
    EXPECT_NE(refused.text.find(part), std::string::npos) << refused.text;
  EXPECT_EQ(dry.code, 0) << dry.text;
  EXPECT_EQ(alone.code, 0) << alone.text;
}

TEST_F(Program, DryRunTouchesNothing) {
  worker("case \"$*\" in *--dry-run*) echo \"$COLOUR\" > asked; exit 0;; esac\ntouch ran");
  folder_.write("job.yaml", kJob);
  const Answer answer = millrace("launch job.yaml --dry-run -o new/out");
  EXPECT_EQ(answer.code, 0) << answer.text;
  EXPECT_NE(answer.text.find("every rank: COLOUR=blue"), std::string::npos) << answer.text;
  EXPECT_NE(answer.text.find("\nrank 1: RANK=1 LOCAL_RANK=1\n"), std::string::npos) << "what differs alone\n"
                                                                                    << answer.text;
  EXPECT_NE(answer.text.find("millrace-worker train --model=mlp"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("new")));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("ran")));
  const Result<Json> json = parse_json(millrace("launch job.yaml --dry-run --format json").text, "stdout");
  ASSERT_TRUE(json) << to_string(json.problems());
  EXPECT_EQ(json->find("ranks")->size(), 2u);
  EXPECT_EQ(*read_file(folder_.path("asked")), "blue\n") << "the worker is asked, with the job's environment";
  worker(
      "echo 'error: plan.json: is of another model'; echo 'error: plan.json: is of another model' >&2\n"
      "echo 'Hint: plan again' >&2; exit 2");
  const Answer refused = millrace("launch job.yaml --dry-run");
  EXPECT_EQ(refused.code, 2);
  EXPECT_NE(refused.text.find("the worker refuses it: plan.json: is of another model Hint: plan again"),
            std::string::npos)
      << refused.text;
}

TEST_F(Program, LaunchRefusesWhatCannotRun) {
  folder_.write("job.yaml", kJob);
  const std::pair<const char*, const char*> table[] = {
      {"launch absent.yaml", "absent.yaml"},
      {"launch job.yaml", "millrace-worker"},  // no worker yet
      {"launch job.yaml --dry-run --set data=/no/such/folder", "/no/such/folder"},
      {"launch job.yaml --dry-run --set plan=/no/plan.json", "/no/plan.json"},
      {"launch job.yaml --dry-run --set resume=/no/run", "/no/run"},
      {"launch job.yaml --dry-run -o job.yaml/out", "is not a folder"},
      {"launch job.yaml --set nonsense", "is not KEY=VALUE"},
      {"launch job.yaml --format xml", "unknown format 'xml'"},
      {"launch", "JOB.yaml: is missing"},
  };
  for (const auto& [arguments, expected] : table) {
    const Answer answer = millrace(arguments);
    EXPECT_EQ(answer.code, 2) << arguments;
    EXPECT_NE(answer.text.find(expected), std::string::npos) << arguments << "\n" << answer.text;
  }
}

TEST_F(Program, ATildeIsTheHomeFolderInFlagsAndInFiles) {
  worker("exit 0");
  const std::string home = folder_.path("home");
  std::filesystem::create_directories(home);
  folder_.write("home/job.yaml", "model: mlp\nsteps: 1\noutput_dir: ~/out\n");
  const auto at_home = [&](const std::string& arguments) {
    return shell("cd " + folder_.path() + " && HOME=" + home + " ./millrace " + arguments);
  };
  const Answer job = at_home("launch '~/job.yaml' --dry-run");
  EXPECT_EQ(job.code, 0) << job.text;
  EXPECT_NE(job.text.find("\noutput-dir: " + home + "/out\n"), std::string::npos) << job.text;
  EXPECT_NE(job.text.find(" --output-dir=" + home + "/out"), std::string::npos) << job.text;
  const Answer set = at_home("launch '~/job.yaml' --dry-run --set 'output_dir=~/again'");
  EXPECT_NE(set.text.find("\noutput-dir: " + home + "/again\n"), std::string::npos) << set.text;
  const Answer drawn = at_home("simulate --stages 2 --microbatches 4 --draw='~/s.svg'");
  EXPECT_EQ(drawn.code, 0) << drawn.text;
  EXPECT_TRUE(std::filesystem::exists(home + "/s.svg")) << drawn.text;
  EXPECT_FALSE(std::filesystem::exists(folder_.path("~")));
}

TEST_F(Program, APointerOfGitLfsIsCalledOneWhateverReadsIt) {
  worker("exit 0");
  folder_.write("p", "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, 'a') +
                         "\nsize 97800000\n");
  const std::pair<const char*, int> commands[] = {{"checkpoint import p out --model mlp", 3},
                                                  {"checkpoint diff p p", 4},
                                                  {"launch p --dry-run", 2},
                                                  {"sweep p", 2},
                                                  {"plan --profile p --ranks 2", 3},
                                                  {"simulate --plan p", 2},
                                                  {"data text vocab p --out v.txt", 3},
                                                  {"bleu p p", 3}};
  for (const auto& [command, code] : commands) {
    const Answer answer = millrace(command);
    EXPECT_EQ(answer.code, code) << command << "\n" << answer.text;
    EXPECT_NE(answer.text.find("p: is a pointer of Git LFS, not the file itself. Hint: `git lfs pull` in its "
                               "repository fetches the file"),
              std::string::npos)
        << command << "\n"
        << answer.text;
  }
}

TEST_F(Program, BleuReadsStdin) {
  folder_.write("ref", "a b c d e\n");
  EXPECT_EQ(millrace("bleu - ref -b < ref").text, "100.00\n");
  EXPECT_EQ(millrace("bleu ref - -b < ref").text, "100.00\n");
  const Answer nothing = millrace("bleu - ref < /dev/null");
  EXPECT_EQ(nothing.code, 3);
  EXPECT_NE(nothing.text.find("ref: has 1 line, but stdin has 0 lines"), std::string::npos) << nothing.text;
}

TEST_F(Program, ReportOfNothing) {
  EXPECT_EQ(millrace("report --run absent").code, 3);
  EXPECT_EQ(millrace("report").code, 2);
}

// ---- docs/commands.md
// -------------------------------------------------------------------------------------------

std::string commands_page() {
  std::ostringstream text;
  text << std::ifstream(std::string(MILLRACE_SOURCE_DIR) + "/docs/commands.md").rdbuf();
  return text.str();
}

TEST_F(Program, ASignalLeavesNoPartsOfFiles) {
  std::string lines;
  for (int i = 0; i < 200'000; ++i) lines += "the small cat saw the large dog\n";
  folder_.write("lines", lines);
  folder_.write("vocab", "the\nsmall\ncat\nsaw\nlarge\ndog\n");
  folder_.write("end-while-writing", R"sh(
    parts() { find . -name '*.partial' -o -name '*.tmp.*'; }
    "$@" >log 2>&1 & pid=$!
    for i in $(seq 6000); do
      [ -n "$(parts)" ] && echo seen && break
      kill -0 $pid 2>/dev/null || break
      sleep 0.01
    done
    kill -TERM $pid; wait $pid; code=$?
    parts; exit $code)sh");
  const auto here = [&](const std::string& command) {
    return shell("cd " + folder_.path() + " && " + command);
  };
  // Members of one gzip file: a gigabyte to encode, soon made.
  ASSERT_EQ(here("gzip lines && for i in $(seq 150); do cat lines.gz; done >text.gz").code, 0);
  for (const char* command :
       {"data text encode text.gz -v vocab -o out/tokens", "data generate -w imseg -s 50GB -o out",
        "dlio workload=default ++workload.workflow.generate_data=True ++workload.workflow.train=False "
        "++workload.workflow.evaluation=False ++workload.dataset.format=npy "
        "++workload.dataset.record_length_bytes=4000000000 "
        "++workload.dataset.data_folder=out --output-dir results"}) {
    const Answer answer = here(std::string("bash end-while-writing ./millrace ") + command);
    EXPECT_EQ(answer.code, 128 + SIGTERM) << command << "\n" << answer.text << folder_.read("log");
    EXPECT_EQ(answer.text, "seen\n") << command;
    EXPECT_FALSE(std::filesystem::exists(folder_.path("out/tokens")));
    std::filesystem::remove_all(folder_.path("out"));
  }
}

TEST(CommandDocs, EveryExampleParses) {
  for (const CommandSpec& spec : {profile_spec(), plan_spec(), simulate_spec(), train_spec(), launch_spec(),
                                  bleu_spec(), translate_spec()}) {
    for (const std::string& example : spec.examples) {
      std::istringstream words(example);
      std::vector<std::string> args;
      for (std::string word; words >> word;) args.push_back(word);
      // For a job array, the arguments of one job are checked. tests/worker checks the models' options.
      const auto jobs = take_job_lists(spec, {args.begin() + 2, args.end()});
      ASSERT_TRUE(jobs) << example << "\n" << to_string(jobs.problems());
      const Result<Arguments> parsed = parse_arguments(spec, jobs->args.front(), UnknownFlags::Leave);
      EXPECT_TRUE(parsed) << example << "\n" << to_string(parsed.problems());
    }
  }
}

TEST(CommandDocs, ExitCodesAreTheProgrammes) {
  const std::string page = commands_page();
  for (const char* row :
       {"| 0 |", "| 1 |", "| 2 |", "| 3 |", "| 4 |", "| 5 |", "| 6 |", "| 75 |", "| 128+n |"})
    EXPECT_NE(page.find(row), std::string::npos) << row;
}

}  // namespace
}  // namespace millrace
