// The text of any exception.
#pragma once

#include <string>

namespace millrace {

/// Returns the text of the exception being handled; must be called in a catch block. An exception not derived
/// from std::exception is named by its type ("an exception of type int"). LibTorch's C++ frames are omitted
/// unless show_cpp_frames(true) was called. Thread-safe.
std::string text_of_failure();

/// Sets whether text_of_failure() includes the C++ frames of LibTorch's failures (--cpp-frames). Thread-safe.
void show_cpp_frames(bool show);

}  // namespace millrace
