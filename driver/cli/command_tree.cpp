#include "driver/cli/command_tree.h"

#include <algorithm>

#include "runtime/base/text.h"

namespace millrace {
namespace {

/// FILE, N, NAME: a person puts something in its place.
bool stands_for_something(const std::string& word) {
  return std::ranges::any_of(word, [](char c) { return c >= 'A' && c <= 'Z'; });
}

/// The words of "a|b|FILE" that stand for themselves.
std::vector<std::string> words_of_choice(const std::string& choice) {
  std::vector<std::string> words;
  if (choice.find('|') != std::string::npos) words = split(choice, '|');
  std::erase_if(words, stands_for_something);
  return words;
}

/// The values of a flag that are known: its choices, else those of "a|b|c", else those that its target takes.
std::vector<std::string> values_of(const Flag& flag) {
  std::vector<std::string> values = flag.choices.empty() ? words_of_choice(flag.value) : flag.choices;
  if (values.empty()) values = flag.target.names;
  std::erase_if(values, stands_for_something);
  return values;
}

/// The words that the first argument may be, where they are known.
std::vector<std::string> arguments_of(const CommandTree& command) {
  return command.spec.positionals.empty() ? std::vector<std::string>()
                                          : words_of_choice(command.spec.positionals.front());
}

std::string spaced(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

/// In single quotes, as all three shells read them; a quote itself becomes a typographic one.
std::string in_quotes(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text)
    if (c == '\'')
      quoted += "\u2019";
    else
      quoted += c;
  return quoted + "'";
}

std::vector<Flag> flags_of(const CommandTree& command) {
  std::vector<Flag> flags = command.spec.flags;
  flags.push_back({.name = "help", .short_name = 'h', .help = "Print the flags."});
  return flags;
}

std::string brief_of(const Flag& flag) {
  return first_sentence(flag.brief.empty() ? flag.help : flag.brief, ".");
}

std::string all_commands(const CommandTree& tree) {
  std::string text;
  each_command(tree, [&](const CommandTree& one) { text += "|" + in_quotes(one.spec.command); });
  return text.substr(1);
}

// ---- bash and zsh: a function that knows the command from the words before the cursor

std::string words_below(const CommandTree& command) {
  std::vector<std::string> words;
  for (const CommandTree& below : command.below) words.push_back(below.word());
  return spaced(words);
}

/// The branches of `case "$command $before"`: the values of flags between `begin` and `end`.
std::string value_cases(const CommandTree& tree, const std::string& begin, const std::string& end) {
  std::string text;
  each_command(tree, [&](const CommandTree& command) {
    for (const Flag& flag : command.spec.flags) {
      if (flag.value.empty()) continue;
      text += "    " + in_quotes(command.spec.command + " --" + flag.name);
      if (flag.short_name) text += "|" + in_quotes(command.spec.command + " -" + flag.short_name);
      text += ") candidates=" + begin + spaced(values_of(flag)) + end + " ;;\n";
    }
  });
  return text;
}

std::string bash_script(const CommandTree& tree) {
  std::string text =
      "# Completion of millrace for bash, written by `millrace completion bash`.\n"
      "_millrace() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} command= candidates= i "
      "next\n"
      "  [[ $before == = ]] && before=${COMP_WORDS[COMP_CWORD-2]}\n"  // of --flag=wo
      "  [[ $word == = ]] && word=\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    [[ ${COMP_WORDS[i]} == help && -z $command ]] && continue\n"
      "    next=\"${command:+$command }${COMP_WORDS[i]}\"\n"
      "    case \"$next\" in\n      " +
      all_commands(tree) +
      ") command=$next ;;\n      *) break ;;\n    esac\n  done\n"
      "  case \"$command $before\" in\n" +
      value_cases(tree, "'", "'") +
      "    *) case \"$command\" in\n      '') candidates=" + in_quotes(words_below(tree) + " help version") +
      " ;;\n";
  each_command(tree, [&](const CommandTree& command) {
    std::vector<std::string> flags;
    for (const Flag& flag : flags_of(command)) flags.push_back("--" + flag.name);
    text += "      " + in_quotes(command.spec.command) +
            ") candidates=" + in_quotes(command.below.empty() ? spaced(flags) : words_below(command)) + "\n";
    // A place of arguments offers flags behind a dash only.
    if (command.below.empty() && !command.spec.positionals.empty())
      text += "        [[ $word == -* ]] || candidates=" + in_quotes(spaced(arguments_of(command))) + "\n";
    text += "        ;;\n";
  });
  return text +
         "    esac ;;\n  esac\n"
         "  COMPREPLY=($(compgen -W \"$candidates\" -- \"$word\"))\n}\n"
         "complete -o default -F _millrace millrace\n";
}

/// 'name:what it is', for _describe.
std::string described(const std::string& name, const std::string& text) {
  std::string plain = text;
  std::replace(plain.begin(), plain.end(), ':', ';');
  return in_quotes(name + ":" + plain);
}

std::string zsh_script(const CommandTree& tree) {
  std::string text =
      "#compdef millrace\n# Completion of millrace for zsh, written by `millrace completion zsh`.\n"
      "_millrace() {\n"
      "  local before=${words[CURRENT-1]} command= next i\n  local -a candidates\n"
      "  for ((i = 2; i < CURRENT; ++i)); do\n"
      "    [[ ${words[i]} == help && -z $command ]] && continue\n"
      "    next=\"${command:+$command }${words[i]}\"\n"
      "    case \"$next\" in\n      " +
      all_commands(tree) +
      ") command=$next ;;\n      *) break ;;\n    esac\n  done\n"
      "  case \"$command $before\" in\n" +
      value_cases(tree, "(", ")") + "    *) case \"$command\" in\n      '') candidates=(";
  for (const CommandTree& one : tree.below)
    text += " " + described(one.word(), first_sentence(one.spec.summary));
  text += ") ;;\n";
  each_command(tree, [&](const CommandTree& command) {
    text += "      " + in_quotes(command.spec.command) + ") candidates=(";
    for (const CommandTree& one : command.below)
      text += " " + described(one.word(), first_sentence(one.spec.summary));
    for (const Flag& flag : command.below.empty() ? flags_of(command) : std::vector<Flag>())
      text += " " + described("--" + flag.name, brief_of(flag));
    text += ")\n";
    if (command.below.empty() && !command.spec.positionals.empty())
      text += "        [[ ${words[CURRENT]} == -* ]] || candidates=(" + spaced(arguments_of(command)) + ")\n";
    text += "        ;;\n";
  });
  return text +
         "    esac ;;\n  esac\n"
         "  if ((${#candidates})); then _describe millrace candidates || _files; else _files; fi\n}\n"
         "if [ \"$funcstack[1]\" = _millrace ]; then _millrace \"$@\"; else compdef _millrace millrace; fi\n";
}

// ---- fish: a line for every command and every flag

std::string fish_line(const std::string& command, const std::string& what) {
  return "complete -c millrace -n \"test (__millrace_command) = " + in_quotes(command) + "\" " + what + "\n";
}

std::string fish_script(const CommandTree& tree) {
  std::string known;
  each_command(tree, [&](const CommandTree& one) { known += " " + in_quotes(one.spec.command); });
  std::string text =
      "# Completion of millrace for fish, written by `millrace completion fish`.\n"
      "function __millrace_command\n  set -l command ''\n"
      "  for word in (commandline -opc)[2..-1]\n"
      "    test \"$command$word\" = help; and continue\n"
      "    set -l next (string trim -- \"$command $word\")\n"
      "    contains -- \"$next\" " +
      known.substr(1) + "; or break\n    set command $next\n  end\n  echo \"$command\"\nend\n";
  for (const CommandTree& one : tree.below)
    text += fish_line("", "-f -a " + one.word() + " -d " + in_quotes(first_sentence(one.spec.summary)));
  each_command(tree, [&](const CommandTree& command) {
    for (const CommandTree& one : command.below)
      text += fish_line(command.spec.command,
                        "-f -a " + one.word() + " -d " + in_quotes(first_sentence(one.spec.summary)));
    if (const std::vector<std::string> known_words = arguments_of(command); !known_words.empty())
      text += fish_line(command.spec.command, "-f -a " + in_quotes(spaced(known_words)));
    for (const Flag& flag : command.below.empty() ? flags_of(command) : std::vector<Flag>()) {
      const std::vector<std::string> values = values_of(flag);
      text += fish_line(command.spec.command,
                        "-l " + flag.name + (flag.short_name ? std::string(" -s ") + flag.short_name : "") +
                            (flag.value.empty() ? ""
                             : values.empty()   ? " -r"
                                                : " -x -a " + in_quotes(spaced(values))) +
                            " -d " + in_quotes(brief_of(flag)));
    }
  });
  return text;
}

// ---- manual pages

/// Text as man(7) reads it: no line begins with a dot or a quote, dashes stay dashes.
std::string manual_text(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  return out;
}

std::string page_name(const CommandTree& command) {
  std::string name = name_of(command.spec);
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string manual_flag(const Flag& flag) {
  std::string text = ".TP\n";
  if (flag.short_name) text += "\\fB\\-" + std::string{flag.short_name} + "\\fR, ";
  text += "\\fB" + manual_text("--" + flag.name) + "\\fR";
  if (!flag.value.empty()) text += " \\fI" + manual_text(flag.value) + "\\fR";
  text += "\n" + manual_text(flag.help);
  if (flag.required) text += " Required.";
  if (flag.repeatable) text += " May be repeated.";
  if (!flag.required && !flag.target.fallback.empty())
    text += manual_text(" [default: " + flag.target.fallback + "]");
  return text + "\n";
}

std::string manual_flags(const CommandTree& command) {
  std::string text = ".SH OPTIONS\n", heading;
  const std::vector<Flag> flags = flags_of(command);
  std::vector<std::string> groups;
  for (const Flag& flag : flags) {
    if (std::find(groups.begin(), groups.end(), flag.group) == groups.end()) groups.push_back(flag.group);
  }
  for (const std::string& group : groups) {
    if (!group.empty()) text += ".SS " + manual_text(group) + "\n";
    for (const Flag& flag : flags) {
      if (flag.group == group) text += manual_flag(flag);
    }
  }
  return text;
}

std::string manual_page(const CommandTree& command, const std::string& version,
                        const std::string& exit_codes) {
  std::string upper = page_name(command);
  for (char& c : upper) {
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  }
  std::string text = ".TH " + manual_text(upper) + " 1 \"\" \"millrace " + version + "\"\n.SH NAME\n" +
                     manual_text(page_name(command)) + " \\- " +
                     manual_text(first_sentence(command.spec.summary)) + "\n.SH SYNOPSIS\n.B " +
                     manual_text(name_of(command.spec)) + "\n" +
                     (command.below.empty() ? "[FLAGS]" : "COMMAND [FLAGS]");
  for (const std::string& positional : command.spec.positionals) text += " " + manual_text(positional);
  text += "\n.SH DESCRIPTION\n" + manual_text(command.spec.summary) + "\n";
  if (command.below.empty()) text += manual_flags(command);
  if (!command.below.empty()) text += ".SH COMMANDS\n";
  for (const CommandTree& one : command.below)
    text += ".TP\n\\fB" + manual_text(page_name(one)) + "\\fR(1)\n" +
            manual_text(first_sentence(one.spec.summary)) + "\n";
  if (!command.spec.examples.empty()) text += ".SH EXAMPLES\n";
  for (const std::string& example : command.spec.examples)
    text += ".PP\n.nf\n" + manual_text(example) + "\n.fi\n";
  return text + ".SH EXIT STATUS\n" + manual_text(exit_codes) + "\n";
}

}  // namespace

std::string CommandTree::word() const {
  return spec.command.substr(spec.command.rfind(' ') + 1);
}

CommandTree tree_of(const Subcommand& command) {
  CommandTree tree{command.spec()};
  if (command.below) {
    for (const Subcommand& one : command.below()) tree.below.push_back(tree_of(one));
  }
  return tree;
}

Json to_json(const CommandTree& tree) {
  const auto list = [](const std::vector<std::string>& words) {
    Json all = Json::array();
    for (const std::string& word : words) all.push_back(word);
    return all;
  };
  Json flags = Json::array(), below = Json::array();
  for (const Flag& flag : tree.spec.flags)
    flags.push_back(Json::object({{"name", flag.name},
                                  {"short", std::string(flag.short_name ? 1 : 0, flag.short_name)},
                                  {"value", flag.value},
                                  {"help", flag.help},
                                  {"brief", flag.brief},
                                  {"group", flag.group},
                                  {"required", flag.required},
                                  {"repeatable", flag.repeatable},
                                  {"default", flag.target.fallback},
                                  {"choices", list(values_of(flag))}}));
  for (const CommandTree& one : tree.below) below.push_back(to_json(one));
  return Json::object({{"command", tree.spec.command},
                       {"summary", tree.spec.summary},
                       {"positionals", list(tree.spec.positionals)},
                       {"examples", list(tree.spec.examples)},
                       {"flags", flags},
                       {"below", below}});
}

Result<CommandTree> command_tree_from(const Json& json) {
  Problems problems;
  ObjectReader in(json, problems);
  CommandTree tree{{.command = in.string("command"),
                    .summary = in.string("summary"),
                    .positionals = in.strings("positionals"),
                    .examples = in.strings("examples")}};
  const Json *flags = in.array("flags"), *below = in.array("below");
  in.finish();
  if (!problems.empty()) return problems;
  for (const Json& one : flags->items()) {
    ObjectReader flag(one, problems);
    const std::string letter = flag.string("short");
    tree.spec.flags.push_back({.name = flag.string("name"),
                               .short_name = letter.empty() ? '\0' : letter[0],
                               .value = flag.string("value"),
                               .help = flag.string("help"),
                               .required = flag.boolean("required", false),
                               .group = flag.string("group"),
                               .repeatable = flag.boolean("repeatable", false),
                               .target = {.fallback = flag.string("default")},
                               .brief = flag.string("brief"),
                               .choices = flag.strings("choices")});
    flag.finish();
  }
  for (const Json& one : below->items()) {
    Result<CommandTree> command = command_tree_from(one);
    if (!command) return command.problems();
    tree.below.push_back(*std::move(command));
  }
  if (!problems.empty()) return problems;
  return tree;
}

void fill_in(CommandTree& tree, const CommandTree& known) {
  for (CommandTree& one : tree.below) {
    const auto same = std::ranges::find_if(
        known.below, [&](const CommandTree& other) { return other.spec.command == one.spec.command; });
    if (same == known.below.end()) continue;
    if (one.below.empty())
      one = *same;
    else
      fill_in(one, *same);
  }
}

std::string completion_script(const CommandTree& tree, Shell shell) {
  switch (shell) {
    case Shell::Bash:
      return bash_script(tree);
    case Shell::Zsh:
      return zsh_script(tree);
    case Shell::Fish:
      return fish_script(tree);
  }
  return "";
}

std::vector<std::pair<std::string, std::string>> manual_pages(const CommandTree& tree,
                                                              const std::string& version,
                                                              const std::string& exit_codes) {
  std::vector<std::pair<std::string, std::string>> pages{
      {page_name(tree) + ".1", manual_page(tree, version, exit_codes)}};
  each_command(tree, [&](const CommandTree& command) {
    pages.emplace_back(page_name(command) + ".1", manual_page(command, version, exit_codes));
  });
  return pages;
}

}  // namespace millrace
