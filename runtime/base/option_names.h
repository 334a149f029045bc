// How messages name the options of a run: as flags on a command line, as fields in a program that links the
// library.
#pragma once

#include <string>

namespace millrace {

enum class OptionNames {
  Fields,  ///< "clip_norm is -1", for programs that fill in TrainOptions
  Flags,   ///< "--clip-norm is -1", for programs with a command line
};

/// Sets the naming in all messages of the process; the default is Fields. Must be called before threads
/// start.
void set_option_names(OptionNames names);

/// Returns `message`, in which options are written as flags, with the configured naming. A flag starts the
/// text or follows a space, a quote or a bracket; other text with two dashes is unchanged.
std::string with_option_names(std::string message);

}  // namespace millrace
