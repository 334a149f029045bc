#include "experiments/io/generate/sample_writer.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "data/files/crc32c.h"
#include "data/files/hdf5.h"
#include "data/files/images.h"
#include "data/files/little_endian.h"
#include "data/files/npy.h"
#include "data/files/tfrecord.h"
#include "data/files/zip.h"
#include "experiments/io/generate/file_check.h"
#include "runtime/base/check.h"
#include "runtime/base/error.h"
#include "runtime/base/random.h"
#include "runtime/base/unfinished_file.h"

namespace millrace {
namespace {

constexpr std::int64_t kPart = 1 << 20;

std::vector<std::int64_t> array_shape(const SampleFileSpec& spec) {
  std::vector<std::int64_t> shape = spec.dims;
  shape.push_back(spec.num_samples);
  return shape;
}

std::string whole_sample(const SampleFileSpec& spec, std::int64_t sample) {
  std::string bytes(static_cast<std::size_t>(sample_bytes(spec)), '\0');
  payload_of(spec, sample).fill(0, bytes.data(), static_cast<std::int64_t>(bytes.size()));
  return bytes;
}

/// Makes the array [..., samples] part by part. Neighbours in memory are the same element of neighbouring
/// samples.
template <class Take>
void each_array_part(const SampleFileSpec& spec, Take take) {
  const std::int64_t element = info_of(spec.element).bytes, bytes = sample_bytes(spec), n = spec.num_samples;
  const std::int64_t part = std::max(element, std::min(bytes, kPart / n / element * element));
  std::string interleaved(static_cast<std::size_t>(part * n), '\0'),
      one(static_cast<std::size_t>(part), '\0');
  std::vector<Payload> payloads;
  for (std::int64_t i = 0; i < n; ++i) payloads.push_back(payload_of(spec, i));
  for (std::int64_t at = 0; at < bytes; at += part) {
    const std::int64_t now = std::min(part, bytes - at);
    for (std::int64_t i = 0; i < n; ++i) {
      char* const target = n == 1 ? interleaved.data() : one.data();
      payloads[i].fill(at, target, now);
      if (n == 1) break;
      for (std::int64_t e = 0; e < now; e += element)
        std::memcpy(interleaved.data() + e * n + i * element, one.data() + e,
                    static_cast<std::size_t>(element));
    }
    take(std::string_view(interleaved).substr(0, static_cast<std::size_t>(now * n)));
  }
}

void write_npy(const SampleFileSpec& spec) {
  FileWriter out(spec.path);
  out.write(npy_header(info_of(spec.element).descr, array_shape(spec)));
  each_array_part(spec, [&](std::string_view part) { out.write(part); });
  out.commit();
}

void write_npz(const SampleFileSpec& spec) {
  FileWriter out(spec.path);
  ZipWriter zip(out);
  const auto packing =
      spec.compression == SampleCompression::Zip ? ZipWriter::Packing::Deflated : ZipWriter::Packing::Stored;
  zip.begin("x.npy", packing);
  zip.write(npy_header(info_of(spec.element).descr, array_shape(spec)));
  each_array_part(spec, [&](std::string_view part) { zip.write(part); });
  zip.end();
  zip.begin("y.npy", packing);  // labels are zeros, as in DLIO
  zip.write(npy_header("<i8", {spec.num_samples}));
  zip.write(std::string(static_cast<std::size_t>(spec.num_samples) * 8, '\0'));
  zip.end();
  zip.finish();
  out.commit();
}

void write_tfrecord(const SampleFileSpec& spec) {
  FileWriter out(spec.path);
  std::string places;
  for (std::int64_t i = 0; i < spec.num_samples; ++i) {
    std::string features;
    append_feature(features, "image", whole_sample(spec, i));
    append_feature(features, "size", std::vector<std::int64_t>{sample_bytes(spec)});
    std::string record;
    append_tfrecord(record, example_of(features));
    places += std::to_string(out.size()) + " " + std::to_string(record.size()) + "\n";
    out.write(record);
  }
  if (!spec.index.empty()) {
    FileWriter index(spec.index);
    index.write(places);
    index.commit();
  }
  out.commit();
}

void write_csv(const SampleFileSpec& spec) {
  FileWriter out(spec.path);
  for (std::int64_t i = 0; i < spec.num_samples; ++i) {
    const std::string sample = whole_sample(spec, i);
    std::string line;
    line.reserve(sample.size() * 4);
    for (const char c : sample) {
      char digits[4];
      const auto end = std::to_chars(digits, digits + 4, static_cast<unsigned char>(c)).ptr;
      line.append(digits, end);
      line += ',';
    }
    line.back() = '\n';
    out.write(line);
  }
  out.commit();
}

void write_image(const SampleFileSpec& spec) {
  MILLRACE_CHECK(spec.dims.size() == 2 && spec.num_samples == 1);
  const Image image{.height = spec.dims[0], .width = spec.dims[1], .pixels = whole_sample(spec, 0)};
  FileWriter out(spec.path);
  out.write(spec.format == SampleFormat::Jpeg ? encode_jpeg(image) : encode_png(image));
  out.commit();
}

void write_hdf5_samples(const SampleFileSpec& spec) {
  std::vector<std::int64_t> shape{spec.num_samples};
  shape.insert(shape.end(), spec.dims.begin(), spec.dims.end());
  shape[1] /= spec.sets_per_record;
  const auto sample = static_cast<std::size_t>(sample_bytes(spec));
  const std::size_t share = sample / static_cast<std::size_t>(spec.sets_per_record);
  std::vector<std::string> parts(spec.sets_per_record);
  for (std::int64_t i = 0; i < spec.num_samples; ++i) {
    const std::string bytes = whole_sample(spec, i);
    for (std::size_t set = 0; set < parts.size(); ++set) parts[set] += bytes.substr(set * share, share);
  }
  std::vector<Hdf5DataSet> sets;
  for (std::size_t set = 0; set < parts.size(); ++set) {
    sets.push_back({.name = "records_" + std::to_string(set),
                    .element = spec.element,
                    .shape = shape,
                    .chunk = spec.chunk_dims,
                    .gzip_level = spec.compression == SampleCompression::Gzip ? spec.compression_level : 0,
                    .data = parts[set]});
  }
  const std::string labels(static_cast<std::size_t>(spec.num_samples) * 8, '\0');
  sets.push_back({.name = "labels", .element = Element::Int64, .shape = {spec.num_samples}, .data = labels});
  const std::string partial = spec.path.string() + ".partial";
  const UnfinishedFile unfinished(partial);
  try {
    write_hdf5(partial, sets);
  } catch (...) {
    ::unlink(partial.c_str());
    throw;
  }
  std::filesystem::rename(partial, spec.path);
}

void write_binary(const SampleFileSpec& spec) {
  const std::int64_t bytes = sample_bytes(spec);
  FileWriter offsets(spec.path.string() + ".off.idx"), sizes(spec.path.string() + ".sz.idx"), out(spec.path);
  for (std::int64_t i = 0; i < spec.num_samples; ++i) {
    const std::uint64_t place[] = {static_cast<std::uint64_t>(i * bytes), static_cast<std::uint64_t>(bytes)};
    offsets.write({reinterpret_cast<const char*>(&place[0]), 8});
    sizes.write({reinterpret_cast<const char*>(&place[1]), 8});
    const Payload payload = payload_of(spec, i);
    for (std::int64_t at = 0; at < bytes; at += kPart) {
      const std::int64_t now = std::min(kPart, bytes - at);
      payload.fill(at, out.reserve(now), now);
    }
  }
  offsets.commit();
  sizes.commit();
  out.commit();
}

}  // namespace

Payload payload_of(const SampleFileSpec& spec, std::int64_t sample) {
  return {derive_seed(spec.seed, "sample." + spec.split, static_cast<std::uint64_t>(spec.file),
                      static_cast<std::uint64_t>(sample)),
          spec.element, spec.randomness};
}

Bytes sample_bytes(const SampleFileSpec& spec) {
  Bytes bytes = info_of(spec.element).bytes;
  for (const std::int64_t side : spec.dims)
    MILLRACE_CHECK(!__builtin_mul_overflow(bytes, side, &bytes) && bytes > 0, "sides of a sample");
  if (spec.format == SampleFormat::Hdf5 && spec.sets_per_record > 1)
    bytes = bytes / spec.dims[0] * (spec.dims[0] / spec.sets_per_record * spec.sets_per_record);
  return bytes;
}

void write_sample_file(const SampleFileSpec& spec) {
  switch (spec.format) {
    case SampleFormat::Npy:
      return write_npy(spec);
    case SampleFormat::Npz:
      return write_npz(spec);
    case SampleFormat::TfRecord:
      return write_tfrecord(spec);
    case SampleFormat::Csv:
      return write_csv(spec);
    case SampleFormat::Jpeg:
    case SampleFormat::Png:
      return write_image(spec);
    case SampleFormat::Hdf5:
      return write_hdf5_samples(spec);
    case SampleFormat::IndexedBinary:
    case SampleFormat::MmapIndexedBinary:
      return write_binary(spec);
    case SampleFormat::Synthetic:
      return;
  }
}

bool exact_content(SampleFormat format) {
  return format != SampleFormat::Jpeg;
}

std::optional<std::string> wrong_content(const SampleFileSpec& spec, std::int64_t sample,
                                         std::string_view read) {
  if (static_cast<Bytes>(read.size()) != sample_bytes(spec))
    return "has " + std::to_string(read.size()) + " bytes, " + std::to_string(sample_bytes(spec)) +
           " were generated";
  if (!exact_content(spec.format)) return std::nullopt;
  const Payload payload = payload_of(spec, sample);
  std::string part(static_cast<std::size_t>(std::min<std::int64_t>(kPart, sample_bytes(spec))), '\0');
  for (std::size_t at = 0; at < read.size(); at += part.size()) {
    const std::size_t now = std::min(part.size(), read.size() - at);
    payload.fill(static_cast<std::int64_t>(at), part.data(), static_cast<std::int64_t>(now));
    if (auto wrong = first_difference(read.substr(at, now), std::string_view(part).substr(0, now),
                                      static_cast<std::int64_t>(at)))
      return wrong;
  }
  return std::nullopt;
}

}  // namespace millrace
