#include "models/exported/flat_program.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <optional>

#include "runtime/base/text.h"

namespace millrace {
namespace {

using Kind = ExportedArgument::Kind;

std::optional<c10::OperatorHandle> find_operator(const std::string& op, const std::string& overload) {
  return c10::Dispatcher::singleton().findSchema({op, overload});
}

void rename(ExportedArgument& argument, const std::map<std::string, std::string>& names) {
  const auto renamed = [&](std::string& name) {
    for (auto found = names.find(name); found != names.end(); found = names.find(name)) name = found->second;
  };
  if (argument.kind == Kind::Tensor) renamed(argument.text);
  for (std::string& name : argument.names) renamed(name);
}

void collect(const ExportedArgument& argument, std::vector<std::string>& into) {
  if (argument.kind == Kind::Tensor) into.push_back(argument.text);
  for (const std::string& name : argument.names)
    if (!name.empty()) into.push_back(name);
}

/// Returns whether the call makes only numbers or nothing. Such calls are not needed: sizes are computed from
/// symbols.
bool makes_no_tensor(const ExportedCall& call) {
  return std::ranges::all_of(call.outputs, [](const ExportedArgument& output) {
    return output.kind != Kind::Tensor && output.kind != Kind::Tensors;
  });
}

bool is_write_of(const c10::Argument& formal) {
  return formal.alias_info() && formal.alias_info()->isWrite();
}

bool writes_to_an_argument(const std::string& op, const std::string& overload) {
  const auto found = find_operator(op, overload);
  return found && std::ranges::any_of(found->schema().arguments(), is_write_of);
}

/// Groups the values that share memory.
class Aliases {
 public:
  const std::string& root(const std::string& value) {
    std::string& up = up_.try_emplace(value, value).first->second;
    if (up == value) return up;
    up = root(std::string(up));
    return up;
  }
  void join(const std::string& a, const std::string& b) {
    const std::string from = root(b), to = root(a);
    up_[from] = to;
  }
  std::set<std::string> with(const std::string& value) {
    std::set<std::string> all;
    const std::string top = root(value);
    std::vector<std::string> names;
    for (const auto& [name, up] : up_) names.push_back(name);
    for (const std::string& name : names)
      if (root(name) == top) all.insert(name);
    return all;
  }

 private:
  std::map<std::string, std::string> up_;
};

class Flattener {
 public:
  Flattener(const ExportedProgram& program, std::string archive)
      : program_(program), archive_(std::move(archive)) {}

  Result<FlatProgram> flatten() {
    flat_.tensors = program_.graph.tensors;
    inline_calls(program_.graph, {}, false, {});
    for (const std::string& result : program_.results) {
      ExportedArgument argument{.kind = Kind::Tensor, .text = result};
      rename(argument, names_);
      flat_.results.push_back(argument.text);
    }
    if (!problems_.empty()) return problems_;
    resolve_writes();
    if (!problems_.empty()) return problems_;
    return std::move(flat_);
  }

 private:
  using Names = std::map<std::string, std::string>;

  void inline_calls(const ExportedGraph& graph, const std::string& prefix, bool without_gradient,
                    const std::vector<std::string>& modules) {
    for (const ExportedCall& call : graph.calls) {
      constexpr std::string_view kHigher = "torch.ops.higher_order.";
      if (call.target.starts_with(kHigher)) {
        inline_region(call, prefix, without_gradient, modules);
        continue;
      }
      constexpr std::string_view kAten = "torch.ops.aten.", kTransformers = "torch.ops.transformers.";
      const bool grouped =
          call.target == "torch.ops.transformers.grouped_mm_fallback.default";  // call_runner
      if (!grouped && !call.target.starts_with(kAten)) {
        if (!makes_no_tensor(call)) refuse(call, "is no operator of ATen");
        continue;
      }
      const std::string_view rest =
          std::string_view(call.target).substr((grouped ? kTransformers : kAten).size());
      const std::size_t dot = rest.find('.');
      FlatCall flat{.name = prefix + call.name,
                    .op = (grouped ? "transformers::" : "aten::") + std::string(rest.substr(0, dot)),
                    .overload = std::string(rest.substr(std::min(dot, rest.size() - 1) + 1)),
                    .arguments = call.arguments,
                    .outputs = call.outputs,
                    .modules = call.modules.empty() ? modules : call.modules,
                    .without_gradient = without_gradient};
      if (flat.overload == "default" || dot == std::string_view::npos) flat.overload.clear();
      if (makes_no_tensor(call) && !writes_to_an_argument(flat.op, flat.overload)) continue;
      for (auto& [name, argument] : flat.arguments) {
        if (argument.kind == Kind::Unknown || argument.kind == Kind::Graph)
          refuse(call, "has an argument " + escaped(name) + " of kind " + escaped(argument.text));
        add_prefix(argument, prefix);
        rename(argument, names_);
      }
      for (ExportedArgument& output : flat.outputs) add_prefix(output, prefix);
      if (!find_operator(flat.op, flat.overload)) refuse(call, "is not known to this LibTorch");
      flat_.calls.push_back(std::move(flat));
    }
  }

  /// Inlines a region: `with torch.no_grad():`, or autocast that is off.
  void inline_region(const ExportedCall& call, const std::string& prefix, bool without_gradient,
                     const std::vector<std::string>& modules) {
    const auto graph = std::ranges::find_if(
        call.arguments, [](const auto& a) { return a.second.kind == Kind::Graph && a.second.graph; });
    const bool grad = call.target.ends_with(".wrap_with_set_grad_enabled"),
               autocast = call.target.ends_with(".wrap_with_autocast");
    if ((!grad && !autocast) || graph == call.arguments.end())
      return refuse(call,
                    "is a branch or a loop (torch.cond, torch.scan, torch.while_loop), or a region of a "
                    "kind that is not known here");
    bool enabled = true;
    for (const auto& [name, argument] : call.arguments)
      if (argument.kind == Kind::Bool) {
        enabled = argument.codes.front() != 0;
        break;
      }
    if (autocast && enabled) return refuse(call, "computes in mixed precision (autocast)");
    const ExportedGraph& inner = *graph->second.graph;
    const std::string inside = prefix + call.name + "/";
    std::vector<ExportedArgument> given;
    for (auto next = graph + 1; next != call.arguments.end(); ++next) given.push_back(next->second);
    if (given.size() != inner.inputs.size()) return refuse(call, "passes other inputs than its region takes");
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (inner.inputs[i].kind != Kind::Tensor || given[i].kind != Kind::Tensor) continue;
      add_prefix(given[i], prefix);
      rename(given[i], names_);
      if (inside + inner.inputs[i].text != given[i].text)
        names_[inside + inner.inputs[i].text] = given[i].text;
    }
    for (const auto& [value, tensor] : inner.tensors) flat_.tensors.emplace(inside + value, tensor);
    inline_calls(inner, inside, grad ? !enabled : without_gradient,
                 call.modules.empty() ? modules : call.modules);
    std::vector<std::string> made, wanted;
    for (const ExportedArgument& output : inner.outputs) collect(output, made);
    for (const ExportedArgument& output : call.outputs) collect(output, wanted);
    for (std::size_t i = 0; i < wanted.size() && i < made.size(); ++i) {
      ExportedArgument from{.kind = Kind::Tensor, .text = inside + made[i]};
      rename(from, names_);
      if (prefix + wanted[i] != from.text) names_[prefix + wanted[i]] = from.text;
    }
  }

  static void add_prefix(ExportedArgument& argument, const std::string& prefix) {
    if (prefix.empty()) return;
    if (argument.kind == Kind::Tensor) argument.text = prefix + argument.text;
    for (std::string& name : argument.names)
      if (!name.empty()) name = prefix + name;
  }

  void refuse(const ExportedCall& call, const std::string& why) {
    if (problems_.size() < 20)
      problems_.push_back({archive_, "call " + escaped(call.name) + ", " + escaped(call.target) + ", " + why,
                           "write that part of the model with operators of PyTorch itself"});
  }

  /// Replaces writes by new values, unless a call reads the memory by another name afterwards. Notes the
  /// writes that stay.
  void resolve_writes() {
    std::map<std::string, std::size_t> last_use;
    for (std::size_t i = 0; i < flat_.calls.size(); ++i)
      for (const std::string& value : flat_.calls[i].reads()) last_use[value] = i;
    for (const std::string& result : flat_.results) last_use[result] = flat_.calls.size();
    for (const ExportedInput& input : program_.inputs) inputs_[input.value] = &input;

    Aliases aliases;
    Names names;
    std::set<std::string> written;
    for (std::size_t i = 0; i < flat_.calls.size(); ++i) {
      FlatCall& call = flat_.calls[i];
      for (auto& [name, argument] : call.arguments) rename(argument, names);
      if (call.op == "aten::detach_") call.op = "aten::detach";
      const c10::FunctionSchema& schema = find_operator(call.op, call.overload)->schema();
      std::vector<std::string> target;
      for (const c10::Argument& formal : schema.arguments()) {
        const ExportedArgument* actual = call.argument(formal.name());
        if (actual && is_write_of(formal)) collect(*actual, target);
      }
      if (call.without_gradient)
        for (const std::string& value : call.makes()) without_gradient_.insert(value);
      if (target.size() == 1 && can_make_new(call, target[0], i, aliases, last_use)) {
        call.op.pop_back();
        // dropout_(self, ...) is dropout(input, ...).
        const auto& renamed = find_operator(call.op, call.overload)->schema().arguments();
        for (auto& [name, argument] : call.arguments) {
          const auto& formals = schema.arguments();
          const auto formal =
              std::ranges::find(formals, name, [](const c10::Argument& a) { return a.name(); });
          if (formal != formals.end()) name = renamed[formal - formals.begin()].name();
        }
        const std::vector<std::string> made = call.makes();
        if (made.size() == 1) {
          names[target[0]] = made[0];
          last_use[made[0]] = std::max(last_use[made[0]], last_use[target[0]]);
        }
        continue;
      }
      call.writes = target;
      for (const std::string& value : target) {
        written.insert(value);
        for (const std::string& same : aliases.with(value)) {
          const auto input = inputs_.find(same);
          if (input == inputs_.end()) continue;
          if (input->second->kind != ExportedInput::Kind::Buffer)
            refuse_write(call, *input->second);
          else if (!std::ranges::count(call.writes, same))
            call.writes.push_back(same);
        }
      }
      // `as_strided` depends on the strides of its input. So its input must be made in the same layer.
      if (call.op == "aten::as_strided" && !call.reads().empty()) written.insert(call.reads().front());
      for (std::size_t r = 0; r < schema.returns().size() && r < call.outputs.size(); ++r) {
        if (!schema.returns()[r].alias_info()) continue;
        std::vector<std::string> made;
        collect(call.outputs[r], made);
        for (const c10::Argument& formal : schema.arguments()) {
          const ExportedArgument* actual = call.argument(formal.name());
          std::vector<std::string> from;
          if (actual && formal.alias_info()) collect(*actual, from);
          for (const std::string& a : from)
            for (const std::string& b : made) {
              if (call.op == "aten::to" && !same_type(a, b)) continue;  // a copy
              aliases.join(a, b);
              // The written value is returned: `x.add_(y)` is x, `div(x, y, out=z)` is z.
              if (is_write_of(formal) && from.size() == 1 && made.size() == 1 &&
                  formal.alias_info()->beforeSets() == schema.returns()[r].alias_info()->beforeSets())
                names[b] = a;
            }
        }
      }
    }
    for (std::string& result : flat_.results) {
      ExportedArgument argument{.kind = Kind::Tensor, .text = result};
      rename(argument, names);
      result = argument.text;
    }
    std::set<std::string> roots;
    for (const std::string& value : written)
      if (roots.insert(aliases.root(value)).second) flat_.written_together.push_back(aliases.with(value));
    for (FlatCall& call : flat_.calls) allow_copies(call);
  }

  /// Lets views copy. At a border tensors become contiguous, so a view of one may need a copy. That makes no
  /// difference if nobody writes to its memory.
  void allow_copies(FlatCall& call) const {
    if ((call.op != "aten::view" && call.op != "aten::_unsafe_view") || !call.overload.empty()) return;
    for (const std::string& value : call.reads())
      if (flat_.written_with(value)) return;
    call.op = "aten::reshape";
    for (auto& [name, argument] : call.arguments)
      if (name == "size") name = "shape";
  }

  bool same_type(const std::string& a, const std::string& b) const {
    const auto one = flat_.tensors.find(a), other = flat_.tensors.find(b);
    return one == flat_.tensors.end() || other == flat_.tensors.end() ||
           one->second.scalar_type == other->second.scalar_type;
  }

  void refuse_write(const FlatCall& call, const ExportedInput& input) {
    const bool parameter = input.kind == ExportedInput::Kind::Parameter;
    const char* const what = parameter                                     ? "a parameter"
                             : input.kind == ExportedInput::Kind::Constant ? "a constant"
                                                                           : "an input of the model";
    problems_.push_back({archive_,
                         "call " + escaped(call.name) + ", " + call.op + ", writes to " +
                             escaped(input.target) + ", which is " + what,
                         parameter ? "the optimizer alone changes parameters: compute a new tensor instead, "
                                     "for example weight.clamp(-c, c) for weight.clamp_(-c, c)"
                                   : "compute a new tensor instead"});
  }

  bool can_make_new(const FlatCall& call, const std::string& target, std::size_t at, Aliases& aliases,
                    std::map<std::string, std::size_t>& last_use) const {
    if (!call.op.ends_with('_')) return false;
    // The target's gradient skips such a write, but a new value would have no gradient.
    if (call.without_gradient && !without_gradient_.contains(target) && !inputs_.contains(target))
      return false;
    const auto other = find_operator(call.op.substr(0, call.op.size() - 1), call.overload);
    if (!other || other->schema().arguments().size() <
                      find_operator(call.op, call.overload)->schema().arguments().size())
      return false;
    for (const std::string& same : aliases.with(target)) {
      const auto input = inputs_.find(same);
      if (input != inputs_.end() && input->second->kind != ExportedInput::Kind::User) return false;
      if (same != target && last_use[same] > at) return false;
    }
    return true;
  }

  const ExportedProgram& program_;
  std::string archive_;
  FlatProgram flat_;
  Names names_;
  std::map<std::string, const ExportedInput*> inputs_;  ///< key: value
  std::set<std::string> without_gradient_;              ///< values made under torch.no_grad()
  Problems problems_;
};

bool updates_statistics(const FlatCall& call) {
  const auto is_set = [&](const char* name) {
    const ExportedArgument* flag = call.argument(name);
    return flag && flag->kind == Kind::Bool && flag->codes.front() != 0;
  };
  return (call.op == "aten::batch_norm" && is_set("training")) ||
         (call.op == "aten::instance_norm" && is_set("use_input_stats"));
}

}  // namespace

at::ScalarType torch_type(std::int64_t code) {
  if (code >= 1 && code <= 12) return static_cast<at::ScalarType>(code - 1);  // uint8 to bool
  return code == 13 ? at::kBFloat16 : at::ScalarType::Undefined;
}

std::vector<std::string> FlatCall::reads() const {
  std::vector<std::string> values;
  for (const auto& [name, argument] : arguments) collect(argument, values);
  return values;
}

std::vector<std::string> FlatCall::makes() const {
  std::vector<std::string> values;
  for (const ExportedArgument& output : outputs) collect(output, values);
  return values;
}

const ExportedArgument* FlatCall::argument(const std::string& wanted) const {
  const auto found = std::ranges::find(arguments, wanted, &std::pair<std::string, ExportedArgument>::first);
  return found == arguments.end() ? nullptr : &found->second;
}

const std::set<std::string>* FlatProgram::written_with(const std::string& value) const {
  for (const auto& group : written_together)
    if (group.contains(value)) return &group;
  return nullptr;
}

Result<FlatProgram> flatten(const ExportedProgram& program, const std::string& archive) {
  return Flattener(program, archive).flatten();
}

const std::string* changed_buffer(const FlatCall& call, const std::set<std::string>& buffers) {
  for (const std::string& value : call.writes)
    if (buffers.contains(value)) return &value;
  if (!updates_statistics(call)) return nullptr;
  for (const char* name : {"running_mean", "running_var"}) {
    const ExportedArgument* statistics = call.argument(name);
    if (statistics && buffers.contains(statistics->text)) return &statistics->text;
  }
  return nullptr;
}

bool changes_a_buffer(const FlatCall& call, const std::set<std::string>& buffers) {
  return changed_buffer(call, buffers) != nullptr;
}

void drop_unneeded_calls(FlatProgram& program, const std::set<std::string>& needed,
                         const std::set<std::string>& buffers) {
  std::set<std::string> live = needed;
  std::vector<char> kept(program.calls.size(), 0);
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = program.calls.size(); i-- > 0;) {
      const FlatCall& call = program.calls[i];
      const auto is_live = [&](const std::string& value) {
        if (live.contains(value)) return true;
        const auto* together = call.writes.empty() ? nullptr : program.written_with(value);
        return together && std::ranges::any_of(*together, [&](const auto& v) { return live.contains(v); });
      };
      if (kept[i] || !(std::ranges::any_of(call.makes(), is_live) ||
                       std::ranges::any_of(call.writes, is_live) || changes_a_buffer(call, buffers)))
        continue;
      kept[i] = changed = true;
      for (const std::string& value : call.reads()) live.insert(value);
    }
  }
  std::vector<FlatCall> calls;
  for (std::size_t i = 0; i < kept.size(); ++i)
    if (kept[i]) calls.push_back(std::move(program.calls[i]));
  program.calls = std::move(calls);
}

}  // namespace millrace
