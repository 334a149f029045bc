// `millrace translate`: lines -> tokens -> beam search, a window of lines at a time -> lines.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <thread>

#include "data/files/file_writer.h"
#include "data/text/output_files.h"
#include "driver/cli/command_support.h"
#include "driver/launch/translate_launch.h"
#include "driver/worker/translation.h"
#include "driver/worker/worker_environment.h"
#include "driver/worker/worker_options.h"
#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/checkpoint.h"

namespace millrace {
namespace {

// The deadline is that of a window's translation on another rank: it is work, not a message.
constexpr std::chrono::hours kWindowDeadline{24};

/// The weights, or those of this rank's stage, and what is known of those who made them.
struct Trained {
  std::optional<GnmtTranslator> translator;
  std::optional<S2vtCaptioner> captioner;  ///< instead, with --features
  GnmtStages stages;                       ///< empty: the whole model is here
  std::int64_t step = -1;                  ///< of a checkpoint
  std::string fingerprint;                 ///< of the whole checkpoint
  Settings settings;

  std::int64_t vocabulary() const { return captioner ? captioner->vocabulary() : translator->vocabulary(); }
};

/// Throws CheckpointError; ConfigError: the model cannot be cut so.
Trained read_weights(const WeightFiles& files, const TranslateFlags& f, const TranslateRanks& who,
                     int stage) {
  const auto checked = [](auto result, auto error) {
    if (!result) throw error(to_string(result.problems()));
    return *std::move(result);
  };
  const auto no_checkpoint = [](const std::string& text) { return CheckpointError(text); };
  const auto no_cut = [](const std::string& text) { return ConfigError(text); };
  Trained trained;
  if (!f.features.empty()) {
    trained.captioner = checked(S2vtCaptioner::from(files), no_checkpoint);
    return trained;
  }
  if (who.stages == 1) {
    trained.translator = checked(GnmtTranslator::from(files), no_checkpoint);
    return trained;
  }
  const LayeredModel model = checked(GnmtTranslator::model_of(files), no_checkpoint);
  GnmtStages stages = checked(
      who.plan ? gnmt_stages(model, *who.plan, f.plan) : even_gnmt_stages(model, who.stages, f.beam), no_cut);
  const std::vector<std::string>& layers = stages[stage];
  GnmtTranslator translator = checked(GnmtTranslator::from(files, layers), no_checkpoint);
  log_info("stage " + std::to_string(stage) + ": " +
           (layers.empty() ? "nothing to translate with"
                           : layers.front() + " to " + layers.back() + ", " +
                                 printed("%.1f MB of weights", 1e-6 * double(translator.bytes()))));
  trained.translator = std::move(translator);
  trained.stages = std::move(stages);
  return trained;
}

Trained read_checkpoint(const TranslateFlags& f, const TranslateRanks& who, int stage) {
  std::error_code ignored;
  if (std::filesystem::is_directory(f.checkpoint, ignored)) {
    const Result<Checkpoint> checkpoint = open_checkpoint(f.checkpoint);
    if (!checkpoint) throw CheckpointError(to_string(checkpoint.problems()));
    WeightFiles files;
    for (const SafetensorsFile& shard : checkpoint->shards) files.push_back(&shard);
    Trained trained = read_weights(files, f, who, stage);
    trained.step = checkpoint->info.step;
    trained.fingerprint = "step " + std::to_string(trained.step) + ", " + checkpoint->manifest_sha256;
    trained.settings = checkpoint->info.settings;
    return trained;
  }
  const Result<SafetensorsFile> file = SafetensorsFile::open(f.checkpoint);
  if (!file) throw CheckpointError(to_string(file.problems()));
  Trained trained = read_weights({&*file}, f, who, stage);
  trained.fingerprint = std::to_string(file->bytes()) + " bytes";
  return trained;
}

void print_result(const TranslateFlags& f, const Trained& trained, const TranslationCounts& c,
                  double seconds) {
  FILE* const out = f.output == "-" ? stderr : stdout;
  const double rate = static_cast<double>(c.sentences) / std::max(seconds, 1e-9);
  if (f.format == OutputFormat::Json) {
    const Json json = Json::object({{"checkpoint_step", trained.step < 0 ? Json() : Json(trained.step)},
                                    {"sentences", c.sentences},
                                    {"source_tokens", c.source_tokens},
                                    {"target_tokens", c.target_tokens},
                                    {"unknown", c.unknown},
                                    {"empty", c.empty},
                                    {"invalid", c.invalid},
                                    {"replaced_bytes", static_cast<std::int64_t>(c.replaced_bytes)},
                                    {"cut", c.cut},
                                    {"unfinished", c.unfinished},
                                    {"seconds", seconds},
                                    {"sentences_per_s", rate}});
    std::fprintf(out, "%s\n", json.dump(1).c_str());
    return;
  }
  const bool videos = trained.captioner.has_value();
  std::string text = std::to_string(c.sentences) + (videos ? " videos, " : " sentences, ") +
                     std::to_string(c.source_tokens) +
                     (videos ? " frames" : " tokens (" + std::to_string(c.unknown) + " unknown)") + " to " +
                     std::to_string(c.target_tokens) + (videos ? " words" : "");
  const auto add = [&](std::int64_t count, const char* what) {
    if (count > 0) text += ", " + std::to_string(count) + " " + what;
  };
  add(c.empty, "empty");
  add(c.invalid, "left empty: invalid UTF-8");
  add(static_cast<std::int64_t>(c.replaced_bytes), "bytes replaced");
  add(c.cut, "cut");
  add(c.unfinished, "without an end");
  if (trained.step >= 0) text += "; checkpoint of step " + std::to_string(trained.step);
  std::fprintf(out, "%s; %.2f s, %.1f %s/s\n", text.c_str(), seconds, rate, videos ? "videos" : "sentences");
}

/// The ranks that share the sentences; one alone has no others.
struct Place {
  JobEnvironment job;
  TranslateRanks who;
  JoinedJob joined;
  std::vector<std::unique_ptr<Communicator>> lanes;  ///< over the stages of this rank's pipeline
  int rank() const { return job.distributed ? job.rank : 0; }
  int size() const { return joined.communicator ? job.size : 1; }
  int stage() const { return rank() % who.stages; }
  int pipeline() const { return rank() / who.stages; }
  int pipelines() const { return size() / who.stages; }
};

Problems place_problems(const TranslateFlags& f, const JobEnvironment& job, const TranslateRanks& who) {
  Problems problems;
  if (job.size > 1 && f.input == "-")
    problems.push_back({"--input", "stdin cannot be read by several ranks", "give a file"});
  if (job.distributed && f.ranks.value_or(job.size) != job.size)
    problems.push_back(
        {"--ranks",
         std::to_string(*f.ranks) + ", and this process is one of a job of " + std::to_string(job.size),
         "leave it out: the job says how many there are"});
  if (!job.distributed && who.ranks > 1)
    problems.push_back({who.stages > 1 ? "--stages" : "--ranks",
                        "this program is one rank, `millrace translate` starts them",
                        {}});
  if (job.distributed && job.size % who.stages != 0)
    problems.push_back(
        {"--stages", std::to_string(who.stages) + ", and the job has " + std::to_string(job.size) + " ranks",
         "start a multiple of the stages"});
  return problems;
}

/// --threads, or this rank's share of the cores.
int threads_of(const TranslateFlags& f, int ranks) {
  if (f.threads > 0) return f.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks);
}

/// Returns the settings that decide the output beside weights, texts and stages.
std::string settings_text(const TranslateFlags& f) {
  return "--beam " + std::to_string(f.beam) + " --max-length " + std::to_string(f.max_length) +
         " --length-penalty " + printed("%g", f.length_penalty) + " --length-constant " +
         printed("%g", f.length_constant) + " --coverage-penalty " + printed("%g", f.coverage_penalty) +
         " --coverage " + std::string(to_string(f.coverage)) + " --batch " + std::to_string(f.batch) +
         " --max-source " + std::to_string(f.max_source) + " --n-best " + std::to_string(f.n_best);
}

/// Collective: what rank 0 says of `what`. Throws ConfigError on all ranks if one says something else.
void expect_alike(Communicator& world, const std::string& what, const std::string& mine) {
  const std::string first = broadcast_text(world, mine);
  const auto problem = run_together(world, kWindowDeadline, "comparing " + what, [&] {
    if (mine != first) throw ConfigError(what + " is " + mine + ", on rank 0 " + first);
  });
  if (problem) throw ConfigError(to_string(*problem), "all ranks must be told and find the same");
}

/// Meets the others, and sees that they translate the same in the same way.
void join(Place& place, const TranslateFlags& f, const Trained& trained, int& threads) {
  place.joined =
      join_job(place.job, {.deadline = f.deadline, .purpose = "translate"}, *make_cpu_device(), {});
  Communicator& world = *place.joined.communicator;
  expect_alike(world, "--checkpoint " + f.checkpoint, trained.fingerprint);
  expect_alike(world, "the search", settings_text(f));
  std::string cut;
  for (const auto& layers : trained.stages) cut += (layers.empty() ? "-" : layers.front()) + " ";
  expect_alike(world, "the stages' beginning", cut);
  if (place.who.stages == 1) return;
  threads = std::stoi(broadcast_text(world, std::to_string(threads)));
  std::vector<RankId> ranks;
  for (int stage = 0; stage < place.who.stages; ++stage)
    ranks.emplace_back(place.pipeline() * place.who.stages + stage);
  for (int lane = 0; lane < threads; ++lane) {
    place.lanes.push_back(world.subgroup(
        ranks, "translate " + std::to_string(place.pipeline()) + " lane " + std::to_string(lane)));
  }
}

/// Window after window; `write` gets the output line by line, on rank 0.
template <class Write>
void translate_all(Translation& translation, const TranslateFlags& f, const Trained& trained,
                   InputLines& input, const Place& place, int threads, Write write) {
  const std::size_t keep = static_cast<std::size_t>(std::max(1, f.n_best));
  for (std::vector<SourceLine> window; !(window = translation.read_window(input)).empty();) {
    const std::vector<SentenceBatch> batches = translation.batches(window);
    const auto mine = share_of(batches, place.pipeline(), place.pipelines());
    const auto translate_mine = [&] {
      if (trained.captioner) return translation.translate(*trained.captioner, mine, threads);
      if (place.lanes.empty()) return translation.translate(*trained.translator, mine, threads);
      translation.translate(*trained.translator, trained.stages, mine, place.lanes);
    };
    if (place.size() > 1) {
      const auto problem =
          run_together(*place.joined.communicator, kWindowDeadline, "translating", translate_mine);
      if (problem) throw Error(ExitCode::RunFailed, to_string(*problem));
      exchange_hypotheses(*place.joined.communicator, batches, keep, place.who.stages);
    } else {
      translate_mine();
    }
    if (place.rank() != 0) continue;
    for (const SourceLine& line : window) write(translation.written(line));
  }
  if (const std::string note = translation.cut_note(); !note.empty() && place.rank() == 0) log_warning(note);
}

int translate(const TranslateFlags& f, Place& place) {
  const bool first = place.rank() == 0;
  // Outputs that cannot be written are known before anything is computed.
  std::optional<OutputFiles> outputs;
  if (f.output != "-" && first)
    outputs.emplace(std::vector{f.output}, std::vector{f.input},
                    f.overwrite ? Existing::Replaced : Existing::Refused);
  const Result<Languages> languages = read_languages(f);
  if (!languages) return report_problems(languages.problems(), ExitCode::InputData);
  InputLines input(f.input);
  const Trained trained = read_checkpoint(f, place.who, place.stage());
  if (const Problems problems =
          vocabulary_problems(f, *languages, {f.checkpoint, trained.vocabulary(), trained.settings});
      !problems.empty())
    return report_problems(problems, ExitCode::Checkpoint);
  if (f.beam > static_cast<int>(languages->target->size()))
    return report_problems({{"--beam", "is larger than the vocabulary", "at most its size"}},
                           ExitCode::Usage);
  set_compute_threads(1, false);
  int threads = threads_of(f, place.job.size);
  if (place.job.size > 1) join(place, f, trained, threads);
  SteadyClock clock;
  const TimePoint start = clock.now();
  Translation translation(f, *languages, trained.captioner ? trained.captioner->frame_features() : 0);
  // Translations that scroll by on the terminal are the progress.
  std::optional<WorkingLine> working;
  if (first && (outputs || !::isatty(STDOUT_FILENO))) working.emplace("translates");
  const auto all = [&](auto write) { translate_all(translation, f, trained, input, place, threads, write); };
  if (outputs) {
    FileWriter file(outputs->temporary(0));
    all([&](const std::string& line) { file.write(line); });
    file.commit(Durability::Synced);
    outputs->publish();
  } else {
    all([](const std::string& line) {
      if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size())
        throw Error(ExitCode::RunFailed, "stdout: cannot be written");
    });
  }
  working.reset();
  if (first) print_result(f, trained, translation.counts(), Seconds(clock.now() - start).count());
  return 0;
}

}  // namespace

int translate_command(const std::vector<std::string>& args) {
  return guarded([&] {
    TranslateFlags flags;
    const CommandSpec spec = translate_spec(flags);
    const Result<Arguments> parsed = parse_arguments(spec, args);
    if (!parsed) return report_problems(parsed.problems(), ExitCode::Usage);
    if (parsed->wants_help()) return print_help(spec, *parsed);
    Problems problems = complete(*parsed, flags);
    Result<JobEnvironment> job = read_environment();
    Result<TranslateRanks> who = translate_ranks(flags);
    if (!job) append(problems, job.problems());
    if (!who) append(problems, who.problems());
    if (job && who) append(problems, place_problems(flags, *job, *who));
    if (!problems.empty()) return report_problems(problems, ExitCode::Usage);
    Place place{.job = *std::move(job), .who = *std::move(who), .joined = {}, .lanes = {}};
    if (place.job.distributed) {
      die_with_launcher();
      set_log_prefix("rank" + std::to_string(place.job.rank));
    }
    try {
      return translate(flags, place);
    } catch (const std::exception& error) {
      if (place.joined.communicator) place.joined.communicator->abort(error.what());
      throw;
    }
  });
}

}  // namespace millrace
