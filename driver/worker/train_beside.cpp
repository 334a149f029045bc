#include "driver/worker/train_beside.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "driver/cli/command_support.h"
#include "driver/worker/emulation.h"
#include "driver/worker/train_ranks.h"
#include "driver/worker/train_summary.h"
#include "runtime/base/failure_text.h"
#include "runtime/base/log.h"
#include "runtime/base/private_folder.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"
#include "runtime/base/unfinished_file.h"

namespace millrace {
namespace {

struct NamedWords {
  std::string name;
  std::vector<std::string> words;
};

/// Returns the jobs of a command line; none if it does not begin with kBeside and a name.
std::vector<NamedWords> split_at_jobs(const std::vector<std::string>& args) {
  std::vector<NamedWords> jobs;
  for (auto word = args.begin(); word != args.end(); ++word) {
    if (*word == kBeside && word + 1 != args.end())
      jobs.push_back({.name = *++word, .words = {}});
    else if (jobs.empty())
      return {};
    else
      jobs.back().words.push_back(*word);
  }
  return jobs;
}

/// The problems, each with the job's name in front.
Problems about_job(const std::string& name, Problems problems) {
  for (Problem& problem : problems)
    problem.where = "job " + name + (problem.where.empty() ? "" : ", " + problem.where);
  return problems;
}

/// Returns the job that `args` describe, with its data open. It shares `world`.
Result<Rounds> job_of(const std::vector<std::string>& args, const Additions& own,
                      const std::shared_ptr<SharedWorld>& world) {
  GivenOptions ignored;
  const CommandSpec plain = with_additions(train_spec(), own, ignored);
  const Result<JobLists> lists = take_job_lists(plain, args);
  if (!lists) return lists.problems();
  std::vector<TrainFlags> flags(lists->args.size());  // of a job array several
  for (std::size_t job = 0; job < flags.size(); ++job) {
    const CommandSpec command = with_additions(train_spec(flags[job]), own, flags[job].model.options);
    const Result<Arguments> parsed = parse_arguments(command, lists->args[job]);
    if (!parsed) return parsed.problems();
    if (!parsed->problems().empty()) return parsed->problems();
    flags[job].emulation.world = world;
    flags[job].options.command = command_of_process();
  }
  Result<Rounds> made = rounds_from(flags, *lists, own, {});
  if (!made) return made.problems();
  const TrainOptions& o = made->flags.options;
  if (o.output_dir.empty())
    return Problem{"--output-dir", "is missing", "each job needs a folder of its own"};
  if (!o.overwrite)
    if (const Status unused = check_unused(o.output_dir); !unused) return unused.problems();
  if (const Status folder = make_private_folder(o.output_dir); !folder) return folder.problems();
  OpenDatasets open;
  for (Round& round : made->all)
    if (const Status opened = open_data(round, open); !opened) return opened.problems();
  log_notes(made->all.front().spec, made->all.front().sets);
  return made;
}

std::string median_step_of(const std::string& folder) {
  const Result<Json> summary = read_json((std::filesystem::path(folder) / run_files::kSummary).string());
  const Json* step = summary ? summary->find("median_step_s") : nullptr;
  return step && step->is_number() ? printed("%.2f ms a step", step->as_double() * 1e3) : "no steps";
}

}  // namespace

int train_beside(const std::vector<std::string>& args, const Accelerator& accelerator, const Additions& own) {
  const auto world = std::make_shared<SharedWorld>();
  const std::vector<NamedWords> named = split_at_jobs(args);
  if (named.empty())
    return exit_with(ExitCode::Usage, {{kBeside, "stands before the name and the words of each job",
                                        "millrace emulate a.yaml b.yaml --device-profile FILE"}});
  std::deque<Rounds> jobs;
  for (const NamedWords& job : named) {
    set_job_mark(job.name + ": ");
    Result<Rounds> made = job_of(job.words, own, world);
    if (!made) return exit_with(ExitCode::Usage, about_job(job.name, made.problems()));
    jobs.push_back(*std::move(made));
  }
  set_job_mark("");
  for (const Rounds& job : jobs) world->expect(job.all.front().spec.pipeline.num_ranks());
  use_threads(jobs.front().all.front().spec);
  tell_when_interrupted(
      "millrace emulate: stopped before its end; the jobs' folders have their steps so far");
  std::mutex mutex;
  int code = 0;
  const auto train = [&](Rounds& job, const std::string& name) {
    set_job_mark(name + ": ");
    const int own_code = guarded([&] {
      try {
        return static_cast<int>(train_in_threads(job, accelerator));
      } catch (...) {
        // Its ranks may have come already; too many that leave do no harm, and the others do not wait.
        world->leave(job.all.front().spec.pipeline.num_ranks());
        throw;
      }
    });
    const std::lock_guard lock(mutex);
    if (code == 0) code = own_code;
  };
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < jobs.size(); ++i)
      threads.emplace_back([&, i] { train(jobs[i], named[i].name); });
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const std::string& folder = jobs[i].flags.options.output_dir;
    std::printf("%s: %s on shared devices, in %s\n", named[i].name.c_str(), median_step_of(folder).c_str(),
                folder.c_str());
  }
  return code;
}

}  // namespace millrace
