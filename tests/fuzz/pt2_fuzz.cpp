// Exported programs: archives, graphs and size expressions.
#include "models/archive/exported_program.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const std::string_view bytes = text_of(data, size);
  if (bytes.starts_with("PK")) {
    const auto archive = ExportedArchive::parse(bytes, "fuzz");
    if (!archive) return require_explained(archive), 0;
    for (const auto& [name, stored] : (*archive)->program().stored)
      require((*archive)->storage(stored).size() <= size);
    return 0;
  }
  if (bytes.starts_with("{")) {
    const auto program = parse_exported_program(bytes, "fuzz");
    if (!program) require_explained(program);
    return 0;
  }
  const auto expression = SizeExpression::parse(bytes, "fuzz");
  if (!expression) return require_explained(expression), 0;
  std::set<std::string> symbols;
  expression->collect_symbols(symbols);
  SymbolValues values;
  for (const std::string& symbol : symbols) values[symbol] = static_cast<std::int64_t>(values.size()) * 7 + 2;
  require(!expression->text().empty());
  const auto value = expression->value(values);
  require(!expression->is_number() || value == expression->number());
  return 0;
}
