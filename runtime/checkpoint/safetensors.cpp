#include "runtime/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include <ATen/ops/empty.h>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "runtime/base/unfinished_file.h"

namespace millrace {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;

struct NamedType {
  at::ScalarType type;
  const char* name;
};
constexpr NamedType kTypes[] = {{at::kFloat, "F32"},     {at::kLong, "I64"},        {at::kBool, "BOOL"},
                                {at::kInt, "I32"},       {at::kShort, "I16"},       {at::kChar, "I8"},
                                {at::kByte, "U8"},       {at::kDouble, "F64"},      {at::kHalf, "F16"},
                                {at::kBFloat16, "BF16"}, {at::kComplexFloat, "C64"}};

class OutputFile {
 public:
  OutputFile(std::string path, std::int64_t bytes)
      : path_(std::move(path)), unfinished_(path_), needed_(bytes), fd_(fresh(path_)) {
    if (fd_ < 0) fail("open");
  }
  ~OutputFile() {
    if (fd_ >= 0) {
      ::close(fd_);
      ::unlink(path_.c_str());
    }
  }
  void write(const void* data, std::size_t bytes) {
    hash_.add(data, bytes);
    written_ += static_cast<std::int64_t>(bytes);
    const char* p = static_cast<const char*>(data);
    while (bytes) {
      const ssize_t n = ::write(fd_, p, bytes);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("write");
      p += n;
      bytes -= static_cast<std::size_t>(n);
    }
  }
  FileDigest commit(const std::string& final_path) {
    if (::fsync(fd_) != 0) fail("fsync");
    if (::close(std::exchange(fd_, -1)) != 0) fail("close");
    if (::rename(path_.c_str(), final_path.c_str()) != 0) fail("rename");
    return {.bytes = written_, .hash = hash_.value()};
  }

 private:
  /// A file or link that is there under this name is not written through.
  static int fresh(const std::string& path) {
    ::unlink(path.c_str());
    return ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  }
  [[noreturn]] void fail(const char* what) {
    const int error = errno;
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    ::unlink(path_.c_str());  // first, so that the free bytes are counted without the file
    std::string text = path_ + ": " + what + " failed: " + std::strerror(error);
    std::error_code unknown;
    const auto space = std::filesystem::space(std::filesystem::path(path_).parent_path(), unknown);
    if (!unknown && (error == ENOSPC || error == EDQUOT || error == EFBIG)) {
      text += " (it needs " + std::to_string(needed_) + " bytes, " + std::to_string(space.available) +
              " are free)";
    }
    throw CheckpointError(text, "is the disk full or the folder read-only?");
  }
  std::string path_;
  UnfinishedFile unfinished_;
  std::int64_t needed_;
  int fd_;
  Xxh3 hash_;
  std::int64_t written_ = 0;
};

std::string header_of(const NamedTensors& tensors) {
  Json header = Json::object();
  std::int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const char* type = safetensors_name(tensor.scalar_type());
    if (!type) throw CheckpointError(name + " is of a type that cannot be saved");
    Json shape = Json::array();
    for (std::int64_t d : tensor.sizes()) shape.push_back(d);
    const std::int64_t end = offset + static_cast<std::int64_t>(tensor.nbytes());
    Json offsets = Json::array();
    offsets.push_back(offset);
    offsets.push_back(end);
    header[name] = Json::object({{"dtype", type}, {"shape", shape}, {"data_offsets", offsets}});
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

/// Tells a pickle or a zip file by its first bytes. They may also be the length of a safetensors header,
/// whose first byte then says what it is.
bool is_pickle(std::string_view file) {
  const bool may_be = file.starts_with("PK\3\4") || (file[0] == '\x80' && file[1] >= 2 && file[1] <= 5);
  return may_be && (file.size() < 9 || file[8] != '{');
}

}  // namespace

const char* safetensors_name(at::ScalarType type) {
  const auto* named = std::ranges::find(kTypes, type, &NamedType::type);
  return named == std::end(kTypes) ? nullptr : named->name;
}

FileDigest write_safetensors(const std::string& path, const NamedTensors& tensors) {
  const std::string header = header_of(tensors);
  auto bytes = static_cast<std::int64_t>(8 + header.size());
  for (const auto& [name, tensor] : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  OutputFile file(path + ".tmp." + std::to_string(::getpid()), bytes);
  const std::uint64_t length = header.size();
  file.write(&length, sizeof length);
  file.write(header.data(), header.size());
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor plain = tensor.cpu().contiguous();
    file.write(plain.const_data_ptr(), plain.nbytes());
  }
  return file.commit(path);
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Problem{path, std::string("cannot be opened: ") + std::strerror(errno), {}};
  struct stat info {};
  ::fstat(fd, &info);
  SafetensorsFile file;
  file.path_ = path;
  file.size_ = static_cast<std::size_t>(info.st_size);
  if (file.size_ < 8) {
    ::close(fd);
    return Problem{
        path,
        "is truncated: " + std::to_string(file.size_) + " bytes, a safetensors file has at least 8",
        {}};
  }
  void* mapped = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, fd, 0);
  ::close(fd);
  if (mapped == MAP_FAILED)
    return Problem{path, std::string("cannot be mapped: ") + std::strerror(errno), {}};
  file.data_ = static_cast<const char*>(mapped);
  if (is_pickle({file.data_, file.size_})) {
    return Problem{path, "is a pickle file of PyTorch, which is never read: it could run code",
                   "write one that holds nothing but tensors: safetensors.torch.save_file(torch.load(PATH, "
                   "weights_only=True), NEW)"};
  }
  std::uint64_t length;
  std::memcpy(&length, file.data_, 8);
  if (length > kMaxHeader || length > file.size_ - 8) {
    return Problem{path,
                   "header length " + std::to_string(length) + " does not fit the file of " +
                       std::to_string(file.size_) + " bytes",
                   "the file is truncated or not safetensors"};
  }
  file.payload_ = 8 + length;
  Result<Json> header = parse_json(std::string_view(file.data_ + 8, length), path + " (header)");
  if (!header) return header.problems();
  if (!header->is_object()) return Problem{path, "the header is not an object", {}};
  const std::uint64_t payload_bytes = file.size_ - file.payload_;
  for (const auto& [name, value] : header->members()) {
    if (name == "__metadata__") continue;
    Problems problems;
    ObjectReader in(value, problems);
    Entry entry;
    const std::string dtype = in.string("dtype");
    const Json* shape = in.array("shape");
    const Json* offsets = in.array("data_offsets");
    in.finish();
    if (!problems.empty()) return problems;
    const auto* type = std::ranges::find_if(kTypes, [&](const NamedType& t) { return dtype == t.name; });
    if (type == std::end(kTypes))
      return Problem{path, name + ": dtype " + dtype + " is not supported", "expected F32, I64, ..., BOOL"};
    entry.type = type->type;
    std::uint64_t bytes = c10::elementSize(entry.type);
    for (const Json& d : shape->items()) {
      if (d.kind() != Json::Kind::Int || d.as_int() < 0) return Problem{path, name + ": bad shape", {}};
      entry.shape.push_back(d.as_int());
      if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(d.as_int()), &bytes))
        return Problem{path, name + ": shape overflows", {}};
    }
    const bool pair = offsets->size() == 2 && offsets->items()[0].kind() == Json::Kind::Int &&
                      offsets->items()[1].kind() == Json::Kind::Int;
    if (!pair) return Problem{path, name + ": data_offsets must be two integers", {}};
    entry.begin = static_cast<std::uint64_t>(offsets->items()[0].as_int());
    entry.end = static_cast<std::uint64_t>(offsets->items()[1].as_int());
    if (entry.end < entry.begin || entry.end - entry.begin != bytes || entry.end > payload_bytes) {
      return Problem{path,
                     name + ": bytes " + std::to_string(entry.begin) + ".." + std::to_string(entry.end) +
                         " do not fit its shape or the file (" + std::to_string(payload_bytes) +
                         " bytes of tensors)",
                     "the file is truncated or damaged"};
    }
    file.names_.push_back(name);
    file.entries_.emplace(name, std::move(entry));
  }
  // The header may name tensors in another order than their bytes have. Holes and overlaps between their
  // bytes are refused.
  std::vector<std::string> by_place = file.names_;
  const auto range_of = [&](const std::string& name) {
    const Entry& entry = file.entries_.at(name);
    return std::pair(entry.begin, entry.end);
  };
  std::ranges::sort(by_place, {}, range_of);
  std::uint64_t expected_begin = 0;
  for (const std::string& name : by_place) {
    const auto [begin, end] = range_of(name);
    if (begin != expected_begin) {
      return Problem{path,
                     name + " begins at byte " + std::to_string(begin) + " of the tensors, expected " +
                         std::to_string(expected_begin),
                     "the file is damaged: tensors overlap or leave a hole"};
    }
    expected_begin = end;
  }
  if (expected_begin != payload_bytes)
    return Problem{path,
                   "has " + std::to_string(payload_bytes) + " bytes of tensors, its header says " +
                       std::to_string(expected_begin),
                   {}};
  return file;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_),
      payload_(other.payload_),
      names_(std::move(other.names_)),
      entries_(std::move(other.entries_)) {}

SafetensorsFile::~SafetensorsFile() {
  if (data_) ::munmap(const_cast<char*>(data_), size_);
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const Entry& entry = entries_.at(name);
  at::Tensor result = at::empty(entry.shape, entry.type);
  std::memcpy(result.mutable_data_ptr(), data_ + payload_ + entry.begin, entry.end - entry.begin);
  return result;
}

FileDigest SafetensorsFile::digest() const {
  return {.bytes = bytes(), .hash = xxh3(data_, size_)};
}

}  // namespace millrace
