// Flags of commands that read lines of text: what is done to a line before anything else.
#pragma once

#include "data/text/text_jobs.h"
#include "driver/cli/cli.h"

namespace millrace {

void add_text_rules(CommandSpec& spec, TextRules& rules);

}  // namespace millrace
