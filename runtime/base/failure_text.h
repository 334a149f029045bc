// The text of any exception.
#pragma once

#include <string>

namespace millrace {

/// In a catch block: what the exception that is being handled says. One that is no std::exception is named by
/// its type ("an exception of type int"). LibTorch's C++ frames are left out unless show_cpp_frames(true) was
/// called. Thread-safe.
std::string text_of_failure();

/// From now on texts of LibTorch's failures come with their C++ frames (--cpp-frames). Thread-safe.
void show_cpp_frames(bool show);

}  // namespace millrace
