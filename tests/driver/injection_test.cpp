// Hostile text in a job file: each string is refused, or arrives as it was written. None is ever run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "driver/launch/job_spec.h"
#include "driver/queues/engine.h"
#include "driver/queues/shell_words.h"
#include "runtime/base/files.h"
#include "tests/driver/temporary_folder.h"
#include "tests/harness/shell.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

/// Words that a shell, ssh, sbatch, YAML or a terminal would act on. CANARY is a file that must never appear.
std::vector<std::string> hostile_words() {
  std::vector<std::string> words = {"-oProxyCommand=touch CANARY",
                                    "--wrap=touch CANARY",
                                    "-h",
                                    "~root",
                                    "$HOME",
                                    "*",
                                    "a b",
                                    "'",
                                    "\"",
                                    "\\",
                                    "%j",
                                    "{a,b}",
                                    "!!",
                                    "#x",
                                    "a: b",
                                    "[x]",
                                    "&anchor",
                                    "|",
                                    "../../etc",
                                    "\xc3\xa4\xe2\x82\xac",
                                    "\xff\xfe",
                                    "\u202egpj"};
  for (const std::string& run : {std::string("touch CANARY"), std::string("touch${IFS}CANARY")}) {
    for (const auto& [before, after] :
         std::vector<std::pair<std::string, std::string>>{{";", ""},
                                                          {"a;", ";"},
                                                          {"&", "&"},
                                                          {"|", ""},
                                                          {"||", ""},
                                                          {"&&", ""},
                                                          {"$(", ")"},
                                                          {"`", "`"},
                                                          {"'$(", ")'"},
                                                          {"'; ", " #"},
                                                          {"\"; ", " #"},
                                                          {"\n", "\n"},
                                                          {"a\n#SBATCH --wrap=", ""},
                                                          {"a\r\n", ""},
                                                          {"\t;", ""},
                                                          {"<(", ")"},
                                                          {">(", ")"},
                                                          {"${x:=", "}"},
                                                          {"a'\n", "\n'"},
                                                          {"\x1b]0;", "\x07"}})
      words.push_back(before + run + after);
  }
  return words;
}

using Field = std::function<Json(const std::string& hostile)>;

Json with(const char* key, Json value) {
  Json job = Json::object({{"model", "mlp"}, {"stages", 2}, {"steps", 1}});
  job[key] = std::move(value);
  return job;
}

const std::vector<std::pair<std::string, Field>> kFields = {
    {"name", [](const std::string& s) { return with("name", s); }},
    {"output_dir", [](const std::string& s) { return with("output_dir", s); }},
    {"worker", [](const std::string& s) { return with("worker", s); }},
    {"env",
     [](const std::string& s) {
       return with("env", Json::object({{"NAME", s}}));
     }},
    {"env key",
     [](const std::string& s) {
       return with("env", Json::object({{s, "x"}}));
     }},
    {"data", [](const std::string& s) { return with("data", s); }},
    {"args",
     [](const std::string& s) {
       return with("args", Json::object({{"init-from", s}}));
     }},
    {"slurm",
     [](const std::string& s) {
       return with("slurm", Json::object({{"partition", s}}));
     }},
    {"slurm key",
     [](const std::string& s) {
       return with("slurm", Json::object({{s, "x"}}));
     }},
    {"pbs",
     [](const std::string& s) {
       return with("pbs", Json::object({{"queue", s}}));
     }},
    {"pbs key",
     [](const std::string& s) {
       return with("pbs", Json::object({{s, "x"}}));
     }},
    {"hosts", [](const std::string& s) { return with("hosts", s); }},
    {"user", [](const std::string& s) { return with("hosts", s + "@node1"); }},
    {"workdir", [](const std::string& s) { return with("workdir", s); }},
    {"remote_millrace", [](const std::string& s) { return with("remote_millrace", s); }},
    {"container", [](const std::string& s) { return with("container", s); }},
    {"mounts", [](const std::string& s) { return with("mounts", s); }},
    {"a key", [](const std::string& s) { return with(s.c_str(), "x"); }},
};

TEST(Injection, TextOfAJobIsRefusedOrStaysText) {
  const TemporaryFolder folder;
  // In the place of every program that a script names.
  std::ofstream(folder.path("program")) << "#!/bin/sh\nfor word; do printf '%s\\0' \"$word\"; done\n";
  fs::permissions(folder.path("program"), fs::perms::owner_all);
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  int refused = 0, kept = 0;
  for (const auto& [field, make] : kFields) {
    for (const std::string& hostile : hostile_words()) {
      const Result<JobSpec> job = job_from(make(hostile), "job.yaml", {}, {});
      if (!job) {
        ++refused;
        // Nothing of it reaches a terminal as it is.
        EXPECT_EQ(to_string(job.problems()).find('\x1b'), std::string::npos) << field;
        continue;
      }
      ++kept;
      const std::vector<std::string> words = train_arguments(*job);
      std::vector<std::string> command{folder.path("program")};
      command.insert(command.end(), words.begin(), words.end());
      command.push_back(hostile);
      // As a script of sbatch, which a shell runs.
      const std::string script = *find_engine("slurm")->queue->script(*job, command);
      std::ofstream(folder.path("script")) << script;
      const Answer answer = shell("cd " + folder.path("") + " && sh ./script");
      std::string expected;
      for (std::size_t i = 1; i < command.size(); ++i) expected += command[i] + std::string(1, '\0');
      EXPECT_EQ(answer.text, expected) << field << ": " << hostile << "\n" << script;
      // As one of qsub, which goes back to this folder and prints into a file.
      if (JobSpec queued = *job; queued.output_dir.find("..") == std::string::npos) {
        queued.output_dir = folder.path() + "/" + queued.output_dir;
        fs::create_directories(queued.output_dir);
        const std::string in_pbs = *find_engine("pbs")->queue->script(queued, command);
        std::ofstream(folder.path("script")) << in_pbs;
        shell("cd " + folder.path("") + " && PBS_JOBID=1 sh ./script");
        EXPECT_EQ(*read_file(fs::path(queued.output_dir) / "pbs-1.out"), expected) << field << "\n" << in_pbs;
        fs::remove(fs::path(queued.output_dir) / "pbs-1.out");
      }
      for (const PrintedForm& form : printed_forms()) (void)form.print(*job, command);
      // And back from the file that it is written to.
      const Result<Json> again = parse_yaml(to_yaml(*job), "again");
      EXPECT_TRUE(again) << field << ": " << hostile;
      ASSERT_FALSE(fs::exists(folder.path("CANARY"))) << field << ": " << hostile;
    }
  }
  fs::current_path(before);
  EXPECT_GT(refused, 200);
  EXPECT_GT(kept, 100);
}

}  // namespace
}  // namespace millrace
