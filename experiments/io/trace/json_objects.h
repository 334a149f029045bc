// The objects of a JSON array one after the other, so that a long file, or one that was cut off, needs no
// tree.
#pragma once

#include <algorithm>
#include <optional>
#include <string_view>

namespace millrace {

/// Length of the object that `text` begins with ('{' to its '}'); 0 if it has no end.
inline std::size_t json_object_length(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return 0;
}

/// Walks over the first array in a text. The views are into the text.
class JsonObjects {
 public:
  explicit JsonObjects(std::string_view text) : rest_(text) {
    rest_.remove_prefix(std::min(rest_.find('['), rest_.size()));
    if (!rest_.empty())
      rest_.remove_prefix(1);
    else
      cut_off_ = !text.empty();
  }
  std::optional<std::string_view> next() {
    const std::size_t start = rest_.find_first_of("{]");
    if (start == std::string_view::npos || rest_[start] == ']') {
      cut_off_ = cut_off_ || start == std::string_view::npos;
      return std::nullopt;
    }
    rest_.remove_prefix(start);
    const std::size_t length = json_object_length(rest_);
    cut_off_ = length == 0;
    if (cut_off_) return std::nullopt;
    const std::string_view object = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return object;
  }
  /// The array had no end.
  bool cut_off() const { return cut_off_; }

 private:
  std::string_view rest_;
  bool cut_off_ = false;
};

}  // namespace millrace
