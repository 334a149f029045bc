// How messages name the options of a run: as flags on a command line, as fields in a program that links the
// library.
#pragma once

#include <string>

namespace millrace {

enum class OptionNames {
  Fields,  ///< "clip_norm is -1", for programs that fill in TrainOptions
  Flags,   ///< "--clip-norm is -1", for programs with a command line
};

/// Sets the names in all messages of the process; Fields until then. A program's `main` calls it before it
/// starts threads.
void set_option_names(OptionNames names);

/// Returns `message`, in which options are written as flags, with the names that are set. A flag begins the
/// text or follows a space, a quote or a bracket; other text with two dashes stays as it is.
std::string with_option_names(std::string message);

}  // namespace millrace
