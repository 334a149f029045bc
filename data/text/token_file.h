// Files of sentences as numbers of tokens, which training reads.
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
#include "runtime/base/mapped_file.h"
#include "runtime/base/result.h"

namespace millrace {

/// The header of a token file.
struct TokenFileInfo {
  std::uint64_t sentences = 0, tokens = 0;
  std::uint64_t longest = 0;          ///< tokens of the longest sentence
  std::uint64_t vocabulary_size = 0;  ///< every token's number is below it
  TokenKind kind = TokenKind::Bpe;
  std::uint32_t vocabulary_padding = 0;  ///< Vocabulary::parse's pad_to
  std::uint32_t bytes_per_token = 2;
  Fingerprint vocabulary;
};

/// Writes a token file sentence by sentence. Its memory does not grow with their number: until the end the
/// index is in an unnamed file next to the output. Throws DataError when the disk fails. The file gets its
/// name at `commit`.
class TokenFileWriter {
 public:
  TokenFileWriter(const std::filesystem::path& path, const Vocabulary& vocabulary,
                  std::int64_t vocabulary_padding);
  TokenFileWriter(TokenFileWriter&&) noexcept;
  ~TokenFileWriter();
  /// Adds a sentence. Its numbers must be below the vocabulary's size.
  void write(std::span<const std::uint32_t> sentence);
  void commit();
  const TokenFileInfo& info() const { return info_; }

 private:
  class Spill;
  void put(std::string_view bytes);
  TokenFileInfo info_;
  FileWriter out_;
  std::unique_ptr<Spill> index_;
  std::string block_;  // less than a MiB that is not hashed yet
  std::string sums_;
  std::string bytes_;
};

/// How much of a file is checked when it is opened: everything, or header, index and sizes. With Index, a
/// damaged number is found only if it is not below the vocabulary's size, by a failed check.
enum class TokenCheck { Everything, Index };

/// A token file in mapped memory. Thread-safe. Sentences have neither begin nor end.
class TokenFile {
 public:
  /// Opens a file. Problems: no such file, another kind or version, a file that is cut off or longer than its
  /// header says, damage (with the range of bytes), numbers outside of the vocabulary.
  static Result<TokenFile> open(const std::filesystem::path& path, TokenCheck check = TokenCheck::Everything);

  std::int64_t size() const { return static_cast<std::int64_t>(info_.sentences); }
  std::int64_t length(std::int64_t sentence) const;  ///< returns its number of tokens
  /// Returns the sentence's `length(sentence)` numbers.
  std::vector<std::uint32_t> tokens(std::int64_t sentence) const;
  void read(std::int64_t sentence, std::vector<std::uint32_t>& tokens) const;  ///< reads them into a buffer
  const TokenFileInfo& info() const { return info_; }
  const std::string& path() const { return path_; }

  /// Returns a Problem if the file was not made with `vocabulary`.
  Status belongs_to(const Vocabulary& vocabulary, const std::string& name) const;

 private:
  TokenFile() = default;
  Status read_header();
  Status check_sums(TokenCheck check) const;
  Status check_index() const;
  Status check_numbers() const;
  std::uint64_t start(std::uint64_t sentence) const;
  std::uint64_t index_offset() const;
  std::uint64_t sums_offset() const;

  std::string path_;
  TokenFileInfo info_;
  MappedFile mapped_;
  std::string_view bytes_;  // the mapped ones
};

}  // namespace millrace
