#include "experiments/io/generate/file_check.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/text.h"

namespace millrace {

std::optional<std::string> first_difference(std::string_view found, std::string_view generated,
                                            std::int64_t offset) {
  if (found == generated) return std::nullopt;
  const auto [left, right] = std::mismatch(found.begin(), found.end(), generated.begin());
  return printed("byte %lld is 0x%02x, 0x%02x was generated",
                 static_cast<long long>(offset + (left - found.begin())),
                 static_cast<unsigned>(static_cast<unsigned char>(*left)),
                 static_cast<unsigned>(static_cast<unsigned char>(*right)));
}

FileCheck::FileCheck(const std::filesystem::path& path) : reader_(path, {}) {}

void FileCheck::fail(const std::string& what) const {
  throw DataError(reader_.path() + ": " + what, "remove the file and generate again: the rest is kept");
}

void FileCheck::compare(std::string_view generated) {
  const auto there = static_cast<std::size_t>(
      std::min<std::int64_t>(reader_.size() - at_, static_cast<std::int64_t>(generated.size())));
  const std::string_view found = reader_.read(at_, static_cast<std::int64_t>(there), buffer_);
  if (const auto wrong = first_difference(found, generated.substr(0, there), at_)) fail(*wrong);
  if (there < generated.size())
    fail("ends at byte " + std::to_string(reader_.size()) + ", more was generated");
  at_ += static_cast<std::int64_t>(there);
}

void FileCheck::write(std::string_view bytes) {
  compare(reserved_);
  reserved_.clear();
  compare(bytes);
}

char* FileCheck::reserve(std::size_t bytes) {
  compare(reserved_);
  reserved_.resize(bytes);
  return reserved_.data();
}

void FileCheck::finish() {
  write({});
  if (reader_.size() != at_)
    fail("goes on after byte " + std::to_string(at_) + ", where it ended when it was generated");
}

}  // namespace millrace
