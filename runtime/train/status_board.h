// Publishes a rank's current action in a small mapped file that the launcher can read after the rank was
// killed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace millrace {

/// A board that is cheap enough to be updated at every action. The text is made only if there is a mapping,
/// and is copied into it. A separate thread writes a heartbeat every second, the milliseconds since 1970: if
/// the heartbeat stops, the rank's process is not running. Not thread-safe.
class StatusBoard {
 public:
  StatusBoard();  ///< writes nowhere
  StatusBoard(const std::string& path, int rank, int stage);
  ~StatusBoard();
  StatusBoard(StatusBoard&&) noexcept;
  StatusBoard& operator=(StatusBoard&&) noexcept;
  void update(std::int64_t step, std::string_view action) {
    update_with(step, [action] { return action; });
  }
  /// Records that the rank takes `times` as long as at first: the next update and later ones show it.
  void set_slow(double times);
  /// Calls `action()` for the text, only if the board is mapped.
  template <class Action>
  void update_with(std::int64_t step, const Action& action) {
    if (text_) write(step, action());
  }

 private:
  class Heart;
  void write(std::int64_t step, std::string_view action);

  char* text_ = nullptr;
  std::unique_ptr<Heart> heart_;
  std::string begin_;      ///< the JSON object after the heartbeat: rank and stage
  std::string end_ = "}";  ///< and its end
  std::size_t shown_ = 0;  ///< characters of the last text written
};

}  // namespace millrace
