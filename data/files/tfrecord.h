// TFRecord files and the tf.Example messages in them. Source: TensorFlow's "TFRecord and tf.train.Example"
// and tensorflow/core/example/{example,feature}.proto.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

inline constexpr std::size_t kTfRecordHead = 12, kTfRecordTail = 4;

/// A record's frame in front (length and its checksum) and behind (checksum of the payload).
std::string tfrecord_head(std::uint64_t payload_bytes);
std::string tfrecord_tail(std::uint32_t payload_crc);
void append_tfrecord(std::string& out, std::string_view payload);

/// Payload length of the record whose head is `head` (12 bytes); a Problem if its checksum differs.
Result<std::uint64_t> tfrecord_length(std::string_view head, const std::string& where);

/// Walks the records of `bytes`; checksums are checked before anything is believed.
class TfRecordReader {
 public:
  TfRecordReader(std::string_view bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}
  /// Next payload, a view; `at_end` says whether there is one.
  bool at_end() const { return at_ >= bytes_.size(); }
  std::size_t offset() const { return at_; }  ///< of the next record
  Result<std::string_view> next();

 private:
  std::string_view bytes_;
  std::string name_;
  std::size_t at_ = 0;
};

/// tf.train.Feature: one of the three lists.
struct Feature {
  enum class Kind { None, Bytes, Float, Int64 };
  Kind kind = Kind::None;
  std::vector<std::string> bytes;
  std::vector<float> floats;
  std::vector<std::int64_t> integers;
};
using Example = std::map<std::string, Feature>;

/// Returns the bytes that protobuf's C++ library writes with deterministic output: keys ascending, numbers
/// packed.
std::string serialise_example(const Example& example);
/// Feature of one list: parts of an example that the caller puts together without copying it twice.
void append_feature(std::string& features, std::string_view name, const std::vector<std::int64_t>& integers);
void append_feature(std::string& features, std::string_view name, std::string_view bytes);
void append_feature_floats(std::string& features, std::string_view name, const std::vector<float>& floats);
std::string example_of(const std::string& features);

Result<Example> parse_example(std::string_view payload, const std::string& where);

/// The single bytes value of feature `key`, as a view; a Problem if it is not there.
Result<std::string_view> example_bytes(std::string_view payload, std::string_view key,
                                       const std::string& where);

}  // namespace millrace
