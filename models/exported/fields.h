// The inputs of an exported program as the fields of a LayeredModel.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/exported/exported_layer.h"
#include "models/exported/flat_program.h"
#include "runtime/model/layered_model.h"

namespace millrace {

at::ScalarType scalar_type_of(const ExportedTensor& tensor);  ///< Undefined: not known

struct ExportedFields {
  std::vector<FieldSpec> fields;  ///< by user input
  std::vector<Dimension> dimensions;
  int batch_dimension = 0;
  std::shared_ptr<SymbolTable> symbols;
};

/// A length that is fixed in one input and dynamic in another, at the same place and of the same size in the
/// example, was frozen by the exporter (it does so for LSTMs): it is a dimension if no call names it, else
/// fixed in both.
/// Fields, dimensions and which symbols are the same: those where the samples stand are the batch; of the
/// others those that had the same length in the example exported with are one dimension. Limits of integers
/// come from the embeddings and losses that read them. Problems: no common batch dimension.
Result<ExportedFields> find_fields(const ExportedProgram& program, const FlatProgram& flat,
                                   const std::string& archive);

}  // namespace millrace
