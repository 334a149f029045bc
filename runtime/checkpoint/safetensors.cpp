#include "runtime/checkpoint/safetensors.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include <ATen/ops/empty.h>

#include "runtime/base/error.h"

namespace millrace {
namespace {

// LibTorch's types, by ElementType.
constexpr at::ScalarType kTypes[] = {at::kFloat, at::kLong,     at::kBool,        at::kInt,
                                     at::kShort, at::kChar,     at::kByte,        at::kDouble,
                                     at::kHalf,  at::kBFloat16, at::kComplexFloat};
static_assert(std::size(kTypes) == names_of(ElementType{}).size());

TensorShape shape_of(const std::string& name, const at::Tensor& tensor) {
  const auto* type = std::ranges::find(kTypes, tensor.scalar_type());
  if (type == std::end(kTypes)) throw CheckpointError(name + " is of a type that cannot be saved");
  return {.name = name,
          .type = static_cast<ElementType>(type - std::begin(kTypes)),
          .shape = tensor.sizes().vec()};
}

}  // namespace

const char* safetensors_name(at::ScalarType type) {
  const auto* found = std::ranges::find(kTypes, type);
  if (found == std::end(kTypes)) return nullptr;
  static constexpr auto kNames = names_of(ElementType{});
  return kNames[static_cast<std::size_t>(found - std::begin(kTypes))].data();
}

FileDigest write_safetensors(const std::string& path, const NamedTensors& tensors) {
  std::vector<TensorShape> shapes;
  for (const auto& [name, tensor] : tensors) shapes.push_back(shape_of(name, tensor));
  TensorFileWriter file(path, shapes);
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor plain = tensor.cpu().contiguous();
    file.add(plain.const_data_ptr(), plain.nbytes());
  }
  return file.commit();
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  Result<TensorFile> file = TensorFile::open(path);
  if (!file) return file.problems();
  return SafetensorsFile(*std::move(file));
}

at::ScalarType SafetensorsFile::type(const std::string& name) const {
  return kTypes[static_cast<std::size_t>(element_type(name))];
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  at::Tensor result = at::empty(shape(name), type(name));
  const std::string_view bytes = elements(name);
  std::memcpy(result.mutable_data_ptr(), bytes.data(), bytes.size());
  return result;
}

}  // namespace millrace
