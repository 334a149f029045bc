// Parses models/model.json into an ExportedProgram.
#include <algorithm>

#include "models/archive/exported_program.h"
#include "runtime/base/json.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

using Kind = ExportedArgument::Kind;

constexpr std::int64_t kSchema = 8;  // major version; minor versions only add members

const Json kNothing;

const Json& member(const Json& json, std::string_view key) {
  const Json* found = json.find(key);
  return found ? *found : kNothing;
}

std::string text_of(const Json& json) {
  return json.is_string() ? json.as_string() : "";
}

class ProgramReader {
 public:
  explicit ProgramReader(std::string name) : name_(std::move(name)) {}

  Result<ExportedProgram> read(const Json& root) {
    check_version(root);
    if (!problems_.empty()) return problems_;
    const Json& module = member(root, "graph_module");
    program_.graph = graph(member(module, "graph"));
    read_signature(member(module, "signature"));
    for (const auto& [symbol, range] : members(member(root, "range_constraints"), "range_constraints")) {
      SymbolRange& into = program_.ranges[symbol];
      if (const Json& least = member(range, "min_val"); least.kind() == Json::Kind::Int)
        into.least = least.as_int();
      if (const Json& most = member(range, "max_val"); most.kind() == Json::Kind::Int)
        into.most = most.as_int();
    }
    if (!problems_.empty()) return problems_;
    return std::move(program_);
  }

 private:
  void problem(const Json& at, std::string what) {
    if (problems_.size() < 20)
      problems_.push_back({at.where().empty() ? name_ : at.where(), std::move(what),
                           "the archive is damaged or of another torch: export it again with torch 2.11"});
  }
  const Json::Object& members(const Json& json, const char* what) {
    static const Json::Object kNone;
    if (json.is_object()) return json.members();
    problem(json, std::string("expected the object ") + what);
    return kNone;
  }
  const Json::Array& items(const Json& json, const char* what) {
    static const Json::Array kNone;
    if (json.is_array()) return json.items();
    problem(json, std::string("expected the list ") + what);
    return kNone;
  }
  std::string name_of(const Json& json) {
    std::string name = text_of(member(json, "name"));
    if (name.empty()) problem(json, "a value without a name");
    return name;
  }

  void check_version(const Json& root) {
    program_.torch_version = text_of(member(root, "torch_version"));
    const Json &version = member(root, "schema_version"), &major = member(version, "major");
    if (major.kind() == Json::Kind::Int && major.as_int() == kSchema) return;
    const Json& minor = member(version, "minor");
    const std::string found =
        major.kind() == Json::Kind::Int
            ? std::to_string(major.as_int()) + "." +
                  (minor.kind() == Json::Kind::Int ? std::to_string(minor.as_int()) : "?")
            : "none";
    problems_.push_back(
        {name_,
         "is of export schema " + found +
             (program_.torch_version.empty() ? "" : ", written by torch " + escaped(program_.torch_version)) +
             "; this program reads schema " + std::to_string(kSchema),
         "export it again with torch 2.11"});
  }

  SizeExpression expression(const Json& json) {
    const Result<SizeExpression> parsed =
        SizeExpression::parse(text_of(json), json.where().empty() ? name_ : json.where());
    if (parsed) return *parsed;
    append(problems_, parsed.problems());
    return {};
  }
  /// Reads {"as_int": 3} or {"as_expr": {"expr_str": ..., "hint": ...}}.
  SizeExpression size(const Json& json) {
    if (const Json& number = member(json, "as_int"); number.kind() == Json::Kind::Int) return number.as_int();
    const Json& inner = member(json, "as_expr");
    SizeExpression result = expression(member(inner, "expr_str"));
    const Json& hint = member(member(inner, "hint"), "as_int");
    if (result.is_symbol() && hint.kind() == Json::Kind::Int)
      program_.hints.emplace(result.symbol(), hint.as_int());
    return result;
  }

  using Sizes = std::map<std::string, SizeExpression>;
  /// Reads {"as_int": 3} or {"as_name": "sym_size_int"}, which names a number of the graph.
  SizeExpression named_size(const Json& json, const Sizes& sizes) {
    if (const Json& number = member(json, "as_int"); number.kind() == Json::Kind::Int) return number.as_int();
    const auto found = sizes.find(text_of(member(json, "as_name")));
    if (found != sizes.end()) return found->second;
    problem(json, "a number that nothing defines");
    return {};
  }

  ExportedTensor tensor(const Json& json) {
    ExportedTensor result;
    if (const Json& type = member(json, "dtype"); type.kind() == Json::Kind::Int)
      result.scalar_type = type.as_int();
    else
      problem(json, "a tensor without a dtype");
    for (const Json& d : items(member(json, "sizes"), "sizes")) result.sizes.push_back(size(d));
    if (const Json& grad = member(json, "requires_grad"); grad.kind() == Json::Kind::Bool)
      result.requires_grad = grad.as_bool();
    return result;
  }

  double real(const Json& json) {
    if (json.is_number()) return json.as_double();
    const std::string text = text_of(json);
    if (text == "Infinity") return std::numeric_limits<double>::infinity();
    if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
    if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
    problem(json, "expected a number");
    return 0;
  }
  std::int64_t integer(const Json& json) {
    if (json.kind() == Json::Kind::Int) return json.as_int();
    if (json.kind() == Json::Kind::Bool) return json.as_bool() ? 1 : 0;
    problem(json, "expected an integer");
    return 0;
  }

  /// Reads an argument: an object with one member, whose name is the argument's kind.
  ExportedArgument argument(const Json& json, const Sizes& sizes) {
    ExportedArgument result;
    if (!json.is_object() || json.size() != 1) {
      problem(json, "expected an argument with one kind");
      return result;
    }
    const auto& [kind, value] = json.members().front();
    if (kind == "as_none") return result;
    if (kind == "as_tensor") {
      result.kind = Kind::Tensor;
      result.text = name_of(value);
    } else if (kind == "as_optional_tensor") {
      return argument(value, sizes);
    } else if (kind == "as_tensors" || kind == "as_optional_tensors") {
      result.kind = Kind::Tensors;
      for (const Json& one : items(value, "tensors")) {
        const Json& inner = one.find("as_tensor") ? member(one, "as_tensor") : one;
        result.names.push_back(one.find("as_none") ? "" : name_of(inner));
      }
    } else if (kind == "as_int") {
      result.kind = Kind::Int;
      result.sizes.emplace_back(integer(value));
    } else if (kind == "as_ints") {
      result.kind = Kind::Ints;
      for (const Json& one : items(value, "integers")) result.sizes.emplace_back(integer(one));
    } else if (kind == "as_sym_int") {
      result.kind = Kind::Int;
      result.text = text_of(member(value, "as_name"));
      result.sizes.push_back(named_size(value, sizes));
    } else if (kind == "as_sym_ints") {
      result.kind = Kind::Ints;
      for (const Json& one : items(value, "integers")) result.sizes.push_back(named_size(one, sizes));
    } else if (kind == "as_float") {
      result.kind = Kind::Float;
      result.numbers.push_back(real(value));
    } else if (kind == "as_sym_float" && value.find("as_float")) {
      result.kind = Kind::Float;
      result.numbers.push_back(real(member(value, "as_float")));
    } else if (kind == "as_floats") {
      result.kind = Kind::Floats;
      for (const Json& one : items(value, "numbers")) result.numbers.push_back(real(one));
    } else if (kind == "as_bool") {
      result.kind = Kind::Bool;
      result.codes.push_back(integer(value));
    } else if (kind == "as_sym_bool" && value.find("as_bool")) {
      result.kind = Kind::Bool;
      result.codes.push_back(integer(member(value, "as_bool")));
    } else if (kind == "as_bools") {
      result.kind = Kind::Bools;
      for (const Json& one : items(value, "switches")) result.codes.push_back(integer(one));
    } else if (kind == "as_string") {
      result.kind = Kind::String;
      result.text = text_of(value);
    } else if (kind == "as_scalar_type" || kind == "as_memory_format" || kind == "as_layout") {
      result.kind = kind == "as_scalar_type"     ? Kind::ScalarType
                    : kind == "as_memory_format" ? Kind::MemoryFormat
                                                 : Kind::Layout;
      result.codes.push_back(integer(value));
    } else if (kind == "as_device") {
      result.kind = Kind::Device;
      result.text = text_of(member(value, "type"));
    } else if (kind == "as_graph") {
      result.kind = Kind::Graph;
      result.graph = std::make_shared<ExportedGraph>(graph(member(value, "graph")));
    } else {
      result.kind = Kind::Unknown;
      result.text = kind;
    }
    return result;
  }

  ExportedGraph graph(const Json& json) {
    ExportedGraph result;
    Sizes sizes;
    for (const auto& [value, s] : members(member(json, "sym_int_values"), "sym_int_values"))
      sizes.emplace(value, size(s));
    for (const auto& [value, meta] : members(member(json, "tensor_values"), "tensor_values"))
      result.tensors.emplace(value, tensor(meta));
    for (const Json& one : items(member(json, "inputs"), "inputs"))
      result.inputs.push_back(argument(one, sizes));
    for (const Json& one : items(member(json, "nodes"), "nodes")) result.calls.push_back(call(one, sizes));
    for (const Json& one : items(member(json, "outputs"), "outputs"))
      result.outputs.push_back(argument(one, sizes));
    return result;
  }

  ExportedCall call(const Json& json, const Sizes& sizes) {
    ExportedCall result{.name = text_of(member(json, "name")), .target = text_of(member(json, "target"))};
    if (result.target.empty()) problem(json, "a node without a target");
    for (const Json& input : items(member(json, "inputs"), "inputs"))
      result.arguments.emplace_back(text_of(member(input, "name")), argument(member(input, "arg"), sizes));
    for (const Json& output : items(member(json, "outputs"), "outputs"))
      result.outputs.push_back(argument(output, sizes));
    result.modules = modules(text_of(member(member(json, "metadata"), "nn_module_stack")));
    if (result.name.empty()) result.name = result.target.substr(result.target.rfind('.') + 1);
    return result;
  }

  /// Returns the paths in "key,path,type;key,path,type".
  static std::vector<std::string> modules(std::string_view stack) {
    std::vector<std::string> paths;
    while (!stack.empty()) {
      const std::size_t end = std::min(stack.find(';'), stack.size());
      const std::string_view entry = stack.substr(0, end);
      stack.remove_prefix(std::min(end + 1, stack.size()));
      const std::size_t first = entry.find(','), second = entry.find(',', first + 1);
      if (first == std::string_view::npos || second == std::string_view::npos) continue;
      std::string path(entry.substr(first + 1, second - first - 1));
      if (path.starts_with("_empty_nn_module_stack")) continue;
      // A module that is called a second time has a path such as "drop@1".
      for (std::size_t at = path.find('@'); at != std::string::npos; at = path.find('@', at))
        path.erase(at, std::min(path.find('.', at), path.size()) - at);
      if (paths.empty() && !path.empty()) paths.emplace_back();
      paths.push_back(std::move(path));
    }
    return paths;
  }

  void read_signature(const Json& json) {
    for (const Json& one : items(member(json, "input_specs"), "input_specs")) {
      if (!one.is_object() || one.size() != 1) {
        problem(one, "expected an input with one kind");
        continue;
      }
      const auto& [kind, spec] = one.members().front();
      const Json& arg = member(spec, "arg");
      ExportedInput input;
      if (kind == "user_input") {
        const ExportedArgument user = argument(arg, {});
        if (user.kind != Kind::Tensor) {
          problem(one, "an input of the model that is no tensor");
          continue;
        }
        input = {ExportedInput::Kind::User, user.text, user.text, false};
      } else if (kind == "parameter") {
        input = {ExportedInput::Kind::Parameter, name_of(arg), text_of(member(spec, "parameter_name")), true};
      } else if (kind == "buffer") {
        const Json& persistent = member(spec, "persistent");
        input = {ExportedInput::Kind::Buffer, name_of(arg), text_of(member(spec, "buffer_name")),
                 persistent.kind() != Json::Kind::Bool || persistent.as_bool()};
      } else if (kind == "tensor_constant") {
        input = {ExportedInput::Kind::Constant, name_of(arg), text_of(member(spec, "tensor_constant_name")),
                 false};
      } else if (kind == "constant_input") {
        continue;  // the calls contain its value
      } else {
        problem(one, "an input of kind " + escaped(kind) + ", which is not known here");
        continue;
      }
      if (!program_.graph.tensors.contains(input.value))
        problem(one, "input " + escaped(input.value) + " has no description");
      program_.inputs.push_back(std::move(input));
    }
    for (const Json& one : items(member(json, "output_specs"), "output_specs")) {
      if (const Json* user = one.find("user_output")) {
        const ExportedArgument result = argument(member(*user, "arg"), {});
        program_.results.push_back(result.kind == Kind::Tensor ? result.text : "");
      } else if (const Json* loss = one.find("loss_output")) {
        program_.results.push_back(name_of(member(*loss, "arg")));
      } else {
        problem(one, "writes to its parameters or inputs by an output: it was decomposed");
      }
    }
  }

  std::string name_;
  ExportedProgram program_;
  Problems problems_;
};

}  // namespace

Result<ExportedProgram> parse_exported_program(std::string_view text, const std::string& name) {
  const Result<Json> json = parse_json(text, name, {.bytes = std::size_t{512} << 20, .nodes = 64'000'000});
  if (!json) return json.problems();
  if (!json->is_object()) return Problem{name, "is no exported program", "export it again with torch 2.11"};
  return ProgramReader(name).read(*json);
}

}  // namespace millrace
