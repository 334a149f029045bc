// Hosts from lists, files and schedulers, the words that start agents there, and jobs printed for others.
#include <gtest/gtest.h>

#include <csignal>
#include <regex>

#include "driver/hosts/host_list.h"
#include "driver/hosts/machine.h"
#include "driver/hosts/program_answer.h"
#include "driver/launch/job_spec.h"
#include "driver/queues/engine.h"
#include "runtime/base/json.h"
#include "runtime/base/run_folder.h"
#include "runtime/plan/plan.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

std::string text_of(const Result<std::vector<HostEntry>>& hosts) {
  if (!hosts) return to_string(hosts.problems());
  std::string text;
  for (const HostEntry& host : *hosts) text += host.login() + ":" + std::to_string(host.slots) + " ";
  return text;
}

TEST(HostFiles, AreListsMachinefilesAndHostfilesOfMpi) {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& text) {
    return text_of(parse_hosts("@" + folder.write("hosts", text)));
  };
  EXPECT_EQ(read("node1\nnode2\n"), "node1:0 node2:0 ");
  EXPECT_EQ(read("# two\nalice@node1:2\n\n  node2 slots=4 max_slots=8 # big\n"), "alice@node1:2 node2:4 ");
  EXPECT_EQ(read("node1\nnode1\nnode2\n"), "node1:2 node2:1 ");  // PBS writes a line for each processor
  EXPECT_NE(read("").find("names no host"), std::string::npos);
  EXPECT_NE(read("node1\n-oProxyCommand=x\n").find("cannot be a host"), std::string::npos);
  EXPECT_NE(text_of(parse_hosts("@nowhere")).find("nowhere"), std::string::npos);
}

TEST(HostLists, HavePortsAliasesAndUsers) {
  const auto entry = [](const std::string& text) {
    const Result<std::vector<HostEntry>> hosts = parse_hosts(text);
    if (!hosts) return to_string(hosts.problems());
    const HostEntry& host = hosts->front();
    return host.login() + " " + std::to_string(host.port) + " " + std::to_string(host.slots) + " " +
           in_list(host, host.slots);
  };
  EXPECT_EQ(entry("node1"), "node1 0 0 node1");
  EXPECT_EQ(entry("node1:2"), "node1 0 2 node1:2");
  EXPECT_EQ(entry("node1:22:2"), "node1 22 2 node1:22:2");
  EXPECT_EQ(entry("node1:22:"), "node1 22 0 node1:22:");
  EXPECT_EQ(entry("First.Last@My_Node:22:2"), "First.Last@My_Node 22 2 First.Last@My_Node:22:2");
  EXPECT_EQ(entry("a@[fd00::3]:22:2"), "a@fd00::3 22 2 a@[fd00::3]:22:2");
  EXPECT_EQ(parse_hosts("node1:22:1,node1:23:1")->size(), 2u);
  for (const char* bad :
       {"node1:22:1,node1:22:1", "node1:0:1", "node1:99999:1", "node1:22:0", "node1:22:1:1", "node1:ssh:1",
        "node1:", "-n", ".n", "n-", "a b", "-u@n", ".u@n", "u@", "@n", "u u@n"})
    EXPECT_FALSE(parse_hosts(bad)) << bad;
}

TEST(Allocations, ReadSlurmsCounts) {
  EXPECT_EQ(parse_tasks_per_node("2(x3),1"), (std::vector<int>{2, 2, 2, 1}));
  EXPECT_EQ(parse_tasks_per_node("4"), std::vector<int>{4});
  for (const char* bad : {"", "x", "2(x", "2(x0)", "0", "2(x99999999)", "2,,1"})
    EXPECT_TRUE(parse_tasks_per_node(bad).empty()) << bad;
}

TEST(Allocations, LeaveOutHostsThatNoRankNeeds) {
  std::vector<HostEntry> hosts = *parse_hosts("a:2,b:2,c:2");
  drop_idle_hosts(hosts, 3);
  EXPECT_EQ(text_of(hosts), "a:2 b:2 ");
  drop_idle_hosts(hosts, 9);
  EXPECT_EQ(hosts.size(), 2u);
}

std::string line_of(const Result<std::vector<std::string>>& words) {
  if (!words) return to_string(words.problems());
  std::string line;
  for (const std::string& word : *words) line += (line.empty() ? "" : " ") + word;
  return line;
}

TEST(Engines, StartTheAgentByTheirOwnProgram) {
  const auto line = [](const char* engine) {
    return line_of(
        agent_command_line(*find_engine(engine), {.client = "client",
                                                  .host = {.user = "", .name = "node1", .slots = 0},
                                                  .agent = {"/opt/millrace", "agent"}}));
  };
  EXPECT_TRUE(line("ssh").starts_with("client -T -o BatchMode=yes"));
  EXPECT_TRUE(line("ssh").ends_with("-- node1 /opt/millrace agent"));
  EXPECT_NE(line("slurm").find("--nodelist=node1"), std::string::npos);
  const auto at_port = [](const char* engine) {
    return line_of(
        agent_command_line(*find_engine(engine), {.client = "client",
                                                  .host = {.user = "", .name = "node1", .port = 2222},
                                                  .agent = {"/opt/millrace", "agent"}}));
  };
  EXPECT_TRUE(at_port("ssh").ends_with("-p 2222 -- node1 /opt/millrace agent")) << at_port("ssh");
  EXPECT_NE(at_port("slurm").find("has a port, which slurm does not take"), std::string::npos);
  EXPECT_EQ(line("mpi"), "client -n 1 -host node1 -bind-to none /opt/millrace agent");
  EXPECT_EQ(line("kubernetes"), "client exec -i node1 -- /opt/millrace agent");
  EXPECT_EQ(find_engine("local"), nullptr);
  EXPECT_EQ(find_engine("pigeon"), nullptr);
}

TEST(Engines, GiveALoginShellNothingToInterpret) {
  const auto with = [](const char* engine, const std::string& program) {
    return line_of(agent_command_line(
        *find_engine(engine),
        {.client = "c", .host = {.user = "", .name = "n", .slots = 0}, .agent = {program, "agent"}}));
  };
  for (const char* program : {"a b", "$(x)", "a;b", "`a`", "a'b", ""})
    EXPECT_NE(with("ssh", program).find("login shell"), std::string::npos) << program;
  EXPECT_EQ(with("slurm", "/a b/millrace").find("login shell"), std::string::npos) << "srun takes words";
  EXPECT_NE(with("ssh", "-oX").find("dash"), std::string::npos);
}

TEST(Engines, RunTheAgentInAContainer) {
  const auto line = [](const Container& container, bool gpus) {
    return line_of(in_container(container, "/work", gpus, {"millrace", "agent"}));
  };
  const Container docker{.image = "mill:1", .mounts = {"/data:/d:ro"}};
  EXPECT_EQ(line(docker, false),
            "docker run --rm --interactive --network=host --ipc=host --volume=/data:/d:ro "
            "--volume=/work:/work mill:1 millrace agent");
  EXPECT_NE(line(docker, true).find("--ulimit=memlock=-1 --gpus=all"), std::string::npos);
  EXPECT_EQ(line({.image = "mill.sif", .runtime = "apptainer", .mounts = {}}, true),
            "apptainer exec --nv --bind=/work:/work mill.sif millrace agent");
  EXPECT_NE(line({.image = "m", .runtime = "enroot", .mounts = {}}, false).find("--mount /work:/work m"),
            std::string::npos);
  EXPECT_NE(line({.image = "m", .runtime = "jail", .mounts = {}}, false).find("one of docker, podman"),
            std::string::npos);
  EXPECT_NE(line({.image = "m", .mounts = {"data"}}, false).find("no absolute path"), std::string::npos);
  EXPECT_NE(line({.image = "--privileged", .mounts = {}}, false).find("cannot be an image"),
            std::string::npos);
}

JobSpec job_of(const std::string& yaml) {
  const Result<Json> json = parse_yaml(yaml, "job.yaml");
  EXPECT_TRUE(json) << (json ? "" : to_string(json.problems()));
  Result<JobSpec> job = job_from(*json, "job.yaml", {}, {});
  EXPECT_TRUE(job) << (job ? "" : to_string(job.problems()));
  return *job;
}

std::string printed(const JobSpec& job, const std::string& name) {
  const std::vector<PrintedForm> forms = printed_forms();
  const auto form = std::ranges::find(forms, name, &PrintedForm::name);
  if (form == forms.end()) return "no form " + name;
  const Result<std::string> text = form->print(job, {"/opt/millrace", "launch", "job.yaml"});
  return text ? *text : to_string(text.problems());
}

TEST(PrintedJobs, AreScriptsAndCommands) {
  const JobSpec job = job_of(
      "model: mlp\nstages: 4\nhosts: [node1:2, node2:2]\nthreads: 3\nslurm: {partition: gpu, "
      "ntasks_per_node: 2}\n"
      "env: {NAME: two words}\n");
  const std::string slurm = printed(job, "slurm");
  EXPECT_NE(slurm.find("#SBATCH --partition=gpu\n"), std::string::npos) << slurm;
  EXPECT_NE(slurm.find("#SBATCH --cpus-per-task=3\n"), std::string::npos) << slurm;
  EXPECT_EQ(slurm.find("--ntasks=4"), std::string::npos) << "ntasks-per-node says it";
  EXPECT_NE(slurm.find("#SBATCH --nodes=2\n#SBATCH --nodelist=node1,node2\n"), std::string::npos) << slurm;
  EXPECT_TRUE(slurm.ends_with("exec /opt/millrace launch job.yaml\n")) << slurm;
  const std::string torchrun = printed(job, "torchrun");
  EXPECT_NE(torchrun.find("--nnodes=2 --node-rank=1 --nproc-per-node=2 --master-addr=node1"),
            std::string::npos)
      << torchrun;
  EXPECT_NE(torchrun.find("NAME='two words'"), std::string::npos) << torchrun;
  EXPECT_NE(printed(job, "mpi").find("mpirun -n 4 --host node1:2,node2:2"), std::string::npos);
  const JobSpec uneven = job_of("model: mlp\nstages: 3\nhosts: [node1:2, node2:1]\n");
  EXPECT_NE(printed(uneven, "torchrun").find("as many ranks on each host"), std::string::npos);
  EXPECT_NE(printed(job, "kubernetes").find("--container IMAGE"), std::string::npos);
}

/// The object of this kind among the documents of a manifest.
Json object_of(const std::string& manifest, const std::string& kind) {
  for (std::size_t at = 0; at < manifest.size();) {
    const std::size_t end = std::min(manifest.find("---\n", at), manifest.size());
    const Result<Json> json = parse_yaml(manifest.substr(at, end - at), "manifest");
    EXPECT_TRUE(json) << (json ? "" : to_string(json.problems()));
    if (json && json->find("kind") && json->find("kind")->as_string() == kind) return *json;
    at = end + 4;
  }
  ADD_FAILURE() << "no " << kind << " in\n" << manifest;
  return Json::object();
}

Json at(const Json& json, const std::vector<std::string>& path) {
  const Json* found = &json;
  for (const std::string& key : path) {
    found =
        found->is_array() ? &found->items().at(static_cast<std::size_t>(std::stoi(key))) : found->find(key);
    if (!found) return Json("no " + key);
  }
  return *found;
}

TEST(PrintedJobs, AreManifestsOfKubernetes) {
  JobSpec job = job_of(
      "name: My_Job\nmodel: mlp\nstages: 3\ncontainer: registry/mill:1\nmounts: [/data]\noutput_dir: out\n");
  const Json set = object_of(printed(job, "kubernetes"), "JobSet");
  EXPECT_EQ(at(set, {"metadata", "name"}).as_string(), "my-job");
  const Json jobs = at(set, {"spec", "replicatedJobs", "0", "template", "spec"});
  EXPECT_EQ(at(jobs, {"completions"}).as_int(), 3);
  EXPECT_EQ(at(jobs, {"completionMode"}).as_string(), "Indexed");
  const Json container = at(jobs, {"template", "spec", "containers", "0"});
  EXPECT_EQ(at(container, {"image"}).as_string(), "registry/mill:1");
  EXPECT_NE(container.dump().find("my-job-ranks-0-0.my-job"), std::string::npos);
  EXPECT_NE(container.dump().find("--output-dir=/millrace/out"), std::string::npos);
  const std::string train = printed(job, "trainjob");
  EXPECT_EQ(at(object_of(train, "TrainJob"), {"spec", "trainer", "numNodes"}).as_int(), 3);
  EXPECT_EQ(at(object_of(train, "TrainingRuntime"), {"spec", "mlPolicy", "numNodes"}).as_int(), 3);
}

/// Fields that the API server and the controllers of Kubernetes check, or act on.
TEST(PrintedJobs, PodsHaveRestartsSecretsResourcesAndValidKeys) {
  const TemporaryFolder folder;
  const std::string hosts = folder.write("my hosts (old).txt", "text");
  JobSpec job = job_of(
      "model: mlp\nstages: 4\ncontainer: m\nmounts: ['/data:/in:ro']\nmax_restarts: 3\noverwrite: true\n"
      "device: cuda\nthreads: 2\nenv: {API_KEY: hidden}\ndata: /nowhere/a\n"
      "kubernetes: {ranks_per_pod: 2, memory: 64Gi}\nclass_weights: '" +
      hosts + "'\n");
  for (const std::string form : {"kubernetes", "trainjob"}) {
    const std::string text = printed(job, form);
    const bool is_set = form == "kubernetes";
    const Json whole = object_of(text, is_set ? "JobSet" : "TrainingRuntime");
    const Json set = is_set ? at(whole, {"spec"}) : at(whole, {"spec", "template", "spec"});
    EXPECT_EQ(at(set, {"failurePolicy", "maxRestarts"}).as_int(), 3);
    EXPECT_EQ(at(set, {"failurePolicy", "rules", "0", "action"}).as_string(), "FailJobSet");
    const Json spec = at(set, {"replicatedJobs", "0", "template", "spec"});
    EXPECT_EQ(at(spec, {"completions"}).as_int(), 2) << "pods";
    EXPECT_EQ(at(spec, {"podFailurePolicy", "rules", "0", "onExitCodes", "values"}).dump(), "[2,3,4,6]");
    const Json pod = at(spec, {"template", "spec", "containers", "0"});
    EXPECT_EQ(at(pod, {"resources", "limits", "nvidia.com/gpu"}).as_string(), "2");
    EXPECT_EQ(at(pod, {"resources", "requests", "cpu"}).as_string(), "4");
    for (const char* of : {"limits", "requests"})
      EXPECT_EQ(at(pod, {"resources", of, "memory"}).as_string(), "64Gi");
    const Json command =
        is_set ? at(pod, {"command"}) : at(object_of(text, "TrainJob"), {"spec", "trainer", "command"});
    EXPECT_NE(command.dump().find("--resume=auto"), std::string::npos);
    EXPECT_EQ(command.dump().find("--overwrite"), std::string::npos) << "it would delete what it resumes";
    // Each secret is in the Secret alone.
    const Json secret = at(object_of(text, "Secret"), {"stringData"});
    EXPECT_EQ(at(secret, {"MILLRACE_TOKEN"}).as_string().size(), 32u);
    for (const auto& [name, value] : secret.members()) {
      EXPECT_EQ(text.find(value.as_string()), text.rfind(value.as_string())) << name;
      EXPECT_NE(pod.dump().find("\"key\":\"" + name + "\""), std::string::npos) << pod.dump();
    }
    EXPECT_EQ(secret.members().size(), 2u);
    const Json inputs = at(object_of(text, "ConfigMap"), {"data"});
    EXPECT_EQ(inputs.members().size(), 1u);
    for (const auto& [key, content] : inputs.members())
      EXPECT_TRUE(std::regex_match(key, std::regex("[-._a-zA-Z0-9]{1,253}"))) << key;
    EXPECT_NE(text.find("# NOTE: no mount has /nowhere/a"), std::string::npos) << text;
  }
  job = job_of("model: mlp\nstages: 4\ncontainer: m\nkubernetes: {ranks_per_pod: 3}\n");
  EXPECT_NE(printed(job, "kubernetes").find("3 does not divide the job's 4 ranks"), std::string::npos);
}

/// The second of three ranks fails by itself, and the others because they lost it (5).
TEST(PrintedJobs, APodStartsItsRanksAndEndsWithTheFailure) {
  const TemporaryFolder folder;
  folder.write("rank", "echo $RANK $LOCAL_RANK \"$1\" > " + folder.path("") +
                           "/said.$LOCAL_RANK\n"
                           "[ $LOCAL_RANK = 1 ] && exit 3\nexit 5\n");
  const JobSpec job = job_of("model: mlp\nstages: 6\ncontainer: m\nkubernetes: {ranks_per_pod: 3}\n");
  const Json pod =
      at(object_of(printed(job, "kubernetes"), "JobSet"),
         {"spec", "replicatedJobs", "0", "template", "spec", "template", "spec", "containers", "0"});
  std::vector<std::string> words{"env", "POD_INDEX=1", "LOCAL_WORLD_SIZE=3"};
  const Json command = at(pod, {"command"});
  for (int word = 0; word < 4; ++word) words.push_back(command.items().at(word).as_string());
  EXPECT_EQ(command.items().at(4).as_string(), "millrace-worker");
  words.insert(words.end(), {"sh", folder.path("rank"), "two words"});
  const Result<std::string> answer = answer_of(words, std::chrono::seconds(60));
  EXPECT_FALSE(answer);
  EXPECT_NE(to_string(answer.problems()).find("exit code 3"), std::string::npos)
      << to_string(answer.problems());
  for (int local = 0; local < 3; ++local)
    EXPECT_EQ(folder.read("said." + std::to_string(local)),
              std::to_string(3 + local) + " " + std::to_string(local) + " two words\n");
}

TEST(Machine, SaysWhatItIsAndSurvivesTheWire) {
  const Machine here = this_machine();
  EXPECT_GT(here.cores, 0);
  EXPECT_GT(here.memory, 0);
  EXPECT_GT(here.speed, 0.01);
  const Machine read = machine_from(to_json(here));
  EXPECT_EQ(read.processor, here.processor);
  EXPECT_EQ(read.cores, here.cores);
  EXPECT_EQ(read.memory, here.memory);
  EXPECT_EQ(read.speed, here.speed);
  const Result<Json> odd =
      parse_json(R"({"processor": 3, "cores": -1, "memory": "much", "speed": null})", "odd");
  const Machine unknown = machine_from(*odd);
  EXPECT_EQ(unknown.processor, "");
  EXPECT_EQ(unknown.cores, 0);
  EXPECT_EQ(unknown.memory, 0);
  EXPECT_EQ(unknown.speed, 0);
}

TEST(Machine, IsComparedWithThePlan) {
  const std::vector<HostEntry> hosts = *parse_hosts("a:2,b:2");
  const Machine good{.processor = "P", .cores = 8, .memory = 8 * kGiB, .speed = 2};
  Plan plan;
  for (int rank = 0; rank < 4; ++rank) plan.stages.push_back({.ranks = {RankId(rank)}, .peak_bytes = kGiB});
  plan.planned_for.hosts = {"a:2", "b:2"};
  EXPECT_TRUE(warnings_on(hosts, {2, 2}, {good, good}, &plan, false).empty());
  EXPECT_TRUE(warnings_on(hosts, {2, 2}, {good, good}, nullptr, false).empty());
  const auto said = [&](Machine second, bool on_gpu = false) {
    std::string text;
    for (const std::string& warning : warnings_on(hosts, {2, 2}, {good, second}, &plan, on_gpu))
      text += warning + "\n";
    return text;
  };
  Machine other = good;
  other.cores = 1;
  EXPECT_EQ(said(other), "b has 1 core for 2 ranks: they will wait for each other\n");
  EXPECT_EQ(said(other, true), "");
  other = good;
  other.memory = kGiB;
  EXPECT_EQ(said(other), "the plan needs 2.0 GiB on b, where 1.0 GiB are free\n");
  other = good;
  other.speed = 1;
  EXPECT_NE(said(other).find("b (P) computes at 0.50 of the speed of a (P)"), std::string::npos)
      << said(other);
  plan.planned_for.hosts = {"a:2", "c:2"};
  EXPECT_EQ(said(good),
            "the plan was made for the hosts a:2, c:2, the job has a:2, b:2: its predictions may not hold\n");
}

/// A shell waits for SIGCHLD, which a sweep blocks to read it from a descriptor.
TEST(Answers, OfASuspendedProgramAreNotWaitedFor) {
  const Result<std::string> answer = answer_of({"sh", "-c", "kill -STOP $$"}, std::chrono::minutes(5));
  ASSERT_FALSE(answer);
  EXPECT_NE(to_string(answer.problems()).find("is suspended (SIGSTOP or a debugger) on " + host_name()),
            std::string::npos)
      << to_string(answer.problems());
}

TEST(ProgramAnswers, DoNotDependOnTheSignalsThatTheCallerBlocks) {
  sigset_t blocked, before;
  ::sigemptyset(&blocked);
  for (const int signal : {SIGCHLD, SIGTERM}) ::sigaddset(&blocked, signal);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  const Result<std::string> answer =
      answer_of({"sh", "-c", "sleep 0.1 & wait $!; echo done"}, std::chrono::seconds(10));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(answer ? *answer : to_string(answer.problems()), "done\n");
}

}  // namespace
}  // namespace millrace
