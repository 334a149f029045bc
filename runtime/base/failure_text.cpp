#include "runtime/base/failure_text.h"

#include <cxxabi.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string_view>
#include <typeinfo>

namespace millrace {
namespace {

std::atomic<bool> shows_frames{false};

/// The text that precedes the frames in c10::Error::what().
constexpr std::string_view kFrames = "\nException raised from ";

std::string type_of_failure() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (!type) return "an exception that is not of C++";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status), &std::free);
  return "an exception of type " + std::string(status == 0 ? name.get() : type->name());
}

}  // namespace

void show_cpp_frames(bool show) {
  shows_frames = show;
}

std::string text_of_failure() {
  try {
    throw;
  } catch (const std::exception& error) {
    std::string text = error.what();
    if (!shows_frames) text.resize(std::min(text.size(), text.find(kFrames)));
    return text.empty() ? type_of_failure() : text;
  } catch (...) {
    return type_of_failure();
  }
}

}  // namespace millrace
