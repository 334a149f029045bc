// Lengths of dimensions as exported programs write them: numbers, symbols ("s77") and arithmetic on them in
// SymPy's functional form, `Mul(Integer(2), Symbol('s77', positive=True, integer=True))`.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// The lengths that the symbols of a program have in one microbatch.
using SymbolValues = std::map<std::string, std::int64_t>;

/// An expression for the length of a dimension. A value type; immutable.
class SizeExpression {
 public:
  SizeExpression(std::int64_t number = 0) : number_(number) {}  // NOLINT
  /// Parses SymPy's form. Problem: another form, a function that sizes do not have, nested deeper than 64.
  static Result<SizeExpression> parse(std::string_view text, const std::string& where);

  bool is_number() const { return kind_ == Kind::Number; }
  bool is_symbol() const { return kind_ == Kind::Symbol; }
  std::int64_t number() const { return number_; }
  const std::string& symbol() const { return name_; }
  /// Returns the length, or nothing if a symbol is missing, or after a division by zero or an overflow.
  std::optional<std::int64_t> value(const SymbolValues& symbols) const;
  void collect_symbols(std::set<std::string>& into) const;
  std::string text() const;  ///< returns a text such as "2*s77"

 private:
  enum class Kind { Number, Symbol, Add, Multiply, Power, FloorDivide, Modulo, Largest, Smallest };
  friend class ExpressionParser;
  Kind kind_ = Kind::Number;
  std::int64_t number_ = 0;
  std::string name_;
  std::vector<SizeExpression> arguments_;
};

}  // namespace millrace
