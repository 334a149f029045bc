#include "runtime/saved/tensor_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/failpoint.h"
#include "runtime/base/json.h"
#include "runtime/base/unfinished_file.h"
#include "runtime/base/write_hint.h"

namespace millrace {
namespace {

constexpr std::uint64_t kMaxHeader = 100'000'000;

std::string header_of(const std::vector<TensorShape>& tensors) {
  Json header = Json::object();
  std::int64_t offset = 0;
  for (const TensorShape& tensor : tensors) {
    Json shape = Json::array();
    for (std::int64_t d : tensor.shape) shape.push_back(d);
    const std::int64_t end = offset + static_cast<std::int64_t>(tensor.bytes());
    Json offsets = Json::array();
    offsets.push_back(offset);
    offsets.push_back(end);
    header[tensor.name] =
        Json::object({{"dtype", to_string(tensor.type)}, {"shape", shape}, {"data_offsets", offsets}});
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

/// Returns whether byte 8 starts a JSON header. The bytes before it, a safetensors header's length, may look
/// like a pickle.
bool is_header(std::string_view file) {
  return file.size() > 8 && file[8] == '{';
}

/// Returns whether the first bytes are those of a pickle.
bool is_pickle(std::string_view file) {
  return file[0] == '\x80' && file[1] >= 2 && file[1] <= 5 && !is_header(file);
}

}  // namespace

bool is_torch_save(std::string_view begin) {
  return begin.starts_with(kLegacyMagic) || (begin.starts_with("PK\3\4") && !is_header(begin));
}

std::size_t bytes_of(ElementType type) {
  constexpr std::size_t kBytes[] = {4, 8, 1, 4, 2, 1, 1, 8, 2, 2, 8};  // in the order of the names
  return kBytes[static_cast<std::size_t>(type)];
}

std::uint64_t TensorShape::bytes() const {
  std::uint64_t bytes = bytes_of(type);
  for (const std::int64_t d : shape) bytes *= static_cast<std::uint64_t>(d);
  return bytes;
}

// ---- writing

class TensorFileWriter::Output {
 public:
  Output(std::string path, std::int64_t bytes)
      : path_(std::move(path)), unfinished_(path_), needed_(bytes), fd_(fresh(path_)) {
    if (fd_ < 0) fail("open");
  }
  ~Output() {
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
      const ssize_t n = reach_file_call() ? ::write(fd_, p, bytes) : -1;
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("write");
      p += n;
      bytes -= static_cast<std::size_t>(n);
    }
  }
  FileDigest commit(const std::string& final_path) {
    if (!reach_file_call() || ::fsync(fd_) != 0) fail("fsync");
    if (::close(std::exchange(fd_, -1)) != 0) fail("close");
    if (!reach_file_call() || ::rename(path_.c_str(), final_path.c_str()) != 0) fail("rename");
    return {.bytes = written_, .hash = hash_.value()};
  }

 private:
  /// Creates a new file. An existing file or link of this name is not written through.
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
    throw CheckpointError(text, write_hint(error, "is the disk full or the folder read-only?"));
  }
  std::string path_;
  UnfinishedFile unfinished_;
  std::int64_t needed_;
  int fd_;
  Xxh3 hash_;
  std::int64_t written_ = 0;
};

TensorFileWriter::TensorFileWriter(const std::string& path, const std::vector<TensorShape>& tensors)
    : path_(path) {
  const std::string header = header_of(tensors);
  for (const TensorShape& tensor : tensors) missing_ += tensor.bytes();
  output_ = std::make_unique<Output>(path + ".tmp." + std::to_string(::getpid()),
                                     static_cast<std::int64_t>(8 + header.size() + missing_));
  const std::uint64_t length = header.size();
  output_->write(&length, sizeof length);
  output_->write(header.data(), header.size());
}

TensorFileWriter::~TensorFileWriter() = default;

void TensorFileWriter::add(const void* data, std::size_t bytes) {
  MILLRACE_CHECK(bytes <= missing_, path_);
  missing_ -= bytes;
  output_->write(data, bytes);
}

FileDigest TensorFileWriter::commit() {
  MILLRACE_CHECK(missing_ == 0, path_);
  return output_->commit(path_);
}

// ---- reading

Result<TensorFile> TensorFile::open(const std::string& path) {
  Result<MappedFile> mapped = MappedFile::open(path);
  if (!mapped) return mapped.problems();
  TensorFile file;
  file.path_ = path;
  file.file_ = *std::move(mapped);
  if (file.file_.bytes().size() < 8) {
    return Problem{
        path,
        "is truncated: " + std::to_string(file.bytes()) + " bytes, a safetensors file has at least 8",
        {}};
  }
  const std::string in_python =
      "in Python: safetensors.torch.save_file(torch.load(PATH, weights_only=True), NEW)";
  if (is_torch_save(file.file_.bytes()))
    return Problem{path, "is a file of torch.save, which is not read here: its pickle could run code",
                   "`millrace checkpoint import " + path +
                       " DIR --model NAME` makes a checkpoint of a state_dict: give DIR here. Or " +
                       in_python};
  if (is_pickle(file.file_.bytes()))
    return Problem{path,
                   "is a pickle, but not one that torch.save writes: it is not read, as it could run code",
                   in_python};
  if (Status read = file.read_header(); !read) return read.problems();
  if (Status placed = file.check_places(); !placed) return placed.problems();
  return file;
}

/// Reads names, types, shapes and offsets.
Status TensorFile::read_header() {
  const std::string_view file = file_.bytes();
  std::uint64_t length;
  std::memcpy(&length, file.data(), 8);
  if (length > kMaxHeader || length > file.size() - 8) {
    return Problem{path_,
                   "header length " + std::to_string(length) + " does not fit the file of " +
                       std::to_string(file.size()) + " bytes",
                   "the file is truncated or not safetensors"};
  }
  payload_ = 8 + length;
  Result<Json> header = parse_json(file.substr(8, length), path_ + " (header)");
  if (!header) return header.problems();
  if (!header->is_object()) return Problem{path_, "the header is not an object", {}};
  const std::uint64_t payload_bytes = file.size() - payload_;
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
    const std::optional<ElementType> type = value_named<ElementType>(dtype);
    if (!type)
      return Problem{path_, name + ": dtype " + dtype + " is not supported", "expected F32, I64, ..., BOOL"};
    entry.type = *type;
    std::uint64_t bytes = bytes_of(entry.type);
    for (const Json& d : shape->items()) {
      if (d.kind() != Json::Kind::Int || d.as_int() < 0) return Problem{path_, name + ": bad shape", {}};
      entry.shape.push_back(d.as_int());
      if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(d.as_int()), &bytes))
        return Problem{path_, name + ": shape overflows", {}};
    }
    const bool pair = offsets->size() == 2 && offsets->items()[0].kind() == Json::Kind::Int &&
                      offsets->items()[1].kind() == Json::Kind::Int;
    if (!pair) return Problem{path_, name + ": data_offsets must be two integers", {}};
    entry.begin = static_cast<std::uint64_t>(offsets->items()[0].as_int());
    entry.end = static_cast<std::uint64_t>(offsets->items()[1].as_int());
    if (entry.end < entry.begin || entry.end - entry.begin != bytes || entry.end > payload_bytes) {
      return Problem{path_,
                     name + ": bytes " + std::to_string(entry.begin) + ".." + std::to_string(entry.end) +
                         " do not fit its shape or the file (" + std::to_string(payload_bytes) +
                         " bytes of tensors)",
                     "the file is truncated or damaged"};
    }
    names_.push_back(name);
    entries_.emplace(name, std::move(entry));
  }
  return Ok{};
}

/// Returns an error for holes and overlaps between the bytes of tensors. The header may list tensors in
/// another order than their data.
Status TensorFile::check_places() const {
  const std::uint64_t payload_bytes = file_.bytes().size() - payload_;
  std::vector<std::string> by_place = names_;
  const auto range_of = [&](const std::string& name) {
    const Entry& entry = entries_.at(name);
    return std::pair(entry.begin, entry.end);
  };
  std::ranges::sort(by_place, {}, range_of);
  std::uint64_t expected_begin = 0;
  for (const std::string& name : by_place) {
    const auto [begin, end] = range_of(name);
    if (begin != expected_begin) {
      return Problem{path_,
                     name + " begins at byte " + std::to_string(begin) + " of the tensors, expected " +
                         std::to_string(expected_begin),
                     "the file is damaged: tensors overlap or leave a hole"};
    }
    expected_begin = end;
  }
  if (expected_begin != payload_bytes)
    return Problem{path_,
                   "has " + std::to_string(payload_bytes) + " bytes of tensors, its header says " +
                       std::to_string(expected_begin),
                   {}};
  return Ok{};
}

std::string_view TensorFile::elements(const std::string& name) const {
  const Entry& entry = entries_.at(name);
  return file_.bytes().substr(payload_ + entry.begin, entry.end - entry.begin);
}

FileDigest TensorFile::digest() const {
  return {.bytes = bytes(), .hash = xxh3(file_.bytes().data(), file_.bytes().size())};
}

}  // namespace millrace
