// Helpers of the commands without LibTorch: from the command line to the exit code, and flags that several
// commands have.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "driver/cli/cli.h"
#include "runtime/base/error.h"

namespace millrace {

/// Prints the problems to stderr, one a line, and gives the exit code back.
int exit_with(ExitCode code, const Problems& problems);

/// Prints the requested --help. Returns the exit code.
int print_help(const CommandSpec& spec, const Arguments& arguments);

/// From this call on, a signal that ends the process prints the note that `spec` has for it.
void tell_of_interrupt(const CommandSpec& spec);

/// Runs a command: parses `args` into the targets of `spec`, and prints --help or the errors of the line.
/// Else calls `run` with the parsed arguments and the problems of their values, so that it can add its own
/// and report all. Returns the exit code.
int run_command(const CommandSpec& spec, const std::vector<std::string>& args,
                const std::function<int(const Arguments& given, Problems problems)>& run);

/// The main of a program without LibTorch: runs `dispatch` with the words behind the program's name, and
/// prints what it throws. Returns the exit code.
int run_main(int argc, char** argv, int (*dispatch)(const std::vector<std::string>& args));

/// Returns the exit code at the end of a program. A result that did not get to stdout (full disk, closed
/// pipe) is a failure.
int code_after_output(int code);

/// --table of the commands that read a table of devices (runtime/plan/device_table.h), and --device, one of
/// it.
Flag device_table_flag(Target target);
Flag table_device_flag(Target target);

/// --threads of commands that divide their work among threads; all cores where it is not given.
Flag threads_flag(std::optional<int>& threads);
int thread_count(std::optional<int> threads);

/// Prints lines of words to stdout, in columns as wide as their longest word.
void print_columns(const std::vector<std::vector<std::string>>& lines);
/// Returns how long ago it was: "5 s", "12 min", "3 h", "4 days"; "-" for the default value.
std::string age_text(std::filesystem::file_time_type time);

/// `--flag`, as messages name it.
std::string long_name(const char* flag);

/// The problems, each with the file they are about in front.
Problems about_file(const std::string& file, Problems problems);

/// A Problem where `path` holds a regular file that is not of this format ("millrace-plan"), so that a result
/// never replaces another program's file.
Status may_replace(const std::string& path, const std::string& format);

/// A Problem for each flag of `group` (its heading in --help) that was given all the same.
Problems refused_group(const CommandSpec& spec, const Arguments& arguments, std::string_view group,
                       const std::string& why, const std::string& hint = {});

}  // namespace millrace
