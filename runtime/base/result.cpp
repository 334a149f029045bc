#include "runtime/base/result.h"

#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/option_names.h"
#include "runtime/base/text.h"

namespace millrace {

std::string to_string(const Problem& problem) {
  std::string text = problem.where.empty() ? problem.what : problem.where + ": " + problem.what;
  if (!problem.hint.empty()) text += ". Hint: " + problem.hint;
  return escaped(with_option_names(std::move(text)));
}

std::string to_string(const Problems& problems) {
  std::string text;
  for (const Problem& problem : problems) {
    if (!text.empty()) text += '\n';
    text += to_string(problem);
  }
  return text;
}

void fail_check(const char* text, const std::string& detail, const char* file, int line) {
  std::string what =
      std::string("internal check failed: ") + text + " at " + file + ":" + std::to_string(line);
  if (!detail.empty()) what += ": " + detail;
  throw InternalError(what, "this is a bug of millrace; please report it with the command line");
}

}  // namespace millrace
