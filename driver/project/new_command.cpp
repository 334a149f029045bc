#include "driver/project/new_command.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>

#include "driver/cli/command_support.h"
#include "driver/launch/model_flags.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

struct NewFlags {
  std::string folder;  ///< empty: the project's name, here
};

CommandSpec new_spec(NewFlags& f) {
  CommandSpec spec{
      .command = "new",
      .summary =
          "Write a project with a model of your own: CMake, a program, a test. It builds on the "
          "installed library (docs/your-model.md).",
      .positionals = {"NAME"},
      .flags = {{.name = "dir",
                 .value = "DIR",
                 .help = "Folder of the project, which is made; without it NAME, in this folder.",
                 .target = into::text(f.folder)}},
      .examples = {"millrace new my-model", "millrace new my-model --dir projects/first"},
      .interrupted = "the project is not whole"};
  return spec;
}

/// Words that CMake has targets for.
constexpr const char* kTaken[] = {"all",
                                  "clean",
                                  "depend",
                                  "edit_cache",
                                  "help",
                                  "install",
                                  "package",
                                  "rebuild_cache",
                                  "test",
                                  "build",
                                  "preinstall",
                                  "millrace",
                                  "list_install_components",
                                  "own_model",
                                  "model_test"};

std::optional<Problem> problem_of_name(const std::string& name) {
  constexpr std::size_t kLongest = 64;
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  const bool fits = !name.empty() && name.size() <= kLongest && is_letter(name.front()) &&
                    std::ranges::all_of(name, [&](char c) {
                      return is_letter(c) || (c >= '0' && c <= '9') || c == '-' || c == '_';
                    });
  if (!fits)
    return Problem{"NAME", "'" + escaped(name) + "' is no name of a project",
                   "lower-case letters, digits, - and _, a letter first, for example my-model"};
  if (std::ranges::find(kTaken, name) != std::end(kTaken))
    return Problem{"NAME", "'" + name + "' means something to CMake", "for example my-model"};
  const Result<std::vector<ModelDescription>> models = models_of_worker(any_worker());
  if (models && std::ranges::find(*models, name, &ModelDescription::name) != models->end())
    return Problem{"NAME", "millrace has a model '" + name + "' already", "for example my-" + name};
  return std::nullopt;
}

Status may_write(const fs::path& folder) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(folder, error);
  if (status.type() == fs::file_type::not_found) return Ok{};
  if (fs::is_directory(folder, error) && fs::is_empty(folder, error) && !error) return Ok{};
  const char* what = error                             ? "cannot be looked into"
                     : fs::is_directory(folder, error) ? "is there and not empty"
                                                       : "is there and no folder";
  return Problem{folder.string(), what, "give another name, or --dir DIR"};
}

int write_project(const std::string& name, const NewFlags& flags) {
  if (const auto wrong = problem_of_name(name)) return exit_with(ExitCode::Usage, {*wrong});
  const fs::path folder = flags.folder.empty() ? name : flags.folder;
  if (const Status free = may_write(folder); !free) return exit_with(ExitCode::Usage, free.problems());
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    return exit_with(ExitCode::Usage,
                     {{folder.string(), "cannot be made: " + error.message(), "give --dir DIR"}});
  for (const auto& [path, text] : project_files(name)) {
    if (const Status written = write_file_atomically(folder / path, text); !written)
      return exit_with(ExitCode::Usage, written.problems());
    std::printf("%s\n", (folder / path).c_str());
  }
  std::printf(
      "\nBuild and try it (PREFIX is where millrace is installed):\n"
      "  cd %s\n"
      "  cmake -S . -B build -DCMAKE_PREFIX_PATH=PREFIX && cmake --build build\n"
      "  ctest --test-dir build\n"
      "  build/%s train --model %s --data circles --stages 2 --steps 100 --rule adam --lr 0.01\n",
      folder.c_str(), name.c_str(), name.c_str());
  return 0;
}

}  // namespace

CommandSpec new_spec() {
  return without_targets<NewFlags>(new_spec);
}

int new_command(const std::vector<std::string>& args) {
  NewFlags flags;
  return run_command(new_spec(flags), args, [&](const Arguments& given, const Problems& problems) {
    if (!problems.empty()) return exit_with(ExitCode::Usage, problems);
    return write_project(given.positionals().front(), flags);
  });
}

}  // namespace millrace
