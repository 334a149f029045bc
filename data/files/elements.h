// The number types of arrays, with NumPy's names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace {

enum class Element { UInt8, Int8, UInt16, Int16, UInt32, Int32, UInt64, Int64, Float16, Float32, Float64 };

struct ElementInfo {
  Element element;
  std::string_view name;   ///< name in NumPy: "uint8"
  std::string_view descr;  ///< name in NPY files: "|u1"
  std::int64_t bytes;
};
inline constexpr ElementInfo kElements[] = {
    {Element::UInt8, "uint8", "|u1", 1},     {Element::Int8, "int8", "|i1", 1},
    {Element::UInt16, "uint16", "<u2", 2},   {Element::Int16, "int16", "<i2", 2},
    {Element::UInt32, "uint32", "<u4", 4},   {Element::Int32, "int32", "<i4", 4},
    {Element::UInt64, "uint64", "<u8", 8},   {Element::Int64, "int64", "<i8", 8},
    {Element::Float16, "float16", "<f2", 2}, {Element::Float32, "float32", "<f4", 4},
    {Element::Float64, "float64", "<f8", 8}};

constexpr const ElementInfo& info_of(Element element) {
  return kElements[static_cast<int>(element)];
}
constexpr std::optional<Element> element_named(std::string_view name) {
  for (const ElementInfo& info : kElements) {
    if (info.name == name) return info.element;
  }
  return std::nullopt;
}

}  // namespace millrace
