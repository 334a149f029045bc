// Decides which tests may be skipped, and when, from tests/allowed_skips.txt.
#pragma once

#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace millrace {

/// The tests of `skipped` that `list` does not excuse. A line of the list is `SUITE.TEST VARIABLE`: that test
/// may be skipped while the environment has no VARIABLE. Empty lines and lines that start with # are
/// comments.
inline std::vector<std::string> unexpected_skips(const std::string& list,
                                                 const std::vector<std::string>& skipped,
                                                 const std::function<bool(const std::string&)>& is_set) {
  std::vector<std::string> unexpected;
  for (const std::string& test : skipped) {
    bool excused = false;
    std::istringstream lines(list);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string name, variable;
      if (words >> name >> variable && name[0] != '#' && name == test && !is_set(variable)) excused = true;
    }
    if (!excused) unexpected.push_back(test);
  }
  return unexpected;
}

}  // namespace millrace
