// `millrace agent`: runs the ranks of one host for a launcher on another host. `millrace launch` starts it,
// over ssh; it reads frames (frames.h) from its standard input and answers on its standard output.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec agent_spec();

/// Serves a job, and others after it: processes may outlive the failure of another rank. The ranks end when
/// the connection does: SIGTERM, and SIGKILL after two seconds. Returns 0 if all ranks were run to their
/// ends, whatever those were, 2 if they were refused, and 5 if the launcher went away.
int agent_command(const std::vector<std::string>& args);

}  // namespace millrace
