// millrace-worker: the commands that compute. `millrace` hands them over.
#include <cstdio>
#include <string>
#include <vector>

#include "driver/worker_options.h"

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  const std::string command = args.empty() ? "" : args[0];
  const std::vector<std::string> rest(args.empty() ? args.end() : args.begin() + 1, args.end());
  if (command == "train") return millrace::train_command(rest);
  if (command == "profile") return millrace::profile_command(rest);
  std::fprintf(stderr,
               "millrace-worker: '%s' is not a command of the worker (train, profile).\nHint: type `millrace "
               "--help`\n",
               command.c_str());
  return 2;
}
