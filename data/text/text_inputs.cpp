#include "data/text/text_inputs.h"

#include "runtime/base/files.h"

namespace millrace {

Result<std::shared_ptr<const BpeCodes>> read_codes(const std::string& path, std::int64_t merges) {
  const Result<std::string> text = read_regular_file(path);
  if (!text) return text.problems();
  Result<BpeCodes> codes = BpeCodes::parse(*text, path, merges);
  if (!codes) return codes.problems();
  return std::make_shared<const BpeCodes>(std::move(*codes));
}

Result<std::shared_ptr<const BpeCodes>> restricted(const std::shared_ptr<const BpeCodes>& codes,
                                                   const std::string& path, std::int64_t threshold) {
  const Result<std::string> text = read_regular_file(path);
  if (!text) return text.problems();
  BpeCodes fewer = *codes;
  if (const Status status = fewer.restrict_to(*text, path, threshold); !status) return status.problems();
  return std::make_shared<const BpeCodes>(std::move(fewer));
}

Result<std::shared_ptr<const Vocabulary>> read_vocabulary(const std::string& path, TokenKind kind,
                                                          std::int64_t pad_to) {
  const Result<std::string> text = read_regular_file(path);
  if (!text) return text.problems();
  Result<Vocabulary> vocabulary = Vocabulary::parse(*text, kind, path, pad_to);
  if (!vocabulary) return vocabulary.problems();
  return std::make_shared<const Vocabulary>(std::move(*vocabulary));
}

}  // namespace millrace
