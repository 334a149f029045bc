// Reads the files that `torch.export.save` writes: a graph of calls, the kinds of its inputs and outputs,
// and the places of the weights in the zip archive. LibTorch-free. Source: torch/_export/serde/schema.py,
// schema 8.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/files/zip.h"
#include "models/archive/size_expression.h"
#include "runtime/base/mapped_file.h"
#include "runtime/base/result.h"

namespace millrace {

struct ExportedGraph;

/// An argument of a call, or one of its outputs.
struct ExportedArgument {
  enum class Kind {
    None,
    Tensor,   ///< text: name of the value
    Tensors,  ///< names; an empty one means None
    Int,      ///< sizes[0]
    Ints,     ///< sizes
    Float,
    Floats,
    Bool,
    Bools,  ///< codes
    String,
    ScalarType,    ///< code, the archive's
    MemoryFormat,  ///< code, the archive's
    Layout,        ///< code, the archive's
    Device,        ///< text: "cpu"
    Graph,
    Unknown,  ///< text: the kind's name
  };
  Kind kind = Kind::None;
  std::string text;
  std::vector<std::string> names;
  std::vector<SizeExpression> sizes;
  std::vector<double> numbers;      ///< Float: one
  std::vector<std::int64_t> codes;  ///< Bool: one
  std::shared_ptr<const ExportedGraph> graph;
};

struct ExportedTensor {
  std::int64_t scalar_type = 0;  ///< the archive's code: 7 is float32, 5 int64, 12 bool
  std::vector<SizeExpression> sizes;
  bool requires_grad = false;
};

struct ExportedCall {
  std::string name;
  std::string target;  ///< "torch.ops.aten.conv2d.default"
  std::vector<std::pair<std::string, ExportedArgument>> arguments;
  std::vector<ExportedArgument> outputs;
  /// Paths of the modules that contain the call, from the root's ("") to the innermost's.
  std::vector<std::string> modules;
};

struct ExportedGraph {
  std::vector<ExportedArgument> inputs;
  std::vector<ExportedCall> calls;
  std::vector<ExportedArgument> outputs;
  std::map<std::string, ExportedTensor> tensors;  ///< all values of the graph by name
};

/// An input of the graph.
struct ExportedInput {
  enum class Kind { User, Parameter, Buffer, Constant };
  Kind kind = Kind::User;
  std::string value;        ///< name in the graph
  std::string target;       ///< state_dict name; for a user input, its own name
  bool persistent = false;  ///< a buffer of the state_dict
};

/// A tensor in the archive.
struct StoredTensor {
  std::string member;  ///< member of the zip archive; equal for tensors that share their storage
  std::int64_t scalar_type = 0;
  std::vector<std::int64_t> sizes, strides;
  std::int64_t offset = 0;  ///< offset in the storage, in elements
  bool requires_grad = false;

  bool operator==(const StoredTensor&) const = default;
};

struct SymbolRange {
  std::int64_t least = 0;
  std::int64_t most = INT64_MAX;
};

struct ExportedProgram {
  std::string torch_version;
  ExportedGraph graph;
  std::vector<ExportedInput> inputs;
  std::vector<std::string>
      results;  ///< names of the user outputs' values; "" for an output that is no tensor
  std::map<std::string, StoredTensor> stored;  ///< key: state_dict name, or name of the constant
  std::map<std::string, SymbolRange> ranges;   ///< key: symbol
  std::map<std::string, std::int64_t> hints;   ///< each symbol's value in the example that was exported
};

/// The archive's member with the step that eager PyTorch took of the example inputs. It holds for the
/// archive's weights. examples/pytorch/millrace_export.py writes it.
inline constexpr std::string_view kEagerStep = "extra/millrace_eager.json";

/// Returns the bytes of an element; 0: a type that is not known here.
std::int64_t element_bytes(std::int64_t scalar_type);
std::string scalar_type_name(std::int64_t scalar_type);  ///< "float32"

/// Reads the graph from the text of models/model.json. `stored` stays empty. `name` is for messages.
Result<ExportedProgram> parse_exported_program(std::string_view json, const std::string& name);

/// An archive in memory, with every stored tensor inside its bounds and its member checked.
class ExportedArchive {
 public:
  /// Maps the file. Problems: not a zip, truncated, another schema, weights that are missing or too short,
  /// and others.
  static Result<std::shared_ptr<const ExportedArchive>> open(const std::string& path);
  /// Parses bytes, which must outlive the archive.
  static Result<std::shared_ptr<const ExportedArchive>> parse(std::string_view bytes,
                                                              const std::string& name);
  ExportedArchive(const ExportedArchive&) = delete;
  ExportedArchive& operator=(const ExportedArchive&) = delete;

  const ExportedProgram& program() const { return program_; }
  const std::string& name() const { return name_; }
  /// Returns all bytes of the storage of a stored tensor. They are valid as long as the archive lives.
  std::string_view storage(const StoredTensor& tensor) const { return storages_.at(tensor.member); }

  /// Writes a copy of the archive to `path`, whole or not at all. `replaced` has other storages of the same
  /// sizes by member, and kEagerStep is left out. Throws DataError when the disk fails.
  void write_with(const std::string& path, const std::map<std::string, std::string>& replaced) const;

 private:
  ExportedArchive() = default;
  Status read();
  Status read_stored(const std::string& folder, const std::string& config);
  std::string_view member(const std::string& name) const;

  std::string name_;
  MappedFile mapped_;  ///< of an archive that was opened
  std::string_view bytes_;
  std::vector<ZipMember> members_;
  std::map<std::string, const ZipMember*> by_name_;
  std::map<std::string, std::string> unpacked_;  ///< deflated members
  std::map<std::string, std::string_view> storages_;
  ExportedProgram program_;
};

}  // namespace millrace
