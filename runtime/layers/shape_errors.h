// What layers say of inputs that do not fit.
#pragma once

#include <sstream>
#include <string>

#include "runtime/base/error.h"
#include "runtime/layers/layer.h"

namespace millrace {

[[noreturn]] inline void throw_bad_shape(const std::string& layer, const Shape& found,
                                         const std::string& expected) {
  std::ostringstream out;
  out << layer << " got input " << c10::IntArrayRef(found) << ", expected " << expected;
  throw ConfigError(out.str());
}

}  // namespace millrace
