// --threads of the data commands.
#pragma once

#include <algorithm>
#include <optional>
#include <thread>

#include "driver/cli/cli.h"

namespace millrace {

inline Flag threads_flag(std::optional<int>& threads) {
  return {.name = "threads",
          .short_name = 'j',
          .value = "N",
          .help = "Threads (default: all cores).",
          .target = into::integer(threads, 1, 1024)};
}

inline int thread_count(std::optional<int> threads) {
  return threads.value_or(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
}

}  // namespace millrace
