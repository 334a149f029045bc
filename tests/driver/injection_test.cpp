// Strings that a shell would act on, in every field of a job file: each is refused, or arrives as it was
// written. Whatever a shell reads in the end (the script for sbatch, the words behind ssh's host) is run by
// one here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "driver/hosts/engines.h"
#include "driver/launch/batch_job.h"
#include "driver/launch/job_spec.h"
#include "driver/launch/printed_job.h"
#include "runtime/base/text.h"
#include "runtime/saved/checkpoint_folder.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

const std::string kCanary = "touch canary";

std::vector<std::string> hostile_strings() {
  std::vector<std::string> strings;
  for (const std::string shape : {"; %",
                                  "x; %",
                                  "& %",
                                  "x && %",
                                  "x || %",
                                  "| %",
                                  "$(%)",
                                  "x$(%)y",
                                  "`%`",
                                  "\n%\n",
                                  "x\n%",
                                  "'; %; '",
                                  "\"; %; \"",
                                  "'$(%)'",
                                  "\"$(%)\"",
                                  "\\\"; %",
                                  "${x:-$(%)}",
                                  "<(%)",
                                  ">canary",
                                  "x >canary",
                                  "-oProxyCommand=%",
                                  "--client=%",
                                  "-c %",
                                  "*",
                                  "~",
                                  "$HOME",
                                  "!!",
                                  "{a,b}",
                                  "#",
                                  "x # %",
                                  "\x1b]0;%\x07",
                                  "\xe2\x80\xae%",
                                  "\xff\xfe%",
                                  "../../canary",
                                  "/etc/passwd\n%",
                                  "x=$(%)",
                                  "EOF\n%\nEOF",
                                  "MILLRACE\n%"}) {
    std::string text = shape;
    for (std::size_t at; (at = text.find('%')) != std::string::npos;) text.replace(at, 1, kCanary);
    strings.push_back(text);
  }
  strings.push_back(std::string("x\0; ", 4) + kCanary);
  strings.push_back(std::string(4096, 'a') + "$(" + kCanary + ")");
  return strings;
}

class Injection : public ::testing::Test {
 protected:
  /// Runs a shell's text among programs that do nothing.
  void expect_harmless(const std::string& script, const std::string& what) {
    folder_.write("script", script);
    [[maybe_unused]] const int code = std::system(("cd " + folder_.path() + " && PATH=" + folder_.path() +
                                                   "/bin:/usr/bin:/bin timeout 5 bash script "
                                                   "</dev/null >/dev/null 2>&1")
                                                      .c_str());
    EXPECT_FALSE(std::filesystem::exists(folder_.path("canary"))) << what << "\n" << script;
    std::filesystem::remove(folder_.path("canary"));
  }

  void SetUp() override {
    std::filesystem::create_directory(folder_.path("bin"));
    for (const char* name : {"srun", "millrace", "ssh", "mpirun", "torchrun", "kubectl", "docker"}) {
      folder_.write(std::string("bin/") + name, "#!/bin/sh\nexit 0\n");
      std::filesystem::permissions(folder_.path(std::string("bin/") + name),
                                   std::filesystem::perms::owner_all);
    }
  }

  TemporaryFolder folder_;
};

Json job_with(const std::string& field, const std::string& value) {
  Json job = Json::object({{"model", "mlp"}, {"stages", 2}, {"steps", 3}});
  const std::size_t dot = field.find('.');
  if (field == "env.")
    job["env"] = Json::object({{value, "x"}});
  else if (field == "mounts" || field == "hosts") {
    Json list = Json::array();
    list.push_back(value);
    job[field] = list;
  } else if (dot != std::string::npos)
    job[field.substr(0, dot)] = Json::object({{field.substr(dot + 1), value}});
  else
    job[field] = value;
  if (field == "mounts" || field == "container_runtime") job["container"] = "image:1";
  return job;
}

TEST_F(Injection, NoFieldOfAJobReachesAShell) {
  int accepted = 0, refused = 0;
  const auto ask = [](const std::string&) -> Result<Models> { return Problem{"worker", "is not here", {}}; };
  for (const std::string field : {"name",
                                  "model",
                                  "worker",
                                  "output_dir",
                                  "workdir",
                                  "remote_millrace",
                                  "client",
                                  "container",
                                  "container_runtime",
                                  "mounts",
                                  "hosts",
                                  "on",
                                  "slurm.partition",
                                  "slurm.x",
                                  "env.A",
                                  "env.",
                                  "data",
                                  "save_weights",
                                  "init_from",
                                  "backend",
                                  "resume",
                                  "rule",
                                  "device",
                                  "log"}) {
    for (const std::string& text : hostile_strings()) {
      const Result<JobSpec> job = job_from(job_with(field, text), "job.yaml", {}, ask);
      if (!job) {
        ++refused;
        // What is said of it must not act on the terminal.
        for (const Problem& problem : job.problems())
          EXPECT_EQ(to_string(problem).find('\x1b'), std::string::npos) << field;
        continue;
      }
      ++accepted;
      const std::vector<std::string> launch{"millrace", "launch", "--set", field + "=" + text, "--on=slurm"};
      expect_harmless(batch_script(*job, launch), field);
      for (const PrintedForm form : {PrintedForm::Slurm, PrintedForm::Torchrun, PrintedForm::Mpi}) {
        JobSpec placed = *job;
        if (placed.hosts.entries.empty())
          placed.hosts.entries = {{.name = "node1"}}, placed.hosts.ranks = {2};
        if (const Result<std::string> printed = printed_job(placed, form, launch))
          expect_harmless(*printed, field);
      }
      // The words behind the host are read by its login shell.
      std::vector<std::string> agent{job->hosts.millrace.empty() ? "millrace" : job->hosts.millrace, "agent"};
      if (!job->hosts.container.image.empty()) {
        Result<std::vector<std::string>> inside = in_container(
            job->hosts.container, job->hosts.workdir.empty() ? "/work" : job->hosts.workdir, false, agent);
        if (!inside) continue;
        agent = *std::move(inside);
      }
      const Result<std::vector<std::string>> words = agent_command_line(
          *find_engine("ssh"), {.client = "ssh", .host = {.name = "node1"}, .agent = agent});
      if (!words) continue;
      const auto host = std::ranges::find(*words, "node1");
      ASSERT_NE(host, words->end());
      EXPECT_EQ(*(host - 1), "--");
      std::string line;
      for (auto word = host + 1; word != words->end(); ++word) line += *word + " ";
      expect_harmless(line, field);
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(accepted, 50) << "fields whose text may be anything";
}

/// Names that would lead out of a folder, in the file that says which files belong to a checkpoint.
TEST(Manifests, NamesThatLeaveTheFolderAreRefused) {
  const auto manifest = [](const std::string& name) {
    Json shards = Json::array();
    shards.push_back(Json::object({{"file", name}, {"bytes", 0}, {"xxh3_128", std::string(32, '0')}}));
    return sealed_manifest(
        Json::object({{"format", kCheckpointFormat}, {"run", "aa"}, {"step", 4}, {"shards", shards}}));
  };
  EXPECT_TRUE(parse_manifest(manifest("stage0.safetensors"), "m"));
  for (const std::string& name : {std::string("../canary"), std::string("/etc/passwd"), std::string("a/b"),
                                  std::string(".."), std::string("."), std::string(), std::string(".hidden"),
                                  std::string(4096, 'a'), std::string("a\0b", 3), std::string("a\x1b[0m"),
                                  std::string("A B"), std::string("stage0.safetensors\n")}) {
    const Result<ManifestHead> head = parse_manifest(manifest(name), "m");
    EXPECT_FALSE(head) << name;
    EXPECT_EQ(to_string(head.problems()).find('\x1b'), std::string::npos) << "shown escaped";
  }
}

}  // namespace
}  // namespace millrace
