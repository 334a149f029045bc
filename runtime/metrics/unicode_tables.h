// The tables of scripts/unicode_tables. Ask through characters.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace millrace {

struct ClassRun {
  std::uint32_t first;  ///< code point; the run ends before the next one's
  std::uint16_t flags;  ///< CharacterClass
};

struct LowerRun {
  std::uint32_t first, last;
  std::uint8_t step;  ///< 1: every code point, 2: every other one
  std::int32_t delta;
};

extern const ClassRun kClassRuns[];
extern const std::size_t kNumClassRuns;
extern const LowerRun kLowerRuns[];
extern const std::size_t kNumLowerRuns;
extern const char* const kCategoriesUnicode;  ///< version of P, S and N: "18.0"
extern const char* const kCasingUnicode;      ///< version of white space, digits and lower case

}  // namespace millrace
