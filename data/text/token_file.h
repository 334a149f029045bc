// Files of sentences as numbers of tokens: what training reads.
//
// All integers are little-endian.
//   header, 128 bytes: "MILLTOK\n"; u32 version 1; u32 bytes of a number, 2 or 4; u64 sentences; u64 tokens;
//     u64 size of the vocabulary; u32 kind of tokens (TokenKind); u32 what the vocabulary was padded to; 16
//     bytes fingerprint of the vocabulary; u64 tokens of the longest sentence; zeros; in the last 8 bytes
//     XXH3-64 of the 120 before them
//   the numbers, sentence after sentence; zeros up to a multiple of 8
//   sentences + 1 times u64: where a sentence starts, counted in tokens; the last is the number of tokens
//   XXH3-64 of each MiB of what is between header and here; then XXH3-64 of these sums
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/files/file_writer.h"
#include "data/text/vocabulary.h"
#include "runtime/base/result.h"

namespace millrace {

/// The header of a token file.
struct TokenFileInfo {
  std::uint64_t sentences = 0, tokens = 0;
  std::uint64_t longest = 0;          ///< tokens of the longest sentence
  std::uint64_t vocabulary_size = 0;  ///< every number is below
  TokenKind kind = TokenKind::Bpe;
  std::uint32_t vocabulary_padding = 0;  ///< Vocabulary::parse's pad_to
  std::uint32_t bytes_per_token = 2;
  Fingerprint vocabulary;
};

/// Writes one, sentence by sentence; memory does not grow with them (the index lies in an unnamed file beside
/// the output until the end). Throws DataError when the disk fails. The file gets its name at `commit`.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::filesystem::path& path, const Vocabulary& vocabulary,
                  std::int64_t vocabulary_padding);
  TokenFileWriter(TokenFileWriter&&) noexcept;
  ~TokenFileWriter();
  /// Numbers below the vocabulary's size.
  void write(std::span<const std::uint32_t> sentence);
  void commit();
  const TokenFileInfo& info() const { return info_; }

 private:
  class Spill;
  void put(std::string_view bytes);
  TokenFileInfo info_;
  FileWriter out_;
  std::unique_ptr<Spill> index_;
  std::string block_;  // less than a MiB: not hashed yet
  std::string sums_;
  std::string bytes_;
};

/// How much of a file is looked at when it is opened: all of it, or header, index and sizes (a damaged number
/// is then still below the vocabulary's size, or a failed check).
enum class TokenCheck { Everything, Index };

/// A token file, mapped. Thread-safe. Sentences carry neither begin nor end.
class TokenFile {
 public:
  /// Problems: no such file, a file of another kind or version, cut off, longer than it says, damaged (with
  /// the bytes among which), numbers outside of the vocabulary.
  static Result<TokenFile> open(const std::filesystem::path& path, TokenCheck check = TokenCheck::Everything);

  TokenFile(TokenFile&&) noexcept;
  TokenFile& operator=(TokenFile&&) noexcept;
  ~TokenFile();

  std::int64_t size() const { return static_cast<std::int64_t>(info_.sentences); }
  std::int64_t length(std::int64_t sentence) const;  ///< in tokens
  /// The sentence's numbers; `length(sentence)` of them.
  std::vector<std::uint32_t> tokens(std::int64_t sentence) const;
  void read(std::int64_t sentence, std::vector<std::uint32_t>& tokens) const;  ///< the same, into a buffer
  const TokenFileInfo& info() const { return info_; }
  const std::string& path() const { return path_; }

  /// A Problem if `vocabulary` is not the one whose numbers these are.
  Status belongs_to(const Vocabulary& vocabulary, const std::string& name) const;

 private:
  TokenFile() = default;
  Status map(const std::filesystem::path& path);
  Status read_header();
  Status check_sums(TokenCheck check) const;
  Status check_index() const;
  Status check_numbers() const;
  std::uint64_t start(std::uint64_t sentence) const;
  std::uint64_t index_offset() const;
  std::uint64_t sums_offset() const;

  std::string path_;
  TokenFileInfo info_;
  std::string_view bytes_;  // mapped
};

}  // namespace millrace
