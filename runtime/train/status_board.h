// What a rank is doing right now, readable by the launcher after the rank was killed: a small mapped file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace millrace {

/// Cheap enough for every action: the text that is new is copied into the mapping, and made only where there
/// is one. Not thread-safe.
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
  /// `action()`: the text.
  template <class Action>
  void update_with(std::int64_t step, const Action& action) {
    if (text_) write(step, action());
  }

 private:
  void write(std::int64_t step, std::string_view action);

  char* text_ = nullptr;
  std::string begin_;      ///< of the object: who
  std::size_t shown_ = 0;  ///< characters of the last one
};

}  // namespace millrace
