// Shared parts of the fuzz targets: the property that every reader keeps, and a way to say that it was
// broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace millrace {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

inline void require(bool holds) {
  if (!holds) std::abort();
}

/// A refusal names its place and says something; printing it must work too.
template <class T>
void require_explained(const Result<T>& result) {
  for (const Problem& problem : result.problems())
    require(!problem.what.empty() && !to_string(problem).empty());
}

}  // namespace millrace
