#include "driver/cli/command_group.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

void print_list(std::FILE* out, const CommandSpec& group, std::span<const Subcommand> table) {
  const std::string name = name_of(group);
  std::fprintf(out, "%s: %s\nUsage: %s COMMAND [FLAGS]\n\n", name.c_str(),
               wrapped(group.summary, name.size() + 2, 2).c_str(), name.c_str());
  std::size_t width = 0;
  for (const Subcommand& entry : table) width = std::max(width, std::string(entry.name).size());
  for (const Subcommand& entry : table)
    std::fputs(list_entry(entry.name, width, entry.spec().summary).c_str(), out);
  std::fputs("\nExamples:\n", out);
  for (const Subcommand& entry : table) {
    const std::vector<std::string> examples = (entry.below ? entry.below().front() : entry).spec().examples;
    if (!examples.empty()) std::fprintf(out, "  %s\n", examples.front().c_str());
  }
  std::fprintf(out, "\n`%s COMMAND --help` explains its flags.\n", name.c_str());
}

}  // namespace

std::string first_sentence(const std::string& text, std::string_view ends) {
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    const bool is_end = ends.find(text[i]) != std::string_view::npos && text[i + 1] == ' ';
    if (is_end && !text.substr(0, i).ends_with("e.g")) return text.substr(0, i) + ".";
  }
  return text;
}

std::string list_entry(const std::string& name, std::size_t width, const std::string& summary) {
  std::string line = "  " + name + std::string(width - std::min(width, name.size()), ' ') + "  ";
  const std::size_t at = line.size();
  return line + wrapped(first_sentence(summary), at, at);
}

CommandSpec group_spec(const std::string& group, const std::string& summary) {
  CommandSpec spec;
  spec.command = group;
  spec.summary = summary;
  return spec;
}

int run_group(const CommandSpec& group, std::span<const Subcommand> table,
              const std::vector<std::string>& args) {
  const bool asks = !args.empty() && (args[0] == "--help" || args[0] == "-h" || args[0] == "help");
  const std::vector<std::string> words(args.begin() + (asks ? 1 : 0), args.end());
  std::vector<std::string> names;
  for (const Subcommand& entry : table) {
    names.emplace_back(entry.name);
    if (words.empty() || words[0] != entry.name) continue;
    std::vector<std::string> rest(words.begin() + 1, words.end());
    if (asks) rest.insert(rest.begin(), "--help");
    return entry.run(rest);
  }
  if (args.empty() || asks) {
    print_list(args.empty() ? stderr : stdout, group, table);
    return static_cast<int>(args.empty() ? ExitCode::Usage : ExitCode::Done);
  }
  const std::string name = name_of(group);
  const std::optional<std::string> nearest = nearest_name(args[0], names);
  const std::string hint =
      nearest ? "did you mean `" + name + " " + *nearest + "`?" : "`" + name + " --help` lists the commands";
  std::fprintf(stderr, "%s: '%s' is not a command. Hint: %s\n", name.c_str(), args[0].c_str(), hint.c_str());
  return static_cast<int>(ExitCode::Usage);
}

}  // namespace millrace
