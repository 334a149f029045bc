// What the LibTorch-free commands share: reporting problems, reading flags of the same meaning.
#pragma once

#include <string>

#include "driver/cli/cli.h"
#include "runtime/base/error.h"
#include "runtime/plan/cluster_spec.h"
#include "runtime/plan/layer_graph.h"

namespace millrace {

/// Prints the problems to stderr, one a line, and gives the exit code back.
int exit_with(ExitCode code, const Problems& problems);

/// At the end of a program: a result that did not get to stdout (full disk, closed pipe) is a failure.
int code_after_output(int code);

/// `--flag`, as messages name it.
std::string long_name(const char* flag);

/// "text" or "json" of --format; else a Problem is added.
OutputFormat output_format(const Arguments& arguments, Problems& problems);

/// profile.json, or a PipeDream graph.txt (a name that ends in .txt); the model is then called after its
/// folder.
Result<LayerGraph> load_profile(const std::string& path);

/// The problems, each with the file they are about in front.
Problems about_file(const std::string& file, Problems problems);

/// --cluster FILE, or `ranks` ranks on this host.
Result<ClusterSpec> cluster_of(const Arguments& arguments, int ranks);

}  // namespace millrace
