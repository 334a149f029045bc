#include "data/files/tfrecord.h"

#include "data/files/crc32c.h"
#include "data/files/little_endian.h"
#include "data/files/protobuf.h"

namespace millrace {
namespace {

Problem damaged(const std::string& where, std::string what) {
  return {where, std::move(what), "the file is damaged or cut off: generate it again"};
}

void append_entry(std::string& features, std::string_view name, const ProtoWriter& feature) {
  ProtoWriter entry;
  entry.bytes(1, name);
  entry.message(2, feature);
  ProtoWriter out;
  out.message(1, entry);
  features += out.text();
}

bool read_list(ProtoReader in, Feature& feature) {
  while (in.next()) {
    if (in.field() != 1) continue;
    std::string_view packed = in.bytes();
    switch (feature.kind) {
      case Feature::Kind::Bytes:
        if (in.type() != 2) return false;
        feature.bytes.emplace_back(in.bytes());
        break;
      case Feature::Kind::Float:
        if ((in.type() != 2 && in.type() != 5) || packed.size() % 4 != 0) return false;
        for (; !packed.empty(); packed.remove_prefix(4)) feature.floats.push_back(get_little<float>(packed));
        break;
      case Feature::Kind::Int64:
        if (in.type() == 0) {
          feature.integers.push_back(static_cast<std::int64_t>(in.integer()));
          break;
        }
        if (in.type() != 2) return false;
        for (std::uint64_t value = 0; !packed.empty();) {
          if (!ProtoReader::varint(packed, value)) return false;
          feature.integers.push_back(static_cast<std::int64_t>(value));
        }
        break;
      case Feature::Kind::None:
        return false;
    }
  }
  return !in.damaged();
}

bool read_feature(ProtoReader in, Feature& feature) {
  while (in.next()) {
    if (in.field() > 3 || in.type() != 2) continue;
    feature = {.kind = static_cast<Feature::Kind>(in.field())};
    if (!read_list(ProtoReader(in.bytes()), feature)) return false;
  }
  return !in.damaged();
}

/// Calls `entry(key, feature message)` for each feature. Returns false if the bytes are damaged or `entry`
/// returned false.
template <class Entry>
bool each_feature(std::string_view payload, Entry entry) {
  ProtoReader example(payload);
  while (example.next()) {
    if (example.field() != 1 || example.type() != 2) continue;
    ProtoReader features(example.bytes());
    while (features.next()) {
      if (features.field() != 1 || features.type() != 2) continue;
      std::string_view key, value;
      ProtoReader pair(features.bytes());
      while (pair.next()) {
        if (pair.type() != 2) continue;
        if (pair.field() == 1) key = pair.bytes();
        if (pair.field() == 2) value = pair.bytes();
      }
      if (pair.damaged() || !entry(key, value)) return false;
    }
    if (features.damaged()) return false;
  }
  return !example.damaged();
}

}  // namespace

std::string tfrecord_head(std::uint64_t payload_bytes) {
  std::string head;
  put_little(head, payload_bytes);
  put_little(head, masked_crc(crc32c(head)));
  return head;
}

std::string tfrecord_tail(std::uint32_t payload_crc) {
  std::string tail;
  put_little(tail, masked_crc(payload_crc));
  return tail;
}

void append_tfrecord(std::string& out, std::string_view payload) {
  out += tfrecord_head(payload.size());
  out += payload;
  out += tfrecord_tail(crc32c(payload));
}

Result<std::uint64_t> tfrecord_length(std::string_view head, const std::string& where) {
  if (head.size() < kTfRecordHead) return damaged(where, "the file ends inside a record's length");
  if (masked_crc(crc32c(head.substr(0, 8))) != get_little<std::uint32_t>(head, 8))
    return damaged(where, "the checksum of the record's length differs: no TFRecord file, or damaged");
  return get_little<std::uint64_t>(head);
}

Result<std::string_view> TfRecordReader::next() {
  const std::string where = name_ + ":byte " + std::to_string(at_);
  const std::string_view rest = bytes_.substr(at_);
  const Result<std::uint64_t> length = tfrecord_length(rest, where);
  if (!length) return length.problems();
  if (rest.size() < kTfRecordHead + kTfRecordTail || *length > rest.size() - kTfRecordHead - kTfRecordTail)
    return damaged(where, "the file ends inside a record of " + std::to_string(*length) + " bytes");
  const std::string_view payload = rest.substr(kTfRecordHead, *length);
  if (masked_crc(crc32c(payload)) != get_little<std::uint32_t>(rest, kTfRecordHead + *length))
    return damaged(where, "the checksum of the record differs");
  at_ += kTfRecordHead + *length + kTfRecordTail;
  return payload;
}

void append_feature(std::string& features, std::string_view name, const std::vector<std::int64_t>& integers) {
  std::string packed;
  for (const std::int64_t value : integers) ProtoWriter::varint(packed, static_cast<std::uint64_t>(value));
  ProtoWriter list, feature;
  list.bytes(1, packed);
  feature.message(3, list);
  append_entry(features, name, feature);
}

void append_feature(std::string& features, std::string_view name, std::string_view bytes) {
  ProtoWriter list, feature;
  list.bytes(1, bytes);
  feature.message(1, list);
  append_entry(features, name, feature);
}

void append_feature_floats(std::string& features, std::string_view name, const std::vector<float>& floats) {
  std::string packed;
  for (const float value : floats) put_little(packed, value);
  ProtoWriter list, feature;
  list.bytes(1, packed);
  feature.message(2, list);
  append_entry(features, name, feature);
}

std::string example_of(const std::string& features) {
  ProtoWriter example;
  example.bytes(1, features);
  return std::move(example.text());
}

std::string serialise_example(const Example& example) {
  std::string features;
  for (const auto& [name, feature] : example) {
    if (feature.kind == Feature::Kind::Float) {
      append_feature_floats(features, name, feature.floats);
    } else if (feature.kind == Feature::Kind::Bytes) {
      ProtoWriter list, wrapped;
      for (const std::string& value : feature.bytes) list.bytes(1, value);
      wrapped.message(1, list);
      append_entry(features, name, wrapped);
    } else if (feature.kind == Feature::Kind::Int64) {
      append_feature(features, name, feature.integers);
    } else {
      append_entry(features, name, {});
    }
  }
  return example_of(features);
}

Result<Example> parse_example(std::string_view payload, const std::string& where) {
  Example example;
  const bool good = each_feature(payload, [&](std::string_view key, std::string_view value) {
    return read_feature(ProtoReader(value), example[std::string(key)]);
  });
  if (!good) return damaged(where, "is no tf.Example");
  return example;
}

Result<std::string_view> example_bytes(std::string_view payload, std::string_view key,
                                       const std::string& where) {
  std::string_view found;
  bool seen = false;
  const bool good = each_feature(payload, [&](std::string_view name, std::string_view value) {
    if (name != key) return true;
    for (ProtoReader feature(value); feature.next();) {
      if (feature.field() != 1 || feature.type() != 2) continue;
      for (ProtoReader list(feature.bytes()); list.next();) {
        if (list.field() == 1 && list.type() == 2) found = list.bytes(), seen = true;
      }
    }
    return true;
  });
  if (!good) return damaged(where, "is no tf.Example");
  if (!seen)
    return Problem{where, "has no feature '" + std::string(key) + "' of bytes",
                   "generate the data for this format"};
  return found;
}

}  // namespace millrace
