#include "experiments/io/generate/workloads.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <numbers>
#include <numeric>
#include <thread>
#include <vector>

#include "data/files/file_writer.h"
#include "data/files/images.h"
#include "data/files/left_out.h"
#include "data/files/npy.h"
#include "data/files/tfrecord.h"
#include "data/files/zip.h"
#include "data/made_up/clicks.h"
#include "data/made_up/kidneys.h"
#include "experiments/io/generate/file_check.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/random.h"
#include "runtime/base/text.h"
#include "runtime/base/unfinished_file.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kChunk = 1 << 20;

/// Returns how many of `n` values occur if a byte has `entropy` bits of information.
std::uint64_t values_at(std::uint64_t n, double entropy) {
  return std::clamp<std::uint64_t>(
      static_cast<std::uint64_t>(std::ceil(std::pow(static_cast<double>(n), entropy / 8))), 1, n);
}

std::uint64_t below(std::uint64_t value, std::uint64_t bound) {
  return static_cast<std::uint64_t>(static_cast<unsigned __int128>(value) * bound >> 64);
}

// ---- imseg and kidneys: volumes and labels
// --------------------------------------------------------------------------------

constexpr float kLow = -2.340702f, kHigh = 2.639792f;  // the range of the normalised volumes

struct Volume {
  std::int64_t depth, side;
  std::int64_t voxels() const { return depth * side * side; }
  std::vector<std::int64_t> shape() const { return {1, depth, side, side}; }
  Bytes bytes() const {
    return voxels() * 5 +
           static_cast<Bytes>(npy_header("<f4", shape()).size() + npy_header("|u1", shape()).size());
  }
};

/// Returns the size of a volume. That of imseg has depth 128 to 471 and side 186 to 444, both uniform; with
/// the chance `correlation` the same random number gives both.
Volume volume_of(const GenerateOptions& options, std::int64_t number) {
  if (options.workload == Workload::Kidneys) {
    const KidneyVolume volume = draw_kidney_volume(options.seed, number, options.image_side);
    return {volume.depth, volume.side};
  }
  const std::uint64_t key = derive_seed(options.seed, "imseg.size", static_cast<std::uint64_t>(number));
  const std::uint64_t first = hashed(key, 0);
  const std::uint64_t second = unit(hashed(key, 2)) < options.randomness.correlation ? first : hashed(key, 1);
  return {128 + static_cast<std::int64_t>(below(first, 344)),
          186 + static_cast<std::int64_t>(below(second, 259))};
}

/// Writes `bytes` bytes of a volume's elements to `part`, from byte `at` on.
using FillVolume = std::function<void(std::int64_t at, char* part, std::int64_t bytes)>;

FillVolume fill_imseg(const GenerateOptions& options, std::int64_t number, bool labels) {
  const Payload payload(
      derive_seed(options.seed, labels ? "imseg.y" : "imseg.x", static_cast<std::uint64_t>(number)),
      labels ? Element::UInt8 : Element::Float32, options.randomness);
  return [payload, labels](std::int64_t at, char* part, std::int64_t bytes) {
    payload.fill(at, part, bytes);
    if (labels) {
      // Takes the top bit, which is random for any entropy.
      for (std::int64_t i = 0; i < bytes; ++i)
        part[i] = static_cast<char>(static_cast<unsigned char>(part[i]) >> 7);
      return;
    }
    for (std::int64_t i = 0; i < bytes; i += 4) {
      float value;
      std::memcpy(&value, part + i, 4);
      value = kLow + value * (kHigh - kLow);
      std::memcpy(part + i, &value, 4);
    }
  };
}

FillVolume fill_kidneys(const GenerateOptions& options, std::int64_t number, bool labels) {
  const KidneyVolume volume = draw_kidney_volume(options.seed, number, options.image_side);
  if (labels)
    return [volume](std::int64_t at, char* part, std::int64_t bytes) {
      fill_kidney_labels(volume, at, bytes, reinterpret_cast<std::uint8_t*>(part));
    };
  return [volume](std::int64_t at, char* part, std::int64_t bytes) {
    std::vector<float> values(static_cast<std::size_t>(bytes / 4));
    fill_kidney_values(volume, at / 4, bytes / 4, values.data());
    std::memcpy(part, values.data(), static_cast<std::size_t>(bytes));
  };
}

/// Makes a volume. `Out` is FileWriter or FileCheck.
template <class Out>
void make_volume(const GenerateOptions& options, std::int64_t number, bool labels, Out& out) {
  const Volume volume = volume_of(options, number);
  const FillVolume fill = options.workload == Workload::Kidneys ? fill_kidneys(options, number, labels)
                                                                : fill_imseg(options, number, labels);
  out.write(npy_header(labels ? "|u1" : "<f4", volume.shape()));
  const std::int64_t bytes = volume.voxels() * (labels ? 1 : 4);
  for (std::int64_t at = 0; at < bytes; at += static_cast<std::int64_t>(kChunk)) {
    const std::int64_t now = std::min<std::int64_t>(kChunk, bytes - at);
    fill(at, out.reserve(now), now);
  }
}

GenerateReport run_volumes(const GenerateOptions& options, StreamMode mode, const Progress& progress) {
  GenerateReport report;
  while (report.bytes < options.size) report.bytes += volume_of(options, report.records++).bytes();
  report.files = 2 * report.records;
  std::atomic<std::int64_t> next = 0;
  std::mutex mutex;  // guards the variables that follow, and report.kept
  Bytes done = 0;
  std::exception_ptr failure;
  std::int64_t failed = report.files;  // the first file in order that failed
  const auto work = [&] {
    for (std::int64_t task; (task = next++) < report.files;) {
      const std::int64_t number = task / 2;
      const bool labels = task % 2 == 1;
      const fs::path path =
          options.out / printed("case_%05lld_%c.npy", static_cast<long long>(number), labels ? 'y' : 'x');
      const Volume volume = volume_of(options, number);
      const Bytes bytes = volume.voxels() * (labels ? 1 : 4) +
                          static_cast<Bytes>(npy_header(labels ? "|u1" : "<f4", volume.shape()).size());
      try {
        std::error_code error;
        const bool there = fs::exists(path, error) && mode == StreamMode::Write;
        if (mode == StreamMode::Check) {
          FileCheck check(path);
          make_volume(options, number, labels, check);
          check.finish();
        } else if (!there) {
          FileWriter out(path);
          make_volume(options, number, labels, out);
          out.commit();
        }
        const std::lock_guard lock(mutex);
        done += bytes;
        if (there) report.kept += bytes;
        if (progress) progress(done);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (task < failed) failure = std::current_exception(), failed = task;
        next = report.files;
      }
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < options.threads; ++i) threads.emplace_back(work);
  }
  if (failure) std::rethrow_exception(failure);
  return report;
}

// ---- bert: tf.Examples of masked sentences
// --------------------------------------------------------------------

constexpr std::int64_t kBertRecordsPerFile = 260'461, kFirstBertFile = 27, kSequence = 512, kPredictions = 76;
constexpr std::uint64_t kVocabulary = 30'522;

class BertStream final : public RecordStream {
 public:
  explicit BertStream(const GenerateOptions& options) : options_(options) {}
  std::int64_t block_records() const override { return 128; }
  std::string file_of(std::int64_t record, Bytes) const override {
    return printed("part-%05lld-of-00500",
                   static_cast<long long>(kFirstBertFile + record / kBertRecordsPerFile));
  }
  std::int64_t records_in(const fs::path& file, Place place) const override {
    if (place == Place::Inner) return kBertRecordsPerFile;
    const FileReader reader(file, {});
    AlignedBuffer buffer;
    std::int64_t records = 0;
    for (Bytes at = 0; at < reader.size(); ++records) {
      const Result<std::uint64_t> length =
          tfrecord_length(reader.read(at, kTfRecordHead, buffer), file.string());
      if (!length) throw DataError(to_string(length.problems()), "remove the file and generate again");
      at += static_cast<Bytes>(kTfRecordHead + *length + kTfRecordTail);
    }
    return records;
  }
  void make(std::int64_t block, RecordBlock& out) const override {
    for (std::int64_t i = 0; i < block_records(); ++i) {
      append_tfrecord(out.bytes, record(block * block_records() + i));
      out.end_record();
    }
  }

 private:
  std::string record(std::int64_t number) const {
    RandomStream random(derive_seed(options_.seed, "bert", static_cast<std::uint64_t>(number)));
    const auto length = static_cast<std::size_t>(random.below(512));
    const std::uint64_t tokens = values_at(kVocabulary, options_.randomness.entropy);
    std::vector<std::int64_t> ids(kSequence, 0), mask(kSequence, 0), segments(kSequence, 0);
    for (std::size_t i = 0; i < length; ++i) {
      const bool repeats =
          i > 0 && options_.randomness.correlation > 0 && random.uniform() < options_.randomness.correlation;
      ids[i] = repeats ? ids[i - 1] : static_cast<std::int64_t>(random.below(tokens));
      mask[i] = 1;
      segments[i] = i >= length / 2;
    }
    // 15 % of the tokens are masked. Each place is drawn from those that are left, so that places ascend and
    // differ.
    const auto masked = static_cast<std::size_t>(static_cast<double>(length) * 0.15);
    std::vector<std::int64_t> places(kPredictions, 0), labels(kPredictions, 0);
    std::vector<float> weights(kPredictions, 0.0f);
    std::size_t taken = 0;
    for (std::size_t i = 0; i < length && taken < masked; ++i) {
      if (random.below(length - i) >= masked - taken) continue;
      places[taken] = static_cast<std::int64_t>(i);
      labels[taken] = ids[i];
      weights[taken++] = 1.0f;
    }
    std::string features;
    append_feature(features, "input_ids", ids);
    append_feature(features, "input_mask", mask);
    append_feature(features, "masked_lm_ids", labels);
    append_feature(features, "masked_lm_positions", places);
    append_feature_floats(features, "masked_lm_weights", weights);
    append_feature(features, "next_sentence_labels",
                   std::vector<std::int64_t>{static_cast<std::int64_t>(random.below(2))});
    append_feature(features, "segment_ids", segments);
    return example_of(features);
  }
  const GenerateOptions& options_;
};

// ---- dlrm: rows of 40 integers
// --------------------------------------------------------------------------------

constexpr std::uint64_t kLargestDense = 2'557'264;
constexpr std::int64_t kTestRows = 6'548'660;
constexpr std::uint64_t kCategories[26] = {
    10000000, 38985, 17278, 7418, 20242, 3,  7120,     1543,    63,       9999978, 2642264, 397262, 10,
    2208,     11931, 155,   4,    976,   14, 10000000, 9832963, 10000000, 573162,  12969,   108,    36};

class DlrmStream final : public RecordStream {
 public:
  DlrmStream(const GenerateOptions& options, const char* file) : options_(options), file_(file) {
    bounds_[0] = 2;
    for (int i = 0; i < 13; ++i) bounds_[1 + i] = values_at(kLargestDense, options.randomness.entropy);
    for (int i = 0; i < 26; ++i) bounds_[14 + i] = values_at(kCategories[i], options.randomness.entropy);
    key_ = derive_seed(options.seed, file_);
  }
  std::int64_t block_records() const override { return 8192; }
  std::string file_of(std::int64_t, Bytes) const override { return file_; }
  Bytes record_bytes() const override { return 160; }
  std::int64_t records_in(const fs::path& file, Place) const override {
    return static_cast<std::int64_t>(fs::file_size(file) / 160);
  }
  void make(std::int64_t block, RecordBlock& out) const override {
    const auto rows = static_cast<std::size_t>(block_records());
    out.bytes.resize(rows * 160);
    out.ends.resize(rows);
    auto* value = reinterpret_cast<std::int32_t*>(out.bytes.data());
    const double correlation = options_.randomness.correlation;
    auto index = static_cast<std::uint64_t>(block) * rows * 40;
    for (std::size_t row = 0; row < rows; ++row) {
      for (int column = 0; column < 40; ++column, ++value, ++index) {
        const std::uint64_t random = hashed(key_, index);
        if (row > 0 && correlation > 0 && unit(hashed(~key_, index)) < correlation) {
          *value = value[-40];
        } else {
          // The upper half of the bits is enough for bounds below 2^24.
          *value = static_cast<std::int32_t>((random >> 32) * bounds_[column] >> 32);
        }
      }
      out.ends[row] = (row + 1) * 160;
    }
  }

 private:
  const GenerateOptions& options_;
  std::string file_;
  std::uint64_t key_ = 0;
  std::uint64_t bounds_[40];
};

// ---- clicks: the same rows, which a network can learn
// ---------------------------------------------------------

constexpr int kDenseFeatures = 13;
constexpr std::int64_t kRowsForCeiling = 200'000;  ///< rows that the ceiling of the AUC is an average over

/// Returns the values of each categorical feature.
std::vector<std::int64_t> categories_of(const GenerateOptions& options) {
  std::vector<std::int64_t> counts;
  for (const std::uint64_t count : kCategories) {
    const auto all = static_cast<std::int64_t>(count);
    counts.push_back(options.table_rows_cap > 0 ? std::min(all, options.table_rows_cap) : all);
  }
  return counts;
}

class ClickStream final : public RecordStream {
 public:
  ClickStream(const GenerateOptions& options, const char* file)
      : model_(options.seed, kDenseFeatures, categories_of(options)),
        file_(file),
        stream_(derive_seed(options.seed, file_)) {}
  std::int64_t block_records() const override { return 1024; }
  std::string file_of(std::int64_t, Bytes) const override { return file_; }
  Bytes record_bytes() const override { return 160; }
  std::int64_t records_in(const fs::path& file, Place) const override {
    return static_cast<std::int64_t>(fs::file_size(file) / 160);
  }
  void make(std::int64_t block, RecordBlock& out) const override {
    std::vector<std::int32_t> row(model_.row_numbers());
    const auto bytes = row.size() * sizeof row[0];
    for (std::int64_t i = 0; i < block_records(); ++i) {
      model_.draw(stream_, static_cast<std::uint64_t>(block * block_records() + i), row);
      out.bytes.append(reinterpret_cast<const char*>(row.data()), bytes);
      out.end_record();
    }
  }
  double auc_ceiling(std::int64_t rows) const { return model_.auc_ceiling(stream_, rows); }

 private:
  ClickModel model_;
  std::string file_;
  std::uint64_t stream_;
};

Bytes write_counts(const fs::path& path, const std::vector<std::int64_t>& counts) {
  FileWriter out(path);
  ZipWriter zip(out);
  zip.begin("counts.npy", ZipWriter::Packing::Stored);
  zip.write(npy_header("<i8", {std::ssize(counts)}));
  zip.write({reinterpret_cast<const char*>(counts.data()), counts.size() * sizeof counts[0]});
  zip.end();
  zip.finish();
  const Bytes bytes = out.size();
  out.commit();
  return bytes;
}

/// Checks the file of counts. A zip's writer patches its file, which a FileCheck cannot do. So the file is
/// written again outside of the data set, and both are compared.
Bytes check_counts(const fs::path& path, const std::vector<std::int64_t>& counts) {
  std::string scratch = (fs::temp_directory_path() / "millrace-counts-XXXXXX").string();
  const int fd = ::mkstemp(scratch.data());
  if (fd < 0) throw DataError(scratch + ": cannot be made: " + std::strerror(errno), "set TMPDIR");
  ::close(fd);
  const UnfinishedFile unfinished(scratch);
  const Bytes bytes = write_counts(scratch, counts);
  const Result<std::string> generated = read_file(scratch);
  fs::remove(scratch);
  if (!generated) throw DataError(to_string(generated.problems()));
  FileCheck check(path);
  check.write(*generated);
  check.finish();
  return bytes;
}

// ---- images: gratings with noise, a folder for each class
// -----------------------------------------------------

class ImageStream final : public RecordStream {
 public:
  explicit ImageStream(const GenerateOptions& options) : options_(options) {
    for (int i = 0; i < 256; ++i)
      wave_[i] = static_cast<int>(std::lround(48 * std::sin(2 * std::numbers::pi * i / 256)));
  }
  std::int64_t block_records() const override { return 8; }
  std::string file_of(std::int64_t record, Bytes) const override {
    // Every tenth image of a class belongs to the evaluation.
    const char* split = record / options_.classes % 10 == 9 ? "val" : "train";
    return std::string(split) + printed("/class_%04lld/%08lld.jpg",
                                        static_cast<long long>(record % options_.classes),
                                        static_cast<long long>(record));
  }
  std::int64_t records_in(const fs::path&, Place) const override { return 1; }
  void make(std::int64_t block, RecordBlock& out) const override {
    for (std::int64_t i = 0; i < block_records(); ++i) {
      out.bytes += image(block * block_records() + i);
      out.end_record();
    }
  }

 private:
  std::string image(std::int64_t number) const {
    const std::uint64_t key = derive_seed(options_.seed, "image", static_cast<std::uint64_t>(number));
    RandomStream random(key);
    const auto side = [&] {
      return std::max<std::int64_t>(
          8, std::llround(static_cast<double>(options_.image_side) * random.uniform(0.75, 1.25)));
    };
    Image image{.height = side(), .width = side(), .channels = 3};
    const auto bytes = static_cast<std::size_t>(image.height * image.width * 3);
    image.pixels.resize(bytes);
    // Less entropy means less noise, not fewer levels: a JPEG does not keep levels.
    Payload(key, Element::UInt8, {.entropy = 8, .correlation = options_.randomness.correlation})
        .fill(0, image.pixels.data(), static_cast<std::int64_t>(bytes));
    const int noise = static_cast<int>(options_.randomness.entropy / 8 * 64);
    const auto number_of_class = static_cast<double>(number % options_.classes);
    const double angle = std::numbers::pi * number_of_class / options_.classes;
    const double step = 256.0 * (4 + number_of_class) / static_cast<double>(options_.image_side);
    const auto across = static_cast<unsigned>(65536 * (2 + step * std::cos(angle) / 2)),
               down = static_cast<unsigned>(65536 * (2 + step * std::sin(angle) / 2));
    const auto start = static_cast<unsigned>(random.next());
    auto* pixel = reinterpret_cast<unsigned char*>(image.pixels.data());
    for (std::int64_t y = 0; y < image.height; ++y) {
      unsigned phase = start + static_cast<unsigned>(y) * down;
      for (std::int64_t x = 0; x < image.width; ++x, phase += across) {
        const int wave = 128 + wave_[phase >> 16 & 255];
        for (int channel = 0; channel < 3; ++channel, ++pixel)
          *pixel = static_cast<unsigned char>(wave + ((*pixel * noise) >> 8) - noise / 2);
      }
    }
    return encode_jpeg(image, 90);
  }
  const GenerateOptions& options_;
  int wave_[256];
};

// ---- text: a chain of words
// -----------------------------------------------------------------------------------

/// Draws words by Zipf's law (exponent 1.1). With the chance `correlation` the next word is the follower that
/// belongs to the word. So the entropy of the chain is known.
class TextStream final : public RecordStream {
 public:
  explicit TextStream(const GenerateOptions& options) : options_(options) {
    const auto count = static_cast<std::size_t>(values_at(32'768, options.randomness.entropy));
    RandomStream random(derive_seed(options.seed, "text.words"));
    for (std::size_t i = 0; i < count; ++i) words_.push_back(word(i));
    zipf_.resize(count);
    double sum = 0;
    for (std::size_t i = 0; i < count; ++i) sum += zipf_[i] = std::pow(static_cast<double>(i + 1), -1.1);
    for (double& value : zipf_) value /= sum;
    make_alias_table();
    follower_.resize(count);
    std::iota(follower_.begin(), follower_.end(), 0u);
    for (std::size_t i = count; i > 1; --i) std::swap(follower_[i - 1], follower_[random.below(i)]);
  }
  std::int64_t block_records() const override { return 256; }
  std::string file_of(std::int64_t, Bytes before) const override {
    const double share = static_cast<double>(before) / static_cast<double>(options_.size);
    return share < 0.9 ? "train.txt" : share < 0.95 ? "valid.txt" : "test.txt";
  }
  std::int64_t records_in(const fs::path& file, Place) const override {
    const FileReader reader(file, {});
    AlignedBuffer buffer;
    std::int64_t lines = 0;
    for (Bytes at = 0; at < reader.size(); at += static_cast<Bytes>(kChunk)) {
      const std::string_view part = reader.read(at, std::min<Bytes>(kChunk, reader.size() - at), buffer);
      lines += std::count(part.begin(), part.end(), '\n');
    }
    return lines;
  }
  void make(std::int64_t block, RecordBlock& out) const override {
    for (std::int64_t i = 0; i < block_records(); ++i) {
      const std::uint64_t key =
          derive_seed(options_.seed, "text", static_cast<std::uint64_t>(block * block_records() + i));
      std::uint64_t at = 0;
      const std::uint64_t length = 5 + below(hashed(key, at++), 56);
      unsigned now = draw(hashed(key, at++));
      const double repeat = options_.randomness.correlation;
      for (std::uint64_t w = 0; w < length; ++w) {
        out.bytes += words_[now];
        out.bytes += w + 1 < length ? ' ' : '\n';
        now = repeat > 0 && unit(hashed(key, at++)) < repeat ? follower_[now] : draw(hashed(key, at++));
      }
      out.end_record();
    }
  }

  /// Returns the bits of information that a word adds to the ones before it, after the chain has run a while.
  double entropy_per_word() const {
    const double repeat = options_.randomness.correlation;
    const std::size_t n = words_.size();
    const std::vector<double>& zipf = zipf_;
    std::vector<double> now = zipf, next(n);
    for (int round = 0; round < 200; ++round) {
      for (std::size_t i = 0; i < n; ++i) next[i] = (1 - repeat) * zipf[i];
      for (std::size_t i = 0; i < n; ++i) next[follower_[i]] += repeat * now[i];
      std::swap(now, next);
    }
    double base = 0;  // bits of all words if none is the follower
    const auto term = [](double p) { return p > 0 ? -p * std::log2(p) : 0.0; };
    for (const double p : zipf) base += term((1 - repeat) * p);
    double bits = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double p = (1 - repeat) * zipf[follower_[i]];
      bits += now[i] * (base - term(p) + term(p + repeat));
    }
    return bits;
  }

 private:
  /// Returns the letters of a word. Frequent words are short.
  static std::string word(std::size_t number) {
    std::string text;
    for (std::size_t rest = number + 1; rest > 0; rest /= 20) text += "etaoinsrhldcumfpgwyb"[rest % 20];
    return text;
  }
  /// Makes Walker's alias table by Vose's construction, with which a draw takes constant time.
  void make_alias_table() {
    const std::size_t n = zipf_.size();
    threshold_.assign(n, 1.0);
    alias_.resize(n);
    std::iota(alias_.begin(), alias_.end(), 0u);
    std::vector<double> scaled(n);
    std::vector<unsigned> small, large;
    for (std::size_t i = 0; i < n; ++i) {
      scaled[i] = zipf_[i] * static_cast<double>(n);
      (scaled[i] < 1 ? small : large).push_back(static_cast<unsigned>(i));
    }
    while (!small.empty() && !large.empty()) {
      const unsigned low = small.back(), high = large.back();
      small.pop_back();
      threshold_[low] = scaled[low];
      alias_[low] = high;
      if ((scaled[high] -= 1 - scaled[low]) < 1) {
        large.pop_back();
        small.push_back(high);
      }
    }
  }
  unsigned draw(std::uint64_t value) const {
    const auto column = static_cast<unsigned>((value >> 32) * zipf_.size() >> 32);
    const double place = static_cast<double>(static_cast<std::uint32_t>(value)) * 0x1.0p-32;
    return place < threshold_[column] ? column : alias_[column];
  }
  const GenerateOptions& options_;
  std::vector<std::string> words_;
  std::vector<double> zipf_, threshold_;
  std::vector<unsigned> alias_;
  std::vector<unsigned> follower_;
};

// ---- all
// ------------------------------------------------------------------------------------------------------

GenerateReport report_of(const StreamResult& result) {
  return {.files = result.files, .records = result.records, .bytes = result.bytes, .kept = result.kept};
}

GenerateReport run(const GenerateOptions& options, StreamMode mode, const Progress& progress) {
  const auto stream = [&](const RecordStream& records) {
    return report_of(run_stream(records, options.out, options.size, options.threads, mode, progress));
  };
  switch (options.workload) {
    case Workload::Imseg:
    case Workload::Kidneys:
      return run_volumes(options, mode, progress);
    case Workload::Bert:
      return stream(BertStream(options));
    case Workload::Images:
      return stream(ImageStream(options));
    case Workload::Text: {
      const TextStream text(options);
      GenerateReport report = stream(text);
      report.entropy_per_word = text.entropy_per_word();
      return report;
    }
    case Workload::Dlrm:
    case Workload::Clicks:
      break;
  }
  // The kit's test file has one of its chunks. Here it never has more rows than the training file.
  constexpr const char *kTrain = "terabyte_processed_train.bin", *kTest = "terabyte_processed_test.bin";
  GenerateReport report;
  Bytes test_bytes = 0;
  const auto both = [&](const RecordStream& train, const RecordStream& test) {
    report = stream(train);
    test_bytes = std::min(kTestRows, report.records) * 160;
    const StreamResult tested = run_stream(test, options.out, test_bytes, options.threads, mode, {});
    report.files += tested.files + 1;
    report.extra = tested.bytes;
  };
  if (options.workload == Workload::Dlrm) {
    both(DlrmStream(options, kTrain), DlrmStream(options, kTest));
  } else {
    const ClickStream test(options, kTest);
    both(ClickStream(options, kTrain), test);
    report.auc_ceiling = test.auc_ceiling(std::min(test_bytes / 160, kRowsForCeiling));
  }
  const fs::path counts = options.out / "day_fea_count.npz";
  report.extra += mode == StreamMode::Write ? write_counts(counts, categories_of(options))
                                            : check_counts(counts, categories_of(options));
  return report;
}

Json manifest_of(const GenerateOptions& options) {
  Json manifest = Json::object({{"format", "millrace-dataset-1"},
                                {"workload", to_string(options.workload)},
                                {"size", options.size},
                                {"seed", static_cast<std::int64_t>(options.seed)},
                                {"entropy", options.randomness.entropy},
                                {"correlation", options.randomness.correlation},
                                {"classes", options.classes},
                                {"image_side", options.image_side}});
  if (options.workload == Workload::Clicks) manifest["table_rows_cap"] = options.table_rows_cap;
  return manifest;
}

}  // namespace

std::optional<Workload> workload_named(std::string_view name) {
  return name == "unet3d" ? Workload::Imseg : value_named<Workload>(name);
}

Result<GenerateOptions> read_manifest(const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_directory(folder, ignored) && !fs::exists(folder / kDatasetManifest, ignored))
    return Problem{folder.string(),
                   "is no data set of `millrace data generate`: it has no " + std::string(kDatasetManifest),
                   "`millrace dlio --check contents` checks what dlio generated"};
  const Result<Json> json = read_json((folder / kDatasetManifest).string());
  if (!json) return json.problems();
  Problems problems;
  ObjectReader in(*json, problems);
  GenerateOptions options{.out = folder};
  if (in.string("format") != "millrace-dataset-1") in.problem("format", "is not a data set's manifest");
  const auto workload = workload_named(in.string("workload"));
  if (!workload) in.problem("workload", "is unknown");
  options.workload = workload.value_or(Workload::Imseg);
  options.size = in.integer("size");
  options.seed = static_cast<std::uint64_t>(in.integer("seed"));
  options.randomness = {.entropy = in.number("entropy"), .correlation = in.number("correlation")};
  options.classes = static_cast<int>(in.integer("classes"));
  options.image_side = in.integer("image_side");
  if (options.workload == Workload::Clicks) options.table_rows_cap = in.integer("table_rows_cap");
  in.finish();
  const bool sane = options.size > 0 && options.randomness.entropy > 0 && options.randomness.entropy <= 8 &&
                    options.randomness.correlation >= 0 && options.randomness.correlation < 1 &&
                    options.classes > 0 && options.classes <= 10000 && options.image_side >= 8 &&
                    options.image_side <= 65535 / 2 && options.table_rows_cap >= 0;
  if (problems.empty() && !sane) problems.push_back({json->where(), "has values out of range", {}});
  if (!problems.empty()) return problems;
  return options;
}

Result<GenerateReport> generate_workload(const GenerateOptions& options, const Progress& progress) {
  if (const Status made = make_writable_folder(options.out); !made) return made.problems();
  const fs::path manifest = options.out / kDatasetManifest;
  if (fs::exists(manifest)) {
    const Result<GenerateOptions> there = read_manifest(options.out);
    if (!there) return there.problems();
    const std::string have = manifest_of(*there).dump(-1), want = manifest_of(options).dump(-1);
    if (have != want)
      return Problem{options.out.string(), "holds a data set of other options: " + have,
                     "generate into another folder, or repeat its options to complete it"};
  } else if (!fs::is_empty(options.out)) {
    return Problem{options.out.string(), "holds files that are not of a generated data set",
                   "give a new or empty folder: nothing is overwritten"};
  } else if (const Status written = write_file_atomically(manifest, manifest_of(options).dump() + "\n");
             !written) {
    return written.problems();
  }
  return run(options, StreamMode::Write, progress);
}

Result<GenerateReport> check_workload(const fs::path& folder, int threads, const Progress& progress) {
  Result<GenerateOptions> options = read_manifest(folder);
  if (!options) return options.problems();
  options->threads = threads;
  return run(*options, StreamMode::Check, progress);
}

}  // namespace millrace
