// An exported graph as a plain list of ATen calls: regions inlined, what only checks or counts dropped,
// writes in place turned into new values wherever nobody could tell.
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
  std::vector<ExportedArgument> outputs;  ///< Tensor, Tensors or others, by the operator's results
  std::vector<std::string> modules;
  bool without_gradient = false;    ///< stands under torch.no_grad()
  std::vector<std::string> writes;  ///< values that it changes in place, and buffers that these lie in

  std::vector<std::string> reads() const;  ///< every value among the arguments, in order
  std::vector<std::string> makes() const;
  const ExportedArgument* argument(const std::string& name) const;
};

struct FlatProgram {
  std::vector<FlatCall> calls;
  std::map<std::string, ExportedTensor> tensors;
  std::vector<std::string> results;  ///< as ExportedProgram's
  /// Values that share memory which some call writes to: they must be computed in one place.
  std::vector<std::set<std::string>> written_together;

  const std::set<std::string>* written_with(const std::string& value) const;
};

/// Problems: calls that are not ATen's, name by name.
Result<FlatProgram> flatten(const ExportedProgram& program, const std::string& archive);

/// Drops calls without which `needed` values, and what buffers become in training, are the same.
void drop_unneeded_calls(FlatProgram& program, const std::set<std::string>& needed,
                         const std::set<std::string>& buffers);

/// The first of `buffers` that it writes to or whose running statistics it updates; null: none.
const std::string* changed_buffer(const FlatCall& call, const std::set<std::string>& buffers);
bool changes_a_buffer(const FlatCall& call, const std::set<std::string>& buffers);

}  // namespace millrace
