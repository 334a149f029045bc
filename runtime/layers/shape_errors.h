// Error messages of layers about inputs whose shapes do not fit.
#pragma once

#include <sstream>
#include <string>

#include "runtime/base/error.h"
#include "runtime/layers/layer.h"

namespace millrace {

/// Returns for example "[8, 3, 32, 32]".
inline std::string text_of(const Shape& shape) {
  std::ostringstream out;
  out << c10::IntArrayRef(shape);
  return out.str();
}

[[noreturn]] inline void throw_bad_shape(const std::string& layer, const Shape& found,
                                         const std::string& expected) {
  throw ConfigError(layer + " got input " + text_of(found) + ", expected " + expected);
}

/// Returns an error text if a normalisation in training has only one value for each of its `groups` means, so
/// that the variance is 0; otherwise empty. PyTorch rejects the same ("Expected more than 1 value per channel
/// when training").
inline std::string problem_of_statistics(c10::IntArrayRef input, std::int64_t groups) {
  if (c10::multiply_integers(input) > groups) return {};
  return "normalises input " + text_of(input.vec()) + " in training, with one value for each mean";
}

inline constexpr const char* kMoreValues =
    "give a larger microbatch or larger inputs (--microbatch, --image-size)";

/// Throws ConfigError if problem_of_statistics() finds a problem.
inline void require_statistics(c10::IntArrayRef input, std::int64_t groups) {
  if (const std::string problem = problem_of_statistics(input, groups); !problem.empty())
    throw ConfigError(problem, kMoreValues);
}

}  // namespace millrace
