// `millrace trace plot`: timelines of a processed run as SVG, PNG, PDF and a page that zooms. LibTorch-free.
#pragma once

#include <string>
#include <vector>

#include "driver/cli/cli.h"

namespace millrace {

CommandSpec trace_plot_spec();
int trace_plot_command(const std::vector<std::string>& args);

}  // namespace millrace
