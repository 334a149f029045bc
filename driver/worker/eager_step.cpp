#include "driver/worker/eager_step.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "data/files/zip.h"
#include "driver/checkpoint/pt_file.h"
#include "models/archive/exported_program.h"
#include "models/exported/exported_model.h"
#include "models/registry.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/mapped_file.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/safetensors.h"

namespace millrace {
namespace {

// Kernels add in other orders on other processors and with other numbers of threads. Batch norm over few
// samples magnifies that: Inception-v3's gradients with 1 and 2 threads of PyTorch differ by 0.3 % in their
// norms and by 1.3 % of them in their products. Without batch norm it is 4e-6. These bounds are four times as
// much.
constexpr double kOfNorm = 0.012, kOfProduct = 0.05;
// A smaller gradient is all rounding, as that of an attention's key bias. It is a share of the largest.
constexpr double kLeast = 0.01;

/// A gradient as the archive describes it, without its elements.
struct Gradient {
  std::vector<std::string> names;  ///< the parameter's; Python knows it by one of them
  double norm = 0;
  double product = 0;  ///< with cos(0), cos(1), ...; differs where the gradient points elsewhere
};

struct Step {
  double loss = 0;
  std::vector<Gradient> gradients;
};

at::Tensor cosines(const at::Tensor& like) {
  return at::arange(like.numel(), at::kDouble).cos().view(like.sizes());
}

/// Returns the step that the archive holds, and the head that it was taken with.
Result<std::pair<Step, std::string>> parse_step(std::string_view text, const std::string& where) {
  const Problem odd{where, "is not of the form that millrace_export.py writes",
                    "save the archive again with it"};
  const Result<Json> json = parse_json(text, where);
  if (!json) return json.problems();
  const Json *loss = json->find("loss"), *head = json->find("head"), *gradients = json->find("gradients");
  if (!loss || !loss->is_number() || !head || !head->is_string() || !gradients || !gradients->is_object())
    return odd;
  Step step{.loss = loss->as_double()};
  for (const auto& [name, pair] : gradients->members()) {
    if (!pair.is_array() || pair.size() != 2 || !std::ranges::all_of(pair.items(), &Json::is_number))
      return odd;
    step.gradients.push_back({{name}, pair.items()[0].as_double(), pair.items()[1].as_double()});
  }
  return std::pair(std::move(step), head->as_string());
}

Result<std::vector<at::Tensor>> fields_from(const std::vector<SavedTensor>& example,
                                            const LayeredModel& model, const std::string& where) {
  std::vector<at::Tensor> fields;
  for (const SavedTensor& saved : example) {
    const FieldSpec* field = fields.size() < model.fields.size() ? &model.fields[fields.size()] : nullptr;
    const char* type = field ? safetensors_name(field->dtype) : nullptr;
    if (!type ||
        names_of(ElementType())[static_cast<std::size_t>(saved.shape.type)] != std::string_view(type))
      return Problem{where, "holds other tensors than the graph takes", "export it again with torch 2.11"};
    at::Tensor& tensor = fields.emplace_back(at::empty(saved.shape.shape, at::TensorOptions(field->dtype)));
    std::memcpy(tensor.data_ptr(), saved.elements.data(), saved.elements.size());
  }
  return fields;
}

/// Takes the step of a model that is one layer.
Step take_step(const LayeredModel& model, const std::vector<at::Tensor>& fields) {
  const at::NoGradGuard no_grad;
  MILLRACE_CHECK(model.layers.size() == 1, model.name);
  const NamedLayer& only = model.layers.front();
  const auto& layer = dynamic_cast<const MultiLayer&>(*only.layer);
  std::vector<at::Tensor> inputs, parameters, buffers, gradients;
  for (const std::string& name : only.inputs) {
    const auto field = std::ranges::find(model.fields, name, &FieldSpec::name);
    inputs.push_back(fields.at(static_cast<std::size_t>(field - model.fields.begin())));
  }
  const std::vector<ParameterSpec> specs = layer.parameters();
  for (const ParameterSpec& spec : specs) {
    (spec.is_buffer ? buffers : parameters).push_back(spec.value.clone());
    if (!spec.is_buffer) gradients.push_back(at::zeros_like(parameters.back()));
  }
  Saved saved;
  const at::Tensor result =
      layer.forward_all(inputs, parameters, buffers, {.training = true}, &saved).front();
  const at::Tensor off =
      result.dim() == 0 ? at::Tensor() : result.sub(cosines(result).to(result.scalar_type()));
  const at::Tensor gradient = off.defined() ? off.mul(2. / double(off.numel())) : at::ones_like(result);
  const auto needs = std::make_unique<bool[]>(inputs.size());
  layer.backward_input_all({&gradient, 1}, parameters, saved, {needs.get(), inputs.size()});
  layer.backward_weight_all({&gradient, 1}, saved, gradients);
  Step step{.loss = (off.defined() ? off.square().mean() : result).item<double>()};
  for (std::size_t p = 0; p < gradients.size(); ++p) {
    const at::Tensor one = gradients[p].to(at::kDouble);
    Gradient& found = step.gradients.emplace_back(
        Gradient{{specs[p].name}, one.norm().item<double>(), one.mul(cosines(one)).sum().item<double>()});
    found.names.insert(found.names.end(), specs[p].also.begin(), specs[p].also.end());
  }
  return step;
}

bool differ(double here, double there, double bound) {
  return !(std::abs(here - there) <= bound);
}

/// Returns how the two steps differ; empty: they do not.
std::string difference(const Step& here, Step eager) {
  const auto number = [](double value) { return printed("%.3g", value); };
  double least = 0;
  for (const auto* step : {&here, &std::as_const(eager)})
    for (const Gradient& one : step->gradients) least = std::max(least, kLeast * one.norm);
  std::string first;
  int different = 0;
  const auto compare = [&](const std::string& name, const Gradient& found, const Gradient& expected) {
    const double size = std::max(expected.norm, least);
    const bool norms = differ(found.norm, expected.norm, kOfNorm * size);
    if (!norms && !differ(found.product, expected.product, kOfProduct * size)) return;
    if (different++ > 0) return;
    first = "the gradient of " + escaped(name) +
            (norms ? " has norm " + number(found.norm) + " here and " + number(expected.norm) + " there"
                   : " points elsewhere");
  };
  for (const Gradient& one : here.gradients) {
    const auto same = std::ranges::find_if(eager.gradients, [&](const Gradient& other) {
      return std::ranges::count(one.names, other.names.front()) > 0;
    });
    compare(one.names.front(), one, same == eager.gradients.end() ? Gradient{} : *same);
    if (same != eager.gradients.end()) eager.gradients.erase(same);
  }
  for (const Gradient& one : eager.gradients) compare(one.names.front(), {}, one);
  const std::string losses =
      "the loss is " + number(here.loss) + " here and " + number(eager.loss) + " there";
  if (different == 0)
    return differ(here.loss, eager.loss, kOfNorm * std::max(std::abs(eager.loss), kLeast)) ? losses : "";
  return first + " (" + std::to_string(different) + " of " +
         std::to_string(here.gradients.size() + eager.gradients.size()) + " differ); " + losses;
}

/// Returns a view of the member whose name ends so, or nothing.
Result<std::optional<std::string_view>> member_of(std::string_view bytes,
                                                  const std::vector<ZipMember>& members,
                                                  std::string_view name, const std::string& path) {
  const auto found =
      std::ranges::find_if(members, [&](const ZipMember& m) { return m.name.ends_with(name); });
  if (found == members.end() || found->deflated) return std::optional<std::string_view>();
  std::string unused;
  const Result<std::string_view> content = zip_member(bytes, *found, unused, path);
  if (!content) return content.problems();
  return std::optional(*content);
}

Status repeat_step(const std::string& path) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file) return file.problems();
  const Result<std::vector<ZipMember>> members = parse_zip(file->bytes(), path);
  if (!members) return members.problems();
  const auto text = member_of(file->bytes(), *members, kEagerStep, path);
  if (!text) return text.problems();
  if (!*text) return Ok{};
  const auto expected = parse_step(**text, path + ":" + std::string(kEagerStep));
  if (!expected) return expected.problems();
  const auto& [eager, head] = *expected;
  const auto model = make_exported_model(path, {.head = head, .granularity = "0", .draws = false});
  if (!model) return model.problems();
  constexpr const char* kExample = "data/sample_inputs/model.pt";
  const std::string where = path + ":" + kExample;
  const auto example = member_of(file->bytes(), *members, kExample, path);
  if (!example) return example.problems();
  if (!*example) return Problem{where, "is missing", "export it again with torch 2.11"};
  const auto tensors = tensors_of_archive(**example, where);
  if (!tensors) return tensors.problems();
  const auto fields = fields_from(*tensors, *model, where);
  if (!fields) return fields.problems();
  const std::string differs = difference(take_step(*model, *fields), eager);
  if (differs.empty()) return Ok{};
  return Problem{
      path, "eager PyTorch takes another step of the example inputs: " + differs,
      "torch.export keeps the forward of a torch.autograd.Function and no backward: write it without one "
      "(docs/pytorch-models.md), or train what the file computes with --eager-difference warn"};
}

}  // namespace

Status check_eager_step(const std::string& model, const GivenOptions& options) {
  if (!is_exported_model(model)) return Ok{};
  const Result<ModelOptions> known = options_for(*find_model(model_descriptions(), model), options);
  if (!known) return known.problems();
  Status repeated = repeat_step(model);
  if (repeated || known->text("eager-difference") == "refuse") return repeated;
  for (const Problem& problem : repeated.problems()) log_warning(to_string(problem));
  return Ok{};
}

}  // namespace millrace
