// The inputs of an exported program as the fields of a LayeredModel.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/exported/exported_layer.h"
#include "models/exported/flat_program.h"
#include "runtime/model/layered_model.h"

namespace millrace {

at::ScalarType scalar_type_of(const ExportedTensor& tensor);  ///< returns Undefined for an unknown type

struct ExportedFields {
  std::vector<FieldSpec> fields;  ///< one for each user input
  std::vector<Dimension> dimensions;
  int batch_dimension = 0;
  std::shared_ptr<SymbolTable> symbols;
};

/// Finds the fields, their dimensions, and the symbols that are equal. The symbols of the common batch
/// dimension are equal. Other symbols that had the same length in the exported example are one dimension. The
/// exporter freezes some lengths, for example for LSTMs: such a length is fixed in one input and dynamic in
/// another, at the same place and with the same size in the example. It is a dimension if no call names it,
/// else it is fixed in both inputs. Limits of integers come from the embeddings and losses that read them.
/// Problem: no common batch dimension.
Result<ExportedFields> find_fields(const ExportedProgram& program, const FlatProgram& flat,
                                   const std::string& archive);

/// Returns the labels that `loss` is the mean over, if it is the mean cross-entropy of scores and of a field
/// of labels, whole or cut along its dimensions. Nothing where the loss is made otherwise.
std::optional<CountedLabels> counted_labels(const FlatProgram& flat, const ExportedFields& fields,
                                            const std::string& loss);

/// Returns the labels that each cross-entropy of the program ignores, wherever they come from.
std::vector<IgnoredLabels> ignored_labels(const FlatProgram& flat, const ExportedFields& fields);

}  // namespace millrace
