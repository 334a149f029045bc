// Shows what a rank is doing, in a small mapped file that the launcher can read after the rank was killed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

/// A board that is cheap enough to be updated at every action. The text is made only if there is a mapping,
/// and is copied into it. Not thread-safe.
class StatusBoard {
 public:
  StatusBoard() = default;  ///< writes nowhere
  StatusBoard(const std::string& path, int rank, int stage);
  ~StatusBoard();
  StatusBoard(StatusBoard&&) noexcept;
  StatusBoard& operator=(StatusBoard&&) noexcept;
  void update(std::int64_t step, std::string_view action) {
    update_with(step, [action] { return action; });
  }
  /// Calls `action()` for the text, only if the board writes.
  template <class Action>
  void update_with(std::int64_t step, const Action& action) {
    if (text_) write(step, action());
  }

 private:
  void write(std::int64_t step, std::string_view action);

  char* text_ = nullptr;
  std::string begin_;      ///< the beginning of the JSON object: rank and stage
  std::size_t shown_ = 0;  ///< characters of the last text written
};

}  // namespace millrace
