#include "data/text/token_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "data/files/little_endian.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/write_hint.h"

namespace millrace {
namespace {

constexpr std::string_view kMagic = "MILLTOK\n";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 128;
constexpr std::size_t kSummedBytes = std::size_t{1} << 20;  // each checksum covers so many bytes
constexpr std::uint64_t kMostSentences = std::uint64_t{1} << 48, kMostTokens = std::uint64_t{1} << 48;

std::string header_of(const TokenFileInfo& info) {
  std::string header(kMagic);
  put_little(header, kVersion);
  put_little(header, info.bytes_per_token);
  put_little(header, info.sentences);
  put_little(header, info.tokens);
  put_little(header, info.vocabulary_size);
  put_little(header, static_cast<std::uint32_t>(info.kind));
  put_little(header, info.vocabulary_padding);
  put_little(header, info.vocabulary.low);
  put_little(header, info.vocabulary.high);
  put_little(header, info.longest);
  header.resize(kHeaderBytes - 8);
  put_little(header, xxh3_64(header));
  return header;
}

std::uint64_t rounded_up(std::uint64_t bytes, std::uint64_t to) {
  return (bytes + to - 1) / to * to;
}

std::uint64_t number_at(std::string_view bytes, std::uint64_t offset, std::uint32_t width) {
  return width == 2 ? get_little<std::uint16_t>(bytes, offset) : get_little<std::uint32_t>(bytes, offset);
}

}  // namespace

/// Bytes in a file without a name, which disappears however the process ends.
class TokenFileWriter::Spill {
 public:
  explicit Spill(const std::filesystem::path& beside) : name_(beside.string() + ".index") {
    const std::filesystem::path folder = beside.parent_path();
    fd_ = ::open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd_ < 0) {  // the file system has no files without a name
      std::string name = name_ + ".XXXXXX";
      fd_ = ::mkostemp(name.data(), O_CLOEXEC);
      if (fd_ >= 0) ::unlink(name.c_str());
    }
    if (fd_ < 0) fail("creating it");
  }
  Spill(const Spill&) = delete;
  Spill& operator=(const Spill&) = delete;
  ~Spill() { ::close(fd_); }

  void add(std::uint64_t value) {
    put_little(waiting_, value);
    if (waiting_.size() >= kSummedBytes) flush();
  }

  template <class Use>
  void for_each_part(Use use) {
    flush();
    std::string part(kSummedBytes, '\0');
    for (off_t at = 0; at < size_;) {
      const ssize_t n = ::pread(fd_, part.data(), part.size(), at);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("read");
      use(std::string_view(part).substr(0, static_cast<std::size_t>(n)));
      at += n;
    }
  }

 private:
  [[noreturn]] void fail(const std::string& action) const {
    throw DataError(name_ + ": " + action + " failed: " + std::strerror(errno), write_hint(errno));
  }
  void flush() {
    for (std::size_t done = 0; done < waiting_.size();) {
      const ssize_t n = ::pwrite(fd_, waiting_.data() + done, waiting_.size() - done, size_);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("write");
      done += static_cast<std::size_t>(n);
      size_ += n;
    }
    waiting_.clear();
  }
  std::string name_;
  int fd_ = -1;
  std::string waiting_;
  off_t size_ = 0;
};

TokenFileWriter::TokenFileWriter(const std::filesystem::path& path, const Vocabulary& vocabulary,
                                 std::int64_t vocabulary_padding)
    : out_(path), index_(std::make_unique<Spill>(path)) {
  info_.vocabulary_size = vocabulary.size();
  info_.kind = vocabulary.kind();
  info_.vocabulary_padding = static_cast<std::uint32_t>(vocabulary_padding);
  info_.bytes_per_token = vocabulary.size() <= 65536 ? 2 : 4;
  info_.vocabulary = vocabulary.fingerprint();
  out_.write(std::string(kHeaderBytes, '\0'));
  index_->add(0);
}

TokenFileWriter::TokenFileWriter(TokenFileWriter&&) noexcept = default;
TokenFileWriter::~TokenFileWriter() = default;

/// Writes bytes behind the header, and adds a checksum for each full MiB.
void TokenFileWriter::put(std::string_view bytes) {
  out_.write(bytes);
  while (!bytes.empty()) {
    const std::size_t part = std::min(bytes.size(), kSummedBytes - block_.size());
    block_.append(bytes.substr(0, part));
    bytes.remove_prefix(part);
    if (block_.size() < kSummedBytes) return;
    put_little(sums_, xxh3_64(block_));
    block_.clear();
  }
}

void TokenFileWriter::write(std::span<const std::uint32_t> sentence) {
  bytes_.clear();
  for (const std::uint32_t number : sentence) {
    MILLRACE_CHECK(number < info_.vocabulary_size);
    if (info_.bytes_per_token == 2) {
      put_little(bytes_, static_cast<std::uint16_t>(number));
    } else {
      put_little(bytes_, number);
    }
  }
  put(bytes_);
  ++info_.sentences;
  info_.tokens += sentence.size();
  info_.longest = std::max<std::uint64_t>(info_.longest, sentence.size());
  index_->add(info_.tokens);
}

void TokenFileWriter::commit() {
  const std::uint64_t bytes = info_.tokens * info_.bytes_per_token;
  put(std::string(rounded_up(bytes, 8) - bytes, '\0'));
  index_->for_each_part([&](std::string_view part) { put(part); });
  if (!block_.empty()) put_little(sums_, xxh3_64(block_));
  put_little(sums_, xxh3_64(sums_));
  out_.write(sums_);
  out_.patch(0, header_of(info_));
  out_.commit(Durability::Synced);
}

Result<TokenFile> TokenFile::open(const std::filesystem::path& path, TokenCheck check) {
  Result<MappedFile> mapped = MappedFile::open(path.string());
  if (!mapped) return mapped.problems();
  TokenFile file;
  file.path_ = path.string();
  file.mapped_ = *std::move(mapped);
  file.bytes_ = file.mapped_.bytes();
  if (const Status status = file.read_header(); !status) return status.problems();
  if (const Status status = file.check_sums(check); !status) return status.problems();
  if (const Status status = file.check_index(); !status) return status.problems();
  if (check == TokenCheck::Everything) {
    if (const Status status = file.check_numbers(); !status) return status.problems();
  }
  return file;
}

Status TokenFile::read_header() {
  const std::string hint = "`millrace data text encode` makes token files";
  if (bytes_.substr(0, kMagic.size()) != kMagic) return Problem{path_, "is no token file", hint};
  if (bytes_.size() < kHeaderBytes)
    return Problem{path_, "is cut off in its header, at byte " + std::to_string(bytes_.size()),
                   "encode again"};
  const auto version = get_little<std::uint32_t>(bytes_, 8);
  if (version != kVersion)
    return Problem{path_, "is a token file of version " + std::to_string(version) + ", expected 1",
                   "encode again"};
  if (get_little<std::uint64_t>(bytes_, kHeaderBytes - 8) != xxh3_64(bytes_.substr(0, kHeaderBytes - 8)))
    return Problem{path_, "is damaged in its header, bytes 0 to 128", "encode again, or copy it again"};
  info_.bytes_per_token = get_little<std::uint32_t>(bytes_, 12);
  info_.sentences = get_little<std::uint64_t>(bytes_, 16);
  info_.tokens = get_little<std::uint64_t>(bytes_, 24);
  info_.vocabulary_size = get_little<std::uint64_t>(bytes_, 32);
  info_.kind = static_cast<TokenKind>(get_little<std::uint32_t>(bytes_, 40));
  info_.vocabulary_padding = get_little<std::uint32_t>(bytes_, 44);
  info_.vocabulary.low = get_little<std::uint64_t>(bytes_, 48);
  info_.vocabulary.high = get_little<std::uint64_t>(bytes_, 56);
  info_.longest = get_little<std::uint64_t>(bytes_, 64);
  if ((info_.bytes_per_token != 2 && info_.bytes_per_token != 4) || info_.sentences > kMostSentences ||
      info_.tokens > kMostTokens || info_.kind < TokenKind::Bpe || info_.kind > TokenKind::SentencePiece)
    return Problem{path_, "has a header that makes no sense", "encode again"};
  const std::uint64_t summed = sums_offset() - kHeaderBytes;
  const std::uint64_t expected = sums_offset() + 8 * (rounded_up(summed, kSummedBytes) / kSummedBytes + 1);
  if (bytes_.size() != expected)
    return Problem{path_,
                   std::string(bytes_.size() < expected ? "is cut off: " : "has something behind its end: ") +
                       std::to_string(bytes_.size()) + " bytes, expected " + std::to_string(expected),
                   "encode again, or copy it again"};
  return Ok{};
}

std::uint64_t TokenFile::index_offset() const {
  return kHeaderBytes + rounded_up(info_.tokens * info_.bytes_per_token, 8);
}

std::uint64_t TokenFile::sums_offset() const {
  return index_offset() + 8 * (info_.sentences + 1);
}

Status TokenFile::check_sums(TokenCheck check) const {
  const std::string_view sums = bytes_.substr(sums_offset(), bytes_.size() - sums_offset() - 8);
  if (get_little<std::uint64_t>(bytes_, bytes_.size() - 8) != xxh3_64(sums))
    return Problem{path_,
                   "is damaged in its check sums, bytes " + std::to_string(sums_offset()) + " to " +
                       std::to_string(bytes_.size()),
                   "encode again, or copy it again"};
  const std::string_view summed = bytes_.substr(kHeaderBytes, sums_offset() - kHeaderBytes);
  const std::uint64_t first =
      check == TokenCheck::Everything ? 0 : (index_offset() - kHeaderBytes) / kSummedBytes * kSummedBytes;
  for (std::uint64_t at = first; at < summed.size(); at += kSummedBytes) {
    const std::string_view block = summed.substr(at, kSummedBytes);
    if (get_little<std::uint64_t>(sums, at / kSummedBytes * 8) == xxh3_64(block)) continue;
    return Problem{path_,
                   "is damaged between bytes " + std::to_string(kHeaderBytes + at) + " and " +
                       std::to_string(kHeaderBytes + at + block.size()),
                   "encode again, or copy it again"};
  }
  return Ok{};
}

Status TokenFile::check_index() const {
  std::uint64_t longest = 0;
  for (std::uint64_t i = 0; i < info_.sentences; ++i) {
    if (start(i) > start(i + 1))
      return Problem{path_, "has an index that goes back at sentence " + std::to_string(i), "encode again"};
    longest = std::max(longest, start(i + 1) - start(i));
  }
  if (start(0) != 0 || start(info_.sentences) != info_.tokens || longest != info_.longest)
    return Problem{path_, "has an index that does not fit its header", "encode again"};
  return Ok{};
}

Status TokenFile::check_numbers() const {
  for (std::uint64_t i = 0; i < info_.tokens; ++i) {
    const std::uint64_t number =
        number_at(bytes_, kHeaderBytes + i * info_.bytes_per_token, info_.bytes_per_token);
    if (number >= info_.vocabulary_size)
      return Problem{path_,
                     "has number " + std::to_string(number) + " at token " + std::to_string(i) +
                         ", its vocabulary has " + std::to_string(info_.vocabulary_size),
                     "encode again"};
  }
  return Ok{};
}

std::uint64_t TokenFile::start(std::uint64_t sentence) const {
  return get_little<std::uint64_t>(bytes_, index_offset() + 8 * sentence);
}

std::int64_t TokenFile::length(std::int64_t sentence) const {
  MILLRACE_CHECK(sentence >= 0 && sentence < size(), sentence);
  const auto i = static_cast<std::uint64_t>(sentence);
  return static_cast<std::int64_t>(start(i + 1) - start(i));
}

void TokenFile::read(std::int64_t sentence, std::vector<std::uint32_t>& tokens) const {
  tokens.resize(length(sentence));
  const std::uint64_t first = start(static_cast<std::uint64_t>(sentence));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::uint64_t number =
        number_at(bytes_, kHeaderBytes + (first + i) * info_.bytes_per_token, info_.bytes_per_token);
    MILLRACE_CHECK(number < info_.vocabulary_size, path_ << " changed, or is damaged");
    tokens[i] = static_cast<std::uint32_t>(number);
  }
}

std::vector<std::uint32_t> TokenFile::tokens(std::int64_t sentence) const {
  std::vector<std::uint32_t> result;
  read(sentence, result);
  return result;
}

Status TokenFile::belongs_to(const Vocabulary& vocabulary, const std::string& name) const {
  if (vocabulary.fingerprint() == info_.vocabulary) return Ok{};
  return Problem{path_,
                 "was made with another vocabulary (" + info_.vocabulary.hex() + ", " +
                     std::to_string(info_.vocabulary_size) + " " + to_string(info_.kind) + " tokens) than " +
                     name + " (" + vocabulary.fingerprint().hex() + ", " + std::to_string(vocabulary.size()) +
                     ")",
                 "give the vocabulary that `millrace data text encode` was given"};
}

}  // namespace millrace
