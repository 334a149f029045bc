#include "runtime/model/stage_program.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "runtime/base/check.h"
#include "runtime/layers/forward_layer.h"

namespace millrace {
namespace {

class Compiler {
 public:
  Compiler(const StageLayout& layout, StageId stage) : layout_(layout) { program_.stage = stage; }

  StageProgram compile() {
    place_incoming();
    for (int layer : layout_.layers[program_.stage.value]) add_layer(layer);
    add_heads();
    program_.num_places = static_cast<int>(places_.size());
    find_last_reads();
    mark_parts();
    mark_together();
    return std::move(program_);
  }

 private:
  int place(int tensor) {
    const auto [entry, added] = places_.emplace(tensor, static_cast<int>(places_.size()));
    return entry->second;
  }
  std::vector<int> places(const std::vector<int>& tensors) const {
    std::vector<int> result;
    for (int tensor : tensors) result.push_back(places_.at(tensor));
    return result;
  }
  std::vector<char> wants(const std::vector<int>& tensors) const {
    std::vector<char> result;
    for (int t : tensors) result.push_back(layout_.tensors[t].wants_gradient);
    return result;
  }

  std::vector<Shape> shapes(const std::vector<int>& tensors) const {
    std::vector<Shape> result;
    for (int t : tensors) result.push_back(layout_.tensors[t].spec.shape);
    return result;
  }
  std::vector<at::ScalarType> dtypes(const std::vector<int>& tensors) const {
    std::vector<at::ScalarType> result;
    for (int t : tensors) result.push_back(layout_.tensors[t].spec.dtype);
    return result;
  }

  void add_casts(LayerStep& step, const std::vector<int>& reads, const std::vector<int>& makes) const {
    if (!layout_.casts()) return;
    std::vector<TensorSpec> inputs;
    for (int t : reads) inputs.push_back(layout_.tensors[t].spec);
    step.compute = compute_dtype(step.layer->cast_policy(), inputs, layout_.lower);
    step.lowers_parameters = step.layer->cast_policy() == CastPolicy::Lower;
    step.input_dtypes = dtypes(reads);
    step.output_dtypes = dtypes(makes);
  }

  void place_incoming() {
    const std::vector<char> fields = layout_.fields_of(program_.stage);
    for (std::size_t f = 0; f < fields.size(); ++f) {
      if (fields[f]) program_.fields.emplace_back(static_cast<int>(f), place(static_cast<int>(f)));
    }
    for (std::size_t i = 0; i < layout_.crossings.size(); ++i) {
      const Crossing& c = layout_.crossings[i];
      if (c.to == program_.stage)
        add_port(program_.earlier, c.from.value, static_cast<int>(i), place(c.tensor));
    }
    program_.num_incoming = static_cast<int>(places_.size());
  }

  void add_port(std::vector<Border>& borders, int peer, int crossing, int at) {
    if (borders.empty() || borders.back().peer != peer) borders.push_back({.peer = peer});
    borders.back().ports.push_back({crossing, at});
    if (layout_.crossings[crossing].has_gradient) borders.back().gradients.push_back({crossing, at});
  }

  void add_layer(int index) {
    const auto i = static_cast<std::size_t>(index);
    const NamedLayer& named = layout_.model.layers[i];
    LayerStep step{.named = &named,
                   .layer = named.layer.get(),
                   .multi = dynamic_cast<const MultiLayer*>(named.layer.get()),
                   .carrying = dynamic_cast<const CarriesState*>(named.layer.get()),
                   .index = index,
                   .inputs = places(layout_.reads[i]),
                   .needs = wants(layout_.reads[i]),
                   .frozen = named.frozen,
                   .keeps_statistics = named.keeps_statistics,
                   .draws = named.layer->draws()};
    for (int tensor : layout_.makes[i]) step.outputs.push_back(place(tensor));
    // Shapes are recorded for user-written layers, except in a job array: one tensor may hold several jobs.
    if (layout_.model.jobs() == 1 && dynamic_cast<const ForwardLayer*>(named.layer.get())) {
      step.input_shapes = shapes(layout_.reads[i]);
      step.output_shapes = shapes(layout_.makes[i]);
    }
    if (step.carrying) step.num_carried = step.carrying->carried().size();
    program_.writes.add(forward_writes(*named.layer));
    const std::vector<char> outputs = wants(layout_.makes[i]);
    step.has_backward = std::ranges::any_of(outputs, [](char w) { return w != 0; });
    step.has_parameters = !named.frozen && std::ranges::any_of(named.layer->parameters(),
                                                               [](const auto& p) { return !p.is_buffer; });
    add_casts(step, layout_.reads[i], layout_.makes[i]);
    program_.steps.push_back(std::move(step));
  }

  void add_heads() {
    for (std::size_t h = 0; h < layout_.model.heads.size(); ++h) {
      const NamedHead& named = layout_.model.heads[h];
      const std::size_t num_sums = named.head->num_sums();
      if (layout_.stage_of_head[h] == program_.stage.value) {
        const auto& counts = layout_.model.counts;
        const auto count = std::ranges::find(counts, named.head->weight());
        program_.heads.push_back(
            {.named = &named,
             .head = named.head.get(),
             .use = static_cast<int>(layout_.model.layers.size() + h),
             .inputs = places(layout_.head_reads[h]),
             .needs = wants(layout_.head_reads[h]),
             .input_dtypes = layout_.casts() ? dtypes(layout_.head_reads[h]) : std::vector<at::ScalarType>(),
             .count = count == counts.end() ? -1 : static_cast<int>(count - counts.begin()),
             .sums = program_.num_sums,
             .num_sums = num_sums});
      }
      program_.num_sums += num_sums;
    }
  }

  /// Finds the step that reads each tensor last. A forward keeps a tensor until then; layers save what the
  /// backward needs.
  void find_last_reads() {
    std::vector<char> stays(program_.num_places, 0);
    for (std::size_t i = 0; i < layout_.crossings.size(); ++i) {
      const Crossing& c = layout_.crossings[i];
      if (c.from != program_.stage) continue;
      const int at = places_.at(c.tensor);
      stays[at] = 1;
      add_port(program_.later, c.to.value, static_cast<int>(i), at);
    }
    for (const HeadStep& head : program_.heads) {
      for (int at : head.inputs) stays[at] = 1;
    }
    for (auto step = program_.steps.rbegin(); step != program_.steps.rend(); ++step) {
      for (int at : step->inputs) {
        if (!std::exchange(stays[at], 1)) step->read_last.push_back(at);
      }
    }
  }

  void mark_parts() {
    program_.in_parts.assign(program_.num_places, 0);
    for (const Crossing& c : layout_.crossings) {
      if (c.from == program_.stage || (c.to == program_.stage && !c.summed))
        program_.in_parts[places_.at(c.tensor)] = 1;
    }
  }

  /// Marks the outputs of job arrays whose single reader accepts all jobs at once, and which no other stage
  /// reads.
  void mark_together() {
    const auto jobs = static_cast<std::size_t>(layout_.model.jobs());
    if (jobs < 2 || layout_.casts()) return;
    struct Reading {
      int times = 0;
      /// inputs of the last reader; null: that reader takes each job's tensor separately
      const std::vector<int>* inputs = nullptr;
    };
    std::vector<Reading> readings(program_.num_places);
    const auto read = [&](const std::vector<int>& inputs, bool takes_together) {
      for (int at : inputs) {
        Reading& reading = readings[at];
        ++reading.times;
        reading.inputs = takes_together ? &inputs : nullptr;
      }
    };
    for (const LayerStep& step : program_.steps) read(step.inputs, takes_together(step));
    for (const HeadStep& head : program_.heads) read(head.inputs, head.head->takes_together());
    for (const Border& border : program_.later)
      for (const Port& port : border.ports) ++readings[port.place].times;
    const auto goes_together = [&](const LayerStep& step, std::size_t output) {
      const std::vector<int>* inputs = readings[step.outputs[output]].inputs;
      if (!inputs) return false;
      const std::size_t made = step.outputs.size() / jobs, per_job = inputs->size() / jobs;
      const auto place = std::ranges::find(*inputs, step.outputs[output]);
      const auto input = static_cast<std::size_t>(place - inputs->begin());
      if (input >= per_job) return false;
      for (std::size_t b = 0; b < jobs; ++b) {
        const int at = step.outputs[b * made + output];
        if (readings[at].times != 1 || (*inputs)[b * per_job + input] != at) return false;
      }
      return true;
    };
    for (LayerStep& step : program_.steps) {
      for (std::size_t k = 0; takes_together(step) && k < step.outputs.size() / jobs; ++k)
        step.together.push_back(goes_together(step, k));
    }
  }
  static bool takes_together(const LayerStep& step) { return step.multi && step.multi->takes_together(); }

  const StageLayout& layout_;
  StageProgram program_;
  std::unordered_map<int, int> places_;  ///< place of each tensor, by index in the layout
};

const Border* border_with(const std::vector<Border>& borders, int peer) {
  const auto found = std::ranges::find(borders, peer, &Border::peer);
  return found == borders.end() ? nullptr : &*found;
}

}  // namespace

const Border* StageProgram::earlier_from(int peer) const {
  return border_with(earlier, peer);
}
const Border* StageProgram::later_to(int peer) const {
  return border_with(later, peer);
}

void cast_each(std::vector<at::Tensor>& tensors, const std::vector<at::ScalarType>& dtypes) {
  if (dtypes.empty()) return;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].defined()) tensors[i] = tensors[i].to(dtypes[i]);
  }
}

StageProgram compile_stage(const StageLayout& layout, StageId stage) {
  return Compiler(layout, stage).compile();
}

std::size_t num_head_sums(const LayeredModel& model) {
  std::size_t total = 0;
  for (const NamedHead& head : model.heads) total += head.head->num_sums();
  return total;
}

std::vector<NamedValues> job_values(const LayeredModel& model, std::span<const double> sums) {
  if (model.of_jobs.empty()) return {head_values(model, sums)};
  std::vector<NamedValues> result;
  for (std::size_t job = 0; job < model.of_jobs.size(); ++job) {
    std::vector<double> own;
    std::size_t at = 0;
    for (const NamedHead& head : model.of_jobs[job].heads) {
      const std::size_t size = head.head->num_sums();
      const auto mine = sums.subspan(at + job * size, size);
      own.insert(own.end(), mine.begin(), mine.end());
      at += size * model.of_jobs.size();
    }
    result.push_back(head_values(model.of_jobs[job], own));
  }
  return result;
}

/// Returns the mean loss over the jobs whose loss is finite, so that a diverged job does not hide the others.
static double mean_loss_of(const std::vector<NamedValues>& jobs) {
  double sum = 0, count = 0;
  for (const NamedValues& job : jobs) {
    if (job.empty() || !std::isfinite(job.front().second)) continue;
    sum += job.front().second;
    ++count;
  }
  return count > 0 ? sum / count : std::numeric_limits<double>::quiet_NaN();
}

NamedValues values_of_jobs(const std::vector<NamedValues>& jobs) {
  if (jobs.size() == 1) return jobs.front();
  NamedValues all{{"loss", mean_loss_of(jobs)}};
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    for (const auto& [name, value] : jobs[job]) all.emplace_back(name + ".job" + std::to_string(job), value);
  }
  return all;
}

/// Returns the values of one head. With at most five classes the target is always among the best five, so
/// top5 is left out.
static NamedValues values_of_head(const LayeredModel& model, const NamedHead& head,
                                  std::span<const double> sums) {
  NamedValues values = head.head->values(sums);
  const bool few = std::ranges::any_of(head.inputs, [&](const std::string& input) {
    const FieldSpec* field = model.field(input);
    return field && field->limit > 0 && field->limit <= 5;
  });
  if (few) std::erase_if(values, [](const auto& value) { return value.first == "top5"; });
  return values;
}

NamedValues head_values(const LayeredModel& model, std::span<const double> sums) {
  MILLRACE_CHECK(model.of_jobs.empty(), "an array has values_of_jobs");
  MILLRACE_CHECK(sums.size() == num_head_sums(model));
  if (model.heads.size() == 1) return values_of_head(model, model.heads.front(), sums);
  NamedValues result{{"loss", 0.0}};
  std::size_t at = 0;
  for (const NamedHead& head : model.heads) {
    const std::size_t size = head.head->num_sums();
    for (auto& [name, value] : values_of_head(model, head, sums.subspan(at, size))) {
      if (name == "loss") result.front().second += head.weight * value;
      result.emplace_back(head.name + "." + name, value);
    }
    at += size;
  }
  return result;
}

}  // namespace millrace
