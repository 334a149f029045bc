// `millrace predict`: what trained weights make of files.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <numeric>
#include <optional>

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/cat.h>

#include "data/files/npy.h"
#include "data/readers/array_file.h"
#include "data/readers/decode_image.h"
#include "data/readers/image_set.h"
#include "driver/cli/command_support.h"
#include "driver/worker/train_ranks.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/text.h"
#include "runtime/train/predictor.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

/// The samples that the files hold, without labels.
struct Inputs {
  std::shared_ptr<const Dataset> dataset;
  std::function<std::string(std::int64_t)> name_of;
};

std::string lower_extension(const std::string& path) {
  std::string extension = fs::path(path).extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension;
}

/// The fields that the model's layers read. A label is not among them.
std::vector<FieldSpec> fields_read(const Predictor& predictor) {
  std::vector<FieldSpec> fields;
  for (std::size_t f = 0; f < predictor.reads().size(); ++f)
    if (predictor.reads()[f]) fields.push_back(predictor.model().fields[f]);
  return fields;
}

Result<Inputs> open_images(const std::vector<std::string>& paths, const std::vector<FieldSpec>& fields,
                           bool classifier) {
  const Shape shape = fields.front().shape;
  if (fields.size() != 1 || shape.size() != 3 || shape[0] != 3 || shape[1] != shape[2])
    return Problem{paths.front(), "the model does not take images", "give NPY or NPZ files of what it reads"};
  auto images = make_image_files(paths, static_cast<int>(shape[1]), classifier);
  if (!images) return images.problems();
  for (const std::string& note : (*images)->notes()) log_warning(note);
  return Inputs{*images, [set = *images](std::int64_t index) { return set->name_of(index); }};
}

Result<Inputs> open_inputs(const std::vector<std::string>& paths, const std::vector<FieldSpec>& fields,
                           bool classifier) {
  static const std::vector<std::string> kArrays{".npy", ".npz"};
  Problems problems;
  std::size_t images = 0;
  for (const std::string& path : paths) {
    std::error_code ignored;
    const bool is_folder = fs::is_directory(path, ignored);
    const bool is_image = is_folder || is_image_name(path);
    images += is_image;
    if (!is_folder && !fs::exists(path, ignored))
      problems.push_back({path, "is not there", "give an image, a folder of images, an NPY or an NPZ file"});
    else if (!is_image && std::ranges::count(kArrays, lower_extension(path)) == 0)
      problems.push_back(
          {path, "is of no kind that is read here", std::string("give .npy, .npz, ") + kImageNames});
  }
  if (!problems.empty()) return problems;
  if (images > 0 && images < paths.size())
    return Problem{paths.front(), "and the other files are images and arrays",
                   "predict images and arrays one after the other"};
  if (images > 0) return open_images(paths, fields, classifier);
  Result<JoinedArrays> arrays = join_array_files(paths, fields);
  if (!arrays) return arrays.problems();
  for (const std::string& note : arrays->dataset->notes()) log_warning(note);
  return Inputs{arrays->dataset, [names = std::move(arrays->names)](std::int64_t index) {
                  return names[static_cast<std::size_t>(index)];
                }};
}

/// A class with its probability.
struct Likely {
  std::int64_t number = 0;
  double probability = 0;
};

/// Returns the `most` likeliest classes of a row of log-probabilities, best first. Of equal ones the lower
/// class comes first, as an evaluation counts them.
std::vector<Likely> likeliest(const float* log_p, std::int64_t classes, int most) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(classes));
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min<std::int64_t>(most, classes);
  std::partial_sort(order.begin(), end, order.end(), [&](std::int64_t a, std::int64_t b) {
    return log_p[a] != log_p[b] ? log_p[a] > log_p[b] : a < b;
  });
  std::vector<Likely> best;
  for (auto at = order.begin(); at != end; ++at) best.push_back({*at, std::exp(double(log_p[*at]))});
  return best;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

/// Writes the result to stdout, an input after the other.
class Output {
 public:
  Output(PredictFormat format, std::vector<std::string> names, Json head)
      : format_(format), names_(std::move(names)), json_(std::move(head)) {
    json_["predictions"] = Json::array();
  }

  void classes(const std::string& input, const std::vector<Likely>& best) {
    if (format_ == PredictFormat::Csv && !std::exchange(begun_, true))
      std::puts("input,rank,class,name,probability");
    std::string line = escaped(input);
    Json top = Json::array();
    int rank = 0;
    for (const auto& [number, probability] : best) {
      const bool named = number < std::ssize(names_);
      const std::string name = named ? names_[static_cast<std::size_t>(number)] : "";
      ++rank;
      if (format_ == PredictFormat::Text) {
        line += "  " + (named ? escaped(name) : "class " + std::to_string(number)) +
                printed(" %.4f", probability);
      } else if (format_ == PredictFormat::Csv) {
        std::string row = csv_field(input) + "," + std::to_string(rank) + "," + std::to_string(number) + "," +
                          csv_field(name) + ",";
        append_number(row, probability);
        std::puts(row.c_str());
      } else {
        Json one = Json::object({{"class", number}, {"probability", probability}});
        if (named) one["name"] = name;
        top.push_back(std::move(one));
      }
    }
    if (format_ == PredictFormat::Text) std::puts(line.c_str());
    if (format_ == PredictFormat::Json)
      json_["predictions"].push_back(Json::object({{"input", input}, {"top", std::move(top)}}));
  }

  /// Writes the numbers that a model computes which does not classify.
  void values(const std::string& input, const at::Tensor& values) {
    if (format_ == PredictFormat::Csv && !std::exchange(begun_, true)) std::puts("input,place,value");
    const at::Tensor flat = values.contiguous();
    const float* value = flat.const_data_ptr<float>();
    std::string line = escaped(input);
    Json all = Json::array();
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
      if (format_ == PredictFormat::Json) {
        all.push_back(Json(static_cast<double>(value[i])));
        continue;
      }
      std::string number;
      append_number(number, value[i]);
      if (format_ == PredictFormat::Csv)
        std::puts((csv_field(input) + "," + std::to_string(i) + "," + number).c_str());
      line += "  " + number;
    }
    if (format_ == PredictFormat::Text) std::puts(line.c_str());
    if (format_ == PredictFormat::Json)
      json_["predictions"].push_back(Json::object({{"input", input}, {"values", std::move(all)}}));
  }

  void end() {
    if (format_ == PredictFormat::Json) std::puts(json_.dump(1).c_str());
  }

 private:
  PredictFormat format_;
  std::vector<std::string> names_;
  Json json_;
  bool begun_ = false;
};

/// The head of the model that is shown: the first one that classifies, else the first.
struct Shown {
  std::size_t head = 0;
  bool classifies = false;
};

Shown shown_of(const LayeredModel& model) {
  for (std::size_t h = 0; h < model.heads.size(); ++h)
    if (const std::string kind = model.heads[h].head->kind();
        kind == "cross_entropy" || kind == "soft_cross_entropy")  // the latter with --label-smoothing
      return {h, true};
  return {};
}

/// Reads the names, which may be fewer than the classes but not more.
Result<std::vector<std::string>> names_of_classes(const PredictFlags& flags, const LayeredModel& model,
                                                  const Shown& shown) {
  if (flags.class_names.empty()) return std::vector<std::string>();
  if (!shown.classifies) return Problem{"--class-names", model.name + " does not classify", "leave it out"};
  Result<std::vector<std::string>> names = read_class_names(flags.class_names);
  if (!names) return names;
  const FieldSpec* target = model.field(model.heads[shown.head].inputs.back());
  if (target && target->limit > 0 && std::ssize(*names) > target->limit)
    return Problem{flags.class_names,
                   "has " + std::to_string(names->size()) + " names, the model has " +
                       std::to_string(target->limit) + " classes",
                   "give the names of its training data, and --classes as in the training"};
  return names;
}

/// Throws NumericError if the outputs of an input are not finite.
void require_finite(const at::Tensor& outputs, const std::function<std::string(std::int64_t)>& name_of,
                    std::int64_t first) {
  const at::Tensor flat = outputs.contiguous().view({outputs.size(0), -1});
  const float* value = flat.const_data_ptr<float>();
  for (std::int64_t i = 0; i < flat.numel(); ++i) {
    if (std::isfinite(value[i])) continue;
    throw NumericError(name_of(first + i / flat.size(1)) + ": the model computes " + std::to_string(value[i]),
                       "look for NaN and Inf in the input and in the weights");
  }
}

Status write_outputs(const std::string& path, const std::vector<at::Tensor>& parts) {
  const at::Tensor all = at::cat(parts).contiguous();
  std::string bytes = npy_header("<f4", all.sizes().vec());
  bytes.append(static_cast<const char*>(all.const_data_ptr()), static_cast<std::size_t>(all.nbytes()));
  return write_file_atomically(path, bytes);
}

constexpr std::int64_t kMostValues = 64;  // of an input that are printed

/// Computes all inputs, batch by batch.
void predict_all(Predictor& predictor, const Inputs& inputs, const PredictFlags& flags, const Shown& shown,
                 Output& output) {
  const LayeredModel& model = predictor.model();
  const std::vector<FieldSpec> fields = fields_read(predictor);
  LoaderOptions options{.microbatch = flags.train.options.microbatch,
                        .shuffle = false,
                        .workers = flags.train.workers,
                        .keep_incomplete = true,
                        .fields = fields,
                        .num_dimensions = model.dimensions.size(),
                        .num_counts = model.counts.size(),
                        .wanted = std::vector<char>(fields.size(), 1)};
  auto loader = make_loader(inputs.dataset, options);
  if (!loader) throw DataError(to_string(loader.problems()));
  const std::int64_t total = inputs.dataset->size();
  ProgressLine progress(steady_clock(), "predict");
  std::vector<at::Tensor> kept;
  for (std::int64_t position = 0, done = 0; done < total; ++position) {
    Batch read = (*loader)->get(position), batch;
    std::size_t next = 0;
    for (const char reads : predictor.reads())
      batch.fields.push_back(reads ? std::move(read.fields[next++]) : at::Tensor());
    const std::int64_t samples = (*loader)->extent(position).samples;
    const at::Tensor found = predictor.forward(batch)[shown.head].to(at::kCPU, at::kFloat).contiguous();
    if (found.dim() < 1 || found.size(0) != samples)
      throw ConfigError(model.name + " computes no output for each sample, but one for the batch",
                        "of an exported model that returns its loss: --head cross-entropy, if that is its "
                        "loss or it returns scores too");
    require_finite(found, inputs.name_of, done);
    if (!flags.outputs.empty()) kept.push_back(found);
    const std::int64_t each = found.numel() / samples;
    if (!shown.classifies && each > kMostValues && flags.outputs.empty())
      throw ConfigError(model.name + " computes " + std::to_string(each) + " numbers for each input",
                        "--outputs FILE.npy writes them");
    progress.clear();
    const at::Tensor log_p = shown.classifies ? at::_log_softmax(found, 1, /*half_to_float=*/false) : found;
    for (std::int64_t i = 0; i < samples; ++i) {
      const std::string name = inputs.name_of(done + i);
      if (shown.classifies)
        output.classes(name, likeliest(log_p.const_data_ptr<float>() + i * each, each, flags.top));
      else if (each <= kMostValues)
        output.values(name, found.select(0, i));
    }
    done += samples;
    progress.show(done, total, "inputs");
  }
  progress.clear();
  if (flags.outputs.empty()) return;
  if (const Status written = write_outputs(flags.outputs, kept); !written)
    throw Error(ExitCode::RunFailed, to_string(written.problems()));
}

int predict(const PredictFlags& flags, const std::vector<std::string>& files, const Accelerator& accelerator,
            const Additions& own) {
  const TrainFlags& train = flags.train;
  if (train.model.name.empty())
    return report_problems({{"--model", "is required", "give the model that was trained, with its options"}},
                           ExitCode::Usage);
  if (!flags.outputs.empty()) {
    if (const Status place = make_place_for_file(flags.outputs); !place)
      return report_problems(place.problems(), ExitCode::Usage);
  }
  Result<LayeredModel> model = make_model(train.model.name, train.model.options, own.models);
  if (!model) return report_problems(model.problems(), ExitCode::Usage);
  const auto device = device_from(train.device, /*local_rank=*/0, accelerator);
  if (!device) return report_problems(device.problems(), ExitCode::Usage);
  const Shown shown = shown_of(*model);
  Result<std::vector<std::string>> names = names_of_classes(flags, *model, shown);
  if (!names) return report_problems(names.problems(), ExitCode::InputData);
  use_threads(train);
  const Result<OpenedWeights> weights = OpenedWeights::open(flags.weights);
  if (!weights) return report_problems(weights.problems(), ExitCode::Checkpoint);
  Predictor predictor(
      *model, *weights,
      {.precision = train.options.precision, .device = *device, .ignored = train.options.init_from_ignore});
  const Result<Inputs> inputs = open_inputs(files, fields_read(predictor), shown.classifies);
  if (!inputs) return report_problems(inputs.problems(), ExitCode::InputData);
  Output output(flags.format, *std::move(names),
                Json::object({{"model", model->name}, {"weights", weights->path()}}));
  predict_all(predictor, *inputs, flags, shown, output);
  output.end();
  return 0;
}

}  // namespace

int predict_command(const std::vector<std::string>& args, const Accelerator& accelerator,
                    const Additions& own) {
  return guarded([&] {
    PredictFlags flags;
    const CommandSpec spec = with_additions(predict_spec(flags), own, flags.train.model.options);
    const Result<Arguments> parsed = parse_arguments(spec, args);
    if (!parsed) return report_problems(parsed.problems(), ExitCode::Usage);
    if (parsed->wants_help()) return print_help(spec, *parsed);
    if (!parsed->problems().empty()) return report_problems(parsed->problems(), ExitCode::Usage);
    tell_of_interrupt(spec);
    return predict(flags, parsed->positionals(), accelerator, own);
  });
}

}  // namespace millrace
