// Shapes in messages: what layers say of inputs that do not fit.
#pragma once

#include <sstream>
#include <string>

#include "runtime/base/error.h"
#include "runtime/layers/layer.h"

namespace millrace {

/// "[8, 3, 32, 32]".
inline std::string text_of(const Shape& shape) {
  std::ostringstream out;
  out << c10::IntArrayRef(shape);
  return out.str();
}

[[noreturn]] inline void throw_bad_shape(const std::string& layer, const Shape& found,
                                         const std::string& expected) {
  throw ConfigError(layer + " got input " + text_of(found) + ", expected " + expected);
}

}  // namespace millrace
