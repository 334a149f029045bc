// Text that almost nobody reads.
#pragma once

#include <array>
#include <cstddef>
#include <new>
#include <string>
#include <type_traits>
#include <utility>

namespace millrace {

/// Either a text, or how to make one: a message is named for the case that it fails. A callable lies inside,
/// so that naming costs no allocation; what it points to must outlive the LazyText.
class LazyText {
 public:
  LazyText() = default;
  LazyText(std::string text) : text_(std::move(text)) {}  // NOLINT: implicit, as std::string of a literal
  LazyText(const char* text) : text_(text) {}             // NOLINT
  template <class Make>
  requires std::is_invocable_r_v<std::string, const Make&> LazyText(const Make& make) {  // NOLINT
    static_assert(sizeof(Make) <= kBytes && std::is_trivially_copyable_v<Make>);
    new (call_.data()) Make(make);
    make_ = [](const std::byte* at) { return (*std::launder(reinterpret_cast<const Make*>(at)))(); };
  }
  std::string text() const { return make_ ? make_(call_.data()) : text_; }

 private:
  static constexpr std::size_t kBytes = 48;
  std::string text_;
  alignas(std::max_align_t) std::array<std::byte, kBytes> call_{};
  std::string (*make_)(const std::byte*) = nullptr;
};

}  // namespace millrace
