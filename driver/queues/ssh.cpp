// ssh, which starts agents for several engines.
#include <utility>

#include "driver/queues/engine.h"
#include "driver/queues/shell_words.h"

namespace millrace {

/// Batch mode asks nothing, host keys are checked, and a host that is gone is noticed within 15 s.
std::vector<std::string> over_ssh(const AgentPlace& place) {
  std::vector<std::string> words{place.client, "-T",
                                 "-o",         "BatchMode=yes",
                                 "-o",         "ConnectTimeout=10",
                                 "-o",         "ServerAliveInterval=5",
                                 "-o",         "ServerAliveCountMax=3"};
  if (place.host.port > 0) words.insert(words.end(), {"-p", std::to_string(place.host.port)});
  return joined(joined(std::move(words), {"--", place.host.login()}), place.agent);
}

constinit const Engine kSsh{
    .name = "ssh", .title = "ssh", .client = "ssh", .through_shell = true, .command = over_ssh};

}  // namespace millrace
