#include "data/files/sample_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <utility>
#include <vector>

#include "data/files/crc32c.h"
#include "data/files/hdf5.h"
#include "data/files/images.h"
#include "data/files/little_endian.h"
#include "data/files/npy.h"
#include "data/files/tfrecord.h"
#include "data/files/webp.h"
#include "data/files/zip.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"

namespace millrace {
namespace {

constexpr const char* kNames[] = {
    "npz",      "npy", "tfrecord", "csv", "jpeg", "png", "hdf5", "indexed_binary", "mmap_indexed_binary",
    "synthetic"};

template <class T>
T value_or_throw(Result<T> result) {
  if (result) return std::move(result).value();
  const Problem& problem = result.problems().front();
  throw DataError(problem.where + ": " + problem.what, problem.hint);
}

void check_index(const std::string& path, std::int64_t index, std::int64_t count) {
  if (index < 0 || index >= count)
    throw DataError(path + ": has " + std::to_string(count) + " samples, number " + std::to_string(index) +
                        " was asked for",
                    "dataset.num_samples_per_file must be what the data were generated with");
}

/// One array whose last dimension counts the samples, as DLIO writes them; the whole file is in memory.
class ArrayFile : public SampleFile {
 public:
  ArrayFile(const std::string& path, const ReadOptions& options) : path_(path) {
    const FileReader file(path, options);
    whole_ = file.read(0, file.size(), buffer_);
  }
  std::int64_t num_samples() const override { return count_; }
  Bytes bytes_read() const override { return static_cast<Bytes>(whole_.size()); }
  std::string_view sample(std::int64_t index) override {
    check_index(path_, index, count_);
    if (count_ == 1) return data_;
    const auto element = static_cast<std::size_t>(element_),
               stride = element * static_cast<std::size_t>(count_);
    sample_.resize(data_.size() / static_cast<std::size_t>(count_));
    const char* from = data_.data() + static_cast<std::size_t>(index) * element;
    for (std::size_t to = 0; to < sample_.size(); to += element, from += stride)
      std::memcpy(sample_.data() + to, from, element);
    return sample_;
  }

 protected:
  void take(std::string_view array, const std::string& name) {
    const NpyHeader header = value_or_throw(parse_npy(array, name));
    if (header.shape.size() < 2 || header.fortran_order)
      throw DataError(name + ": expected an array in C order whose last dimension counts the samples");
    data_ = array.substr(header.data_offset);
    element_ = header.element_bytes;
    count_ = header.shape.back();
  }
  std::string path_;
  std::string_view whole_;

 private:
  AlignedBuffer buffer_;
  std::string_view data_;
  std::int64_t element_ = 1, count_ = 0;
  std::string sample_;
};

class NpyFile final : public ArrayFile {
 public:
  NpyFile(const std::string& path, const ReadOptions& options) : ArrayFile(path, options) {
    take(whole_, path_);
  }
};

class NpzFile final : public ArrayFile {
 public:
  NpzFile(const std::string& path, const ReadOptions& options) : ArrayFile(path, options) {
    const std::vector<ZipMember> members = value_or_throw(parse_zip(whole_, path_));
    for (const ZipMember& member : members) {
      if (member.name != "x.npy") continue;
      take(value_or_throw(zip_member(whole_, member, unpacked_, path_)), path_ + ":x.npy");
      return;
    }
    throw DataError(path_ + ": has no array x", "generate the data with DLIO or `millrace dlio`");
  }

 private:
  std::string unpacked_;
};

class TfRecordFile final : public SampleFile {
 public:
  TfRecordFile(const std::string& path, const std::string& index, const ReadOptions& options)
      : file_(path, options) {
    if (index.empty() || !read_index(index)) scan();
  }
  std::int64_t num_samples() const override { return static_cast<std::int64_t>(places_.size()); }
  Bytes bytes_read() const override { return bytes_; }
  std::string_view sample(std::int64_t index) override {
    check_index(file_.path(), index, num_samples());
    const auto [offset, bytes] = places_[index];
    const std::string_view record = file_.read(offset, bytes, buffer_);
    bytes_ += bytes;
    TfRecordReader reader(record, file_.path() + ": record at byte " + std::to_string(offset));
    const std::string_view payload = value_or_throw(reader.next());
    return value_or_throw(example_bytes(payload, "image", file_.path()));
  }

 private:
  /// Reads an index file with "offset length" on each line. Returns false if it is absent or belongs to
  /// another file.
  bool read_index(const std::string& path) {
    const Result<std::string> text = read_file(path, kGiB);
    if (!text) return false;
    const char *at = text->data(), *const end = at + text->size();
    std::int64_t expected = 0;
    while (at < end) {
      std::int64_t offset = 0, bytes = 0;
      auto number = std::from_chars(at, end, offset);
      if (number.ec != std::errc{} || number.ptr == end || *number.ptr != ' ') break;
      number = std::from_chars(number.ptr + 1, end, bytes);
      if (number.ec != std::errc{} || offset != expected || bytes <= 16) break;
      if (number.ptr < end && *number.ptr != '\n') break;
      places_.emplace_back(offset, bytes);
      expected = offset + bytes;
      at = number.ptr + 1;
    }
    if (at >= end && expected == file_.size()) return true;
    places_.clear();  // the index belongs to another file, so the records themselves are read
    return false;
  }
  void scan() {
    for (std::int64_t at = 0; at < file_.size();) {
      const std::string where = file_.path() + ":byte " + std::to_string(at);
      const auto head = static_cast<std::int64_t>(kTfRecordHead),
                 tail = static_cast<std::int64_t>(kTfRecordTail);
      const std::uint64_t length = value_or_throw(tfrecord_length(file_.read(at, head, buffer_), where));
      if (length > static_cast<std::uint64_t>(file_.size()))
        throw DataError(where + ": the file ends inside a record", "generate it again");
      const std::int64_t bytes = head + static_cast<std::int64_t>(length) + tail;
      bytes_ += head;
      places_.emplace_back(at, bytes);
      at += bytes;
    }
  }

  FileReader file_;
  AlignedBuffer buffer_;
  std::vector<std::pair<std::int64_t, std::int64_t>> places_;
  Bytes bytes_ = 0;
};

/// A sample is a line of integers from 0 to 255 with commas between them.
class CsvFile final : public SampleFile {
 public:
  CsvFile(const std::string& path, const ReadOptions& options) : path_(path) {
    const FileReader file(path, options);
    const std::string_view whole = file.read(0, file.size(), buffer_);
    std::size_t at = 0;
    while (at < whole.size()) {
      const std::size_t end = std::min(whole.find('\n', at), whole.size());
      if (end > at) lines_.push_back(whole.substr(at, end - at));
      at = end + 1;
    }
    bytes_ = file.size();
  }
  std::int64_t num_samples() const override { return static_cast<std::int64_t>(lines_.size()); }
  Bytes bytes_read() const override { return bytes_; }
  std::string_view sample(std::int64_t index) override {
    check_index(path_, index, num_samples());
    const std::string_view line = lines_[index];
    sample_.clear();
    const char *at = line.data(), *const end = at + line.size();
    while (at < end && *at != '\r') {
      std::uint8_t value = 0;
      const auto [stop, error] = std::from_chars(at, end, value);
      if (error != std::errc{} || (stop < end && *stop != ',' && *stop != '\r'))
        throw DataError(path_ + ":" + std::to_string(index + 1) + ": is not a line of numbers from 0 to 255");
      sample_ += static_cast<char>(value);
      at = stop + (stop < end && *stop == ',');
    }
    return sample_;
  }

 private:
  std::string path_;
  AlignedBuffer buffer_;
  std::vector<std::string_view> lines_;
  std::string sample_;
  Bytes bytes_ = 0;
};

class ImageFile final : public SampleFile {
 public:
  ImageFile(const std::string& path, SampleFormat format, const ReadOptions& options) {
    const FileReader file(path, options);
    AlignedBuffer buffer;
    const std::string_view bytes = file.read(0, file.size(), buffer);
    image_ = value_or_throw(is_webp(bytes)                                 ? decode_webp(bytes, path)
                            : is_png(bytes) || format == SampleFormat::Png ? decode_png(bytes, path)
                                                                           : decode_jpeg(bytes, path));
    path_ = path;
    bytes_ = file.size();
  }
  std::int64_t num_samples() const override { return 1; }
  Bytes bytes_read() const override { return bytes_; }
  std::string_view sample(std::int64_t index) override { return check_index(path_, index, 1), image_.pixels; }

 private:
  std::string path_;
  Image image_;
  Bytes bytes_ = 0;
};

class Hdf5Samples final : public SampleFile {
 public:
  explicit Hdf5Samples(const std::string& path) : path_(path), file_(path) {
    while (file_.has("records_" + std::to_string(sets_))) ++sets_;
    if (sets_ == 0) throw DataError(path + ": has no data set records_0");
    const std::vector<std::int64_t> shape = file_.shape("records_0");
    count_ = shape.empty() ? 0 : shape[0];
  }
  std::int64_t num_samples() const override { return count_; }
  Bytes bytes_read() const override { return bytes_; }
  std::string_view sample(std::int64_t index) override {
    check_index(path_, index, count_);
    sample_.clear();
    for (int set = 0; set < sets_; ++set) file_.read("records_" + std::to_string(set), index, sample_);
    bytes_ += static_cast<Bytes>(sample_.size());
    return sample_;
  }

 private:
  std::string path_;
  Hdf5File file_;
  int sets_ = 0;
  std::int64_t count_ = 0;
  std::string sample_;
  Bytes bytes_ = 0;
};

/// A file of samples. FILE.off.idx and FILE.sz.idx have their offsets and sizes as 64-bit integers.
class BinaryFile : public SampleFile {
 public:
  BinaryFile(const std::string& path, const ReadOptions& options) : file_(path, options) {
    offsets_ = integers(path + ".off.idx");
    sizes_ = integers(path + ".sz.idx");
    if (offsets_.size() != sizes_.size())
      throw DataError(path + ": its two index files differ in length", "generate the data again");
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      const auto end = static_cast<std::uint64_t>(file_.size());
      if (offsets_[i] > end || sizes_[i] > end - offsets_[i])
        throw DataError(path + ": sample " + std::to_string(i) + " lies behind the file's end",
                        "the data are cut off: generate them again");
    }
  }
  std::int64_t num_samples() const override { return static_cast<std::int64_t>(sizes_.size()); }
  Bytes bytes_read() const override { return bytes_; }
  std::string_view sample(std::int64_t index) override {
    check_index(file_.path(), index, num_samples());
    const auto i = static_cast<std::size_t>(index);
    bytes_ += static_cast<Bytes>(sizes_[i]);
    return bytes_at(static_cast<std::int64_t>(offsets_[i]), static_cast<std::int64_t>(sizes_[i]));
  }

 protected:
  virtual std::string_view bytes_at(std::int64_t offset, std::int64_t bytes) {
    return file_.read(offset, bytes, buffer_);
  }
  FileReader file_;

 private:
  static std::vector<std::uint64_t> integers(const std::string& path) {
    const std::string text = value_or_throw(read_file(path, 8 * kGiB));
    if (text.size() % 8 != 0) throw DataError(path + ": is no list of 64-bit integers");
    std::vector<std::uint64_t> values(text.size() / 8);
    if (!values.empty()) std::memcpy(values.data(), text.data(), text.size());
    return values;
  }
  std::vector<std::uint64_t> offsets_, sizes_;
  AlignedBuffer buffer_;
  Bytes bytes_ = 0;
};

/// A BinaryFile that is read through a mapping. Each page is touched, as a consumer would do.
class MappedBinaryFile final : public BinaryFile {
 public:
  MappedBinaryFile(const std::string& path, const ReadOptions& options) : BinaryFile(path, options) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw DataError(path + ": cannot be opened");
    if (file_.size() > 0) {
      void* mapped = ::mmap(nullptr, static_cast<std::size_t>(file_.size()), PROT_READ, MAP_SHARED, fd, 0);
      ::close(fd);
      if (mapped == MAP_FAILED) throw DataError(path + ": cannot be mapped");
      mapped_ = static_cast<char*>(mapped);
    } else {
      ::close(fd);
    }
  }
  ~MappedBinaryFile() override {
    if (mapped_) ::munmap(mapped_, static_cast<std::size_t>(file_.size()));
  }

 protected:
  std::string_view bytes_at(std::int64_t offset, std::int64_t bytes) override {
    volatile char sum = 0;
    for (std::int64_t at = offset; at < offset + bytes; at += 4096)
      sum = static_cast<char>(sum + mapped_[at]);
    return {mapped_ + offset, static_cast<std::size_t>(bytes)};
  }

 private:
  char* mapped_ = nullptr;
};

}  // namespace

const char* to_string(SampleFormat format) {
  return kNames[static_cast<int>(format)];
}

std::optional<SampleFormat> sample_format_named(std::string_view name) {
  for (int i = 0; i < 10; ++i) {
    if (name == kNames[i]) return static_cast<SampleFormat>(i);
  }
  return std::nullopt;
}

bool reads_directly(SampleFormat format) {
  return format == SampleFormat::Npz || format == SampleFormat::Npy || format == SampleFormat::TfRecord ||
         format == SampleFormat::IndexedBinary;
}

std::unique_ptr<SampleFile> open_sample_file(SampleFormat format, const std::string& path,
                                             const std::string& index, const ReadOptions& options) {
  switch (format) {
    case SampleFormat::Npz:
      return std::make_unique<NpzFile>(path, options);
    case SampleFormat::Npy:
      return std::make_unique<NpyFile>(path, options);
    case SampleFormat::TfRecord:
      return std::make_unique<TfRecordFile>(path, index, options);
    case SampleFormat::Csv:
      return std::make_unique<CsvFile>(path, options);
    case SampleFormat::Jpeg:
    case SampleFormat::Png:
      return std::make_unique<ImageFile>(path, format, options);
    case SampleFormat::Hdf5:
      return std::make_unique<Hdf5Samples>(path);
    case SampleFormat::IndexedBinary:
      return std::make_unique<BinaryFile>(path, options);
    case SampleFormat::MmapIndexedBinary:
      return std::make_unique<MappedBinaryFile>(path, options);
    case SampleFormat::Synthetic:
      break;
  }
  throw InternalError("synthetic data have no files");
}

}  // namespace millrace
