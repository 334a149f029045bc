// `millrace translate`: lines -> tokens -> beam search, a window of lines at a time -> lines.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <thread>

#include "data/files/file_writer.h"
#include "data/text/output_files.h"
#include "driver/worker/translation.h"
#include "driver/worker/worker_environment.h"
#include "driver/worker/worker_options.h"
#include "runtime/base/clock.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/checkpoint.h"

namespace millrace {
namespace {

// Of a window's translation on another rank: it is work, not a message.
constexpr std::chrono::hours kWindowDeadline{24};

/// The weights, and what is known of those who made them.
struct Trained {
  GnmtTranslator translator;
  std::int64_t step = -1;  ///< of a checkpoint
  Settings settings;
};

Trained read_checkpoint(const std::string& path) {
  std::error_code ignored;
  const auto made = [&](const WeightFiles& files, std::int64_t step, const Settings& settings) {
    Result<GnmtTranslator> translator = GnmtTranslator::from(files);
    if (!translator) throw CheckpointError(to_string(translator.problems()));
    return Trained{std::move(*translator), step, settings};
  };
  if (std::filesystem::is_directory(path, ignored)) {
    const Result<Checkpoint> checkpoint = open_checkpoint(path);
    if (!checkpoint) throw CheckpointError(to_string(checkpoint.problems()));
    WeightFiles files;
    for (const SafetensorsFile& shard : checkpoint->shards) files.push_back(&shard);
    return made(files, checkpoint->info.step, checkpoint->info.settings);
  }
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  if (!file) throw CheckpointError(to_string(file.problems()));
  return made({&*file}, -1, {});
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
  std::string text = std::to_string(c.sentences) + " sentences, " + std::to_string(c.source_tokens) +
                     " tokens (" + std::to_string(c.unknown) + " unknown) to " +
                     std::to_string(c.target_tokens);
  const auto add = [&](std::int64_t count, const char* what) {
    if (count > 0) text += ", " + std::to_string(count) + " " + what;
  };
  add(c.empty, "empty");
  add(c.invalid, "left empty: invalid UTF-8");
  add(static_cast<std::int64_t>(c.replaced_bytes), "bytes replaced");
  add(c.cut, "cut");
  add(c.unfinished, "without an end");
  if (trained.step >= 0) text += "; checkpoint of step " + std::to_string(trained.step);
  std::fprintf(out, "%s; %.2f s, %.1f sentences/s\n", text.c_str(), seconds, rate);
}

/// The ranks that share the sentences; one alone has no others.
struct Place {
  JobEnvironment job;
  JoinedJob joined;
  int rank() const { return job.distributed ? job.rank : 0; }
  int size() const { return joined.communicator ? job.size : 1; }
};

Problems place_problems(const TranslateFlags& f, const JobEnvironment& job) {
  Problems problems;
  if (job.size > 1 && f.input == "-")
    problems.push_back({"--input", "stdin cannot be read by several ranks", "give a file"});
  if (job.distributed && f.ranks > 1 && f.ranks != job.size)
    problems.push_back(
        {"--ranks",
         std::to_string(f.ranks) + ", and this process is one of a job of " + std::to_string(job.size),
         "leave it out: the job says how many there are"});
  if (!job.distributed && f.ranks > 1)
    problems.push_back({"--ranks", "this program is one rank, `millrace translate` starts them", {}});
  return problems;
}

/// --threads, or this rank's share of the cores.
int threads_of(const TranslateFlags& f, int ranks) {
  if (f.threads > 0) return f.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks);
}

/// Window after window; `write` gets the output line by line, on rank 0.
template <class Write>
void translate_all(Translation& translation, const TranslateFlags& f, const GnmtTranslator& translator,
                   InputLines& input, const Place& place, int threads, Write write) {
  const std::size_t keep = static_cast<std::size_t>(std::max(1, f.n_best));
  for (std::vector<SourceLine> window; !(window = translation.read_window(input)).empty();) {
    const std::vector<SentenceBatch> batches = translation.batches(window);
    const auto mine = share_of(batches, place.rank(), place.size());
    if (place.size() > 1) {
      const auto problem = run_together(*place.joined.communicator, kWindowDeadline, "translating",
                                        [&] { translation.translate(translator, mine, threads); });
      if (problem) throw Error(ExitCode::RunFailed, to_string(*problem));
      exchange_hypotheses(*place.joined.communicator, batches, keep);
    } else {
      translation.translate(translator, mine, threads);
    }
    if (place.rank() != 0) continue;
    for (const SourceLine& line : window) write(translation.written(line));
  }
  if (const std::string note = translation.cut_note(); !note.empty() && place.rank() == 0) log_warning(note);
}

int translate(const TranslateFlags& f, Place& place) {
  const bool first = place.rank() == 0;
  // What cannot be written is known before anything is computed.
  std::optional<OutputFiles> outputs;
  if (f.output != "-" && first)
    outputs.emplace(std::vector{f.output}, std::vector{f.input},
                    f.overwrite ? Existing::Replaced : Existing::Refused);
  const Result<Languages> languages = read_languages(f);
  if (!languages) return report_problems(languages.problems(), ExitCode::InputData);
  InputLines input(f.input);
  const Trained trained = read_checkpoint(f.checkpoint);
  if (const Problems problems = vocabulary_problems(
          f, *languages, {f.checkpoint, trained.translator.vocabulary(), trained.settings});
      !problems.empty())
    return report_problems(problems, ExitCode::Checkpoint);
  if (f.beam > static_cast<int>(languages->target->size()))
    return report_problems({{"--beam", "is larger than the vocabulary", "at most its size"}},
                           ExitCode::Usage);
  set_compute_threads(1, false);
  if (place.job.size > 1)
    place.joined = join_job(place.job, {.purpose = "translate"}, *make_cpu_device(), {});
  const int threads = threads_of(f, place.job.size);
  SteadyClock clock;
  const TimePoint start = clock.now();
  Translation translation(f, *languages);
  const auto all = [&](auto write) {
    translate_all(translation, f, trained.translator, input, place, threads, write);
  };
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
    if (parsed->wants_help()) return std::fputs(help_text(spec).c_str(), stdout), 0;
    Problems problems = complete(*parsed, flags);
    Result<JobEnvironment> job = read_environment();
    append(problems, job ? place_problems(flags, *job) : job.problems());
    if (!problems.empty()) return report_problems(problems, ExitCode::Usage);
    Place place{.job = *std::move(job), .joined = {}};
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
