// An exported graph as a plain list of ATen calls. Regions are inlined, and calls that only check or count
// are dropped. Writes in place become new values if that makes no difference.
#pragma once

#include <c10/core/ScalarType.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/archive/exported_program.h"

namespace millrace {

/// Returns the type of an archive's code. Undefined: the type is not known here.
at::ScalarType torch_type(std::int64_t code);

struct FlatCall {
  std::string name;      ///< unique
  std::string op;        ///< "aten::conv2d"
  std::string overload;  ///< "", "Tensor"
  std::vector<std::pair<std::string, ExportedArgument>> arguments;
  std::vector<ExportedArgument> outputs;  ///< one for each of the operator's results
  std::vector<std::string> modules;
  bool without_gradient = false;    ///< was under torch.no_grad()
  std::vector<std::string> writes;  ///< values that it changes in place, and buffers with their memory

  std::vector<std::string> reads() const;  ///< returns every value among the arguments, in order
  std::vector<std::string> makes() const;
  const ExportedArgument* argument(const std::string& name) const;
};

struct FlatProgram {
  std::vector<FlatCall> calls;
  std::map<std::string, ExportedTensor> tensors;
  std::vector<std::string> results;  ///< see ExportedProgram::results
  /// Values that share memory which some call writes to: they must be computed in one place.
  std::vector<std::set<std::string>> written_together;

  const std::set<std::string>* written_with(const std::string& value) const;
};

/// Makes the plain list of calls. Problems: calls that are not ATen's, each with its name.
Result<FlatProgram> flatten(const ExportedProgram& program, const std::string& archive);

/// Drops calls that affect neither the `needed` values nor the values that training gives to buffers.
void drop_unneeded_calls(FlatProgram& program, const std::set<std::string>& needed,
                         const std::set<std::string>& buffers);

/// Returns the first of `buffers` that the call writes to or updates as running statistics; null: none.
const std::string* changed_buffer(const FlatCall& call, const std::set<std::string>& buffers);
bool changes_a_buffer(const FlatCall& call, const std::set<std::string>& buffers);

}  // namespace millrace
