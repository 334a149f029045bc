// The settings of a score in one line, in sacreBLEU's format. It ends in `impl:` instead of `version:`,
// because millrace is not sacreBLEU.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/metrics/bleu.h"

namespace millrace {

struct SignatureFacts {
  int num_references = 1;      ///< 0: differs between sentences
  int bootstrap = 0;           ///< resamples; 0: none
  int randomization = 0;       ///< trials of approximate randomization; 0: none
  std::uint64_t seed = 0;      ///< seed of the bootstrap or the randomization
  std::string implementation;  ///< "millrace-0.1.0"
};

enum class SignatureLength { Long, Short };

/// Returns keys and values in sacreBLEU's order: nrefs, bs, ar, seed, case, eff, tok, smooth, impl. For the
/// Perl scripts, `bleu` precedes them.
std::vector<std::pair<std::string, std::string>> signature_items(
    const BleuOptions& options, const SignatureFacts& facts, SignatureLength length = SignatureLength::Long);

/// Returns `nrefs:1|case:mixed|...`; for 1.2.10: `case.mixed+numrefs.1+...`.
std::string bleu_signature(const BleuOptions& options, const SignatureFacts& facts,
                           SignatureLength length = SignatureLength::Long);

/// Returns `82.4/50.0/45.5/37.5 (BP = 0.943 ratio = 0.944 hyp_len = 17 ref_len = 18)`.
std::string verbose_score(const Bleu& bleu);

}  // namespace millrace
