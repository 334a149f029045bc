// Words as a shell reads them back, for commands that a person may copy and for scripts.
#pragma once

#include <string>
#include <vector>

namespace millrace {

/// Returns the word, in quotes where a shell needs them.
std::string quoted(const std::string& word);
/// Returns the words of a command in one line.
std::string command_line(const std::vector<std::string>& argv);

/// Returns `words` with `more` behind them.
std::vector<std::string> joined(std::vector<std::string> words, const std::vector<std::string>& more);

}  // namespace millrace
