// The flags of `millrace translate`. LibTorch-free: `millrace` prints their --help.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "driver/flags/text_rules.h"

namespace millrace {

/// The program whose settings the search starts from. Flags change single settings.
enum class TranslatePreset { None, Pipedream, Mlperf };
constexpr auto names_of(TranslatePreset) {
  return std::to_array<std::string_view>({"none", "pipedream", "mlperf"});
}
/// The form of attention that the coverage penalty counts (models/translate/beam_search.h).
enum class CoverageForm { Exact, Compat };
constexpr auto names_of(CoverageForm) {
  return std::to_array<std::string_view>({"exact", "compat"});
}
enum class Detokenize { None, Moses };
constexpr auto names_of(Detokenize) {
  return std::to_array<std::string_view>({"none", "moses"});
}

inline constexpr int kMostTranslateRanks = 1024;

struct TranslateFlags {
  std::string checkpoint, input = "-", output = "-";
  std::string features;  ///< folder of videos' features: captions instead of translations
  std::vector<std::string> vocabulary;
  std::string codes;
  std::int64_t pad_to = 8;
  TranslatePreset preset = TranslatePreset::None;
  int beam = 5;
  std::int64_t max_length = 150;
  double length_penalty = 0.6, length_constant = 5, coverage_penalty = 0.1;
  CoverageForm coverage = CoverageForm::Exact;
  int batch = 64;
  std::int64_t max_source = 1024;
  int n_best = 0;
  Detokenize detokenize = Detokenize::None;
  int threads = 0;           ///< of each rank; 0: all cores
  std::optional<int> ranks;  ///< processes of this host; as many as stages if it is not given
  int stages = 1;            ///< ranks that hold the layers together
  std::string plan;          ///< whose stages they are
  std::chrono::milliseconds deadline{100'000};
  bool overwrite = false;
  TextRules rules;
  OutputFormat format = OutputFormat::Text;
};

CommandSpec translate_spec(TranslateFlags& flags);
CommandSpec translate_spec();

}  // namespace millrace
