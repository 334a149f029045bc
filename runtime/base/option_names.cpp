#include "runtime/base/option_names.h"

#include <cstddef>
#include <string_view>

namespace millrace {
namespace {

OptionNames names_of_process = OptionNames::Fields;

bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}

}  // namespace

void set_option_names(OptionNames names) {
  names_of_process = names;
}

std::string with_option_names(std::string message) {
  if (names_of_process == OptionNames::Flags || message.find("--") == std::string::npos) return message;
  constexpr std::string_view kBefore = " \n'\"`([";
  std::string text;
  for (std::size_t i = 0; i < message.size();) {
    const bool begins = i == 0 || kBefore.find(message[i - 1]) != std::string_view::npos;
    if (!begins || message.compare(i, 2, "--") != 0 || i + 2 == message.size() || !is_lower(message[i + 2])) {
      text += message[i++];
      continue;
    }
    for (i += 2; i < message.size(); ++i) {
      const char c = message[i];
      const bool dash = c == '-' && i + 1 < message.size() && is_lower(message[i + 1]);
      if (!dash && !is_lower(c) && !(c >= '0' && c <= '9')) break;
      text += dash ? '_' : c;
    }
  }
  return text;
}

}  // namespace millrace
