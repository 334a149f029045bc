// Invalid input is reported as a value: Result<T> holds a T or every Problem that was found.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/check.h"

namespace millrace {

/// One error in an input: where it was found (`plan.json:3:7`, `--lr`), what is wrong (found and expected),
/// and what to do about it (may be empty). Options are written as flags (`--lr`); to_string applies the
/// configured naming.
struct Problem {
  std::string where;
  std::string what;
  std::string hint;
};

using Problems = std::vector<Problem>;

/// Returns `where: what` and `Hint: hint` on one line each, with options named as set_option_names specifies.
std::string to_string(const Problem& problem);
std::string to_string(const Problems& problems);
inline void append(Problems& to, const Problems& more) {
  to.insert(to.end(), more.begin(), more.end());
}

/// A value or the errors that prevented it (never both, never an empty list of errors). Shaped like
/// std::expected<T, Problems>, so that it can be swapped for it.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}                      // NOLINT
  Result(Problem problem) : state_(Problems{std::move(problem)}) {}  // NOLINT
  Result(Problems problems) : state_(std::move(problems)) {          // NOLINT
    MILLRACE_CHECK(!std::get<Problems>(state_).empty());
  }

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }

  const T& value() const& { return check(), std::get<0>(state_); }
  T& value() & { return check(), std::get<0>(state_); }
  T&& value() && { return check(), std::get<0>(std::move(state_)); }
  const T& operator*() const& { return value(); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T* operator->() const { return &value(); }
  T* operator->() { return &value(); }

  const Problems& problems() const {
    MILLRACE_CHECK(!has_value());
    return std::get<1>(state_);
  }

 private:
  void check() const {
    if (!has_value()) fail_check("Result::value()", to_string(std::get<1>(state_)), __FILE__, __LINE__);
  }
  std::variant<T, Problems> state_;
};

/// The value of operations that return none.
struct Ok {};
using Status = Result<Ok>;

}  // namespace millrace
