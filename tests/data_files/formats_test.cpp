// Readers and writers of array, archive, record and image files.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "data/files/crc32c.h"
#include "data/files/npy.h"
#include "data/files/protobuf.h"
#include "data/files/sample_file.h"
#include "data/files/tfrecord.h"
#include "data/files/zip.h"
#include "experiments/io/generate/sample_writer.h"
#include "runtime/base/error.h"
#include "tests/driver/temporary_folder.h"

namespace millrace {
namespace {

TEST(Crc32c, KnownVectors) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);  // the check value of RFC 3720's polynomial
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c("6789", crc32c("12345")), crc32c("123456789"));
}

TEST(Npy, HeaderIsNumPysByteForByte) {
  const std::string header = npy_header("<f4", {1, 200, 300, 300});
  EXPECT_EQ(header.size(), 128u);
  EXPECT_EQ(header.substr(0, 10), std::string("\x93NUMPY\x01\x00\x76\x00", 10));
  EXPECT_EQ(header.substr(10, 66), "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 200, 300, 30");
  EXPECT_EQ(header.back(), '\n');
  EXPECT_NE(npy_header("|u1", {7}).find("'shape': (7,), }"), std::string::npos);
}

TEST(Npy, ReadsWhatItWrites) {
  for (const std::vector<std::int64_t>& shape : std::vector<std::vector<std::int64_t>>{
           {}, {0}, {5}, {2, 3}, {1, 2, 3, 4}, std::vector<std::int64_t>(32, 1)}) {
    std::int64_t bytes = 2;
    for (const std::int64_t side : shape) bytes *= side;
    const std::string file = npy_header("<f2", shape) + std::string(static_cast<std::size_t>(bytes), 'x');
    const Result<NpyHeader> header = parse_npy(file, "a.npy");
    ASSERT_TRUE(header) << to_string(header.problems());
    EXPECT_EQ(header->shape, shape);
    EXPECT_EQ(header->data_bytes, bytes);
    EXPECT_FALSE(parse_npy(file + "x", "a.npy"));
    EXPECT_FALSE(parse_npy(file.substr(0, file.size() - 1), "a.npy"));
  }
}

TEST(Npy, RefusesWhatIsNoArray) {
  const auto with = [](const std::string& dictionary) {
    std::string text = std::string("\x93NUMPY\x01\x00", 8);
    put_little(text, static_cast<std::uint16_t>(dictionary.size()));
    return text + dictionary;
  };
  EXPECT_TRUE(parse_npy_header(with("{'descr': '<f4', 'fortran_order': True, 'shape': (3,)}"), "a"));
  for (const char* dictionary :
       {"", "{", "{}", "{'descr': '<f4'}", "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 9)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'shape': (3,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)} x"}) {
    const Result<NpyHeader> header = parse_npy_header(with(dictionary), "a");
    ASSERT_FALSE(header) << dictionary;
    EXPECT_EQ(header.problems()[0].where, "a");
  }
}

TEST(Zip, StoredAndDeflatedMembersComeBack) {
  const TemporaryFolder folder;
  const std::string large(3'000'000, 'a'), small = "abc";
  {
    FileWriter out(folder.path("a.zip"));
    ZipWriter zip(out);
    zip.begin("x", ZipWriter::Packing::Deflated);
    zip.write(large);
    zip.end();
    zip.begin("y", ZipWriter::Packing::Stored);
    zip.write(small.substr(0, 1));
    zip.write(small.substr(1));
    zip.end();
    zip.finish();
    out.commit();
  }
  std::string bytes = folder.read("a.zip");
  EXPECT_LT(bytes.size(), 100'000u);
  const Result<std::vector<ZipMember>> members = parse_zip(bytes, "a.zip");
  ASSERT_TRUE(members) << to_string(members.problems());
  ASSERT_EQ(members->size(), 2u);
  std::string unpacked;
  EXPECT_EQ(*zip_member(bytes, (*members)[0], unpacked, "a.zip"), large);
  EXPECT_EQ(*zip_member(bytes, (*members)[1], unpacked, "a.zip"), small);
  EXPECT_FALSE(zip_member(bytes, (*members)[0], unpacked, "a.zip", 1000));
  bytes[(*members)[1].data_offset] ^= 1;
  EXPECT_FALSE(zip_member(bytes, (*members)[1], unpacked, "a.zip"));
  for (std::size_t end = 0; end < bytes.size(); end += 7)
    EXPECT_FALSE(parse_zip(bytes.substr(0, end), "a.zip"));
}

TEST(TfRecord, EveryFlippedBitIsFound) {
  std::string file;
  append_tfrecord(file, "hello");
  append_tfrecord(file, "");
  TfRecordReader whole(file, "f");
  EXPECT_EQ(*whole.next(), "hello");
  EXPECT_EQ(*whole.next(), "");
  EXPECT_TRUE(whole.at_end());
  for (std::size_t bit = 0; bit < file.size() * 8; ++bit) {
    std::string damaged = file;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    TfRecordReader reader(damaged, "f");
    bool found = false;
    while (!found && !reader.at_end()) found = !reader.next();
    EXPECT_TRUE(found) << bit;
  }
}

TEST(TfRecord, ExamplesRoundTrip) {
  Example example;
  example["ids"] = {.kind = Feature::Kind::Int64, .integers = {0, 1, 300, -1, INT64_MAX}};
  example["weights"] = {.kind = Feature::Kind::Float, .floats = {1.5f, -0.25f}};
  example["raw"] = {.kind = Feature::Kind::Bytes, .bytes = {"a", std::string(300, 'b')}};
  const std::string bytes = serialise_example(example);
  const Result<Example> read = parse_example(bytes, "x");
  ASSERT_TRUE(read) << to_string(read.problems());
  EXPECT_EQ(read->at("ids").integers, example["ids"].integers);
  EXPECT_EQ(read->at("weights").floats, example["weights"].floats);
  EXPECT_EQ(read->at("raw").bytes, example["raw"].bytes);
  EXPECT_EQ(serialise_example(*read), bytes);
  EXPECT_EQ(*example_bytes(bytes, "raw", "x"), std::string(300, 'b'));
  EXPECT_FALSE(example_bytes(bytes, "ids", "x"));
  EXPECT_FALSE(parse_example(bytes.substr(0, bytes.size() - 1), "x"));
}

class EveryFormat : public testing::TestWithParam<SampleFormat> {
 protected:
  SampleFileSpec spec(std::int64_t samples, Element element = Element::UInt8) const {
    return {.format = GetParam(),
            .path = folder_.path(std::string("f.") + to_string(GetParam())),
            .index = GetParam() == SampleFormat::TfRecord ? folder_.path("f.idx") : "",
            .seed = 7,
            .split = "train",
            .file = 3,
            .element = element,
            .dims = {31, 17},
            .num_samples = samples};
  }
  bool is_image() const { return GetParam() == SampleFormat::Jpeg || GetParam() == SampleFormat::Png; }
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Formats, EveryFormat,
                         testing::Values(SampleFormat::Npz, SampleFormat::Npy, SampleFormat::TfRecord,
                                         SampleFormat::Csv, SampleFormat::Jpeg, SampleFormat::Png,
                                         SampleFormat::Hdf5, SampleFormat::IndexedBinary,
                                         SampleFormat::MmapIndexedBinary),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(EveryFormat, EverySampleComesBackAsItWasMade) {
  for (const std::int64_t samples : {1, 5}) {
    if (is_image() && samples > 1) continue;
    const SampleFileSpec made = spec(samples);
    write_sample_file(made);
    for (const bool direct : {false, true}) {
      if (direct && !reads_directly(GetParam())) continue;
      std::unique_ptr<SampleFile> file;
      try {
        file = open_sample_file(GetParam(), made.path, made.index, {.direct = direct});
      } catch (const DataError& error) {
        ASSERT_NE(std::string(error.what()).find("O_DIRECT"), std::string::npos) << error.what();
        continue;  // a memory file system has no disk to read past
      }
      ASSERT_EQ(file->num_samples(), samples);
      for (std::int64_t i = samples; i-- > 0;) EXPECT_FALSE(wrong_content(made, i, file->sample(i))) << i;
      if (exact_content(GetParam()) && samples > 1) {
        EXPECT_TRUE(wrong_content(made, 0, file->sample(1)));
      }
      EXPECT_THROW(file->sample(samples), DataError);
      EXPECT_GT(file->bytes_read(), 0);
    }
  }
}

TEST_P(EveryFormat, ACutFileIsNeverReadAsWhole) {
  const SampleFileSpec made = spec(is_image() ? 1 : 2);
  write_sample_file(made);
  const auto size = std::filesystem::file_size(made.path);
  for (const std::uintmax_t keep : {size - 1, size / 2, std::uintmax_t{1}, std::uintmax_t{0}}) {
    std::filesystem::resize_file(made.path, keep);
    const auto read_all = [&] {
      const auto file = open_sample_file(GetParam(), made.path, made.index, {});
      for (std::int64_t i = 0; i < made.num_samples; ++i) {
        if (wrong_content(made, i, file->sample(i))) throw DataError("content");
      }
    };
    // The last line of a text file may lose its line's end and be whole.
    if (GetParam() == SampleFormat::Csv && keep == size - 1) continue;
    EXPECT_THROW(read_all(), DataError) << keep << " of " << size;
  }
  std::filesystem::remove(made.path);
  EXPECT_THROW(open_sample_file(GetParam(), made.path, made.index, {}), DataError);
}

TEST(Samples, PackedArraysAndOtherNumbers) {
  const TemporaryFolder folder;
  for (const auto& [format, compression] : {std::pair{SampleFormat::Npz, SampleCompression::Zip},
                                            std::pair{SampleFormat::Hdf5, SampleCompression::Gzip}}) {
    for (const ElementInfo& info : kElements) {
      SampleFileSpec made{.format = format,
                          .path = folder.path("f"),
                          .split = "valid",
                          .element = info.element,
                          .dims = {64, 64},
                          .num_samples = 3,
                          .randomness = {.entropy = 2, .correlation = 0.5},
                          .compression = compression};
      write_sample_file(made);
      const auto file = open_sample_file(format, made.path, "", {});
      for (std::int64_t i = 0; i < 3; ++i) EXPECT_FALSE(wrong_content(made, i, file->sample(i))) << info.name;
      EXPECT_LT(std::filesystem::file_size(made.path), static_cast<std::uintmax_t>(3 * sample_bytes(made)))
          << info.name;
    }
  }
}

TEST(Samples, AWrongIndexFileIsNotBelieved) {
  const TemporaryFolder folder;
  const SampleFileSpec made{.format = SampleFormat::TfRecord,
                            .path = folder.path("f"),
                            .split = "train",
                            .dims = {8, 8},
                            .num_samples = 3};
  write_sample_file(made);
  for (const char* index : {"", "0 5\n", "0 99999\n", "x", "0 100\n200 3\n"}) {
    const auto file = open_sample_file(SampleFormat::TfRecord, made.path, folder.write("f.idx", index), {});
    ASSERT_EQ(file->num_samples(), 3) << index;
    EXPECT_FALSE(wrong_content(made, 2, file->sample(2)));
  }
}

TEST(Payload, AnyPartAloneIsThePartOfTheWhole) {
  for (const ElementInfo& info : kElements) {
    for (const Randomness& randomness :
         {Randomness{}, Randomness{.entropy = 3}, Randomness{.correlation = 0.7}}) {
      const Payload payload(99, info.element, randomness);
      std::string whole(static_cast<std::size_t>(3 * kCorrelated * info.bytes), '\0');
      payload.fill(0, whole.data(), static_cast<std::int64_t>(whole.size()));
      for (const auto& [from, bytes] :
           {std::pair<std::size_t, std::size_t>{0, 1}, {1, 17}, {4095, 4098}, {5000, 7001}}) {
        if (from + bytes > whole.size()) continue;
        std::string part(bytes, '\0');
        payload.fill(static_cast<std::int64_t>(from), part.data(), static_cast<std::int64_t>(bytes));
        EXPECT_EQ(part, whole.substr(from, bytes)) << info.name << " " << from;
      }
    }
  }
}

TEST(Payload, CorrelationAndMeanAreAsAsked) {
  for (const double correlation : {0.0, 0.3, 0.9}) {
    const Payload payload(5, Element::Float64, {.correlation = correlation});
    std::vector<double> x(400'000);
    payload.fill(0, reinterpret_cast<char*>(x.data()), static_cast<std::int64_t>(x.size() * 8));
    double mean = 0, variance = 0, product = 0;
    for (const double v : x) mean += v / static_cast<double>(x.size());
    for (std::size_t i = 0; i + 1 < x.size(); ++i) {
      variance += (x[i] - mean) * (x[i] - mean);
      product += (x[i] - mean) * (x[i + 1] - mean);
    }
    // Standard errors: 0.0005 * sqrt((1+r)/(1-r)) of the mean, about 0.002 of the correlation.
    EXPECT_NEAR(mean, 0.5, 0.01);
    EXPECT_NEAR(product / variance, correlation, 0.01);
  }
}

}  // namespace
}  // namespace millrace
