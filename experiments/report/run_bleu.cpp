#include "experiments/report/run_bleu.h"

#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "driver/bleu/bleu_command.h"
#include "driver/cli/command_support.h"
#include "driver/hosts/program_paths.h"
#include "driver/launch/translate_launch.h"
#include "experiments/report/report.h"
#include "experiments/runs/run_data.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/run_files.h"
#include "runtime/base/text.h"

extern char** environ;

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "millrace-run-bleu-1";

struct StepFolder {
  std::int64_t step = 0;
  std::string path;
};

/// Returns the checkpoints with a manifest, by step.
std::vector<StepFolder> checkpoints_of(const fs::path& run) {
  std::vector<StepFolder> found;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(run / run_files::kCheckpoints, ignored)) {
    const std::string name = entry.path().filename().string();
    constexpr std::string_view prefix = "step-";
    if (!name.starts_with(prefix) || !fs::exists(entry.path() / "manifest.json", ignored)) continue;
    const auto step = integer_from(name.substr(prefix.size()), 0, into::kAny);
    if (step) found.push_back({*step, entry.path().string()});
  }
  std::ranges::sort(found, {}, &StepFolder::step);
  return found;
}

/// Runs a program with its stdout on our stderr; its exit code.
int exit_code_of(std::vector<std::string> words) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files{};
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, 2, 1);
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, argv[0], &files, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  if (failed != 0) {
    throw ConfigError(words[0] + ": cannot be started: " + std::strerror(failed),
                      worker_hint(ComputeDevice::Cpu));
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Adds what the run's own files say of a step.
void add_progress(const RunData& run, CheckpointBleu& score) {
  if (const Json* per_epoch = run.summary.find("steps_per_epoch");
      per_epoch && per_epoch->is_number() && per_epoch->as_double() > 0)
    score.epochs = static_cast<double>(score.step) / per_epoch->as_double();
  if (const RankRun* rank = loss_rank(run)) {
    double seconds = 0;
    for (const StepLine& line : rank->steps) {
      if (done_after(run, *rank, line) <= score.step) seconds += line.step_s;
    }
    score.hours = seconds / 3600;
  }
  const Json* evaluations = run.summary.find("evaluations");
  if (!evaluations || !evaluations->is_array()) return;
  for (const Json& evaluation : evaluations->items()) {
    const Json *step = evaluation.find("step"), *loss = evaluation.find("loss");
    if (step && loss && step->is_number() && loss->is_number() &&
        std::llround(step->as_double()) == score.step)
      score.validation_loss = loss->as_double();
  }
}

Json to_json(const CheckpointBleu& score) {
  const auto number = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  return Json::object({{"step", score.step},
                       {"epochs", number(score.epochs)},
                       {"hours", number(score.hours)},
                       {"validation_loss", number(score.validation_loss)},
                       {"bleu", score.bleu}});
}

void print_table(const std::vector<CheckpointBleu>& scores, const std::string& signature) {
  const auto cell = [](const std::optional<double>& value, const char* pattern) {
    return value ? printed(pattern, *value) : std::string("-");
  };
  std::printf("%10s %8s %8s %16s %7s\n", "step", "epochs", "hours", "validation loss", "BLEU");
  for (const CheckpointBleu& score : scores) {
    std::printf("%10lld %8s %8s %16s %7.2f\n", static_cast<long long>(score.step),
                cell(score.epochs, "%.2f").c_str(), cell(score.hours, "%.3f").c_str(),
                cell(score.validation_loss, "%.4f").c_str(), score.bleu);
  }
  std::printf("BLEU|%s\n", signature.c_str());
}

Problems wrong_flags(const Arguments& given) {
  Problems problems;
  if (!given.has("input"))
    problems.push_back({"--input", "is required with --run", "the text that REF translates"});
  for (const char* flag : {"system", "sentence", "confidence", "paired-bs", "paired-ar", "num-refs"}) {
    if (given.has(flag))
      problems.push_back({long_name(flag), "does not go with --run", "score one file of its"});
  }
  return problems;
}

/// Translates in this host's ranks if it is told to. Returns the exit code.
int translate(std::vector<std::string> words) {
  if (starts_translate_ranks(words)) return launch_translate(words);
  words.insert(words.begin(), {worker_path(ComputeDevice::Cpu), "translate"});
  return exit_code_of(std::move(words));
}

int score_run(const BleuFlags& flags, const Arguments& given) {
  const fs::path folder = *flags.run;
  const Result<RunData> run = read_run(folder.string());
  if (!run) return exit_with(ExitCode::InputData, run.problems());
  const std::vector<StepFolder> checkpoints = checkpoints_of(folder);
  if (checkpoints.empty())
    return exit_with(ExitCode::Checkpoint, {{folder.string(), "has no checkpoint",
                                             "train with --checkpoint-every N --keep-checkpoints 0"}});
  if (const Status made = make_writable_folder(folder / run_files::kHypotheses); !made)
    return exit_with(ExitCode::Usage, made.problems());
  std::vector<CheckpointBleu> scores;
  std::string signature;
  for (const StepFolder& checkpoint : checkpoints) {
    const std::string hypotheses =
        (folder / run_files::kHypotheses / ("step-" + std::to_string(checkpoint.step))).string();
    std::vector<std::string> words{"--checkpoint", checkpoint.path, "--input",    *flags.input,
                                   "--output",     hypotheses,      "--overwrite"};
    for (const std::string& word : words_of(flags.translate, ' ')) words.push_back(word);
    std::fprintf(stderr, "step %lld: ", static_cast<long long>(checkpoint.step));
    if (const int code = translate(words); code != 0) return code;
    const Result<FileScore> score = score_file(flags, given, hypotheses);
    if (!score) return exit_with(ExitCode::InputData, score.problems());
    signature = score->signature;
    scores.push_back({.step = checkpoint.step, .bleu = score->bleu});
    add_progress(*run, scores.back());
  }
  Json rows = Json::array();
  for (const CheckpointBleu& score : scores) rows.push_back(to_json(score));
  const Json json = Json::object({{"format", kFormat}, {"signature", signature}, {"checkpoints", rows}});
  if (const Status saved = write_file_atomically(folder / run_files::kBleu, json.dump(1) + "\n"); !saved)
    return exit_with(ExitCode::RunFailed, saved.problems());
  if (flags.format == OutputFormat::Json)
    std::printf("%s\n", json.dump(1).c_str());
  else
    print_table(scores, signature);
  return 0;
}

}  // namespace

std::vector<CheckpointBleu> logged_bleu(const RunData& run) {
  std::vector<CheckpointBleu> scores;
  for (const RunScore& score : run.scores) {
    scores.push_back({.step = score.after_step, .bleu = score.bleu});
    add_progress(run, scores.back());
  }
  return scores;
}

Result<std::vector<CheckpointBleu>> read_run_bleu(const std::string& folder) {
  const fs::path path = fs::path(folder) / run_files::kBleu;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::vector<CheckpointBleu>{};
  const Result<std::string> text = read_regular_file(path);
  if (!text) return text.problems();
  const Result<Json> json = parse_json(*text, path.string());
  if (!json) return json.problems();
  std::vector<CheckpointBleu> scores;
  const Json* rows = json->find("checkpoints");
  if (!rows || !rows->is_array())
    return Problem{path.string(), "has no checkpoints", "make it again: bleu --run"};
  for (const Json& row : rows->items()) {
    const auto number = [&](const char* key) -> std::optional<double> {
      const Json* value = row.find(key);
      return value && value->is_number() ? std::optional(value->as_double()) : std::nullopt;
    };
    const auto step = number("step"), bleu = number("bleu");
    if (!step || !bleu)
      return Problem{path.string(), "has a checkpoint without step or bleu", "make it again"};
    scores.push_back(
        {std::llround(*step), number("epochs"), number("hours"), number("validation_loss"), *bleu});
  }
  return scores;
}

bool scores_a_run(const std::vector<std::string>& args) {
  return std::ranges::any_of(args,
                             [](const std::string& a) { return a == "--run" || a.starts_with("--run="); });
}

int run_bleu_command(const std::vector<std::string>& args) {
  BleuFlags flags;
  CommandSpec spec = bleu_spec(flags);
  spec.positionals = {"REF..."};
  const Result<Arguments> given = parse_arguments(spec, args);
  if (!given) return exit_with(ExitCode::Usage, given.problems());
  if (given->wants_help()) return print_help(bleu_spec(), *given);
  Problems problems = wrong_flags(*given);
  append(problems, given->problems());
  return problems.empty() ? score_run(flags, *given) : exit_with(ExitCode::Usage, problems);
}

}  // namespace millrace
