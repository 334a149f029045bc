#include "driver/cli/command_support.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "driver/cli/home_path.h"
#include "runtime/base/failure_text.h"
#include "runtime/base/option_names.h"
#include "runtime/base/text.h"
#include "runtime/base/unfinished_file.h"

namespace millrace {

int exit_with(ExitCode code, const Problems& problems) {
  for (const Problem& problem : problems) std::fprintf(stderr, "%s\n", to_string(problem).c_str());
  return static_cast<int>(code);
}

int print_help(const CommandSpec& spec, const Arguments& arguments) {
  const Result<std::string> text = help_text(spec, arguments.help_topic());
  if (!text) return exit_with(ExitCode::Usage, text.problems());
  return std::fputs(text->c_str(), stdout), 0;
}

void tell_of_interrupt(const CommandSpec& spec) {
  if (!spec.interrupted.empty())
    tell_when_interrupted(name_of(spec) + ": stopped before its end; " + spec.interrupted);
}

int run_command(const CommandSpec& spec, const std::vector<std::string>& args,
                const std::function<int(const Arguments& given, Problems problems)>& run) {
  const Result<Arguments> given = parse_arguments(spec, args);
  if (!given) return exit_with(ExitCode::Usage, given.problems());
  if (given->wants_help()) return print_help(spec, *given);
  tell_of_interrupt(spec);
  return run(*given, given->problems());
}

int run_main(int argc, char** argv, int (*dispatch)(const std::vector<std::string>& args)) {
  ::signal(SIGXFSZ, SIG_IGN);  // a file that grows over a limit is an error of its write, not the end
  set_option_names(OptionNames::Flags);
  try {
    return code_after_output(dispatch({argv + 1, argv + argc}));
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s%s%s\n", error.what(),
                 error.hint().empty() ? "" : ". Hint: ", error.hint().c_str());
    return static_cast<int>(error.code());
  } catch (...) {
    std::fprintf(stderr, "error: %s\n", text_of_failure().c_str());
    return static_cast<int>(ExitCode::RunFailed);
  }
}

int code_after_output(int code) {
  errno = 0;
  const bool lost = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!lost) return code;
  std::fprintf(stderr, "error: stdout: the result could not be written%s%s\nHint: is the disk full?\n",
               errno ? ": " : "", errno ? std::strerror(errno) : "");
  return code == 0 ? static_cast<int>(ExitCode::RunFailed) : code;
}

Flag device_table_flag(Target target) {
  return {.name = "table",
          .value = "FILE",
          .help = "Times of whole models by device and batch, tab-separated: docs/formats.md.",
          .required = true,
          .target = std::move(target)};
}

Flag table_device_flag(Target target) {
  return {.name = "device",
          .value = "NAME",
          .help = "The device, as the table names it.",
          .required = true,
          .target = std::move(target)};
}

Flag threads_flag(std::optional<int>& threads) {
  return {.name = "threads",
          .short_name = 'j',
          .value = "N",
          .help = "Threads (default: all cores).",
          .target = into::integer(threads, 1, 1024)};
}

int thread_count(std::optional<int> threads) {
  return threads.value_or(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
}

void print_columns(const std::vector<std::vector<std::string>>& lines) {
  std::vector<std::size_t> widths;
  for (const auto& line : lines) {
    widths.resize(std::max(widths.size(), line.size()));
    for (std::size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  for (const auto& line : lines) {
    std::string text;
    for (std::size_t c = 0; c < line.size(); ++c) {
      text += line[c];
      if (c + 1 < line.size()) text.append(widths[c] - line[c].size() + 2, ' ');
    }
    std::printf("%s\n", text.c_str());
  }
}

std::string age_text(std::filesystem::file_time_type time) {
  using Clock = std::filesystem::file_time_type::clock;
  if (time == std::filesystem::file_time_type{}) return "-";
  const double seconds = std::chrono::duration<double>(Clock::now() - time).count();
  if (seconds < 120) return printed("%.0f s", std::max(0.0, seconds));
  if (seconds < 7200) return printed("%.0f min", seconds / 60);
  return seconds < 172800 ? printed("%.0f h", seconds / 3600) : printed("%.0f days", seconds / 86400);
}

std::string long_name(const char* flag) {
  std::string name = "--";
  return name.append(flag);
}

Problems about_file(const std::string& file, Problems problems) {
  for (Problem& problem : problems)
    problem.where = file + (problem.where.empty() ? "" : ": " + problem.where);
  return problems;
}

Status may_replace(const std::string& path, const std::string& format) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return Ok{};
  std::string begin(4096, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(file.gcount());
  if (begin.empty() || begin.find("\"" + format + "-") != std::string::npos) return Ok{};
  return Problem{path, "is there, and is no file of " + format, "name another file, or delete this one"};
}

Problems refused_group(const CommandSpec& spec, const Arguments& arguments, std::string_view group,
                       const std::string& why, const std::string& hint) {
  Problems problems;
  for (const Flag& flag : spec.flags) {
    if (flag.group == group && arguments.has(flag.name)) problems.push_back({"--" + flag.name, why, hint});
  }
  return problems;
}

}  // namespace millrace
