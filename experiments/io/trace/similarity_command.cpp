#include "experiments/io/trace/similarity_command.h"

#include <cstdio>
#include <optional>

#include "driver/cli/command_support.h"
#include "experiments/io/trace/similarity.h"
#include "runtime/base/progress_line.h"

namespace millrace {
namespace {

Result<std::vector<RunProfile>> profiles_of(const std::vector<std::string>& folders) {
  std::vector<RunProfile> profiles;
  Problems problems;
  for (const std::string& folder : folders) {
    const Result<Timeline> timeline = read_timeline(folder);
    Result<RunProfile> profile = timeline ? profile_run(*timeline) : Result<RunProfile>(timeline.problems());
    if (profile) {
      if (profile->outside > 0)
        std::fprintf(stderr, "note: %s: %lld events are in no phase and not compared\n", folder.c_str(),
                     static_cast<long long>(profile->outside));
      profiles.push_back(std::move(*profile));
    } else {
      append(problems, profile.problems());
    }
  }
  if (!problems.empty()) return problems;
  return profiles;
}

std::vector<std::vector<double>> scores_of(const std::vector<RunProfile>& a,
                                           const std::vector<RunProfile>& b) {
  std::vector<std::vector<double>> scores;
  for (const RunProfile& x : a) {
    scores.emplace_back();
    for (const RunProfile& y : b) scores.back().push_back(similarity(x, y).total);
  }
  return scores;
}

void print_similarity(const Similarity& s) {
  std::printf("%-11s %-7s %8s %8s %8s %8s %8s %10s %10s\n", "phase", "class", "score", "count", "shape",
              "latency", "busy", "events A", "events B");
  for (std::size_t p = 0; p < s.phases.size(); ++p) {
    const PhaseScore& phase = s.phases[p];
    if (!phase.compared) continue;
    std::printf("%-11s %-7s %8.5f   (weight %.3f)\n", kPhaseNames[p], "", phase.score, phase.weight);
    for (std::size_t c = 0; c < phase.classes.size(); ++c) {
      const ClassScore& k = phase.classes[c];
      if (!k.compared) continue;
      std::printf("%-11s %-7s %8.5f %8.5f %8.5f %8.5f %8.5f %10lld %10lld\n", "", kEventNames[c], k.score,
                  k.count, k.shape, k.latency, k.busy, static_cast<long long>(k.events_a),
                  static_cast<long long>(k.events_b));
    }
  }
  std::printf("tracesim/1  %.16g\n", s.total);
}

Json interval_json(const Interval& i) {
  return Json::object(
      {{"mean", i.mean}, {"low", i.low}, {"high", i.high}, {"pairs", static_cast<std::int64_t>(i.pairs)}});
}

struct SimilarityFlags {
  std::vector<std::string> a, b;  ///< repeated runs
  std::uint64_t seed = 1;
  OutputFormat format = OutputFormat::Text;
};

CommandSpec spec_of(SimilarityFlags& f) {
  CommandSpec spec;
  spec.command = "trace similarity";
  spec.summary = "How alike the I/O of two processed runs is, from 0 to 1, by phase and class (tracesim/1).";
  spec.positionals = {"A", "B"};
  spec.flags = {
      {.name = "more-a",
       .value = "DIR",
       .help = "Another run like A (repeated runs give an interval).",
       .repeatable = true,
       .target = into::texts(f.a)},
      {.name = "more-b",
       .value = "DIR",
       .help = "Another run like B.",
       .repeatable = true,
       .target = into::texts(f.b)},
      flag("", "seed", "N", "Of the bootstrap.", into::integer(f.seed, 0)),
      flag("", "format", "text|json", "What to print.", into::choice(f.format, "format")),
  };
  spec.interrupted = "nothing was written";
  spec.examples = {"millrace trace similarity processed/real processed/benchmark --format json",
                   "millrace trace similarity real1 bench1 --more-a real2 --more-a real3 --more-b bench2"};
  return spec;
}

int compare_runs(const SimilarityFlags& flags) {
  std::optional<WorkingLine> working("reads the runs");
  const Result<std::vector<RunProfile>> a = profiles_of(flags.a), b = profiles_of(flags.b);
  working.reset();
  Problems problems;
  if (!a) append(problems, a.problems());
  if (!b) append(problems, b.problems());
  if (!problems.empty()) return exit_with(ExitCode::InputData, problems);
  const Similarity s = similarity(a->front(), b->front());
  const auto between = bootstrap_interval(scores_of(*a, *b), false, flags.seed);
  const auto within = bootstrap_interval(scores_of(*a, *a), true, flags.seed);
  if (flags.format == OutputFormat::Json) {
    Json json = similarity_json(s);
    if (between) json["between"] = interval_json(*between);
    if (within) json["within_a"] = interval_json(*within);
    std::printf("%s\n", json.dump(2).c_str());
    return 0;
  }
  print_similarity(s);
  if (between)
    std::printf("A with B: mean %.5f, 95 %% from %.5f to %.5f (%zu pairs)\n", between->mean, between->low,
                between->high, between->pairs);
  if (within) {
    std::printf("A among itself: mean %.5f, 95 %% from %.5f to %.5f (%zu pairs)\n", within->mean, within->low,
                within->high, within->pairs);
    if (between)
      std::printf(between->high >= within->low ? "B is as close to A as runs of A are to each other.\n"
                                               : "B is further from A than runs of A are from each other.\n");
  }
  return 0;
}

}  // namespace

CommandSpec similarity_spec() {
  return without_targets<SimilarityFlags>(spec_of);
}

int similarity_command(const std::vector<std::string>& args) {
  SimilarityFlags flags;
  return run_command(spec_of(flags), args, [&](const Arguments& given, const Problems& problems) {
    if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
    for (std::vector<std::string>* runs : {&flags.a, &flags.b}) std::erase(*runs, "");
    flags.a.insert(flags.a.begin(), given.positionals()[0]);
    flags.b.insert(flags.b.begin(), given.positionals()[1]);
    return compare_runs(flags);
  });
}

}  // namespace millrace
