#include "experiments/io/experiment/experiment_spec.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "experiments/sweep/swept_file.h"
#include "runtime/base/flag.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostCells = 10'000;

/// Names become folders.
void check_name(const std::string& name, const std::string& where, Problems& problems) {
  const bool plain = !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
  });
  if (!plain || name.front() == '.')
    problems.push_back({where, "'" + name + "' is no name for a folder", "letters, digits, _ and -"});
}

/// Some names of an enum, each once; `fallback` where the key is absent.
template <Named Enum>
std::vector<Enum> read_choices(ObjectReader& in, const char* key, const char* what,
                               std::vector<Enum> fallback, Problems& problems) {
  const Json* list = in.optional_array(key);
  if (!list) return fallback;
  std::vector<Enum> all;
  for (const Json& item : list->items()) {
    const Result<std::size_t> place =
        choice_from(item.is_string() ? item.as_string() : item.dump(), what, all_names<Enum>());
    if (!place)
      problems.push_back({item.where(), place.problems().front().what, place.problems().front().hint});
    else if (std::ranges::find(all, static_cast<Enum>(*place)) == all.end())
      all.push_back(static_cast<Enum>(*place));
  }
  if (list->size() == 0) in.problem(key, std::string(key) + " is empty", "leave it out");
  return all;
}

template <Named Enum>
Enum read_one_of(ObjectReader& in, const char* key, const char* what, Enum fallback) {
  const std::string text = in.string(key, to_string(fallback));
  const Result<std::size_t> place = choice_from(text, what, all_names<Enum>());
  if (place) return static_cast<Enum>(*place);
  in.problem(key, place.problems().front().what, place.problems().front().hint);
  return fallback;
}

std::vector<int> read_counts(ObjectReader& in, const char* key, int most, std::vector<int> fallback,
                             Problems& problems) {
  const Json* list = in.optional_array(key);
  if (!list) return fallback;
  std::vector<int> all;
  for (const Json& item : list->items()) {
    if (item.kind() != Json::Kind::Int || item.as_int() < 1 || item.as_int() > most)
      problems.push_back(
          {item.where(), std::string(key) + ": expected integers from 1 to " + std::to_string(most), {}});
    else if (std::ranges::find(all, static_cast<int>(item.as_int())) == all.end())
      all.push_back(static_cast<int>(item.as_int()));
  }
  if (list->size() == 0) in.problem(key, std::string(key) + " is empty", "leave it out, or give one number");
  return all;
}

ExperimentData read_data(const Json& item, std::size_t number, Problems& problems) {
  ExperimentData data{
      .name = "d" + std::to_string(number + 1), .path = {}, .generate = {}, .folder = {}, .generated = {}};
  if (item.is_string()) {
    data.path = item.as_string();
    return data;
  }
  if (!item.is_object()) {
    problems.push_back({item.where(), "data are what --data takes, or a mapping", "{path: 'kits:{}', ...}"});
    return data;
  }
  ObjectReader in(item, problems);
  data.name = in.string("name", data.name);
  check_name(data.name, item.where(), problems);
  data.path = in.string("path");
  data.folder = in.string("folder", "");
  if (!data.folder.empty()) check_name(data.folder, item.where(), problems);
  data.generated = in.string("generated", "");
  const bool has_place = data.path.find("{}") != std::string::npos;
  if (const Json* generate = in.optional_object("generate")) {
    for (const auto& [key, value] : generate->members()) {
      const std::optional<std::string> text = scalar_text(value);
      const std::string flag = flag_name(key);
      if (!text || flag == "out")
        problems.push_back({value.where(),
                            "generate: " + key + " is no flag with one value that can be set here",
                            "flags of `millrace data generate` but --out"});
      else
        data.generate.insert(data.generate.end(), {"--" + flag, *text});
    }
    if (!has_place) in.problem("path", "does not say where the generated folder goes", "for example kits:{}");
  } else if (has_place) {
    in.problem("path", "has a place {} for a folder that nothing generates", "add generate: {workload: ...}");
  }
  in.finish();
  return data;
}

ExperimentWorkload read_workload(const Json& item, std::size_t number, const std::string& file,
                                 Problems& problems) {
  ExperimentWorkload workload;
  if (!item.is_object()) {
    problems.push_back({item.where(), "a workload is a mapping", "{name: ..., job: job.yaml, ...}"});
    return workload;
  }
  ObjectReader in(item, problems);
  workload.name = in.string("name", "w" + std::to_string(number + 1));
  check_name(workload.name, item.where(), problems);
  workload.ranks_are = read_one_of(in, "ranks_are", "meaning of ranks", RanksAre::Replicas);
  workload.ranks = read_counts(in, "ranks", 4096, {1}, problems);
  workload.batch = read_counts(in, "batch", 1 << 24, {}, problems);
  workload.microbatches =
      in.whole("microbatches", 1, 1 << 20, workload.ranks_are == RanksAre::Stages ? 4 : 1);
  if (const Json* list = in.optional_array("data"))
    for (const Json& one : list->items())
      workload.data.push_back(read_data(one, workload.data.size(), problems));
  std::set<std::string> names;
  for (const ExperimentData& data : workload.data)
    if (!names.insert(data.name).second)
      in.problem("data", "two data have the name " + data.name, "give each a name of its own");
  const Json* job = in.any("job");
  if (!job) {
    in.problem("job", "does not say which job to run", "add job: job.yaml, or job: {model: unet3d, ...}");
  } else if (Result<SweptJob> read = SweptJob::from(*job, file)) {
    workload.job = *std::move(read);
  } else {
    append(problems, read.problems());
  }
  in.finish();
  // The job itself says what is not varied.
  const auto value_of = [&](const char* flag) {
    std::string text;
    if (workload.job.json().is_object())
      for (const auto& [key, value] : workload.job.json().members())
        if (flag_name(key) == flag) text = scalar_text(value).value_or("");
    return text;
  };
  if (workload.batch.empty()) {
    const Result<std::int64_t> own = integer_from(value_of("microbatch"), 1, 1 << 24);
    workload.batch = {own ? static_cast<int>(*own) : TrainFlags{}.options.microbatch};
  }
  if (workload.data.empty()) {
    const std::string own = value_of("data");
    workload.data.push_back({.name = "own",
                             .path = own.empty() ? TrainFlags{}.data : own,
                             .generate = {},
                             .folder = {},
                             .generated = {}});
  }
  return workload;
}

/// A sleeping run comes after the one that its times are from; else the order stays.
void put_sources_first(ExperimentSpec& spec) {
  std::vector<ExperimentCell> sorted, waiting;
  std::set<std::string> placed;
  const auto place = [&](const ExperimentCell& cell) {
    sorted.push_back(cell);
    placed.insert(spec.key_of(cell));
  };
  const auto can_run = [&](const ExperimentCell& cell) {
    return cell.variant != RunVariant::Sleep || placed.count(spec.key_of(spec.source_of(cell))) != 0;
  };
  for (const ExperimentCell& cell : spec.cells) {
    if (!can_run(cell)) {
      waiting.push_back(cell);
      continue;
    }
    place(cell);
    for (const ExperimentCell& one : waiting)
      if (can_run(one) && placed.count(spec.key_of(one)) == 0) place(one);
    std::erase_if(waiting, [&](const ExperimentCell& one) { return placed.count(spec.key_of(one)) != 0; });
  }
  spec.cells = std::move(sorted);
}

}  // namespace

std::string ExperimentSpec::group_of(const ExperimentCell& cell) const {
  return workload_of(cell).name + " data=" + data_of(cell).name + " ranks=" + std::to_string(cell.ranks) +
         " batch=" + std::to_string(cell.batch) + " " + to_string(cell.cache);
}

std::string ExperimentSpec::key_of(const ExperimentCell& cell) const {
  return "cells/" + workload_of(cell).name + "-" + data_of(cell).name + "-r" + std::to_string(cell.ranks) +
         "-b" + std::to_string(cell.batch) + "-" + to_string(cell.cache) + "-" + to_string(cell.variant) +
         "-" + std::to_string(cell.repeat);
}

ExperimentCell ExperimentSpec::source_of(ExperimentCell sleeping) const {
  sleeping.variant = RunVariant::Instrumented;
  sleeping.repeat = 1;
  return sleeping;
}

std::string ExperimentSpec::generated_folder(const ExperimentData& data,
                                             const ExperimentWorkload& workload) const {
  return (fs::path(output_dir) / "data" / (workload.name + "-" + data.name)).string();
}

std::string ExperimentSpec::path_of(const ExperimentData& data, const ExperimentWorkload& workload) const {
  std::string path = data.path;
  if (const std::size_t place = path.find("{}"); place != std::string::npos)
    path.replace(place, 2, generated_folder(data, workload));
  return path;
}

Result<JobSpec> ExperimentSpec::job_of(const ExperimentCell& cell) const {
  const ExperimentWorkload& workload = workload_of(cell);
  const bool replicas = workload.ranks_are == RanksAre::Replicas;
  JobSettings settings{
      {replicas ? "replicas" : "stages", std::to_string(cell.ranks), source},
      {"microbatches", std::to_string(workload.microbatches * (replicas ? cell.ranks : 1)), source},
      {"microbatch", std::to_string(cell.batch), source},
      {"data", path_of(data_of(cell), workload), source},
      {"variant", to_string(cell.variant), source}};
  if (cell.variant == RunVariant::Sleep)
    settings.push_back({"variant-from", (fs::path(output_dir) / key_of(source_of(cell))).string(), source});
  if (cell.variant == RunVariant::Generated && !data_of(cell).generated.empty())
    settings.push_back({"variant-from", data_of(cell).generated, source});
  return workload.job.with(settings);
}

Result<ExperimentSpec> load_experiment(const std::string& path) {
  const Result<Json> json = read_swept_file(path, "an experiment");
  if (!json) return json.problems();
  Problems problems;
  ObjectReader in(*json, problems);
  ExperimentSpec spec;
  spec.source = path;
  spec.name = in.string("name", fs::path(path).stem().string());
  spec.output_dir = in.string("output_dir", "runs/" + spec.name);
  spec.seed = static_cast<std::uint64_t>(in.whole("seed", 0, 1 << 30, 1));
  const int repeats = in.whole("repeats", 1, 1000, 1);
  spec.captured = in.whole("captured", 0, 100, 0);
  const auto order = read_one_of(in, "order", "order", CellOrder::Listed);
  const auto caches =
      read_choices<CacheState>(in, "cache", "state of the cache", {CacheState::Warm}, problems);
  const auto variants = read_choices<RunVariant>(
      in, "variants", "variant",
      {RunVariant::Original, RunVariant::Instrumented, RunVariant::Sleep, RunVariant::Generated}, problems);
  const auto has = [&](RunVariant one) { return std::ranges::find(variants, one) != variants.end(); };
  if (has(RunVariant::Sleep) && !has(RunVariant::Instrumented))
    in.problem("variants", "sleep takes its times from the instrumented runs, and there are none",
               "add instrumented");
  if (spec.captured > 0 && !has(RunVariant::Original))
    in.problem("captured", "compares runs with the original ones, and there are none",
               "add original to variants");
  std::set<std::string> names;
  if (const Json* list = in.array("workloads")) {
    for (const Json& item : list->items()) {
      spec.workloads.push_back(read_workload(item, spec.workloads.size(), path, problems));
      if (!names.insert(spec.workloads.back().name).second)
        problems.push_back({item.where(), "two workloads have the name " + spec.workloads.back().name,
                            "give each a name of its own"});
    }
    if (list->size() == 0) in.problem("workloads", "workloads is empty", "give at least one");
  }
  in.finish();
  if (!problems.empty()) return problems;
  // Variants innermost: those of one repeat follow each other, so that what changes with time meets all
  // alike.
  for (int repeat = 1; repeat <= repeats; ++repeat)
    for (std::size_t w = 0; w < spec.workloads.size(); ++w)
      for (std::size_t d = 0; d < spec.workloads[w].data.size(); ++d)
        for (const CacheState cache : caches)
          for (const int ranks : spec.workloads[w].ranks)
            for (const int batch : spec.workloads[w].batch)
              for (const RunVariant variant : variants)
                if (spec.cells.size() <= kMostCells)
                  spec.cells.push_back({w, d, variant, ranks, batch, repeat, cache});
  if (spec.cells.size() > kMostCells)
    return Problem{path, "has more than " + std::to_string(kMostCells) + " cells",
                   "divide it into several files"};
  if (order == CellOrder::Shuffled) {
    RandomStream random(derive_seed(spec.seed, "order of cells"));
    for (std::size_t i = spec.cells.size(); i > 1; --i)
      std::swap(spec.cells[i - 1], spec.cells[random.below(i)]);
  }
  put_sources_first(spec);
  spec.identity = Json::object({{"seed", static_cast<std::int64_t>(spec.seed)}});
  for (const auto& [key, value] : json->members())
    if (key != "output_dir" && key != "seed" && key != "workloads") spec.identity[key] = value;
  for (const ExperimentWorkload& workload : spec.workloads) {
    Json one = Json::object({{"name", workload.name}, {"job", workload.job.json()}});
    for (const ExperimentCell& cell : spec.cells)
      if (&spec.workload_of(cell) == &workload) one["cells"][spec.key_of(cell)] = spec.data_of(cell).path;
    for (const ExperimentData& data : workload.data)
      for (const std::string& word : data.generate) one["data"][data.name].push_back(word);
    spec.identity["workloads"].push_back(std::move(one));
  }
  return spec;
}

}  // namespace millrace
