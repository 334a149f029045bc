// What a rank is doing right now, readable by the launcher after the rank was killed: a small mapped file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

/// `update` costs one snprintf into shared memory: cheap enough for every action. Not thread-safe.
class StatusBoard {
 public:
  StatusBoard() = default;  ///< writes nowhere
  StatusBoard(const std::string& path, int rank, int stage);
  ~StatusBoard();
  StatusBoard(StatusBoard&&) noexcept;
  StatusBoard& operator=(StatusBoard&&) noexcept;
  void update(std::int64_t step, std::string_view action);

 private:
  char* text_ = nullptr;
  int rank_ = -1;
  int stage_ = -1;
};

}  // namespace millrace
