// `launch` over several hosts. Most tests stand a script in the place of ssh, which runs the command on this
// host from another folder, so that only the frames join the two sides. One runs sshd in network namespaces.
#include <signal.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "runtime/base/json.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

class Hosts : public Jobs {
 protected:
  void SetUp() override {
    Jobs::SetUp();
    write("job.yaml",
          "model: mlp\nwidth: 16\nstages: 2\nmicrobatch: 4\nmicrobatches: 4\nsteps: 12\nseed: "
          "3\ncheckpoint_every: 4\n"
          "timeout: 20\n");
    // ssh -T -o ... -- LOGIN PROGRAM agent: what stands behind the login is run, as a login shell would.
    ssh("exec \"$@\"");
    ASSERT_EQ(
        run("train --model mlp --width 16 --stages 2 --microbatch 4 --microbatches 4 --steps 12 --seed 3 "
            "--output-dir one")
            .code,
        0);
  }

  /// Makes the script in the place of ssh. `script` runs with the login in $login and the command in "$@".
  void ssh(const std::string& script) {
    write("ssh", "#!/bin/sh\nwhile [ \"$1\" != -- ]; do shift; done\nshift\nlogin=$1\nshift\necho $login >>" +
                     (folder_ / "logins").string() + "\n" + script + "\n");
    fs::permissions(folder_ / "ssh", fs::perms::owner_all);
  }

  /// Two hosts with a rank each; the names are addresses of this host, which only the script takes for
  /// others.
  Ran launch(const std::string& more, const std::string& hosts = "127.0.0.2,127.0.0.3") {
    return run("launch job.yaml --output-dir out --client " + (folder_ / "ssh").string() +
               " --hosts=" + hosts + " " + more);
  }

  std::string losses(const std::string& folder) {
    const Result<Json> summary = read_json((folder_ / folder / "summary.json").string());
    const Json* found = summary ? summary->find("losses") : nullptr;
    return found ? found->dump() : "no summary";
  }

  /// Expects that the run in `folder` ended as one process ends that trains so many steps.
  void expect_end_of(int steps, const std::string& folder = "out") {
    ASSERT_EQ(run("train --model mlp --width 16 --stages 2 --microbatch 4 --microbatches 4 --seed 3 "
                  "--overwrite --output-dir long --steps " +
                  std::to_string(steps))
                  .code,
              0);
    const std::string all = losses("long"), last = losses(folder);
    EXPECT_NE(last, "no summary");
    EXPECT_NE(all.find(last.substr(1)), std::string::npos) << all << "\n" << last;
  }

  /// The connection to 127.0.0.3 breaks after the first checkpoint. `last_words` are ssh's; it says `later`
  /// to all that come after.
  void break_second_host(const std::string& last_words, const std::string& later = ":") {
    ssh("[ $login != 127.0.0.3 ] && exec \"$@\"\n[ -e broken ] && { " + later +
        "; }\nexec 3<&0\n\"$@\" <&3 & agent=$!\n"
        "while [ ! -e " +
        (folder_ / "out/checkpoints/latest").string() + " ]; do sleep 0.02; done\n" + last_words +
        "touch broken; kill -9 $agent; exit 255");
  }

  /// Rank 1 stops itself in step 9 of 12, until its host is lost. A later process of it does fewer forwards.
  static constexpr const char* kHeld =
      " --set no_evaluation=true --set env.MILLRACE_FAILPOINTS=forward:rank=1:hit=40:action=stop";

  /// How often a host was called.
  std::ptrdiff_t calls_of(const std::string& host) {
    std::istringstream logins(bytes("logins"));
    return std::count(std::istream_iterator<std::string>(logins), {}, host);
  }
};

TEST_F(Hosts, TrainAsOneProcess) {
  const Ran ran = launch("");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(losses("out"), losses("one"));
  for (const char* login : {"127.0.0.2\n", "127.0.0.3\n"})
    EXPECT_NE(bytes("logins").find(login), std::string::npos) << bytes("logins");
  EXPECT_TRUE(fs::exists(folder_ / "out/checkpoints/latest"));
  EXPECT_NE(bytes("out/job.yaml").find("hosts:"), std::string::npos);
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_ / "out"))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".shared")) << "the probe is removed";
  // Resumed by the same hosts, to more steps than the first run: equal to one run of all steps.
  const Ran more = launch("--set steps=16 --set resume=out");
  ASSERT_EQ(more.code, 0) << more.output;
  ASSERT_EQ(run("train --model mlp --width 16 --stages 2 --microbatch 4 --microbatches 4 --steps 16 --seed 3 "
                "--output-dir long")
                .code,
            0);
  const std::string all = losses("long"), last = losses("out");
  EXPECT_NE(all.find(last.substr(1)), std::string::npos) << all << "\n" << last;
}

TEST_F(Hosts, NeedNoFolderInCommon) {
  write("plan.json", "");
  ASSERT_EQ(
      run("profile --model mlp --width 16 --microbatch 4 --repetitions 2 --blocks 1 --out profile.json").code,
      0);
  ASSERT_EQ(run("plan --profile profile.json --ranks 2 --stages 2 --microbatches 4 --out plan.json").code, 0);
  // Each host has a folder of its own. The plan is not there, and goes over the connection.
  ssh("mkdir -p " + (folder_ / "host").string() + ".$login && cd " + (folder_ / "host").string() +
      ".$login && exec unshare -m sh -c 'mount --bind . " + (folder_ / "far").string() +
      " && exec \"$@\"' sh \"$@\"");
  const char* allowed = std::getenv("MILLRACE_MOUNTS");
  if (!allowed || !*allowed) GTEST_SKIP() << "MILLRACE_MOUNTS is not set";
  fs::create_directory(folder_ / "far");
  write("job.yaml",
        "model: mlp\nwidth: 16\nplan: plan.json\nmicrobatch: 4\nsteps: 12\nseed: 3\ntimeout: "
        "20\ntrace_steps: 3\n");
  const Ran ran = launch("--workdir " + (folder_ / "far").string());
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(losses("out"), losses("one"));
  EXPECT_TRUE(fs::exists(folder_ / "host.127.0.0.2/out/inputs"));
  EXPECT_TRUE(fs::is_empty(folder_ / "far"));
  EXPECT_EQ(run("report --run out --out report.html").code, 0);
  EXPECT_EQ(run("trace convert out --to perfetto --out trace").code, 0) << "traces of both ranks came back";
}

/// Hosts with a disk of their own each, mounted over one path. They see the launcher's folder nowhere.
class HostsApart : public Hosts {
 protected:
  void SetUp() override {
    Hosts::SetUp();
    const char* allowed = std::getenv("MILLRACE_MOUNTS");
    if (!allowed || !*allowed) GTEST_SKIP() << "MILLRACE_MOUNTS is not set";
    fs::create_directory(folder_ / "far");
    disks("");
  }

  /// `more` is done on each host before the agent starts, in its own folder.
  void disks(const std::string& more) {
    const std::string own = (folder_ / "host").string() + ".$login";
    ssh("mkdir -p " + own + " && cd " + own + " && exec unshare -m sh -c 'mount --bind . " +
        (folder_ / "far").string() + " && cd " + (folder_ / "far").string() + " && " + more +
        " exec \"$@\"' sh \"$@\"");
  }

  Ran launch_apart(const std::string& more, const std::string& hosts = "127.0.0.2,127.0.0.3") {
    return launch("--workdir " + (folder_ / "far").string() + " " + more, hosts);
  }

  /// How many steps with a loss are in the launcher's log, each once and in order; -1: they are not.
  std::int64_t logged_steps() {
    std::istringstream log(bytes("out/steps.rank1.jsonl"));
    std::int64_t steps = 0;
    for (std::string line; std::getline(log, line);) {
      const Result<Json> json = parse_json(line, "steps");
      const Json* step = json ? json->find("step") : nullptr;
      const Json* loss = step ? json->find("loss") : nullptr;
      if (loss && loss->is_number() && step->as_int() != steps++) return -1;
    }
    return steps;
  }

  /// The number of the lock's file.
  std::string lock() {
    struct stat info {};
    return ::stat((folder_ / "out/run.lock").c_str(), &info) == 0 ? std::to_string(info.st_ino) : "none";
  }

  bool is_whole(const std::string& step) {
    const fs::path folder = folder_ / "out/checkpoints" / step;
    return fs::exists(folder / "manifest.json") && fs::exists(folder / "stage0.safetensors") &&
           fs::exists(folder / "stage1.safetensors");
  }
};

TEST_F(HostsApart, SaveAndGoOnThereOrElsewhere) {
  fs::create_directory(folder_ / "out");
  write("out/run.lock", "");
  const std::string own = lock();
  const Ran ran = launch_apart("");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(losses("out"), losses("one"));
  EXPECT_EQ(lock(), own) << "rank 0 has a lock on its host, and the launcher's stays";
  EXPECT_NE(bytes("out/job.yaml").find("client:"), std::string::npos);
  EXPECT_TRUE(is_whole("step-00000012")) << "earlier ones may come too fast to be sent";
  EXPECT_TRUE(fs::exists(folder_ / "host.127.0.0.3/out/checkpoints.host1/step-00000012/stage1.safetensors"));
  EXPECT_FALSE(fs::exists(folder_ / "host.127.0.0.3/out/checkpoints.host1/step-00000012/stage0.safetensors"));
  // The same hosts, which have a part of it.
  const Ran same = launch_apart("--set steps=16 --set resume=auto");
  ASSERT_EQ(same.code, 0) << same.output;
  expect_end_of(16);
  EXPECT_EQ(logged_steps(), 16);
  // One disk is lost, and other hosts take over.
  fs::remove_all(folder_ / "host.127.0.0.3");
  const Ran other = launch_apart("--set steps=20 --set resume=auto", "127.0.0.3,127.0.0.4");
  ASSERT_EQ(other.code, 0) << other.output;
  expect_end_of(20);
  EXPECT_EQ(logged_steps(), 20) << "the curve begins on the disk that is lost";
  EXPECT_TRUE(is_whole("step-00000020"));
  EXPECT_FALSE(fs::exists(folder_ / "out/checkpoints/step-00000008")) << "keep_checkpoints: 3";
  // An older step, which leaves the later ones behind; and into another folder.
  const Ran older = launch_apart("--set steps=17 --set resume=out/checkpoints/step-00000016");
  ASSERT_EQ(older.code, 0) << older.output;
  EXPECT_TRUE(fs::exists(folder_ / "out/checkpoints/abandoned-1/step-00000020"));
  const Ran elsewhere = run("launch job.yaml --output-dir new --client " + (folder_ / "ssh").string() +
                            " --hosts=127.0.0.2,127.0.0.3 --workdir " + (folder_ / "far").string() +
                            " --set steps=24 --set resume=out");
  ASSERT_EQ(elsewhere.code, 0) << elsewhere.output;
  expect_end_of(24, "new");
  // The launcher's copy is the ordinary one: this host alone goes on from it.
  const Ran alone = launch("--on local --set steps=20 --set resume=out");
  ASSERT_EQ(alone.code, 0) << alone.output;
  expect_end_of(20);
  // A used folder is refused, and --overwrite begins anew.
  EXPECT_EQ(launch_apart("").code, 2);
  const Ran fresh = launch_apart("--overwrite");
  ASSERT_EQ(fresh.code, 0) << fresh.output;
  EXPECT_EQ(losses("out"), losses("one"));
  EXPECT_FALSE(fs::exists(folder_ / "out/checkpoints/step-00000020"));
  EXPECT_TRUE(bytes("out/checkpoints/latest").starts_with("step-00000012"));
}

TEST_F(HostsApart, TheBestIsGatheredToo) {
  const Ran ran = launch_apart("--set keep_best=loss --set evaluate_every=4");
  ASSERT_EQ(ran.code, 0) << ran.output;
  const std::string latest = bytes("out/best/latest");
  for (const char* file : {"manifest.json", "stage0.safetensors", "stage1.safetensors"})
    EXPECT_TRUE(fs::exists(folder_ / "out/best" / latest.substr(0, latest.find('\n')) / file))
        << latest << file;
  EXPECT_TRUE(is_whole("step-00000012"));
  EXPECT_EQ(run("checkpoint verify out").code, 0);
}

TEST_F(HostsApart, ADamagedCopyGivesWayToTheOneBefore) {
  ASSERT_EQ(launch_apart("").code, 0);
  const std::string newest = "out/checkpoints/step-00000012/stage1.safetensors";
  write(newest, bytes(newest) + "x");
  const Ran ran = launch_apart("--set steps=16 --set resume=auto");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("checkpoint skipped"), std::string::npos) << ran.output;
  expect_end_of(16);
  for (const char* step : {"04", "08", "12", "16"}) {
    const std::string shard = "out/checkpoints/step-000000" + std::string(step) + "/stage0.safetensors";
    if (fs::exists(folder_ / shard)) write(shard, "");
  }
  const Ran none = launch_apart("--set steps=20 --set resume=auto");
  EXPECT_EQ(none.code, 4) << none.output;
}

/// The ranks save when their launcher is gone. Only their hosts have that checkpoint, and here the best one.
TEST_F(HostsApart, WhatAKilledLauncherLeavesOnTheHostsIsGathered) {
  write("job.yaml",
        "model: mlp\nwidth: 16\nstages: 2\nmicrobatch: 4\nmicrobatches: 4\nsteps: 1000000\nseed: 3\ntimeout: "
        "20\nkeep_best: loss\nevaluate_every: 2\n");
  {
    const std::jthread killer([&] {
      for (int i = 0; i < 1000 && logged_steps() < 3; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_GE(logged_steps(), 3) << "steps come while the ranks train";
      [[maybe_unused]] const int rc = std::system(
          ("pkill -KILL -f '^" MILLRACE_BIN_DIR "/millrace launch job.yaml.*" + folder_.string() + "'")
              .c_str());
    });
    EXPECT_NE(launch_apart("").code, 0);
  }
  const std::string saved = "host.127.0.0.2/out/checkpoints.host0/latest",
                    other = "host.127.0.0.3/out/checkpoints.host1/latest";
  for (int i = 0; i < 1000 && (bytes(saved) != bytes(other) || bytes(saved).starts_with("absent")); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(fs::exists(folder_ / "out/checkpoints/latest"));
  fs::remove_all(folder_ / "out/best");
  const std::int64_t best = std::atoll(bytes("host.127.0.0.3/out/checkpoints.host1/best/latest").c_str() + 5);
  EXPECT_GE(best, 2);
  const std::int64_t held = std::atoll(bytes(saved).c_str() + 5);
  ASSERT_GE(held, 3) << bytes(saved);
  const Ran ran = launch_apart("--set resume=auto --set steps=" + std::to_string(held + 4));
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("gathered the checkpoint that the hosts held: step=" + std::to_string(held)),
            std::string::npos)
      << ran.output;
  EXPECT_NE(ran.output.find("gathered the best checkpoint that the hosts held: step=" + std::to_string(best)),
            std::string::npos)
      << ran.output;
  EXPECT_TRUE(fs::exists(folder_ / "out/best/latest"));
  expect_end_of(static_cast<int>(held + 4));
  EXPECT_EQ(logged_steps(), held + 4);
}

/// The launcher, and with it the hosts' agents, are killed while checkpoints of every step come in.
TEST_F(HostsApart, AKilledLauncherLeavesAWholeCheckpoint) {
  write("job.yaml",
        "model: mlp\nwidth: 600\nstages: 2\nmicrobatch: 4\nmicrobatches: 4\nsteps: 100000\nseed: "
        "3\ncheckpoint_every: 1\ntimeout: 20\n");
  std::int64_t before = 0;
  for (int round = 0; round < 3; ++round) {
    std::jthread killer([&] {
      const std::string pattern =
          "'^" MILLRACE_BIN_DIR "/millrace launch job.yaml.*" + folder_.string() + "'";
      for (int i = 0; i < 400; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        const std::string latest = bytes("out/checkpoints/latest");
        if (latest.starts_with("absent") || std::atoll(latest.c_str() + 5) < before + 3) continue;
        [[maybe_unused]] const int rc = std::system(("pkill -KILL -f " + pattern).c_str());
        return;
      }
    });
    const Ran ran = launch_apart("--set resume=auto");
    EXPECT_NE(ran.code, 0);
    killer.join();
    before = std::atoll(bytes("out/checkpoints/latest").c_str() + 5);
    EXPECT_GE(before, 3 * (round + 1)) << ran.output;
  }
  const Ran last = launch_apart("--set resume=auto --set steps=" + std::to_string(before + 2));
  ASSERT_EQ(last.code, 0) << last.output;
  EXPECT_EQ(last.output.find("checkpoint skipped"), std::string::npos) << last.output;
  ASSERT_EQ(run("train --model mlp --width 600 --stages 2 --microbatch 4 --microbatches 4 --seed 3 "
                "--output-dir long --steps " +
                std::to_string(before + 2))
                .code,
            0);
  const std::string all = losses("long"), end = losses("out");
  EXPECT_NE(all.find(end.substr(1)), std::string::npos) << all << "\n" << end;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_ / "out/checkpoints"))
    EXPECT_EQ(entry.path().string().find(".tmp."), std::string::npos) << entry.path();
}

TEST_F(HostsApart, AFullDiskOfOneHostLeavesTheOldCheckpoint) {
  ASSERT_EQ(launch_apart("").code, 0);
  const std::string own = (folder_ / "host").string() + ".$login", far = (folder_ / "far").string();
  // Enough for logs and for the checkpoint that is gone on from, but not for a larger one.
  ssh("mkdir -p " + own + " && cd " + own + " && exec unshare -m sh -c 'mount -t tmpfs -o size=400k far " +
      far + " && cd " + far + " && exec \"$@\"' sh \"$@\"");
  write("job.yaml",
        "model: mlp\nwidth: 200\nstages: 2\nmicrobatch: 4\nmicrobatches: 4\nsteps: 12\nseed: "
        "3\ncheckpoint_every: 4\ntimeout: 20\n");
  const Ran ran = run("launch job.yaml --output-dir full --client " + (folder_ / "ssh").string() +
                      " --hosts=127.0.0.2,127.0.0.3 --workdir " + far);
  EXPECT_EQ(ran.code, 4) << ran.output;
  EXPECT_NE(ran.output.find("NOT saved"), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find("No space left"), std::string::npos) << ran.output;
  EXPECT_EQ(
      run("train --model mlp --width 200 --stages 2 --microbatch 4 --microbatches 4 --steps 12 --seed 3 "
          "--output-dir whole")
          .code,
      0);
  EXPECT_EQ(losses("full"), losses("whole")) << "training goes on";
  EXPECT_FALSE(fs::exists(folder_ / "full/checkpoints/latest"));
  EXPECT_TRUE(is_whole("step-00000012"));
}

TEST_F(Hosts, SayWhyTheyCannotRunTheirRanks) {
  struct Fault {
    std::string script, says;
  };
  for (const Fault& fault : {
           Fault{"echo 'alice@127.0.0.2: Permission denied (publickey).' >&2; exit 255", "Permission denied"},
           Fault{"echo 'Host key verification failed.' >&2; exit 255", "Host key verification failed"},
           Fault{"echo 'ssh: Could not resolve hostname' >&2; exit 255", "Could not resolve"},
           Fault{"echo 'sh: millrace: not found' >&2; exit 127", "not found"},
           Fault{"echo Welcome to the cluster", "Welcome to the cluster"},
           Fault{"printf '\\nmillrace-agent-1\\n\\0\\0\\0\\36H{\"version\":\"0.0.1\",\"host\":\"x\"}'; "
                 "sleep 5",
                 "version 0.0.1"},
           Fault{"head -c 100000 /dev/zero | tr '\\0' x", "no agent"},
           Fault{"exit 0", "without an answer"},
       }) {
    ssh("[ $login = 127.0.0.3 ] && exec \"$@\"\n" + fault.script);
    const Ran ran = launch("");
    EXPECT_EQ(ran.code, 2) << ran.output;
    EXPECT_NE(ran.output.find("host 127.0.0.2"), std::string::npos) << ran.output;
    EXPECT_NE(ran.output.find(fault.says), std::string::npos) << fault.says << "\n" << ran.output;
    EXPECT_EQ(ran.output.find("host 127.0.0.3"), std::string::npos) << ran.output;
    EXPECT_EQ(ran.output.find("not ready after"), std::string::npos) << "by a deadline: " << ran.output;
    EXPECT_FALSE(fs::exists(folder_ / "out/summary.json"));
  }
  // Every host is tried, and each has its line.
  ssh("echo refused by $login >&2; exit 255");
  const Ran both = launch("");
  for (const char* host :
       {"launch: host 127.0.0.2: refused by 127.0.0.2", "launch: host 127.0.0.3: refused by 127.0.0.3"})
    EXPECT_NE(both.output.find(host), std::string::npos) << both.output;
  // A host that does not answer, until the deadline.
  ssh("exec sleep 60");
  const Ran silent = launch("--set timeout=1");
  EXPECT_NE(silent.output.find("not ready after 1 s"), std::string::npos) << silent.output;
}

TEST_F(Hosts, WithABannerAreHosts) {
  ssh("echo '*** Welcome ***'; echo 'last login: today' >&2; exec \"$@\"");
  const Ran ran = launch("");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(losses("out"), losses("one"));
}

/// Names that only the launcher's ssh configuration knows: the ranks meet at the first host's address.
TEST_F(Hosts, MayBeAliases) {
  const Ran ran = launch("", "My_Node.invalid:2222:1,First.Last@other_node:1");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(losses("out"), losses("one"));
  EXPECT_EQ(bytes("logins"), "My_Node.invalid\nFirst.Last@other_node\n");
}

/// The programs of these engines are scripts that run the agent here.
TEST_F(Hosts, MayBePodsAndContainers) {
  const auto program = [&](const std::string& name, const std::string& skip) {
    write(name, "#!/bin/sh\necho \"$@\" >>" + (folder_ / name).string() + ".log\n" + skip +
                    "\nexec " MILLRACE_BIN_DIR "/\"$@\"\n");
    fs::permissions(folder_ / name, fs::perms::owner_all);
  };
  program("kubectl", "[ \"$1 $2 $4\" = 'exec -i --' ] || exit 9; shift 4");
  program("docker", "while [ \"$1\" != mill:1 ]; do shift; done; shift");
  const std::string path = "PATH=" + folder_.string() + ":$PATH";
  const Ran pods = run("launch job.yaml --output-dir pods --on kubernetes --hosts pod-0,pod-1", path);
  ASSERT_EQ(pods.code, 0) << pods.output;
  EXPECT_EQ(losses("pods"), losses("one"));
  for (const char* pod : {"0", "1"})
    EXPECT_NE(bytes("kubectl.log").find("exec -i pod-" + std::string(pod) + " -- millrace agent\n"),
              std::string::npos);
  const Ran contained =
      run("launch job.yaml --output-dir contained --hosts localhost:2 --container mill:1 --mounts /tmp:/t:ro",
          path);
  ASSERT_EQ(contained.code, 0) << contained.output;
  EXPECT_EQ(losses("contained"), losses("one"));
  EXPECT_NE(bytes("docker.log").find("--volume=/tmp:/t:ro"), std::string::npos) << bytes("docker.log");
  const Ran nowhere = run("launch job.yaml --output-dir nowhere --container mill:1", path);
  EXPECT_EQ(nowhere.code, 2);
  EXPECT_NE(nowhere.output.find("container: is for ranks on hosts"), std::string::npos) << nowhere.output;
}

/// PipeDream's driver file with two machines of two ranks each: a replicated stage and two of one rank.
TEST_F(Hosts, AreTheMachinesOfPipeDreamsFile) {
  write("conf.json",
        R"({"module_to_stage_map": [0, 1, 2, 2], "stage_to_rank_map": {"0": [0, 1], "1": [2], "2": [3]}})");
  write(
      "vgg16_4pipedream.yml",
      "'module': 'models.vgg16.gpus=4'\n'log_directory': 'logs'\n'config_file': "
      "'conf.json'\n'synthetic_data': True\n"
      "'machines': ['127.0.0.2:0', '127.0.0.2:1', '127.0.0.3:0', '127.0.0.3:1']\n'batch_size': 4\n"
      "'learning_rate': 0.01\n'learning_rate_policy': 'step'\n'epochs': 1\n'distributed_backend': 'gloo'\n");
  const std::string launch =
      "launch vgg16_4pipedream.yml --set image_size=32 --set classes=10 --set steps=6 --set "
      "no_evaluation=true ";
  const Ran here = run(launch + "--on local --output-dir here");
  ASSERT_EQ(here.code, 0) << here.output;
  const Ran there = run(launch + "--output-dir there --client " + (folder_ / "ssh").string());
  ASSERT_EQ(there.code, 0) << there.output;
  for (const char* host : {"127.0.0.2\n", "127.0.0.3\n"})
    EXPECT_NE(bytes("logins").find(host), std::string::npos) << bytes("logins");
  EXPECT_NE(there.output.find("the cut is another than PipeDream's"), std::string::npos) << there.output;
  EXPECT_EQ(losses("there"), losses("here"));
  EXPECT_NE(losses("there"), "no summary");
}

TEST_F(Hosts, HaveTheirLinksMeasured) {
  write("hosts.yaml",
        "model: mlp\nstages: 3\nhosts: ['127.0.0.2:2', '127.0.0.3:1']\noutput_dir: out\nclient: " +
            (folder_ / "ssh").string() + "\n");
  const Ran ran =
      run("profile --network --job hosts.yaml --round-trips 20 --largest 64KiB --out measured.yaml");
  ASSERT_EQ(ran.code, 0) << ran.output;
  const std::string cluster = bytes("measured.yaml");
  for (const char* part : {"127.0.0.2", "127.0.0.3", "bandwidth"})
    EXPECT_NE(cluster.find(part), std::string::npos) << cluster;
  // The transport is the job's.
  const Ran own = run("profile --network --job hosts.yaml --round-trips 20 --largest 64KiB --format json");
  EXPECT_NE(own.output.find("\"backend\": \"auto\""), std::string::npos) << own.output;
  write("tcp.yaml", bytes("hosts.yaml") + "backend: tcp\nencrypt: true\n");
  const Ran tcp = run("profile --network --job tcp.yaml --round-trips 20 --largest 64KiB --format json");
  ASSERT_EQ(tcp.code, 0) << tcp.output;
  EXPECT_NE(tcp.output.find("\"backend\": \"tcp\""), std::string::npos) << tcp.output;
  const Ran plain = run("profile --network --job job.yaml --out other.yaml");
  EXPECT_EQ(plain.code, 2);
  EXPECT_NE(plain.output.find("job.yaml: names no hosts"), std::string::npos) << plain.output;
  EXPECT_EQ(run("profile --network --job hosts.yaml --ranks 2").code, 2);
}

/// No port is fixed, and no file outside the output folder is shared.
TEST_F(Hosts, AreSharedByLaunchesAtOnce) {
  const std::string launch =
      "launch job.yaml --client " + (folder_ / "ssh").string() + " --hosts=127.0.0.2,127.0.0.3 ";
  Ran other;
  {
    const std::jthread beside([&] {
      const std::string at = "cd " + folder_.string() + " && timeout 100 " MILLRACE_BIN_DIR "/millrace ";
      other.code = std::system((at + launch + "--output-dir second >second.txt 2>&1").c_str());
    });
    const Ran first = run(launch + "--output-dir first");
    EXPECT_EQ(first.code, 0) << first.output;
  }
  EXPECT_EQ(other.code, 0) << bytes("second.txt");
  for (const char* folder : {"first", "second"}) EXPECT_EQ(losses(folder), losses("one")) << folder;
}

TEST_F(Hosts, AreSharedByTheRunsOfASweep) {
  const std::string job = "job: {model: mlp, width: 16, microbatch: 4, steps: 6, seed: 3";
  const std::string rest = "}\nlists: {lr: [0.1, 0.2, 0.3]}\nmodes: [concurrent]\n";
  write("here.yaml", job + rest);
  write("hosts.yaml", job + ", hosts: [127.0.0.2, 127.0.0.3], client: " + (folder_ / "ssh").string() + rest);
  const Ran here = run("sweep here.yaml --output-dir here");
  ASSERT_EQ(here.code, 0) << here.output;
  const Ran far = run("sweep hosts.yaml --output-dir far");
  ASSERT_EQ(far.code, 0) << far.output << bytes("far/results.csv");
  for (const char* login : {"127.0.0.2\n", "127.0.0.3\n"})
    EXPECT_NE(bytes("logins").find(login), std::string::npos) << bytes("logins");
  for (const char* run : {"job0", "job1", "job2"})
    EXPECT_EQ(losses(std::string("far/results/concurrent/") + run),
              losses(std::string("here/results/concurrent/") + run));
  write("hosts.yaml", job + ", stages: 4, hosts: [127.0.0.2, 127.0.0.3]" + rest);
  const Ran small = run("sweep hosts.yaml --output-dir small");
  EXPECT_EQ(small.code, 2) << small.output;
  EXPECT_NE(small.output.find("a run has 4 ranks, the hosts have room for 2"), std::string::npos)
      << small.output;
}

/// A script in the place of kubectl runs the pods of a Job as processes.
TEST_F(Hosts, MayBePodsOfASweepsOwn) {
  const std::string at = folder_.string();
  const std::string job = "job: {model: mlp, width: 16, microbatch: 4, stages: 2, steps: 6, seed: 3";
  const std::string rest = "}\nlists: {lr: [0.1, 0.2, 0.3]}\nmodes: [concurrent]\n";
  const std::string in_pods = ", on: kubernetes, container: mill:1, mounts: [" + at + "]";
  write("here.yaml", job + rest);
  write("pods.yaml", job + in_pods + rest);
  fs::copy_file(MILLRACE_SOURCE_DIR "/tests/worker/fake_kubectl", folder_ / "kubectl");
  const std::string path = "PATH=" + at + ":" MILLRACE_BIN_DIR ":$PATH";
  const Ran here = run("sweep here.yaml --output-dir here");
  ASSERT_EQ(here.code, 0) << here.output;
  const Ran pods = run("sweep pods.yaml --output-dir pods", path);
  ASSERT_EQ(pods.code, 0) << pods.output << bytes("pods.log");
  for (const char* run : {"job0", "job1", "job2"})
    EXPECT_EQ(losses(std::string("pods/results/concurrent/") + run),
              losses(std::string("here/results/concurrent/") + run));
  const Result<Json> manifest = read_json((folder_ / "pods/results/concurrent/job0/array.job.json").string());
  ASSERT_TRUE(manifest);
  EXPECT_EQ(manifest->find("spec")->find("completions")->as_int(), 3) << "one Job has them all";
  EXPECT_NE(bytes("pods.log").find("delete job sweep-"), std::string::npos) << "nothing is left behind";

  write("pods.yaml", job + ", on: kubernetes, container: missing:1, mounts: [" + at + "]" + rest);
  const Ran missing = run("sweep pods.yaml --output-dir missing", path);
  EXPECT_NE(missing.code, 0);
  EXPECT_NE(missing.output.find("Kubernetes: ErrImagePull not found"), std::string::npos) << missing.output;
  write("pods.yaml", job + ", on: kubernetes" + rest);
  EXPECT_NE(run("sweep pods.yaml --output-dir no", path).output.find("needs the image"), std::string::npos);
  write("pods.yaml", job + ", on: kubernetes, container: mill:1, mounts: [/data]" + rest);
  EXPECT_NE(run("sweep pods.yaml --output-dir no", path).output.find("no mount has this folder"),
            std::string::npos);

  // Interrupted, it leaves a run that goes on.
  const std::string longer =
      "job: {model: mlp, width: 16, microbatch: 4, stages: 2, steps: 4000, seed: 3, print_every: 100000";
  const std::string one = "}\nlists: {lr: [0.1]}\nmodes: [concurrent]\n";
  write("here.yaml", longer + one);
  write("pods.yaml", longer + in_pods + one);
  Ran stopped;
  {
    const std::jthread other([&] {
      const std::string trains =
          "grep -q '\"step\"' stopped/results/concurrent/job0/status.rank0.json 2>/dev/null";
      [[maybe_unused]] const int rc =
          std::system(("cd " + at + "; for i in $(seq 600); do " + trains +
                       " && break; sleep 0.1; done; pkill -INT -f '^" MILLRACE_BIN_DIR
                       "/millrace sweep pods.yaml --output-dir stopped'")
                          .c_str());
    });
    stopped = run("sweep pods.yaml --output-dir stopped", path);
  }
  EXPECT_EQ(stopped.code, 75) << stopped.output;
  const Ran again = run("sweep pods.yaml --output-dir stopped", path);
  ASSERT_EQ(again.code, 0) << again.output;
  ASSERT_EQ(run("sweep here.yaml --output-dir whole").code, 0);
  const std::string whole = losses("whole/results/concurrent/job0"),
                    last = losses("stopped/results/concurrent/job0");
  EXPECT_NE(whole.find(last.substr(1)), std::string::npos);
}

TEST_F(Hosts, AreRefusedBeforeAnythingStarts) {
  struct Bad {
    std::string hosts, says;
  };
  for (const Bad& bad : {Bad{"node1,node1", "twice"}, Bad{"'-oProxyCommand=x'", "cannot be a host"},
                         Bad{"'a;b'", "cannot be a host"}, Bad{"'$(touch canary)'", "cannot be a host"},
                         Bad{"'ro ot@node1'", "cannot be a user"}, Bad{"node1:0", "no number of ranks"},
                         Bad{"node1:ssh:2", "no port of ssh"}, Bad{"node1:1", "room for 1"},
                         Bad{"node1:2,node2:2", "take them all"}, Bad{"node1:1,node2", "for all or for none"},
                         Bad{"a,b,c", "share equally"}}) {
    const Ran ran = launch("", bad.hosts);
    EXPECT_EQ(ran.code, 2) << ran.output;
    EXPECT_NE(ran.output.find(bad.says), std::string::npos) << bad.hosts << ": " << ran.output;
  }
  EXPECT_FALSE(fs::exists(folder_ / "canary"));
  EXPECT_FALSE(fs::exists(folder_ / "logins")) << "nothing was started";
  EXPECT_EQ(launch("--remote-millrace 'a b'").code, 2);
  EXPECT_EQ(launch("--on cloud").code, 2);
  const Ran far = launch("", "localhost,node2");
  EXPECT_NE(far.output.find("cannot reach it by that name"), std::string::npos) << far.output;
  // The job's hosts can be left aside.
  const Ran here = launch("--on local");
  EXPECT_EQ(here.code, 0) << here.output;
  EXPECT_FALSE(fs::exists(folder_ / "logins"));
}

TEST_F(Hosts, ALostHostEndsTheOthersAndIsNamed) {
  write("job.yaml",
        "model: mlp\nwidth: 16\nstages: 2\nmicrobatch: 4\nmicrobatches: 4\nsteps: 1000000\nseed: 3\ntimeout: "
        "20\n"
        "checkpoint_every: 50\n");
  break_second_host("echo 'Connection to 127.0.0.3 closed by remote host.' >&2; ");
  const Ran ran = launch("");
  EXPECT_EQ(ran.code, 5) << ran.output;
  EXPECT_NE(ran.output.find("host 127.0.0.3 is lost: Connection to 127.0.0.3 closed"), std::string::npos)
      << ran.output;
  EXPECT_NE(ran.output.find("resume: millrace launch"), std::string::npos) << ran.output;
  EXPECT_NE(std::system(("ls -ld /proc/[0-9]*/cwd 2>/dev/null | grep -q " + folder_.string()).c_str()), 0)
      << "ranks are left";
}

/// Its own agent sees it: no rank waits until the timeout, and no clock of another host counts.
TEST_F(Hosts, ASuspendedRankOfAnotherHostIsLost) {
  const Ran ran = launch(
      "--set heartbeat=2 --set timeout=100 --set env.MILLRACE_FAILPOINTS=update:rank=1:step=5:action=stop");
  EXPECT_EQ(ran.code, 5) << ran.output;
  for (const char* part : {"fires in step 5", "rank 1 (stage 1) failed first: no sign of life for ",
                           "(limit 2.0 s): suspended (SIGSTOP or a debugger) at step 5"})
    EXPECT_NE(ran.output.find(part), std::string::npos) << part << " in\n" << ran.output;
}

TEST_F(Hosts, ASpareTakesThePlaceOfALostHost) {
  break_second_host("echo 'Connection to 127.0.0.3 closed by remote host.' >&2; ");
  const std::string broken = bytes("ssh");
  write("ssh", broken.substr(0, broken.find("[ $login")) + "[ $login = 127.0.0.4 ] && exit 255\n" +
                   broken.substr(broken.find("[ $login")));
  fs::permissions(folder_ / "ssh", fs::perms::owner_all);
  const Ran ran = launch("--max-restarts 3 --spare-hosts 127.0.0.4,127.0.0.5" + std::string(kHeld));
  ASSERT_EQ(ran.code, 0) << ran.output;
  for (const char* part : {"restart 1 of 3 at once, from step-",
                           "; 1 of 2 ranks keep their processes; 127.0.0.4 takes the place of 127.0.0.3",
                           "host 127.0.0.4: it ended without an answer", "restart 2 of 3 in 2 s, from step-",
                           "; 127.0.0.5 takes the place of 127.0.0.4"})
    EXPECT_NE(ran.output.find(part), std::string::npos) << part << " in\n" << ran.output;
  for (const char* host : {"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"})
    EXPECT_EQ(calls_of(host), 1) << host;
  expect_end_of(12);
}

/// The rank of the other host keeps its process, also while the lost one is out of reach.
TEST_F(Hosts, ALostHostIsTriedAgain) {
  const std::string rank_0 =
      "for p in /proc/[0-9]*; do [ \"$(readlink $p/cwd)\" = " + folder_.string() +
      " ] && tr '\\0' '\\n' <$p/environ | grep -qx RANK=0 && echo $p; done >>rank_0 2>/dev/null; ";
  break_second_host(rank_0,
                    "[ -e down ] && { " + rank_0 + "exec \"$@\"; }; touch down; echo is down >&2; exit 255");
  const Ran ran = launch("--max-restarts 3" + std::string(kHeld));
  ASSERT_EQ(ran.code, 0) << ran.output;
  for (const char* part : {"; 1 of 2 ranks keep their processes; there is no spare host",
                           "host 127.0.0.3: is down", "restart 2 of 3 in 2 s"})
    EXPECT_NE(ran.output.find(part), std::string::npos) << part << " in\n" << ran.output;
  EXPECT_EQ(calls_of("127.0.0.2"), 1);
  EXPECT_EQ(calls_of("127.0.0.3"), 3);
  const std::string processes = bytes("rank_0"), first = processes.substr(0, processes.find('\n') + 1);
  EXPECT_EQ(processes, first + first);
  expect_end_of(12);
}

/// Rank 1 is killed twice: it does two forwards a step, and its third process does four.
TEST_F(Hosts, RanksThatAreLeftKeepTheirProcesses) {
  write("job.yaml",
        "model: mlp\nwidth: 16\nstages: 2\nreplicas: 2\nmicrobatches: 4\nmicrobatch: 2\nsteps: 6\nseed: 3\n"
        "threads: 1\ndeterministic: true\ncheckpoint-every: 2\nno-evaluation: true\ntimeout: 60\n"
        "save-weights: out.safetensors\n");
  const Ran ran = launch("--max-restarts 5 --set env.MILLRACE_FAILPOINTS=forward:rank=1:hit=5:action=kill",
                         "127.0.0.2:2,127.0.0.3:2");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("restart 2 of 5 at once, from step-"), std::string::npos) << ran.output;
  // The table of each failure has a line for each rank: its number, its stage and its process.
  std::map<std::string, std::vector<std::string>> processes;
  std::istringstream lines(ran.output);
  for (std::string line; std::getline(lines, line);) {
    if (line.size() < 4 || line.find("/logs/rank_") == std::string::npos) continue;
    std::istringstream words(line.substr(4));
    std::string rank, stage, process;
    words >> rank >> stage >> process;
    processes[rank].push_back(process);
  }
  ASSERT_EQ(processes.size(), 4u) << ran.output;
  for (const auto& [rank, all] : processes) {
    EXPECT_GE(all.size(), 2u) << ran.output;
    EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), rank == "1" ? all.size() : 1u)
        << rank << ran.output;
  }
  for (const char* host : {"127.0.0.2", "127.0.0.3"}) EXPECT_EQ(calls_of(host), 1) << host;
  ASSERT_EQ(
      run("train --model mlp --width 16 --stages 2 --replicas 2 --microbatches 4 --microbatch 2 --steps 6 "
          "--seed 3 --threads 1 --deterministic --no-evaluation --save-weights whole.safetensors")
          .code,
      0);
  EXPECT_TRUE(bytes("out.safetensors") == bytes("whole.safetensors"));
  EXPECT_NE(std::system(("ls -ld /proc/[0-9]*/cwd 2>/dev/null | grep -q " + folder_.string()).c_str()), 0)
      << "processes are left";
}

/// Rank 1 is killed in step 9, with a checkpoint of step 8. A later process of it does fewer forwards.
TEST_F(Hosts, OfAnAllocationHaveTheRestartsToo) {
  write("nodes", "127.0.0.2\n127.0.0.3\n");
  write("mpirun",
        "#!/bin/sh\necho $4 >>logins; echo 'steps: 1' >job.yaml  # the job is what it was\nshift 6; exec "
        "\"$@\"\n");
  fs::permissions(folder_ / "mpirun", fs::perms::owner_all);
  const Ran ran = run("launch job.yaml --output-dir out --on mpi --client " + (folder_ / "mpirun").string() +
                          " --max-restarts 2 --set no_evaluation=true --set "
                          "env.MILLRACE_FAILPOINTS=forward:rank=1:hit=40:action=kill",
                      "PBS_NODEFILE=nodes");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("from step-00000008; 1 of 2 ranks keep their processes"), std::string::npos)
      << ran.output;
  for (const char* host : {"127.0.0.2", "127.0.0.3"}) EXPECT_EQ(calls_of(host), 1) << host;
  const Result<Json> manifest = read_json((folder_ / "out/launch-manifest.json").string());
  ASSERT_TRUE(manifest);
  EXPECT_EQ(manifest->find("hosts")->size(), 2u) << manifest->dump();
  expect_end_of(12);
}

/// Open MPI's mpirun fails at times where another one of the user ends on the same host.
TEST_F(Hosts, HaveTwoStartsByMpirun) {
  write("nodes", "127.0.0.2\n127.0.0.3\n");
  write("mpirun",
        "#!/bin/sh\necho $4 >>logins\n[ $4 = 127.0.0.2 ] || [ $(grep -c $4 logins) -gt $(cat failures) ] || "
        "{ echo 'no session directory' >&2; exit 1; }\nshift 6; exec \"$@\"\n");
  fs::permissions(folder_ / "mpirun", fs::perms::owner_all);
  const std::string launch = "launch job.yaml --overwrite --output-dir out --on mpi --client " +
                             (folder_ / "mpirun").string() + " --set no_evaluation=true";
  write("failures", "1");
  Ran ran = run(launch, "PBS_NODEFILE=nodes");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(calls_of("127.0.0.2"), 1);
  EXPECT_EQ(calls_of("127.0.0.3"), 2);
  write("failures", "9");
  ran = run(launch, "PBS_NODEFILE=nodes");
  EXPECT_EQ(ran.code, 2) << ran.output;
  EXPECT_NE(ran.output.find("host 127.0.0.3: no session directory. Hint: try `"), std::string::npos)
      << ran.output;
  EXPECT_EQ(calls_of("127.0.0.3"), 4);
}

/// The hosts see nothing of each other's folders, nor of the launcher's.
TEST_F(Hosts, WithFoldersOfTheirOwnKeepTheirProcesses) {
  ssh("mkdir -p host.$login && cd host.$login && exec \"$@\"");
  const Ran ran = launch(
      "--workdir own --max-restarts 2 --set no_evaluation=true --set "
      "env.MILLRACE_FAILPOINTS=forward:rank=1:hit=40:action=kill");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("from step-00000008; 1 of 2 ranks keep their processes"), std::string::npos)
      << ran.output;
  for (const char* host : {"127.0.0.2", "127.0.0.3"}) {
    EXPECT_EQ(calls_of(host), 1) << host;
    EXPECT_FALSE(fs::exists(folder_ / ("host." + std::string(host)) / "own/own"))
        << "the next run is there, too";
  }
  expect_end_of(12);
}

TEST_F(Hosts, TrainOnWithASmallerPlanWithoutASpare) {
  ASSERT_EQ(
      run("profile --model mlp --width 16 --microbatch 4 --repetitions 2 --blocks 1 --out profile.json").code,
      0);
  ASSERT_EQ(run("plan --profile profile.json --ranks 1 --microbatches 4 --out one.json").code, 0);
  break_second_host("");
  const Ran ran = launch("--max-restarts 2 --set smaller_plans=one.json" + std::string(kHeld));
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("one.json on 127.0.0.2:1"), std::string::npos) << ran.output;
  expect_end_of(12);
}

TEST_F(Hosts, TrainOnWithThePlanMadeAheadForOneHostLess) {
  ASSERT_EQ(
      run("profile --model mlp --width 16 --microbatch 4 --repetitions 2 --blocks 1 --out profile.json").code,
      0);
  const Ran planned = run(
      "plan --profile profile.json --ranks 3 --straight --schedule 1f1b --microbatches 4 --smaller 2 --out "
      "plan.json");
  ASSERT_EQ(planned.code, 0) << planned.output;
  write("job.yaml",
        "plan: plan.json\nranks: 3\nwidth: 16\nmicrobatch: 4\nsteps: 12\nseed: 3\ncheckpoint_every: 4\n"
        "timeout: 20\n");
  break_second_host("");
  const Ran ran =
      launch("--max-restarts 2 --smaller-plans auto" + std::string(kHeld), "127.0.0.2,127.0.0.3,127.0.0.4");
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_NE(ran.output.find("plan.minus1.json on 127.0.0.2:1,127.0.0.4:1"), std::string::npos) << ran.output;
  EXPECT_NE(bytes("out/job.yaml").find("ranks: 2\n"), std::string::npos) << bytes("out/job.yaml");
  expect_end_of(12);
}

TEST_F(Hosts, ASignalToTheLauncherSavesOnAllHosts) {
  write("job.yaml",
        "model: mlp\nwidth: 16\nstages: 2\nmicrobatch: 4\nmicrobatches: 4\nsteps: 1000000\nseed: 3\ntimeout: "
        "20\n");
  std::jthread stopper([&] {
    for (int i = 0; i < 1200; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      const Result<Json> status = read_json((folder_ / "out/status.rank1.json").string());
      if (!status || !status->find("step")) continue;
      [[maybe_unused]] const int rc = std::system(
          ("pkill -INT -f '^" MILLRACE_BIN_DIR "/millrace launch job.yaml.*" + folder_.string() + "'")
              .c_str());
      return;
    }
  });
  const Ran ran = launch("");
  EXPECT_EQ(ran.code, 75) << ran.output;
  EXPECT_TRUE(fs::exists(folder_ / "out/checkpoints/latest"));
}

/// Every engine stops, goes on, and tells of killed ranks and of lost hosts in the same way.
TEST_F(Hosts, OfEveryEngineStopGoOnAndNameWhatFailed) {
  const std::string at = folder_.string(), train = "'^[^ ]*millrace-worker train.*";
  write("job.yaml",
        "model: mlp\nwidth: 16\nstages: 2\nmicrobatch: 4\nmicrobatches: 4\nsteps: 1000000\nseed: "
        "3\nprint_every: 100000\ntimeout: 20\n");
  write("kubectl", "#!/bin/sh\n[ \"$1 $2 $4\" = 'exec -i --' ] || exit 9\npod=$3; shift 4\n" MILLRACE_BIN_DIR
                   "/\"$@\"\nended=$?\n[ $ended = 0 ] || echo command terminated with exit code $ended in "
                   "$pod >&2\nexit $ended\n");
  fs::permissions(folder_ / "kubectl", fs::perms::owner_all);
  write("docker", "#!/bin/sh\nwhile [ \"$1\" != mill:1 ]; do shift; done; shift 2\nexec " MILLRACE_BIN_DIR
                  "/millrace \"$@\"\n");
  fs::permissions(folder_ / "docker", fs::perms::owner_all);
  const std::string by_ssh = " --on ssh --hosts 127.0.0.2,127.0.0.3 --client " + at + "/ssh";
  const std::vector<std::pair<std::string, std::string>> engines{
      {"ssh", by_ssh},
      {"kubernetes", " --on kubernetes --hosts pod-0,pod-1 --client " + at + "/kubectl"},
      {"container", by_ssh + " --container mill:1"}};
  for (const auto& [engine, hosts] : engines) {
    // Launches, and runs a command as soon as the second rank trains.
    const auto launch_and = [&](const std::string& out, const std::string& command, const std::string& more) {
      const fs::path status = folder_ / out / "status.rank1.json";
      fs::remove(status);
      std::jthread other([&, status] {
        for (int i = 0; i < 600; ++i) {
          const Result<Json> json = read_json(status.string());
          if (json && json->find("step")) break;
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        [[maybe_unused]] const int rc = std::system(command.c_str());
      });
      return run("launch job.yaml --output-dir " + at + "/" + out + hosts + more, "PATH=" + at + ":$PATH");
    };
    const std::string interrupt =
        "pkill -INT -f '^" MILLRACE_BIN_DIR "/millrace launch job.yaml.*" + at + "'";
    const std::string stopped = engine + "-stopped", killed = engine + "-killed", lost = engine + "-lost";
    const Ran stop = launch_and(stopped, interrupt, "");
    EXPECT_EQ(stop.code, 75) << engine << stop.output;
    ASSERT_TRUE(fs::exists(folder_ / stopped / "checkpoints/latest")) << stop.output;
    const std::string last = bytes(stopped + "/checkpoints/latest");
    const std::size_t digits = last.find_first_of("123456789");
    ASSERT_NE(digits, std::string::npos) << last;
    const std::string steps = std::to_string(std::stoll(last.substr(digits)) + 4);
    const Ran more = run("launch job.yaml --output-dir " + at + "/" + stopped + hosts +
                             " --set steps=" + steps + " --set resume=" + at + "/" + stopped,
                         "PATH=" + at + ":$PATH");
    EXPECT_TRUE(fs::exists(folder_ / stopped / "logs/rank_1.err"));
    ASSERT_EQ(more.code, 0) << engine << more.output;
    ASSERT_EQ(run("train --model mlp --width 16 --stages 2 --microbatch 4 --microbatches 4 --steps " + steps +
                  " --seed 3 --print-every 100000 --overwrite --output-dir whole")
                  .code,
              0);
    EXPECT_LT(losses(stopped).size(), losses("whole").size()) << "it went on, and did not begin again";
    EXPECT_NE(losses("whole").find(losses(stopped).substr(1)), std::string::npos) << engine;
    const Ran kill = launch_and(killed, "pkill -n -9 -f " + train + at + "/" + killed + ".*'", "");
    EXPECT_EQ(kill.code, 137) << engine << kill.output;
    EXPECT_NE(kill.output.find("failed first: killed by signal 9 (SIGKILL)"), std::string::npos)
        << kill.output;
    // The agent ends as if its host had: the last one of this launch.
    const Ran gone = launch_and(
        lost,
        "for p in $(pgrep -f '^[^ ]*millrace agent'); do tr '\\0' '\\n' </proc/$p/environ | grep -q '^PWD=" +
            at + "' && last=$p; done; kill -9 $last",
        "");
    EXPECT_EQ(gone.code, 5) << engine << gone.output;
    EXPECT_NE(gone.output.find(" is lost: "), std::string::npos) << gone.output;
  }
}

/// Real hosts as far as one machine has them: a launcher and two hosts with sshd in network namespaces,
/// joined by a bridge, each with a mount namespace of its own for the folder of the run.
TEST_F(Hosts, OverSshdTrainAsOneProcess) {
  const char* allowed = std::getenv("MILLRACE_SSHD");
  if (!allowed || !*allowed) GTEST_SKIP() << "MILLRACE_SSHD is not set (needs root, ip and sshd)";
  const std::string id = std::to_string(::getpid()), at = folder_.string();
  write("sshd_config", "HostKey " + at + "/host_key\nAuthorizedKeysFile " + at +
                           "/key.pub\nStrictModes no\nUsePAM no\n" +
                           "PasswordAuthentication no\nPermitRootLogin yes\nPidFile none\n");
  write("known_hosts", "");
  write("real_ssh", "#!/bin/sh\nexec ip netns exec mrl" + id + " ssh -F none -i " + at +
                        "/key -o UserKnownHostsFile=" + at + "/known_hosts \"$@\"\n");
  fs::permissions(folder_ / "real_ssh", fs::perms::owner_all);
  write("up", R"sh(set -e
cd )sh" + at + R"sh(; id=)sh" +
                  id + R"sh(
ssh-keygen -q -t ed25519 -N '' -f key; ssh-keygen -q -t ed25519 -N '' -f host_key
mkdir -p /run/sshd
ip link add mrb$id type bridge; ip link set mrb$id up
for n in 1 2 3; do
  case $n in 1) ns=mrl$id;; 2) ns=mrh$id;; 3) ns=mri$id;; esac
  ip netns add $ns
  ip link add mr$n$id type veth peer name e0 netns $ns
  ip link set mr$n$id master mrb$id up
  ip -n $ns addr add 10.79.0.$n/24 dev e0; ip -n $ns link set e0 up; ip -n $ns link set lo up
done
for n in 2 3; do
  case $n in 2) ns=mrh$id;; 3) ns=mri$id;; esac
  mkdir -p own$n
  ip netns exec $ns unshare -m sh -c "mount --bind own$n far; exec /usr/sbin/sshd -D -f $PWD/sshd_config" 2>sshd$n.log &
  echo "10.79.0.$n $(cut -d' ' -f1,2 host_key.pub)" >>known_hosts
done
for n in 2 3; do
  for i in $(seq 100); do ip netns exec mrl$id bash -c "exec 3<>/dev/tcp/10.79.0.$n/22" 2>/dev/null && break; sleep 0.05; done
done
)sh");
  write("down",
        "id=" + id + "\npkill -f " + at +
            "/sshd_config\nfor ns in mrl mrh mri; do ip netns delete $ns$id; done\nip link delete mrb$id\n");
  const auto shell = [&](const std::string& script) {
    return std::system(("bash " + at + "/" + script + " >" + at + "/" + script + ".log 2>&1").c_str());
  };
  fs::create_directory(folder_ / "far");
  const int up = shell("up");
  Ran stranger, ran, more;
  std::string trained;
  if (up == 0) {
    const std::string hosts = " --hosts root@10.79.0.2,10.79.0.3 --workdir " + at + "/far";
    write("job.yaml",
          "model: mlp\nwidth: 16\nstages: 2\nmicrobatch: 4\nmicrobatches: 4\nsteps: 12\nseed: 3\ntimeout: "
          "30\ncheckpoint_every: 4\n");
    ran = run("launch job.yaml --output-dir out --client " + at + "/real_ssh" + hosts);
    trained = losses("out");
    more = run("launch job.yaml --output-dir out --set steps=16 --set resume=auto --client " + at +
               "/real_ssh" + hosts);
    // A host whose key is another one now is refused by ssh, and so by us.
    ASSERT_EQ(std::system(("sed -i 's/^10.79.0.3 .*$/10.79.0.3 ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ4o/' " +
                           at + "/known_hosts")
                              .c_str()),
              0);
    stranger = run("launch job.yaml --output-dir other --client " + at + "/real_ssh" + hosts);
  }
  shell("down");
  ASSERT_EQ(up, 0) << bytes("up.log");
  ASSERT_EQ(ran.code, 0) << ran.output << bytes("sshd2.log");
  EXPECT_EQ(trained, losses("one"));
  ASSERT_EQ(more.code, 0) << more.output;
  expect_end_of(16);
  for (const char* shard : {"stage0", "stage1"})
    EXPECT_TRUE(
        fs::exists(folder_ / "out/checkpoints/step-00000012" / (std::string(shard) + ".safetensors")));
  EXPECT_EQ(stranger.code, 2) << stranger.output;
  EXPECT_NE(stranger.output.find("host 10.79.0.3: Host key verification failed"), std::string::npos)
      << stranger.output;
}

}  // namespace
}  // namespace millrace
