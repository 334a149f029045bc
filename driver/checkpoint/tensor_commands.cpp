// `checkpoint diff`, `export` and `import`: the tensors in checkpoints.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>

#include "driver/checkpoint/checkpoint_command.h"
#include "driver/checkpoint/saved_tensors.h"
#include "driver/cli/command_support.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/private_folder.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/quantities.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"
#include "runtime/base/text.h"
#include "runtime/saved/wrapped_names.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

// ---- diff

struct DiffFlags {
  bool weights = false;
  OutputFormat format = OutputFormat::Text;
};

CommandSpec diff_spec(DiffFlags& f) {
  return {.command = "checkpoint diff",
          .summary =
              "Compare the tensors of two checkpoints, or of files of weights (safetensors, .pt): which "
              "differ, in how many elements, and by how much.",
          .positionals = {"A", "B"},
          .flags = {flag("", "weights", "Only weights and running statistics, not the state of the rule.",
                         into::on(f.weights)),
                    flag("", "format", "text|json", "Form of the answer.", into::choice(f.format, "format"))},
          .examples = {"millrace checkpoint diff out/checkpoints/step-00000010 out",
                       "millrace checkpoint diff out weights.safetensors --weights"}};
}

/// The difference that is reported of one name.
struct Difference {
  std::string name;
  std::string what;  ///< "only in A"; empty: `size` says how far they are apart
  std::string shape;
  TensorDifference size;
};

std::vector<Difference> differences(const SavedTensors& a, const SavedTensors& b, bool weights_only,
                                    std::int64_t& equal) {
  std::set<std::string> names;
  for (const SavedTensors* side : {&a, &b}) {
    for (const auto& [name, tensor] : side->tensors)
      if (!weights_only || is_weight(name)) names.insert(name);
  }
  std::vector<Difference> all;
  for (const std::string& name : names) {
    const auto here = a.tensors.find(name), there = b.tensors.find(name);
    if (here == a.tensors.end() || there == b.tensors.end()) {
      const bool only_a = there == b.tensors.end();
      const TensorShape& shape = only_a ? here->second.shape : there->second.shape;
      all.push_back({name, only_a ? "only in A" : "only in B", shape_text(shape), {}});
      continue;
    }
    const std::string shape = shape_text(here->second.shape), other = shape_text(there->second.shape);
    if (shape != other) {
      all.push_back({name, "shape " + other + " in B", shape, {}});
      continue;
    }
    const TensorDifference size = difference_of(here->second, there->second);
    if (size.different == 0)
      ++equal;
    else
      all.push_back({name, "", shape, size});
  }
  return all;
}

int diff(const DiffFlags& flags, const std::vector<std::string>& paths) {
  std::error_code error;
  for (const std::string& path : paths)
    if (!fs::exists(path, error))
      return exit_with(ExitCode::Usage,
                       {{path, "is not there", "give a folder of checkpoints or a file of weights"}});
  std::optional<WorkingLine> working("compares the tensors");
  Result<SavedTensors> a = open_saved_tensors(paths[0]), b = open_saved_tensors(paths[1]);
  Problems problems;
  for (const auto* side : {&a, &b})
    if (!*side) append(problems, side->problems());
  if (!problems.empty()) return exit_with(ExitCode::Checkpoint, problems);
  std::int64_t equal = 0;
  const std::vector<Difference> all = differences(*a, *b, flags.weights, equal);
  working.reset();
  if (flags.format == OutputFormat::Json) {
    Json list = Json::array();
    for (const Difference& one : all) {
      Json json = Json::object({{"tensor", one.name}, {"shape", one.shape}});
      if (!one.what.empty()) {
        json["difference"] = one.what;
      } else {
        json["elements"] = one.size.elements;
        json["different"] = one.size.different;
        json["largest"] = one.size.largest;
        json["relative"] = one.size.relative;
      }
      list.push_back(std::move(json));
    }
    const Json answer =
        Json::object({{"a", a->path}, {"b", b->path}, {"equal", equal}, {"differences", list}});
    return std::printf("%s\n", answer.dump(2).c_str()), 0;
  }
  std::printf("A: %s\nB: %s\n", a->path.c_str(), b->path.c_str());
  std::vector<std::vector<std::string>> lines{
      {"tensor", "shape", "elements that differ", "largest |a-b|", "|a-b| / |a|"}};
  for (const Difference& one : all) {
    if (one.what.empty())
      lines.push_back({escaped(one.name), one.shape,
                       std::to_string(one.size.different) + " of " + std::to_string(one.size.elements),
                       printed("%.3g", one.size.largest), printed("%.3g", one.size.relative)});
    else
      lines.push_back({escaped(one.name), one.shape, one.what, "-", "-"});
  }
  if (!all.empty()) print_columns(lines);
  std::printf("%lld tensors are equal, %zu differ\n", static_cast<long long>(equal), all.size());
  return 0;
}

// ---- export

struct ExportFlags {
  bool all = false, ema = false, overwrite = false;
};

CommandSpec export_spec(ExportFlags& f) {
  return {.command = "checkpoint export",
          .summary =
              "Write the weights of a checkpoint of any plan as one safetensors file: a state_dict by "
              "PyTorch's names, tied parameters under all of them.",
          .positionals = {"DIR", "FILE.safetensors"},
          .flags = {flag("", "all",
                         "Everything that the checkpoint holds, by its own names: rule/momentum/..., "
                         "too.",
                         into::on(f.all)),
                    flag("", "ema", "The averages of `train --ema` in the place of the weights.",
                         into::on(f.ema)),
                    flag("", "overwrite", "Replace FILE if it is there.", into::on(f.overwrite))},
          .examples = {"millrace checkpoint export out weights.safetensors",
                       "millrace checkpoint export out/best best.safetensors --ema"},
          .interrupted = "nothing was written"};
}

constexpr const char* kSplit = "`millrace split` makes a checkpoint of each";

/// Whether the checkpoint is of several jobs, whose tensors have the job in their names.
bool is_array(const ManifestHead& manifest) {
  const Json* settings = manifest.json.find("settings");
  return settings && settings->find("jobs") != nullptr;
}

/// Further names of tied parameters, each with the name of the tensor that is saved.
std::vector<std::pair<std::string, std::string>> tied_in(const ManifestHead& manifest) {
  std::vector<std::pair<std::string, std::string>> names;
  const Json* tied = manifest.json.find("tied");
  if (!tied || !tied->is_object()) return names;
  for (const auto& [name, saved] : tied->members())
    if (saved.is_string()) names.emplace_back(name, saved.as_string());
  return names;
}

constexpr const char* kEma = "rule/ema/";

/// The tensors of a state_dict by its names.
Result<std::map<std::string, const SavedTensor*>> state_dict_of(const SavedTensors& saved, bool ema) {
  std::map<std::string, const SavedTensor*> dict;
  bool any_average = false;
  for (const auto& [name, tensor] : saved.tensors) {
    if (!is_weight(name)) continue;
    const auto average = saved.tensors.find(kEma + name);
    any_average = any_average || average != saved.tensors.end();
    dict[name] = ema && average != saved.tensors.end() ? &average->second : &tensor;
  }
  if (ema && !any_average)
    return Problem{saved.path, "has no averages of weights", "they come from `train --ema`; leave --ema out"};
  for (const auto& [name, as] : tied_in(*saved.manifest)) {
    if (!dict.contains(as))
      return Problem{saved.path, "has no tensor " + escaped(as), "the manifest is damaged"};
    dict[name] = dict.at(as);
  }
  return dict;
}

/// Writes the tensors, ordered by name. Throws CheckpointError.
FileDigest write_tensors(const std::string& path, const std::map<std::string, const SavedTensor*>& tensors) {
  std::vector<TensorShape> shapes;
  for (const auto& [name, tensor] : tensors)
    shapes.push_back({name, tensor->shape.type, tensor->shape.shape});
  TensorFileWriter file(path, shapes);
  for (const auto& [name, tensor] : tensors) file.add(tensor->elements.data(), tensor->elements.size());
  return file.commit();
}

int export_tensors(const ExportFlags& flags, const std::vector<std::string>& paths) {
  std::error_code error;
  if (fs::exists(paths[1], error) && !flags.overwrite)
    return exit_with(ExitCode::Usage, {{paths[1], "is there already", "--overwrite replaces it"}});
  if (!fs::is_directory(paths[0], error))
    return exit_with(ExitCode::Usage, {{paths[0], "is not a checkpoint folder",
                                        "give a step-N folder, a checkpoints folder or an output folder"}});
  std::optional<WorkingLine> working("writes the tensors");
  const Result<SavedTensors> saved = open_saved_tensors(paths[0]);
  if (!saved) return exit_with(ExitCode::Checkpoint, saved.problems());
  if (is_array(*saved->manifest) && !flags.all)
    return exit_with(ExitCode::Checkpoint,
                     {{saved->path, "is of several jobs", std::string(kSplit) + "; or give --all"}});
  std::map<std::string, const SavedTensor*> tensors;
  if (flags.all) {
    for (const auto& [name, tensor] : saved->tensors) tensors[name] = &tensor;
  } else {
    Result<std::map<std::string, const SavedTensor*>> dict = state_dict_of(*saved, flags.ema);
    if (!dict) return exit_with(ExitCode::Checkpoint, dict.problems());
    tensors = *std::move(dict);
  }
  if (const Status place = make_place_for_file(paths[1]); !place)
    return exit_with(ExitCode::Usage, place.problems());
  const FileDigest written = write_tensors(paths[1], tensors);
  working.reset();
  std::printf("%s: %zu tensors of %s, %s\n", paths[1].c_str(), tensors.size(), saved->path.c_str(),
              bytes_text(written.bytes).c_str());
  return 0;
}

// ---- import

struct ImportFlags {
  std::string like, model, key;
  bool overwrite = false;
};

CommandSpec import_spec(ImportFlags& f) {
  return {
      .command = "checkpoint import",
      .summary =
          "Make a checkpoint of weights: a safetensors file, a state_dict that torch.save wrote, or a folder "
          "of torch.distributed.checkpoint.",
      .positionals = {"FILE", "DIR"},
      .flags =
          {flag("", "like", "CHECKPOINT",
                "Take everything else from this checkpoint: step, settings, state of the rule. The names, "
                "types and shapes must be its. `train --resume DIR` goes on from the result.",
                into::text(f.like)),
           flag("", "model", "NAME",
                "Without --like: the model that the weights are of, for `train --init-from DIR`.",
                into::text(f.model)),
           flag("", "key", "NAME",
                "Where PyTorch saved dicts in a dict: the one to take, as \"model\" or \"state/model\".",
                into::text(f.key)),
           flag("", "overwrite",
                "Delete an earlier run in DIR; without it a folder that holds one is refused.",
                into::on(f.overwrite))},
      .examples = {"millrace checkpoint import edited.safetensors next --like out",
                   "millrace checkpoint import resnet50.pt start --model resnet50",
                   "millrace checkpoint import dcp-folder start --model gpt2 --key model"},
      .interrupted = "nothing was written"};
}

std::vector<std::string> names_in(const SavedTensors& saved) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : saved.tensors) names.push_back(name);
  return names;
}

/// The tensors of the file by their names without wrappers. Problem: two of them have one name then, or a
/// weight has integers.
Result<std::map<std::string, const SavedTensor*>> weights_of(const SavedTensors& file,
                                                             const Unwrapping& unwrap) {
  std::map<std::string, const SavedTensor*> weights;
  Problems problems;
  for (const auto& [name, tensor] : file.tensors) {
    const std::string own = is_weight(name) ? unwrap(name) : name;
    if (!weights.emplace(own, &tensor).second)
      problems.push_back(
          {file.path,
           escaped(name) + " and another tensor are " + escaped(own) + " without " + unwrap.found(),
           "leave out the one that is not meant"});
    if (is_weight(name) && !is_floating(tensor.shape.type) &&
        (own.ends_with(".weight") || own.ends_with(".bias")))
      problems.push_back(
          {file.path,
           escaped(name) + " is of " + to_string(tensor.shape.type) + ", which no command takes as a weight",
           "save the state_dict of the model before it is quantised"});
  }
  if (!problems.empty()) return problems;
  return weights;
}

/// Returns the tensor with elements of the floating type `to`; `file` keeps them. float16 and bfloat16 become
/// float32 exactly, float64 is rounded. Problem: a number is too large for `to`.
Result<const SavedTensor*> as_type(SavedTensors& file, const SavedTensor& tensor, ElementType to) {
  const ElementType from = tensor.shape.type;
  if (from == to || !is_floating(from) || to != ElementType::F32) return &tensor;
  auto made = std::make_shared<std::pair<SavedTensor, std::string>>();
  for (std::size_t at = 0; at < tensor.elements.size(); at += bytes_of(from)) {
    const double value = number_at(from, tensor.elements.data() + at);
    const auto narrow = static_cast<float>(value);
    if (std::isinf(narrow) && !std::isinf(value))
      return Problem{
          file.path,
          escaped(tensor.shape.name) + " holds " + printed("%g", value) + ", which is too large for F32",
          {}};
    made->second.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
  }
  made->first = {{tensor.shape.name, to, tensor.shape.shape}, made->second};
  file.owners.push_back(made);
  return &made->first;
}

/// What is different about the weights, for the answer: "names without module.; 2 tensors of F64 are
/// rounded".
std::string notes_of(const SavedTensors& file, const Unwrapping& unwrap) {
  std::string text;
  const auto add = [&](const std::string& note) { text += (text.empty() ? "" : "; ") + note; };
  if (!unwrap.found().empty()) add("names without " + unwrap.found());
  for (const ElementType type : {ElementType::F16, ElementType::BF16, ElementType::F64}) {
    const auto count =
        std::ranges::count_if(file.tensors, [&](const auto& one) { return one.second.shape.type == type; });
    if (count > 0)
      add(std::to_string(count) + " tensors of " + to_string(type) + " become F32" +
          (type == ElementType::F64 ? ", rounded" : ", exactly"));
  }
  return text;
}

/// "a, b, c and 39 more".
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i)
    text += (i == 0 ? "" : ", ") + escaped(names[i]);
  return names.size() <= kShown ? text : text + " and " + std::to_string(names.size() - kShown) + " more";
}

/// Replaces tensors of `like` by those of the file. Problems: names that `like` lacks or the file lacks,
/// other shapes or types.
Result<std::map<std::string, const SavedTensor*>> replaced(
    const SavedTensors& like, SavedTensors& file, const std::map<std::string, const SavedTensor*>& weights) {
  std::map<std::string, const SavedTensor*> result, given;
  const Unwrapping unwrap_like(names_in(like));
  std::map<std::string, std::string> names;  // of `like`, by their form without wrappers
  const auto add_name = [&](const std::string& name) {
    if (is_weight(name)) names.try_emplace(unwrap_like(name), name);
  };
  for (const auto& [name, tensor] : like.tensors) {
    result[name] = &tensor;
    add_name(name);
  }
  for (const auto& [name, as] : tied_in(*like.manifest)) add_name(name);
  for (const auto& [name, tensor] : weights) {
    const auto own = names.find(name);
    given[own == names.end() ? name : own->second] = tensor;
  }
  Problems problems;
  for (const auto& [name, as] : tied_in(*like.manifest)) {
    const auto other = given.find(name), own = given.find(as);
    if (other == given.end()) continue;
    if (own == given.end())
      given[as] = other->second;
    else if (own->second->elements != other->second->elements)
      problems.push_back(
          {file.path,
           escaped(name) + " and " + escaped(as) + " are names of one weight, but their values differ",
           "leave out the name whose values are not meant"});
    given.erase(name);
  }
  std::erase_if(given,
                [&](const auto& one) { return counts_updates(one.first) && !result.contains(one.first); });
  std::vector<std::string> missing, others;
  for (const auto& [name, tensor] : result)
    if (is_weight(name) && !given.contains(name)) missing.push_back(name);
  if (!missing.empty())
    problems.push_back(
        {file.path, "has no tensor " + some_of(missing), "the weights of " + like.path + " are needed"});
  for (const auto& [name, tensor] : given) {
    const auto own = result.find(name);
    if (own == result.end()) {
      others.push_back(name);
      continue;
    }
    const Result<const SavedTensor*> same = as_type(file, *tensor, own->second->shape.type);
    if (!same) {
      append(problems, same.problems());
    } else if (shape_text((*same)->shape) != shape_text(own->second->shape)) {
      problems.push_back({file.path,
                          escaped(name) + " is " + shape_text(tensor->shape) + ", in " + like.path +
                              " it is " + shape_text(own->second->shape),
                          {}});
    } else {
      own->second = *same;
    }
  }
  if (!others.empty())
    problems.push_back(
        {file.path,
         some_of(others) + (others.size() == 1 ? " is no tensor of " : " are no tensors of ") + like.path,
         "leave out what is not of this model"});
  if (!problems.empty()) return problems;
  return result;
}

/// The members of a manifest in their order, without those that this checkpoint has of its own.
Json manifest_of(const SavedTensors* like, const std::string& model, const std::string& run,
                 const FileDigest& shard) {
  Json manifest = Json::object({{"format", kCheckpointFormat}, {"run", run}});
  if (like) {
    const ManifestHead& head = *like->manifest;
    manifest["parent"] = head.run + " step " + std::to_string(head.step);
    for (const auto& [key, value] : head.json.members()) {
      if (key != "format" && key != "run" && key != "parent" && key != "shards" && key != "sha256")
        manifest[key] = value;
    }
  } else {
    manifest["parent"] = "";
    manifest["model"] = model;
    for (const char* count : {"step", "position", "updates"}) manifest[count] = std::int64_t{0};
    manifest["plan"] = "";
    manifest["settings"] = Json::object();
  }
  Json shards = Json::array();
  shards.push_back(
      Json::object({{"file", shard_name(0)}, {"bytes", shard.bytes}, {"xxh3_128", shard.hash.hex()}}));
  manifest["shards"] = shards;
  return manifest;
}

bool is_within(const fs::path& path, const fs::path& folder) {
  std::error_code ignored;
  const fs::path way =
      fs::weakly_canonical(path, ignored).lexically_relative(fs::weakly_canonical(folder, ignored));
  return !way.empty() && *way.begin() != "..";
}

int import_tensors(const ImportFlags& flags, const std::vector<std::string>& paths) {
  if (flags.like.empty() == flags.model.empty())
    return exit_with(ExitCode::Usage,
                     {{"millrace checkpoint import", "needs one of --like and --model",
                       "--like CHECKPOINT to go on with --resume, --model NAME for --init-from"}});
  std::optional<WorkingLine> working("makes the checkpoint");
  Result<SavedTensors> file = open_saved_tensors(paths[0], flags.key);
  if (!file) return exit_with(ExitCode::InputData, file.problems());
  if (flags.like.empty() && file->manifest && is_array(*file->manifest))
    return exit_with(ExitCode::InputData, {{file->path, "is of several jobs", kSplit}});
  std::optional<SavedTensors> like;
  if (!flags.like.empty()) {
    Result<SavedTensors> opened = open_saved_tensors(flags.like);
    if (!opened) return exit_with(ExitCode::Checkpoint, opened.problems());
    if (!opened->manifest)
      return exit_with(ExitCode::Usage,
                       {{flags.like, "is no checkpoint", "give a step-N or an output folder"}});
    like = *std::move(opened);
  }
  const Unwrapping unwrap(names_in(*file));
  Result<std::map<std::string, const SavedTensor*>> weights = weights_of(*file, unwrap);
  if (weights && like) weights = replaced(*like, *file, *weights);
  if (!weights) return exit_with(ExitCode::InputData, weights.problems());
  std::map<std::string, const SavedTensor*> tensors = *std::move(weights);
  if (!like && file->manifest) std::erase_if(tensors, [](const auto& one) { return !is_weight(one.first); });
  if (!like) {
    std::erase_if(tensors, [](const auto& one) { return one.first == "n_averaged"; });
    for (auto& [name, tensor] : tensors) {
      const Result<const SavedTensor*> same = as_type(*file, *tensor, ElementType::F32);
      if (!same) return exit_with(ExitCode::InputData, same.problems());
      tensor = *same;
    }
  }
  const std::string& out = paths[1];
  if (like && flags.overwrite && is_within(like->path, out))
    return exit_with(ExitCode::Usage, {{"--overwrite", "would delete " + like->path + ", which --like names",
                                        "give another DIR"}});
  for (const char* deleted : {run_files::kCheckpoints, run_files::kBest})
    if (flags.overwrite && is_within(file->path, fs::path(out) / deleted))
      return exit_with(ExitCode::Usage, {{"--overwrite", "would delete " + file->path + ", which is imported",
                                          "give another DIR"}});
  const std::string run = new_run_id();
  if (const Status made = make_private_folder(out); !made) return exit_with(ExitCode::Usage, made.problems());
  const Result<RunLock> lock = RunLock::acquire(out, run);
  if (!lock) return exit_with(ExitCode::Usage, lock.problems());
  const Status unused = flags.overwrite ? remove_earlier_run(out) : check_unused(out);
  if (!unused) return exit_with(ExitCode::Usage, unused.problems());
  const std::int64_t step = like ? like->manifest->step : 0;
  const fs::path folder = fs::path(out) / run_files::kCheckpoints;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))  // imports that were killed
    if (entry.path().filename().string().find(".tmp.") != std::string::npos)
      fs::remove_all(entry.path(), ignored);
  const fs::path temporary = folder / unfinished_step_name(step, run);
  for (const fs::path& one : {folder, temporary})
    if (const Status made = make_private_folder(one); !made)
      return exit_with(ExitCode::Usage, made.problems());
  const auto write = [&]() -> Status {
    const FileDigest shard = write_tensors((temporary / shard_name(0)).string(), tensors);
    const Json manifest = manifest_of(like ? &*like : nullptr, flags.model, run, shard);
    return publish_checkpoint(folder, temporary, sealed_manifest(manifest), Retention{.newest = 0});
  };
  try {
    if (const Status written = write(); !written) {
      fs::remove_all(temporary, ignored);
      return exit_with(ExitCode::RunFailed, written.problems());
    }
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
  working.reset();
  std::printf("%s: %zu tensors, step %lld\n", (folder / step_name(step)).c_str(), tensors.size(),
              static_cast<long long>(step));
  if (const std::string notes = notes_of(*file, unwrap); !notes.empty()) std::printf("%s\n", notes.c_str());
  return 0;
}

/// Runs `run` with the flags and the positionals of the command line.
template <class Flags>
int with_paths(CommandSpec (*spec)(Flags&), int (*run)(const Flags&, const std::vector<std::string>&),
               const std::vector<std::string>& args) {
  Flags flags;
  return run_command(spec(flags), args, [&](const Arguments& given, const Problems& problems) {
    if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
    return run(flags, given.positionals());
  });
}

}  // namespace

CommandSpec checkpoint_diff_spec() {
  return without_targets<DiffFlags>(diff_spec);
}
int checkpoint_diff_command(const std::vector<std::string>& args) {
  return with_paths(diff_spec, diff, args);
}

CommandSpec checkpoint_export_spec() {
  return without_targets<ExportFlags>(export_spec);
}
int checkpoint_export_command(const std::vector<std::string>& args) {
  return with_paths(export_spec, export_tensors, args);
}

CommandSpec checkpoint_import_spec() {
  return without_targets<ImportFlags>(import_spec);
}
int checkpoint_import_command(const std::vector<std::string>& args) {
  return with_paths(import_spec, import_tensors, args);
}

}  // namespace millrace
