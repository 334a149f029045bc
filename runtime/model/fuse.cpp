#include "runtime/model/fuse.h"

#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <set>

#include "runtime/layers/left_out.h"
#include "runtime/layers/repeated_layer.h"
#include "runtime/layers/shape_errors.h"

namespace millrace {
namespace {

std::string of_job(const std::string& name, std::size_t job) {
  return name + "@" + std::to_string(job);
}

/// Compares two models. Errors name each property of `other` (job `job`) that cannot be in an array with
/// `first`.
class Comparison {
 public:
  Comparison(const LayeredModel& first, const LayeredModel& other, std::size_t job)
      : first_(first), other_(other), job_(job) {}

  Problems run() {
    if (first_.name != other_.name) say("model", first_.name, other_.name);
    if (first_.layers.size() != other_.layers.size())
      say("number of layers", std::to_string(first_.layers.size()), std::to_string(other_.layers.size()));
    if (first_.fields.size() != other_.fields.size() || first_.heads.size() != other_.heads.size() ||
        first_.dimensions.size() != other_.dimensions.size() || first_.counts != other_.counts)
      say("inputs and outputs", "its own", "others");
    if (!problems_.empty()) return std::move(problems_);
    for (std::size_t i = 0; i < first_.fields.size(); ++i) compare(first_.fields[i], other_.fields[i]);
    for (std::size_t i = 0; i < first_.layers.size(); ++i) compare(first_.layers[i], other_.layers[i]);
    for (std::size_t i = 0; i < first_.heads.size(); ++i) compare(first_.heads[i], other_.heads[i]);
    for (std::size_t i = 0; i < first_.dimensions.size(); ++i) {
      if (first_.dimensions[i].nominal != other_.dimensions[i].nominal)
        say("length of " + first_.dimensions[i].name, std::to_string(first_.dimensions[i].nominal),
            std::to_string(other_.dimensions[i].nominal));
    }
    return std::move(problems_);
  }

 private:
  void say(const std::string& what, const std::string& first, const std::string& other) {
    if (problems_.size() >= kMost) return;
    problems_.push_back({"--fused",
                         what + " is " + first + " in job 0 and " + other + " in job " + std::to_string(job_),
                         "jobs of an array differ in numbers that change no shape; run others apart"});
  }
  void compare(const FieldSpec& a, const FieldSpec& b) {
    if (a.name != b.name) return say("an input", a.name, b.name);
    if (a.shape != b.shape) say("input " + a.name, text_of(a.shape), text_of(b.shape));
    if (a.limit != b.limit) say("values of " + a.name, std::to_string(a.limit), std::to_string(b.limit));
    if (a.dtype != b.dtype || a.padding != b.padding || a.batch_dimension != b.batch_dimension)
      say("input " + a.name, "of one form", "of another");
  }
  void compare(const NamedLayer& a, const NamedLayer& b) {
    if (a.name != b.name || a.layer->kind() != b.layer->kind())
      return say("a layer", a.name + " (" + a.layer->kind() + ")", b.name + " (" + b.layer->kind() + ")");
    if (a.inputs != b.inputs || a.outputs != b.outputs || a.tied != b.tied || a.full_names != b.full_names)
      say("layer " + a.name, "connected in one way", "in another");
    const auto one = a.layer->parameters(), other = b.layer->parameters();
    if (one.size() != other.size())
      return say("number of parameters of layer " + a.name, std::to_string(one.size()),
                 std::to_string(other.size()));
    for (std::size_t i = 0; i < one.size(); ++i) {
      if (one[i].name != other[i].name || one[i].is_buffer != other[i].is_buffer)
        say("a parameter of layer " + a.name, one[i].name, other[i].name);
      else if (one[i].shape != other[i].shape)
        say(a.name + "." + one[i].name, text_of(one[i].shape), text_of(other[i].shape));
    }
  }
  void compare(const NamedHead& a, const NamedHead& b) {
    if (a.name != b.name || a.head->kind() != b.head->kind() || a.head->metrics() != b.head->metrics() ||
        a.head->weight() != b.head->weight())
      say("a head", a.name + " (" + a.head->kind() + ")", b.name + " (" + b.head->kind() + ")");
    else if (a.inputs != b.inputs)
      say("what head " + a.name + " reads", joined(a.inputs), joined(b.inputs));
    if (a.weight != b.weight)
      say("weight of head " + a.name, std::to_string(a.weight), std::to_string(b.weight));
  }

  static std::string joined(const std::vector<std::string>& names) {
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : " and ") + name;
    return all;
  }

  // the number of differences reported; an entirely different model differs everywhere
  static constexpr std::size_t kMost = 4;
  const LayeredModel &first_, &other_;
  std::size_t job_;
  Problems problems_;
};

/// Adds to `model` the layers that only `other` has, if such a layer may be left out. Models with other
/// differences are unchanged.
class Completion {
 public:
  Completion(LayeredModel& model, const LayeredModel& other) : model_(model), other_(other) {}

  void run() {
    std::vector<NamedLayer> layers;
    std::size_t own = 0;
    for (std::size_t i = 0; i < other_.layers.size() || own < model_.layers.size();) {
      const bool more = own < model_.layers.size();
      if (i < other_.layers.size() && more && model_.layers[own].name == other_.layers[i].name) {
        layers.push_back(model_.layers[own++]);
        join(layers.back().inputs, other_.layers[i++].inputs);
      } else if (i < other_.layers.size() && !has(model_, other_.layers[i].name)) {
        const auto* layer = dynamic_cast<const MayBeLeftOut*>(other_.layers[i].layer.get());
        if (!layer) return;
        layers.push_back(other_.layers[i++]);
        layers.back().layer = layer->left_out();
        passed_on_[layers.back().name] = source(layers.back().inputs.front());
      } else if (more && !has(other_, model_.layers[own].name)) {
        layers.push_back(model_.layers[own++]);
      } else {
        return;
      }
    }
    model_.layers = std::move(layers);
    for (std::size_t h = 0; h < std::min(model_.heads.size(), other_.heads.size()); ++h)
      join(model_.heads[h].inputs, other_.heads[h].inputs);
    for (std::size_t t = 0; t < std::min(model_.turns.size(), other_.turns.size()); ++t)
      Completion(model_.turns[t].model, other_.turns[t].model).run();
  }

 private:
  static bool has(const LayeredModel& model, const std::string& name) {
    return std::ranges::find(model.layers, name, &NamedLayer::name) != model.layers.end();
  }
  /// If `tensor` is the output of a left-out layer, returns the tensor that this layer passes through; else
  /// `tensor`.
  std::string source(const std::string& tensor) const {
    const auto found = passed_on_.find(tensor);
    return found == passed_on_.end() ? tensor : found->second;
  }
  /// Makes `inputs` read an added layer's output where `others` do.
  void join(std::vector<std::string>& inputs, const std::vector<std::string>& others) const {
    for (std::size_t i = 0; i < std::min(inputs.size(), others.size()); ++i)
      if (inputs[i] == source(others[i])) inputs[i] = others[i];
  }

  LayeredModel& model_;
  const LayeredModel& other_;
  std::map<std::string, std::string> passed_on_;  ///< by name of a left-out layer
};

bool matches(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(
      patterns, [&](const std::string& p) { return ::fnmatch(p.c_str(), name.c_str(), 0) == 0; });
}

class Fuser {
 public:
  Fuser(std::vector<LayeredModel> models, std::shared_ptr<KernelChoices> choices, const FuseOptions& options)
      : models_(std::move(models)), choices_(std::move(choices)), options_(options) {}

  LayeredModel run() {
    const LayeredModel& first = models_.front();
    LayeredModel array{.name = first.name, .dimensions = first.dimensions, .counts = first.counts};
    add_fields(array);
    for (std::size_t l = 0; l < first.layers.size(); ++l) add_layer(array, l);
    for (std::size_t h = 0; h < first.heads.size(); ++h) {
      NamedHead head = first.heads[h];
      std::vector<HeadPtr> jobs;
      for (const LayeredModel& model : models_) jobs.push_back(model.heads[h].head);
      head.head = job_head(std::move(jobs), choices_);
      head.inputs = names(head.inputs);
      array.heads.push_back(std::move(head));
    }
    for (std::size_t t = 0; t < first.turns.size(); ++t) {
      std::vector<LayeredModel> of_turn;
      for (const LayeredModel& model : models_) of_turn.push_back(model.turns[t].model);
      array.turns.push_back({first.turns[t].name, Fuser(std::move(of_turn), choices_, options_).run()});
    }
    array.of_jobs = std::move(models_);
    return array;
  }

 private:
  void add_fields(LayeredModel& array) {
    const std::size_t copies = options_.data == JobData::Own ? models_.size() : 1;
    for (std::size_t b = 0; b < copies; ++b) {
      for (FieldSpec field : models_.front().fields) {
        if (copies > 1)
          field.name = of_job(field.name, b);
        else
          shared_.insert(field.name);
        array.fields.push_back(std::move(field));
      }
    }
  }
  void add_layer(LayeredModel& array, std::size_t l) {
    const NamedLayer& first = models_.front().layers[l];
    const bool same = std::ranges::all_of(
        models_, [&](const LayeredModel& m) { return m.layers[l].layer.get() == first.layer.get(); });
    const bool reads_shared =
        std::ranges::all_of(first.inputs, [&](const std::string& name) { return shared_.contains(name); });
    if (same && reads_shared && first.layer->parameters().empty() && !first.layer->draws()) {
      for (const std::string& name : first.output_names()) shared_.insert(name);
      array.layers.push_back(first);
      return;
    }
    NamedLayer layer = first;
    // Repeated layers become one repeated layer around the array.
    const auto* several = dynamic_cast<const RepeatedLayer*>(first.layer.get());
    const int calls = several ? several->calls() : 1;
    std::vector<LayerPtr> jobs;
    for (const LayeredModel& model : models_) {
      const LayerPtr& own = model.layers[l].layer;
      jobs.push_back(several ? static_cast<const RepeatedLayer&>(*own).layer() : own);
    }
    layer.layer = repeated(
        job_layer(first.name, std::move(jobs), choices_, !matches(options_.unfused, first.name)), calls);
    layer.inputs = names(first.inputs, calls);
    layer.outputs = names(first.output_names(), calls);
    layer.tied.clear();
    for (std::size_t b = 0; b < models_.size(); ++b) {
      const std::string prefix = job_prefix(static_cast<int>(b));
      for (const auto& [own, owner] : first.tied) layer.tied.emplace_back(prefix + own, prefix + owner);
    }
    array.layers.push_back(std::move(layer));
  }
  /// Returns the names of all jobs' tensors, job by job. For a layer that is called several times, they are
  /// ordered by call.
  std::vector<std::string> names(const std::vector<std::string>& tensors, int calls = 1) const {
    std::vector<std::string> all;
    const auto of_call = tensors.size() / static_cast<std::size_t>(calls);
    for (std::size_t from = 0; from < tensors.size(); from += of_call) {
      for (std::size_t b = 0; b < models_.size(); ++b) {
        for (std::size_t i = from; i < from + of_call; ++i)
          all.push_back(shared_.contains(tensors[i]) ? tensors[i] : of_job(tensors[i], b));
      }
    }
    return all;
  }

  std::vector<LayeredModel> models_;
  std::shared_ptr<KernelChoices> choices_;
  const FuseOptions& options_;
  std::set<std::string> shared_;  ///< tensors that all jobs share
};

}  // namespace

void complete(std::vector<LayeredModel>& models) {
  for (std::size_t b = 1; b < models.size(); ++b) Completion(models.front(), models[b]).run();
  for (std::size_t b = 1; b < models.size(); ++b) Completion(models[b], models.front()).run();
}

Result<LayeredModel> fuse(std::vector<LayeredModel> models, const std::shared_ptr<KernelChoices>& choices,
                          const FuseOptions& options) {
  Problems problems;
  const LayeredModel& first = models.front();
  for (std::size_t b = 1; b < models.size(); ++b) append(problems, Comparison(first, models[b], b).run());
  for (const std::string& pattern : options.unfused) {
    if (std::ranges::none_of(first.layers, [&](const auto& l) { return matches({pattern}, l.name); }))
      problems.push_back({"--unfused", "'" + pattern + "' matches no layer of " + first.name,
                          "layers are called like " + first.layers.front().name});
  }
  if (models.size() > 1 && options.data == JobData::Own && !first.dimensions.empty())
    problems.push_back(
        {"--fused",
         "the samples of " + first.name + " vary in length, and the jobs would read different ones",
         "give one --data-seed for all jobs"});
  if (!problems.empty()) return problems;
  if (models.size() == 1) return std::move(models.front());
  return Fuser(std::move(models), choices, options).run();
}

}  // namespace millrace
