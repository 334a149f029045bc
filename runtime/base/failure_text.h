// The text of any exception.
#pragma once

#include <string>

namespace millrace {

/// Returns the text of the exception that is being handled; callers are in a catch block. An exception that
/// is no std::exception is named by its type ("an exception of type int"). LibTorch's C++ frames are left out
/// unless show_cpp_frames(true) was called. Thread-safe.
std::string text_of_failure();

/// Says whether text_of_failure() includes the C++ frames of LibTorch's failures (--cpp-frames). Thread-safe.
void show_cpp_frames(bool show);

}  // namespace millrace
