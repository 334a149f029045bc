// Reads codes and vocabularies from their files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "data/text/bpe.h"
#include "data/text/vocabulary.h"

namespace millrace {

/// Reads codes from a file. Problems: the file cannot be read, and those of BpeCodes::parse.
Result<std::shared_ptr<const BpeCodes>> read_codes(const std::string& path, std::int64_t merges = -1);
/// Returns the codes restricted to the pieces of a file.
Result<std::shared_ptr<const BpeCodes>> restricted(const std::shared_ptr<const BpeCodes>& codes,
                                                   const std::string& path, std::int64_t threshold);
/// Reads a vocabulary from a file. Problems: the file cannot be read, and those of Vocabulary::parse.
Result<std::shared_ptr<const Vocabulary>> read_vocabulary(const std::string& path, TokenKind kind,
                                                          std::int64_t pad_to);

}  // namespace millrace
