// A progress bar that is drawn over itself on a terminal, at most ten times a second; elsewhere nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace millrace {

class ProgressLine {
 public:
  explicit ProgressLine(std::string what);
  void show(std::int64_t done, std::int64_t total);
  void clear();  ///< takes the bar away

 private:
  std::string what_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace millrace
