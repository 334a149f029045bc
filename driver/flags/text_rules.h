// Flags of commands that read lines of text: the first changes to a line.
#pragma once

#include "data/text/text_jobs.h"
#include "driver/cli/cli.h"

namespace millrace {

void add_text_rules(CommandSpec& spec, TextRules& rules);

}  // namespace millrace
