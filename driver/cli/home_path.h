// `~` in paths that no shell has expanded: in quotes, after a prefix, in files.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>

#include "runtime/base/json.h"

namespace millrace {

/// Returns the text with HOME in the place of each `~` that begins a path: before a slash, and at the start
/// or after one of :,=@ ("csv:~/a.csv,~/b.csv"). `~` alone is HOME, too. `~name` stays. Flags, arguments and
/// texts of job, sweep, workload and cluster files go through it.
inline std::string with_home(std::string text) {
  const char* const home = std::getenv("HOME");
  if (!home || !*home) return text;
  if (text == "~") return home;
  for (std::size_t at = text.find("~/"); at != std::string::npos; at = text.find("~/", at + 1)) {
    const bool begins = at == 0 || std::string_view(":,=@").find(text[at - 1]) != std::string_view::npos;
    if (begins) text.replace(at, 1, home);
  }
  return text;
}

/// Does the same with every text of a file.
inline Json with_home(Json json) {
  if (json.is_string()) {
    Json text(with_home(json.as_string()));
    text.set_where(json.where());
    return text;
  }
  if (json.is_array())
    for (Json& item : json.items()) item = with_home(std::move(item));
  if (!json.is_object()) return json;
  Json object = Json::object();
  object.set_where(json.where());
  for (const auto& [key, value] : json.members()) object[key] = with_home(value);
  return object;
}

}  // namespace millrace
