// BPE codes, and a word split by them.
#include "data/text/bpe.h"
#include "data/text/unicode.h"
#include "tests/fuzz/fuzz_harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const std::string_view text = text_of(data, size);
  Result<BpeCodes> codes = BpeCodes::parse(text, "fuzz");
  if (!codes) return require_explained(codes), 0;
  const std::string_view word = text.substr(0, std::min<std::size_t>(text.find('\n'), 300));
  if (word.empty() || first_invalid_utf8(word) != std::string_view::npos) return 0;
  for (const bool restricted : {false, true}) {
    if (restricted && !codes->restrict_to("a 1\nb@@ 1\n", "vocabulary")) return 0;
    std::vector<std::uint32_t> ends;
    codes->split(word, ends);
    std::uint32_t before = 0;
    for (const std::uint32_t end : ends) {
      require(end > before);
      before = end;
    }
    require(before == word.size());
  }
  return 0;
}
