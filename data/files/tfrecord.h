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

/// Return the frame of a record: the head has the length and its checksum, the tail the checksum of the
/// payload.
std::string tfrecord_head(std::uint64_t payload_bytes);
std::string tfrecord_tail(std::uint32_t payload_crc);
void append_tfrecord(std::string& out, std::string_view payload);

/// Returns the payload length in `head`, the 12 bytes in front of a record. Problem: its checksum differs.
Result<std::uint64_t> tfrecord_length(std::string_view head, const std::string& where);

/// Reads the records of `bytes` one after the other. It checks each checksum before it uses the bytes.
class TfRecordReader {
 public:
  TfRecordReader(std::string_view bytes, std::string name) : bytes_(bytes), name_(std::move(name)) {}
  /// Returns whether all records were read. If not, next() returns a view of the next payload.
  bool at_end() const { return at_ >= bytes_.size(); }
  std::size_t offset() const { return at_; }  ///< returns the offset of the next record
  Result<std::string_view> next();

 private:
  std::string_view bytes_;
  std::string name_;
  std::size_t at_ = 0;
};

/// A tf.train.Feature, which has one of the three lists.
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
/// Append a feature with one list. From the appended features `example_of` makes an example, without a copy
/// of each list in memory.
void append_feature(std::string& features, std::string_view name, const std::vector<std::int64_t>& integers);
void append_feature(std::string& features, std::string_view name, std::string_view bytes);
void append_feature_floats(std::string& features, std::string_view name, const std::vector<float>& floats);
std::string example_of(const std::string& features);

Result<Example> parse_example(std::string_view payload, const std::string& where);

/// Returns a view of the single bytes value of feature `key`. Problem: there is none.
Result<std::string_view> example_bytes(std::string_view payload, std::string_view key,
                                       const std::string& where);

}  // namespace millrace
