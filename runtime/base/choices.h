// Enums with names: one table next to the enum serves flags, messages and files.
//   enum class Backend { Auto, SharedMemory };
//   constexpr auto names_of(Backend) { return std::to_array<std::string_view>({"auto", "shm"}); }
// The table is in the order of the values, which count from 0.
#pragma once

#include <array>
#include <concepts>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace {

template <class Enum>
concept Named = requires(Enum value) {
  { names_of(value).size() } -> std::convertible_to<std::size_t>;
};

template <Named Enum>
std::string to_string(Enum value) {
  return std::string(names_of(value)[static_cast<std::size_t>(value)]);
}

template <Named Enum>
std::vector<std::string> all_names() {
  const auto names = names_of(Enum{});
  return {names.begin(), names.end()};
}

/// Returns the value with this name; nothing if no value has it.
template <Named Enum>
std::optional<Enum> value_named(std::string_view text) {
  const auto names = names_of(Enum{});
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i] == text) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

}  // namespace millrace
