#include "driver/queues/engine.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <iterator>

#include "runtime/base/text.h"

namespace millrace {
namespace {

bool is_plain(const std::string& word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || std::strchr("/._+-=:@,", c) != nullptr;
  });
}

}  // namespace

const Engine* find_engine(const std::string& name) {
  const auto* found = std::ranges::find_if(kEngines, [&](const Engine* e) { return name == e->name; });
  return found == std::end(kEngines) ? nullptr : *found;
}

std::string engine_names(const std::string& separator) {
  std::string names = "local";
  for (const Engine* engine : kEngines) names += separator + engine->name;
  return names;
}

std::string batch_engines(const char* Engine::*called, const std::string& separator) {
  std::string names;
  for (const Engine* engine : kEngines)
    if (engine->queue && engine->queue->script) names += (names.empty() ? "" : separator) + engine->*called;
  return names;
}

std::vector<PrintedForm> printed_forms() {
  std::vector<PrintedForm> forms;
  for (const Engine* engine : kEngines) forms.insert(forms.end(), engine->forms.begin(), engine->forms.end());
  return forms;
}

std::string form_names(const std::string& separator) {
  std::string names;
  for (const PrintedForm& form : printed_forms()) names += (names.empty() ? "" : separator) + form.name;
  return names;
}

const Engine* waits_in_queue(const JobSpec& job) {
  const Engine* engine = find_engine(job.hosts.on);
  if (!engine || !engine->queue) return nullptr;
  return engine->queue->is_inside && engine->queue->is_inside() ? nullptr : engine;
}

Result<std::vector<std::string>> agent_command_line(const Engine& engine, const AgentPlace& place) {
  for (const std::string& word : place.agent) {
    if (engine.through_shell && !is_plain(word))
      return Problem{
          escaped(word), "has characters that the login shell of a host would read in its own way",
          "give paths with letters, digits and /._+- only (--remote-millrace, --workdir, --mounts)"};
  }
  if (place.host.port > 0 && !engine.through_shell)
    return Problem{"host '" + in_list(place.host) + "'",
                   std::string("has a port, which ") + engine.name + " does not take", "give HOST:RANKS"};
  if (place.agent.front().front() == '-')
    return Problem{escaped(place.agent.front()), "begins with a dash, so it cannot be a program", {}};
  return engine.command(place);
}

}  // namespace millrace
