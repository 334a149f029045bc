// `launch` over several hosts. Most tests stand a script in the place of ssh, which runs the command on this
// host from another folder, so that only the frames join the two sides. One runs sshd in network namespaces.
#include <signal.h>

#include <chrono>
#include <thread>

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
    const auto start = std::chrono::steady_clock::now();
    const Ran ran = launch("");
    EXPECT_EQ(ran.code, 2) << ran.output;
    EXPECT_NE(ran.output.find("host 127.0.0.2"), std::string::npos) << ran.output;
    EXPECT_NE(ran.output.find(fault.says), std::string::npos) << fault.says << "\n" << ran.output;
    EXPECT_EQ(ran.output.find("host 127.0.0.3"), std::string::npos) << ran.output;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
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

TEST_F(Hosts, AreRefusedBeforeAnythingStarts) {
  struct Bad {
    std::string hosts, says;
  };
  for (const Bad& bad : {Bad{"node1,node1", "twice"}, Bad{"'-oProxyCommand=x'", "cannot be a host"},
                         Bad{"'a;b'", "cannot be a host"}, Bad{"'$(touch canary)'", "cannot be a host"},
                         Bad{"'Root@node1'", "cannot be a user"}, Bad{"node1:0", "no number of ranks"},
                         Bad{"node1:1", "room for 1"}, Bad{"node1:2,node2:2", "take them all"},
                         Bad{"node1:1,node2", "for all or for none"}, Bad{"a,b,c", "share equally"}}) {
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
  // The connection of the second host breaks some time after the start.
  ssh("[ $login = 127.0.0.2 ] && exec \"$@\"\nexec 3<&0\n\"$@\" <&3 & agent=$!\n"
      "while [ ! -e " +
      (folder_ / "out/checkpoints/latest").string() +
      " ]; do sleep 0.05; done\n"
      "echo 'Connection to 127.0.0.3 closed by remote host.' >&2; kill -9 $agent; exit 255");
  const Ran ran = launch("");
  EXPECT_EQ(ran.code, 5) << ran.output;
  EXPECT_NE(ran.output.find("host 127.0.0.3 is lost: Connection to 127.0.0.3 closed"), std::string::npos)
      << ran.output;
  EXPECT_NE(ran.output.find("resume: millrace launch"), std::string::npos) << ran.output;
  EXPECT_NE(std::system(("ls -ld /proc/[0-9]*/cwd 2>/dev/null | grep -q " + folder_.string()).c_str()), 0)
      << "ranks are left";
}

TEST_F(Hosts, ASignalToTheLauncherSavesOnAllHosts) {
  write("job.yaml",
        "model: mlp\nwidth: 16\nstages: 2\nmicrobatch: 4\nmicrobatches: 4\nsteps: 1000000\nseed: 3\ntimeout: "
        "20\n");
  std::jthread stopper([&] {
    for (int i = 0; i < 400; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (!fs::exists(folder_ / "out/status.rank1.json")) continue;
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
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
  for (const std::string engine : {"ssh", "kubernetes"}) {
    const std::string hosts = engine == "ssh" ? " --hosts 127.0.0.2,127.0.0.3 --client " + at + "/ssh"
                                              : " --hosts pod-0,pod-1 --client " + at + "/kubectl";
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
      return run("launch job.yaml --output-dir " + at + "/" + out + " --on " + engine + hosts + more);
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
    const Ran more = run("launch job.yaml --output-dir " + at + "/" + stopped + " --on " + engine + hosts +
                         " --set steps=" + steps + " --set resume=" + at + "/" + stopped);
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
  Ran stranger, ran;
  if (up == 0) {
    const std::string hosts = " --hosts root@10.79.0.2,10.79.0.3 --workdir " + at + "/far";
    write("job.yaml",
          "model: mlp\nwidth: 16\nstages: 2\nmicrobatch: 4\nmicrobatches: 4\nsteps: 12\nseed: 3\ntimeout: "
          "30\n");
    ran = run("launch job.yaml --output-dir out --client " + at + "/real_ssh" + hosts);
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
  EXPECT_EQ(losses("out"), losses("one"));
  EXPECT_EQ(stranger.code, 2) << stranger.output;
  EXPECT_NE(stranger.output.find("host 10.79.0.3: Host key verification failed"), std::string::npos)
      << stranger.output;
}

}  // namespace
}  // namespace millrace
