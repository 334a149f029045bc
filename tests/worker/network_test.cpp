// `millrace profile --network` as a user types it. Nothing here depends on how fast this machine is.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "runtime/base/json.h"
#include "runtime/base/text.h"
#include "runtime/plan/cluster_spec.h"
#include "tests/worker/job_fixture.h"

namespace millrace {
namespace {

using Network = Jobs;

constexpr const char* kTwoHosts =
    "memory: 1GiB\nhosts: [{name: left, devices: 2, bandwidth: 7}, {name: right}]\n"
    "network: {bandwidth: 7, latency: 7}\n";
constexpr const char* kQuick = " --round-trips 20 --largest 256KiB";

void expect_link(const ClusterLink& link) {
  EXPECT_TRUE(std::isfinite(link.bandwidth) && std::isfinite(link.latency_s));
  EXPECT_GT(link.bandwidth, 7);  // the placeholder of the file
  EXPECT_GT(link.latency_s, 0);
  EXPECT_LT(link.latency_s, 7);
}

TEST_F(Network, MeasuresEveryPairAndThePlannerReadsIt) {
  write("cluster.yaml", kTwoHosts);
  ASSERT_EQ(run("profile --model mlp --width 64 --depth 4 --microbatch 4 --out profile.json").code, 0);
  for (const char* backend : {"auto", "tcp"}) {
    const Ran ran = run("profile --network --cluster cluster.yaml --out measured.yaml --backend " +
                        std::string(backend) + kQuick);
    ASSERT_EQ(ran.code, 0) << ran.output;
    for (const char* part : {"0 - 1", "0 - 2", "1 - 2", "all-reduce", "written to measured.yaml",
                             "left and right of the cluster file are one machine here"})
      EXPECT_NE(ran.output.find(part), std::string::npos) << part << "\n" << ran.output;
    const auto cluster = ClusterSpec::load((folder_ / "measured.yaml").string());
    ASSERT_TRUE(cluster) << bytes("measured.yaml");
    EXPECT_EQ(cluster->to_yaml(), bytes("measured.yaml"));
    EXPECT_EQ(cluster->num_ranks(), 3);
    EXPECT_EQ(cluster->memory_per_rank, kGiB);
    for (int to = 1; to < 3; ++to)
      for (int from = 0; from < to; ++from) expect_link(cluster->link(RankId(from), RankId(to)));

    const Ran before = run("plan --profile profile.json --cluster cluster.yaml --stages 3 --format json");
    const Ran after = run("plan --profile profile.json --cluster measured.yaml --stages 3 --format json");
    ASSERT_EQ(before.code, 0) << before.output;
    ASSERT_EQ(after.code, 0) << after.output;
    const auto slow = parse_json(before.output, "before"), quick = parse_json(after.output, "after");
    ASSERT_TRUE(slow && quick) << after.output;
    EXPECT_NE(slow->find("cluster_fingerprint")->as_string(),
              quick->find("cluster_fingerprint")->as_string());
    // A message over the placeholder takes 7 s and more.
    EXPECT_GT(slow->find("predicted_step_s")->as_double(), 7);
    EXPECT_LT(quick->find("predicted_step_s")->as_double(), 7);
  }
}

TEST_F(Network, PrintsJson) {
  const Ran ran = run("profile --network --ranks 2 --format json --threads 1" + std::string(kQuick));
  ASSERT_EQ(ran.code, 0) << ran.output;
  const auto json =
      parse_json(ran.output.substr(std::min(ran.output.find('{'), ran.output.size())), "stdout");
  ASSERT_TRUE(json) << ran.output;
  EXPECT_EQ(json->find("format")->as_string(), "millrace-network-1");
  ASSERT_EQ(json->find("pairs")->size(), 1u);
  const Json& pair = json->find("pairs")->items()[0];
  EXPECT_LE(pair.find("latency_min_s")->as_double(), pair.find("latency_s")->as_double());
  EXPECT_GE(pair.find("latency_max_s")->as_double(), pair.find("latency_s")->as_double());
  for (const char* key : {"bandwidth", "bandwidth_there", "bandwidth_back", "written_bandwidth"})
    EXPECT_GT(pair.find(key)->as_double(), 0) << key;
  EXPECT_EQ(pair.find("sizes")->size(), 3u);
  for (const Json& reduce : json->find("all_reduces")->items()) {
    EXPECT_GT(reduce.find("seconds")->as_double(), 0);
    EXPECT_GT(reduce.find("predicted_s")->as_double(), 0);
  }
  EXPECT_TRUE(ClusterSpec::parse(json->find("cluster")->as_string(), "cluster"));
}

TEST_F(Network, TorchrunsVariablesAreEnough) {
  write("cluster.yaml", "levels: [{count: 2, bandwidth: 7, latency: 7}]\n");
  const int port = 20000 + static_cast<int>(::getpid() + 7) % 20000;
  const std::string variables = "WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(port);
  const std::string arguments =
      "profile --network --cluster cluster.yaml --out measured.yaml --backend gloo" + std::string(kQuick);
  Ran second;
  std::jthread other([&] {
    std::system(("cd " + folder_.string() + " && RANK=0 " + variables +
                 " timeout 60 " MILLRACE_BIN_DIR "/millrace " + arguments + " >rank0.log 2>&1")
                    .c_str());
  });
  second = run(arguments, "RANK=1 " + variables);
  other.join();
  EXPECT_EQ(second.code, 0) << second.output << bytes("rank0.log");
  // Only rank 0 prints results; every rank names its listeners.
  for (const std::string& line : words_of(second.output, '\n'))
    EXPECT_NE(line.find(" listens on "), std::string::npos) << line;
  EXPECT_NE(bytes("rank0.log").find("0 - 1"), std::string::npos) << bytes("rank0.log");
  const auto cluster = ClusterSpec::load((folder_ / "measured.yaml").string());
  ASSERT_TRUE(cluster) << bytes("measured.yaml");
  expect_link(cluster->link(RankId(0), RankId(1)));
}

TEST_F(Network, ClocksOfHostsThatAreApartAreTied) {
  if (!std::getenv("MILLRACE_NETNS")) GTEST_SKIP() << "MILLRACE_NETNS is not set";
  // A host that was started an hour before: its monotonic clock is ahead.
  constexpr std::int64_t kHour = 3'600'000'000'000;
  const std::string variables = "WORLD_SIZE=2 MILLRACE_STORE=" + (folder_ / "store").string();
  const std::string arguments =
      "train --model mlp --width 16 --depth 2 --stages 2 --microbatches 2 --steps 3 --threads 1 --output-dir "
      "out";
  fs::create_directory(folder_ / "store");
  std::jthread first([&] {
    std::system(("cd " + folder_.string() + " && RANK=0 " + variables +
                 " timeout 60 " MILLRACE_BIN_DIR "/millrace " + arguments + " >rank0.log 2>&1")
                    .c_str());
  });
  const Ran second = run(arguments, "RANK=1 " + variables + " unshare --time --monotonic 3600 --fork");
  first.join();
  ASSERT_EQ(second.code, 0) << second.output << bytes("rank0.log");
  std::int64_t to_unix[2] = {}, round_trip[2] = {};
  for (const int rank : {0, 1}) {
    const std::string log = bytes("out/steps.rank" + std::to_string(rank) + ".jsonl");
    const auto header = parse_json(log.substr(0, log.find('\n')), "header");
    ASSERT_TRUE(header && header->find("clock_offset_ns")) << log;
    to_unix[rank] = header->find("unix_ns")->as_int() - header->find("clock_ns")->as_int() +
                    header->find("clock_offset_ns")->as_int();
    round_trip[rank] = header->find("clock_round_trip_ns")->as_int();
  }
  EXPECT_EQ(round_trip[0], 0);
  EXPECT_GT(round_trip[1], 0);
  EXPECT_LE(std::llabs(to_unix[0] - to_unix[1] - kHour), round_trip[1] / 2 + 1) << "to within the round trip";
}

TEST_F(Network, AKilledRankEndsAllAndIsNamed) {
  write("cluster.yaml", kTwoHosts);
  for (int victim = 0; victim < 3; ++victim) {
    write("log", "");
    Ran ran;
    std::jthread job([&] {
      ran = run(
          "profile --network --cluster cluster.yaml --out measured.yaml --round-trips 1000000 --backend " +
          std::string(victim == 1 ? "tcp" : "shm"));
    });
    const auto start = std::chrono::steady_clock::now();
    while (bytes("log").find("measuring") == std::string::npos &&
           std::chrono::steady_clock::now() - start < std::chrono::seconds(60))
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    const std::string kill =
        "for p in $(pgrep -f 'millrace-worker profile'); do tr '\\0' '\\n' < /proc/$p/environ 2>/dev/null | "
        "grep -qx RANK=" +
        std::to_string(victim) + " && readlink /proc/$p/cwd | grep -q " + folder_.filename().string() +
        " && kill -9 $p && exit 0; done; exit 1";
    write("kill.sh", kill);
    EXPECT_EQ(std::system(("bash " + (folder_ / "kill.sh").string()).c_str()), 0);
    job.join();
    EXPECT_EQ(ran.output.find("no message"), std::string::npos) << "by a deadline: " << ran.output;
    EXPECT_EQ(ran.code, 137) << ran.output;
    EXPECT_NE(ran.output.find("rank " + std::to_string(victim) + " failed first: killed by signal 9"),
              std::string::npos)
        << ran.output;
    EXPECT_FALSE(fs::exists(folder_ / "measured.yaml"));
  }
}

/// Two network namespaces joined by a virtual cable of a known rate: what is measured is the cable, and the
/// ranks find each other at addresses that are not loopback.
TEST_F(Network, FindsTheRateOfACable) {
  const char* allowed = std::getenv("MILLRACE_NETNS");
  if (!allowed || !*allowed) GTEST_SKIP() << "MILLRACE_NETNS is not set (needs root, ip and tc)";
  const std::string id = std::to_string(::getpid()), a = "mra" + id, b = "mrb" + id;
  const auto shell = [](const std::string& line) { return std::system(line.c_str()); };
  const auto end_of = [](const std::string& ns, const std::string& cable, const std::string& address) {
    const std::string in = "ip -n " + ns;
    return in + " addr add " + address + "/24 dev " + cable + " && " + in + " link set " + cable + " up && " +
           in + " link set lo up && ip netns exec " + ns + " tc qdisc add dev " + cable +
           " root tbf rate 80mbit burst 128kb latency 1s";
  };
  const std::string made = "ip netns add " + a + " && ip netns add " + b + " && ip link add va netns " + a +
                           " type veth peer name vb netns " + b + " && " + end_of(a, "va", "10.77.0.1") +
                           " && " + end_of(b, "vb", "10.77.0.2");
  const std::string removed = "ip netns delete " + a + "; ip netns delete " + b;
  const int made_code = shell(made);
  if (made_code != 0) {
    shell(removed);
    FAIL() << "no network namespaces: " << made;
  }
  write("cluster.yaml", "hosts: [{name: a}, {name: b}]\nnetwork: {bandwidth: 7}\n");
  const auto rank = [&](const std::string& ns, const std::string& number) {
    return "cd " + folder_.string() + " && RANK=" + number +
           " WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=23111 ip netns exec " + ns +
           " timeout 60 " MILLRACE_BIN_DIR
           "/millrace profile --network --cluster cluster.yaml --out measured.yaml "
           "--backend gloo --round-trips 20 --largest 512KiB >rank" +
           number + ".log 2>&1";
  };
  int codes[2] = {-1, -1};
  {
    std::jthread first([&] { codes[0] = shell(rank(a, "0")); });
    codes[1] = shell(rank(b, "1"));
  }
  shell(removed);
  ASSERT_EQ(codes[0], 0) << bytes("rank0.log") << bytes("rank1.log");
  ASSERT_EQ(codes[1], 0) << bytes("rank0.log") << bytes("rank1.log");
  const auto cluster = ClusterSpec::load((folder_ / "measured.yaml").string());
  ASSERT_TRUE(cluster) << bytes("measured.yaml");
  // 1448 of the 1514 bytes of a frame are ours.
  const double expected = 80e6 / 8 * 1448 / 1514;
  // The room is for a machine that stops for a while.
  EXPECT_GT(cluster->network.bandwidth / expected, 0.6) << bytes("rank0.log");
  EXPECT_LT(cluster->network.bandwidth / expected, 1.1) << bytes("rank0.log");
}

/// Two hosts of which the first believes, as Debian's do, that its own name is loopback.
TEST_F(Network, AMasterThatTakesItselfForLoopbackIsFound) {
  const char* allowed = std::getenv("MILLRACE_NETNS");
  if (!allowed || !*allowed) GTEST_SKIP() << "MILLRACE_NETNS is not set (needs root and ip)";
  const std::string id = std::to_string(::getpid()), a = "mrm" + id, b = "mrn" + id;
  const auto shell = [](const std::string& line) { return std::system(line.c_str()); };
  const auto up = [](const std::string& ns, const std::string& cable, const std::string& address) {
    const std::string in = "ip -n " + ns;
    return in + " addr add " + address + "/24 dev " + cable + " && " + in + " link set " + cable + " up && " +
           in + " link set lo up";
  };
  write("hosts0", "127.0.0.1 localhost\n127.0.1.1 host0\n");
  write("hosts1", "127.0.0.1 localhost\n10.78.0.1 host0\n");
  const std::string removed = "ip netns delete " + a + "; ip netns delete " + b;
  const int made = shell("ip netns add " + a + " && ip netns add " + b + " && ip link add ca netns " + a +
                         " type veth peer name cb netns " + b + " && " + up(a, "ca", "10.78.0.1") + " && " +
                         up(b, "cb", "10.78.0.2"));
  const auto rank = [&](const std::string& ns, const std::string& number) {
    return "cd " + folder_.string() + " && RANK=" + number +
           " WORLD_SIZE=2 MASTER_ADDR=host0 MASTER_PORT=23112 ip netns exec " + ns +
           " unshare -m sh -c 'mount --bind hosts" + number +
           " /etc/hosts && exec timeout 60 " MILLRACE_BIN_DIR
           "/millrace train --model mlp --width 32 --depth 3 --stages 2 --steps 3 --no-evaluation --backend "
           "gloo "
           "--timeout 20' >rank" +
           number + ".log 2>&1";
  };
  int codes[2] = {-1, -1};
  if (made == 0) {
    std::jthread first([&] { codes[0] = shell(rank(a, "0")); });
    codes[1] = shell(rank(b, "1"));
  }
  shell(removed);
  ASSERT_EQ(made, 0) << "no network namespaces";
  EXPECT_EQ(codes[0], 0) << bytes("rank0.log") << bytes("rank1.log");
  EXPECT_EQ(codes[1], 0) << bytes("rank0.log") << bytes("rank1.log");
  for (const char* part :
       {"MASTER_ADDR host0 is 127.0.1.1", "rank 0 listens on 10.78.0.1", "INFO listens on 10.78.0.1:23112"})
    EXPECT_NE(bytes("rank0.log").find(part), std::string::npos) << bytes("rank0.log");
}

TEST_F(Network, WhatTheFileSaysOfOneDeviceAndOfALineIsNotLost) {
  write("cluster.yaml",
        "hosts:\n  - {name: a, devices: 1, bandwidth: 3e9, latency: 2e-6}\n  - {name: b}\n"
        "network: {bandwidth: 1e5}\n");
  const Ran ran =
      run("profile --network --cluster cluster.yaml --out measured.yaml --threads 1" + std::string(kQuick));
  ASSERT_EQ(ran.code, 0) << ran.output;
  const auto cluster = ClusterSpec::load((folder_ / "measured.yaml").string());
  ASSERT_TRUE(cluster) << bytes("measured.yaml");
  EXPECT_EQ(cluster->hosts[0].link, (ClusterLink{3e9, 2e-6})) << bytes("measured.yaml");
  EXPECT_EQ(cluster->hosts[1].link, ClusterLink{});
  for (const char* part : {"between ranks 0 and 1", "the cluster file says 0.1 MB/s", "--largest"})
    EXPECT_NE(ran.output.find(part), std::string::npos) << part << " in " << ran.output;
}

TEST_F(Network, BadInputMeetsAClearErrorAndItsExitCode) {
  write("cluster.yaml", kTwoHosts);
  write("one.yaml", "levels: [{count: 1, bandwidth: 1e9}]\n");
  write("broken.yaml", "levels: [{count: 2, bandwith: 1e9}]\n");
  fs::create_directories(folder_ / "folder");
  const struct {
    std::string arguments;
    std::string message;
    std::string environment;
  } cases[] = {
      {"--network", "--cluster FILE, --ranks N for ranks on this host, or --job", ""},
      {"--network --cluster cluster.yaml --ranks 2", "both", ""},
      {"--network --cluster absent.yaml", "absent.yaml", ""},
      {"--network --cluster broken.yaml", "did you mean 'bandwidth'", ""},
      {"--network --cluster one.yaml", "one rank", ""},
      {"--network --ranks 1", "--ranks", ""},
      {"--network --ranks 2 --model mlp", "--model: does not go with --network", ""},
      {"--network --ranks 2 --largest 1KiB", "--largest", ""},
      {"--network --ranks 2 --backend glue", "did you mean 'gloo'", ""},
      {"--network --ranks 2 --device cuda", "millrace-worker-cuda", ""},
      {"--network --ranks 2 --out folder", "is a folder", ""},
      {"--network --ranks 2 --out absent/measured.yaml", "absent is not a folder", ""},
      {"--network --ranks 2 --timeout 0", "--timeout", ""},
      {"--model mlp --tolerance 0.1", "--tolerance: needs --network", ""},
      {"--network --cluster cluster.yaml", "has 3 ranks, this job has 2", "RANK=0 WORLD_SIZE=2"},
      {"--network --cluster cluster.yaml", "WORLD_SIZE", "RANK=0 WORLD_SIZE=x"},
  };
  for (const auto& bad : cases) {
    const Ran ran = run("profile " + bad.arguments, bad.environment);
    EXPECT_EQ(ran.code, 2) << bad.arguments << "\n" << ran.output;
    EXPECT_NE(ran.output.find(bad.message), std::string::npos) << bad.arguments << "\n" << ran.output;
  }
  // Nobody else comes: the deadline.
  const int port = 20000 + static_cast<int>(::getpid() + 8) % 20000;
  const Ran alone = run("profile --network --cluster cluster.yaml --timeout 0.5",
                        "RANK=1 WORLD_SIZE=3 MASTER_PORT=" + std::to_string(port));
  EXPECT_EQ(alone.code, 5) << alone.output;
  EXPECT_NE(alone.output.find("nobody listens"), std::string::npos) << alone.output;
}

}  // namespace
}  // namespace millrace
