#include "models/archive/size_expression.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "runtime/base/text.h"

namespace millrace {

class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view text) : rest_(text) {}

  std::optional<SizeExpression> whole() {
    SizeExpression result;
    if (!expression(result, 0)) return std::nullopt;
    skip();
    return rest_.empty() ? std::optional(std::move(result)) : std::nullopt;
  }

 private:
  using Kind = SizeExpression::Kind;
  static constexpr int kDeepest = 64;

  struct Function {
    const char* name;
    Kind kind;
    std::size_t least, most;  ///< numbers of arguments
  };

  void skip() {
    while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
  }
  bool take(char c) {
    skip();
    if (rest_.empty() || rest_.front() != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  std::string_view word() {
    skip();
    std::size_t n = 0;
    while (n < rest_.size() &&
           (std::isalnum(static_cast<unsigned char>(rest_[n])) || rest_[n] == '_' || rest_[n] == '.'))
      ++n;
    const std::string_view result = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return result;
  }
  bool number(SizeExpression& into) {
    skip();
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) return false;
    rest_.remove_prefix(end - rest_.data());
    into = value;
    return true;
  }

  bool symbol(SizeExpression& into) {
    skip();
    if (rest_.empty() || (rest_.front() != '\'' && rest_.front() != '"')) return false;
    const std::size_t end = rest_.find(rest_.front(), 1);
    if (end == std::string_view::npos || end == 1) return false;
    into.kind_ = Kind::Symbol;
    into.name_ = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    while (take(',')) {  // assumptions: positive=True
      if (word().empty() || !take('=') || word().empty()) return false;
    }
    return take(')');
  }

  bool expression(SizeExpression& into, int depth) {
    if (depth > kDeepest) return false;
    skip();
    if (!rest_.empty() && (rest_.front() == '-' || std::isdigit(static_cast<unsigned char>(rest_.front()))))
      return number(into);
    std::string_view name = word();
    if (const std::size_t dot = name.rfind('.'); dot != std::string_view::npos) name.remove_prefix(dot + 1);
    if (name.empty()) return false;
    if (!take('(')) {  // a bare name is a symbol
      into.kind_ = Kind::Symbol;
      into.name_ = name;
      return true;
    }
    if (name == "Symbol") return symbol(into);
    if (name == "Integer") return number(into) && take(')');
    static constexpr Function kFunctions[] = {{"Add", Kind::Add, 1, 64},
                                              {"Mul", Kind::Multiply, 1, 64},
                                              {"Pow", Kind::Power, 2, 2},
                                              {"FloorDiv", Kind::FloorDivide, 2, 2},
                                              {"CleanDiv", Kind::FloorDivide, 2, 2},
                                              {"Mod", Kind::Modulo, 2, 2},
                                              {"PythonMod", Kind::Modulo, 2, 2},
                                              {"Max", Kind::Largest, 1, 64},
                                              {"Min", Kind::Smallest, 1, 64}};
    const auto* known =
        std::ranges::find(kFunctions, name, [](const Function& f) { return std::string_view(f.name); });
    if (known == std::end(kFunctions)) return false;
    into.kind_ = known->kind;
    do {
      if (!expression(into.arguments_.emplace_back(), depth + 1)) return false;
    } while (take(','));
    return take(')') && into.arguments_.size() >= known->least && into.arguments_.size() <= known->most;
  }

  std::string_view rest_;
};

Result<SizeExpression> SizeExpression::parse(std::string_view text, const std::string& where) {
  if (auto parsed = ExpressionParser(text).whole()) return *std::move(parsed);
  return Problem{where, "has a size that cannot be computed here: " + escaped(text.substr(0, 200)),
                 "known are Symbol, Integer, Add, Mul, Pow, FloorDiv, Mod, Max and Min; "
                 "export with fewer dynamic dimensions"};
}

std::optional<std::int64_t> SizeExpression::value(const SymbolValues& symbols) const {
  if (kind_ == Kind::Number) return number_;
  if (kind_ == Kind::Symbol) {
    const auto found = symbols.find(name_);
    return found == symbols.end() ? std::nullopt : std::optional(found->second);
  }
  std::vector<std::int64_t> values;
  for (const SizeExpression& argument : arguments_) {
    const auto value = argument.value(symbols);
    if (!value) return std::nullopt;
    values.push_back(*value);
  }
  std::int64_t result = values[0];
  const std::int64_t second = values.size() > 1 ? values[1] : 0;
  switch (kind_) {
    case Kind::Add:
      for (std::size_t i = 1; i < values.size(); ++i)
        if (__builtin_add_overflow(result, values[i], &result)) return std::nullopt;
      return result;
    case Kind::Multiply:
      for (std::size_t i = 1; i < values.size(); ++i)
        if (__builtin_mul_overflow(result, values[i], &result)) return std::nullopt;
      return result;
    case Kind::Power:
      if (second < 0 || second > 62) return std::nullopt;
      result = 1;
      for (std::int64_t i = 0; i < second; ++i)
        if (__builtin_mul_overflow(result, values[0], &result)) return std::nullopt;
      return result;
    case Kind::FloorDivide:
    case Kind::Modulo: {
      if (second == 0 || (second == -1 && result == std::numeric_limits<std::int64_t>::min()))
        return std::nullopt;
      const std::int64_t left = result % second;
      const bool down = left != 0 && (left < 0) != (second < 0);  // Python rounds down
      return kind_ == Kind::Modulo ? left + (down ? second : 0) : result / second - (down ? 1 : 0);
    }
    case Kind::Largest:
      return *std::ranges::max_element(values);
    case Kind::Smallest:
      return *std::ranges::min_element(values);
    default:
      return std::nullopt;
  }
}

void SizeExpression::collect_symbols(std::set<std::string>& into) const {
  if (kind_ == Kind::Symbol) into.insert(name_);
  for (const SizeExpression& argument : arguments_) argument.collect_symbols(into);
}

std::string SizeExpression::text() const {
  if (kind_ == Kind::Number) return std::to_string(number_);
  if (kind_ == Kind::Symbol) return name_;
  static constexpr const char* kSigns[] = {"", "", " + ", "*", "**", "//", " % ", ", ", ", "};
  std::string inner;
  for (const SizeExpression& argument : arguments_)
    inner += (inner.empty() ? "" : kSigns[static_cast<int>(kind_)]) + argument.text();
  const char* before = kind_ == Kind::Largest ? "max" : kind_ == Kind::Smallest ? "min" : "";
  return kind_ == Kind::Multiply ? inner : before + ("(" + inner + ")");
}

}  // namespace millrace
