#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>

#include "data/files/npy.h"
#include "data/files/tfrecord.h"
#include "data/language/bucketing.h"
#include "data/text/token_file.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "tests/language/language_fixture.h"

namespace millrace {
namespace {

using Order = std::vector<std::int64_t>;

TEST(TorchGenerator, PermutesAsTorchDoes) {
  TorchGenerator generator(0);
  EXPECT_EQ(generator.permutation(10), (Order{4, 1, 7, 5, 3, 9, 0, 8, 6, 2}));
  EXPECT_EQ(generator.permutation(10), (Order{3, 9, 4, 2, 7, 8, 6, 0, 5, 1}));
}

TEST(BucketedOrder, IsPipeDreamsSampler) {
  const auto key = [](std::int64_t i) { return (7 * i * i + 3 * i) % 23 + 4; };
  // Batches of 4 for two workers, by turns; what 22 leaves over comes last.
  Order order = bucketed_order(22, {.per_step = 8}, key, 0);
  ASSERT_EQ(order.size(), 22u);
  order.resize(16);
  EXPECT_EQ(order, (Order{4, 15, 2, 8, 10, 9, 7, 18, 0, 16, 3, 13, 11, 5, 20, 19}));
  order = bucketed_order(22, {.per_step = 8, .steps_per_shard = 1}, key, 0);
  Order all = order;
  std::ranges::sort(all);
  Order identity(22);
  std::iota(identity.begin(), identity.end(), 0);
  EXPECT_EQ(all, identity);
  order.resize(16);
  EXPECT_EQ(order, (Order{0, 16, 13, 19, 2, 8, 7, 18, 3, 11, 5, 20, 4, 15, 10, 9}));
}

/// Lengths of the twin, tests/reference/mlperf_sampler.py.
std::int64_t twins_length(std::int64_t i) {
  return (7 * i * i + 3 * i) % 47 + 3;
}

Order whole_steps(std::int64_t size, const LengthBuckets& buckets, std::uint32_t seed) {
  Order order = length_bucket_order(size, buckets, twins_length, seed);
  Order all = order;
  std::ranges::sort(all);
  Order identity(static_cast<std::size_t>(size));
  std::iota(identity.begin(), identity.end(), 0);
  EXPECT_EQ(all, identity);
  order.resize(in_whole_steps(size, buckets, twins_length));
  return order;
}

TEST(LengthBuckets, AreMlperfsSampler) {
  EXPECT_EQ(whole_steps(30, {.buckets = 5, .longest = 50, .per_step = 4}, 1),
            (Order{29, 13, 5, 0, 28, 22, 15, 18, 9, 11, 6, 2, 26, 27, 24, 23, 17, 14, 8, 21}));
  EXPECT_EQ(whole_steps(30, {.buckets = 1, .longest = 50, .per_step = 4}, 1),
            (Order{10, 2, 24, 29, 22, 3,  27, 15, 23, 18, 17, 20, 21, 26,
                   28, 1, 9,  13, 7,  11, 19, 12, 5,  14, 25, 4,  6,  8}));
}

TEST(LengthBuckets, EveryStepIsOfOneBucket) {
  const LengthBuckets buckets{.buckets = 5, .longest = 48, .per_step = 8};  // widths round up to 10
  const Order order = whole_steps(1000, buckets, 7);
  EXPECT_GT(order.size(), 960u - 5 * 8);
  for (std::size_t first = 0; first < order.size(); first += 8) {
    for (std::size_t i = first; i < first + 8; ++i)
      EXPECT_EQ(buckets.of(twins_length(order[i])), buckets.of(twins_length(order[first]))) << i;
  }
  EXPECT_EQ(buckets.of(9), 0);
  EXPECT_EQ(buckets.of(10), 1);
  EXPECT_EQ(buckets.of(1000), 4);
}

TEST(LengthBuckets, EqualTheirTwinInPython) {
  const char* python = std::getenv("MILLRACE_REFERENCE_PYTHON");
  if (!python) GTEST_SKIP() << "tests/reference/install makes it";
  for (const std::int64_t size : {8, 100, 1000}) {
    for (const int buckets : {1, 3, 5}) {
      for (const std::int64_t per_step : {1, 8}) {
        const std::string command = std::string(python) + " " + MILLRACE_SOURCE_DIR +
                                    "/tests/reference/mlperf_sampler.py " + std::to_string(size) + " " +
                                    std::to_string(buckets) + " 48 " + std::to_string(per_step) + " " +
                                    std::to_string(size + buckets);
        FILE* pipe = ::popen(command.c_str(), "r");
        ASSERT_TRUE(pipe);
        std::string text(1 << 16, '\0');
        text.resize(std::fread(text.data(), 1, text.size(), pipe));
        ASSERT_EQ(::pclose(pipe), 0) << command;
        const auto json = parse_json(text, command);
        ASSERT_TRUE(json) << text;
        Order expected;
        for (const Json& index : json->items()) expected.push_back(index.as_int());
        EXPECT_EQ(whole_steps(size, {.buckets = buckets, .longest = 48, .per_step = per_step},
                              static_cast<std::uint32_t>(size + buckets)),
                  expected)
            << command;
      }
    }
  }
}

LanguageOptions options_for(const LayeredModel& model, std::int64_t longest = 1 << 20, bool train = true) {
  return {.fields = model.fields, .longest = longest, .seed = 3, .train = train};
}

std::vector<std::int64_t> values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

/// Fields that are called as those of text, of a model that does not say that it reads text.
TEST(FieldNames, DoNotMakeTensorsText) {
  const auto integers = [](const char* name, Shape shape) {
    return FieldSpec{.name = name, .shape = std::move(shape), .dtype = at::kLong, .limit = 9};
  };
  const std::vector<std::vector<FieldSpec>> all{
      {integers("tokens", {6}), integers("labels", {6})},
      {integers("source", {7}), integers("target", {6}), integers("labels", {6})},
      {{.name = "frames", .shape = {4, 3}}, integers("tokens", {4}), integers("labels", {4})},
      {integers("input_ids", {5}), integers("masked_positions", {2})}};
  for (const std::vector<FieldSpec>& fields : all) {
    const auto set = make_dataset({.path = "synthetic:8", .fields = fields});
    ASSERT_TRUE(set) << fields[0].name << ": " << to_string(set.problems());
    const std::vector<char> wanted(fields.size(), 1);
    const Sample sample = (*set)->get(3, 0, wanted);
    for (std::size_t f = 0; f < fields.size(); ++f)
      EXPECT_EQ(sample[f].tensor.sizes().vec(), fields[f].shape) << fields[f].name;
    const auto folder = make_dataset({.path = "nowhere:de-en", .fields = fields});
    ASSERT_FALSE(folder);
    EXPECT_NE(to_string(folder.problems()).find("arrays:FILE.npz"), std::string::npos);
  }
  // A form without one of its fields.
  FieldSpec alone = integers("tokens", {dimension(0)});
  alone.form = SampleForm::RunningText;
  const auto none = make_dataset({.path = "synthetic:8", .fields = {alone}});
  ASSERT_FALSE(none);
  EXPECT_NE(to_string(none.problems()).find("has no field labels"), std::string::npos);
}

TEST(ParallelText, AnEpochOfBucketsHasWholeStepsOnly) {
  const LayeredModel model = small_gnmt(0);
  std::vector<std::vector<std::uint32_t>> source, target;
  for (std::uint32_t i = 0; i < 50; ++i) {
    source.emplace_back(i % 13, 5);
    target.emplace_back(i % 7, 6);
  }
  LanguageOptions bucketed = options_for(model, 16);
  bucketed.length_buckets = 4;
  const auto data = *parallel_text(tokens_in_memory(source), tokens_in_memory(target), bucketed);
  LoaderOptions options{.microbatch = 3, .microbatches_per_step = 2, .workers = 0};
  options.read_for(model);
  const std::int64_t steps = data->samples_in_epoch(6) / 6;
  EXPECT_EQ(data->samples_in_epoch(6) % 6, 0);
  EXPECT_LT(data->samples_in_epoch(6), 48) << "each bucket leaves some over";
  EXPECT_EQ(steps_per_epoch(*data, options), steps);
  // The extents of a step in the second epoch do not depend on the position at which a rank begins to read.
  const auto whole = std::move(*make_loader(data, options));
  const auto resumed = std::move(*make_loader(data, options));
  const std::int64_t at = 2 * (steps + 1);
  for (std::int64_t p = 0; p < at; ++p) whole->get(p);
  resumed->seek(at);
  EXPECT_EQ(resumed->extent(at).lengths, whole->extent(at).lengths);
  const Batch one = whole->get(at), other = resumed->get(at);
  for (std::size_t f = 0; f < one.fields.size(); ++f) EXPECT_TRUE(at::equal(one.fields[f], other.fields[f]));
}

TEST(ParallelText, PutsBeginAndEndAndPadsToTheMicrobatchsOwnLongest) {
  const LayeredModel model = small_gnmt(0);
  const auto data =
      *parallel_text(tokens_in_memory({{5, 6}, {7}, {8, 9, 10}, {}}),
                     tokens_in_memory({{15}, {16, 17, 18}, {19, 20}, {21}}), options_for(model));
  LoaderOptions options{.microbatch = 2, .microbatches_per_step = 1, .shuffle = false, .workers = 0};
  options.read_for(model);
  const auto loader = std::move(*make_loader(data, options));
  // Longest source first: 2, 0, then 1, 3.
  EXPECT_EQ(loader->extent(0), (BatchExtent{2, {5, 3}, {5}}));
  EXPECT_EQ(loader->extent(1), (BatchExtent{2, {3, 4}, {6}}));
  const Batch first = loader->get(0), second = loader->get(1);
  EXPECT_EQ(values(first.fields[0].t()), (Order{2, 8, 9, 10, 3, 2, 5, 6, 3, 0}));
  EXPECT_EQ(values(first.fields[1].t()), (Order{2, 19, 20, 2, 15, 0}));
  EXPECT_EQ(values(first.fields[2].t()), (Order{19, 20, 3, 15, 3, 0}));
  EXPECT_EQ(values(second.fields[0].t()), (Order{2, 7, 3, 2, 3, 0}));
  EXPECT_EQ(values(second.fields[2].t()), (Order{16, 17, 18, 3, 21, 3, 0, 0}));
}

TEST(ParallelText, LeavesLongPairsOutOfTrainingOnly) {
  const LayeredModel model = small_gnmt(0);
  const auto source = tokens_in_memory({{5, 6, 7}, {5}}), target = tokens_in_memory({{5}, {5, 6, 7}});
  EXPECT_EQ((*parallel_text(source, target, options_for(model, 5)))->size(), 2);
  const auto train = *parallel_text(source, target, options_for(model, 4));
  EXPECT_EQ(train->size(), 0);
  ASSERT_EQ(train->notes().size(), 1u);
  EXPECT_NE(train->notes()[0].find("2 pairs of more than 4 tokens"), std::string::npos);
  EXPECT_EQ((*parallel_text(source, target, options_for(model, 4, false)))->size(), 2);
  EXPECT_FALSE(parallel_text(source, tokens_in_memory({{1}}), options_for(model)));
}

/// Every rank knows of every microbatch what it will hold; and an epoch's samples come once each.
TEST(ParallelText, ExtentsSayWhatBatchesHold) {
  const LayeredModel model = small_gnmt(0);
  const auto ahead = text_batches(model, 3, 4), loader = text_batches(model, 3, 4);
  std::int64_t padded = 0, tokens = 0;
  for (std::int64_t position = 0; position < 40; ++position) {
    const BatchExtent extent = ahead->extent(position);
    const Batch batch = loader->get(position);
    for (std::size_t f = 0; f < model.fields.size(); ++f)
      EXPECT_EQ(batch.fields[f].sizes().vec(), field_shape(model.fields[f], extent)) << position;
    EXPECT_EQ(batch.fields[2].ne(0).sum().item().toLong(), extent.counts[0]) << position;
    // No padding that all sentences share.
    EXPECT_GT(batch.fields[0][extent.lengths[0] - 1].ne(0).sum().item().toLong(), 0);
    EXPECT_GT(batch.fields[2][extent.lengths[1] - 1].ne(0).sum().item().toLong(), 0);
    padded += batch.fields[0].numel();
    tokens += batch.fields[0].ne(0).sum().item().toLong();
  }
  EXPECT_LT(double(padded), 1.3 * double(tokens));
}

TEST(ParallelText, GoesOnAtTheSameSentence) {
  for (const LayeredModel& model : {small_gnmt(0), small_bert(0), small_lm(0)}) {
    const auto one = text_batches(model, 3, 2), other = text_batches(model, 3, 2);
    for (std::int64_t position = 0; position < 23; ++position) one->get(position);
    const Batch a = one->get(23), b = other->get(23);
    for (std::size_t f = 0; f < a.fields.size(); ++f)
      EXPECT_TRUE(at::equal(a.fields[f], b.fields[f])) << model.name;
  }
}

TEST(RunningText, IsPyTorchsBatchify) {
  const LayeredModel model = small_lm(0);
  std::vector<Tokens> sentences{{0, 1, 2}, {}, {3, 4, 5, 6, 7, 8, 9, 10}, {11, 12, 13, 14, 15, 16}};
  const auto data = *running_text(tokens_in_memory(sentences), 2, -1, options_for(model, 3));
  // 17 tokens in 2 rows of 8, windows of 3, 3 and 1.
  EXPECT_EQ(data->size(), 6);
  LoaderOptions options{.microbatch = 2, .microbatches_per_step = 1, .workers = 0};
  options.read_for(model);
  const auto loader = std::move(*make_loader(data, options));
  const std::vector<Order> tokens{{0, 1, 2, 8, 9, 10}, {3, 4, 5, 11, 12, 13}, {6, 14}},
      labels{{1, 2, 3, 9, 10, 11}, {4, 5, 6, 12, 13, 14}, {7, 15}};
  for (std::size_t i = 0; i < 3; ++i) {
    const Batch batch = loader->get(static_cast<std::int64_t>(i));
    EXPECT_EQ(values(batch.fields[0]), tokens[i]);
    EXPECT_EQ(values(batch.fields[1]), labels[i]);
  }
  const auto ended = *running_text(tokens_in_memory({{5}, {6, 7}}), 1, 3, options_for(model, 9));
  const std::vector<char> wanted{1, 1};
  EXPECT_EQ(values(ended->get(0, 0, wanted)[0].tensor), (Order{5, 3, 6, 7}));
  EXPECT_FALSE(running_text(tokens_in_memory({{1}}), 4, -1, options_for(model, 3)));
}

std::string bert_record(const std::vector<std::int64_t>& ids, const std::vector<std::int64_t>& places,
                        std::int64_t next, const std::string& without = "") {
  constexpr std::size_t kLongest = 8, kMasked = 4;
  const auto padded = [](std::vector<std::int64_t> values, std::size_t size) {
    values.resize(size);
    return values;
  };
  Example example;
  const auto integers = [&](const char* name, std::vector<std::int64_t> values) {
    if (name != without) example[name] = {.kind = Feature::Kind::Int64, .integers = std::move(values)};
  };
  integers("input_ids", padded(ids, kLongest));
  integers("input_mask", padded(std::vector<std::int64_t>(ids.size(), 1), kLongest));
  integers("segment_ids", padded({0, 0, 1}, kLongest));
  integers("masked_lm_positions", padded(places, kMasked));
  integers("masked_lm_ids", padded(std::vector<std::int64_t>(places.size(), 9), kMasked));
  integers("next_sentence_labels", {next});
  std::vector<float> weights(places.size(), 1);
  weights.resize(kMasked);
  example["masked_lm_weights"] = {.kind = Feature::Kind::Float, .floats = weights};
  return serialise_example(example);
}

TEST(BertRecords, AreCutToTheirOwnLengths) {
  const auto folder = std::filesystem::temp_directory_path() / ("bert-records-" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder / "train");
  std::string first, second;
  append_tfrecord(first, bert_record({1, 5, 2}, {1}, 0));
  append_tfrecord(first, bert_record({}, {}, 0));  // the kit's generator makes one in 512
  append_tfrecord(first, bert_record({1, 5, 6, 7, 2}, {1, 3}, 1));
  append_tfrecord(second, bert_record({1, 5, 6, 7, 8, 9, 10, 2}, {1, 2, 3, 4}, 0));
  const auto path = folder / "train" / "part-00000-of-00002";
  ASSERT_TRUE(write_file_atomically(path, first));
  ASSERT_TRUE(write_file_atomically(folder / "train" / "part-00001-of-00002", second));
  const LayeredModel model = small_bert(0);
  const auto open = [&] {
    return make_dataset(
        {.path = folder.string(), .fields = model.fields, .dimensions = model.dimensions, .per_step = 2});
  };
  const auto data = open();
  ASSERT_TRUE(data) << to_string(data.problems());
  ASSERT_EQ((*data)->size(), 3);
  EXPECT_EQ((*data)->left_out(), 1);
  EXPECT_NE(
      (*data)->notes().at(0).find("left out: 1 records whose input_mask is all zeros: " + path.string()),
      std::string::npos)
      << (*data)->notes().at(0);
  std::int64_t lengths[2], count[1];
  (*data)->measure(1, lengths, count);
  EXPECT_EQ(lengths[0], 5);
  EXPECT_EQ(lengths[1], 2);
  EXPECT_EQ(count[0], 2);
  const std::vector<char> all(model.fields.size(), 1);
  const Sample sample = (*data)->get(1, 0, all);
  std::map<std::string, std::size_t> field;
  for (std::size_t i = 0; i < model.fields.size(); ++i) field[model.fields[i].name] = i;
  EXPECT_EQ(values(sample[field["input_ids"]].tensor), (Order{1, 5, 6, 7, 2}));
  EXPECT_EQ(values(sample[field["token_type_ids"]].tensor), (Order{0, 0, 1, 0, 0}));
  EXPECT_EQ(values(sample[field["masked_positions"]].tensor), (Order{1, 3}));
  EXPECT_EQ(values(sample[field["masked_labels"]].tensor), (Order{9, 9}));
  EXPECT_EQ(sample[field["next_sentence"]].number, 1);
  EXPECT_EQ((*data)->order({.per_step = 3, .shuffle = false}), (Order{2, 1, 0}));

  const auto refused = [&](const std::string& bytes, const std::string& what) {
    ASSERT_TRUE(write_file_atomically(path, bytes));
    const auto damaged = open();
    ASSERT_FALSE(damaged) << what;
    const std::string text = to_string(damaged.problems());
    EXPECT_NE(text.find("part-00000-of-00002"), std::string::npos) << text;
    EXPECT_NE(text.find(what), std::string::npos) << text;
  };
  refused(first.substr(0, first.size() - 3), "");
  std::string flipped = first;
  flipped[flipped.size() / 3] ^= 4;
  refused(flipped, "");
  const auto one = [](const std::string& payload) {
    std::string bytes;
    append_tfrecord(bytes, payload);
    return bytes;
  };
  refused(one(bert_record({1, 5, 2}, {1}, 0, "segment_ids")), "has no feature segment_ids of int64");
  refused(one(bert_record({1, kVocabulary, 2}, {1}, 0)), "input_ids has " + std::to_string(kVocabulary));
  refused(one(bert_record({1, 5, 2}, {3}, 0)), "masked_lm_positions has 3, not below 3");
  refused("", "is empty");
  std::filesystem::remove(folder / "train" / "part-00001-of-00002");
  refused(one(bert_record({}, {}, 0)), "holds no record that has tokens");
  std::filesystem::remove_all(folder);
}

TEST(BertPairs, AreMaskedAnewInEachEpochAndOtherwiseTheText) {
  const LayeredModel model = small_bert(0);
  std::vector<Tokens> sentences;
  for (std::uint32_t d = 0; d < 6; ++d) {
    for (std::uint32_t s = 0; s < 5; ++s)
      sentences.push_back({4 + d * 5 + s, 4 + d * 5 + s, 4 + d * 5 + s, 30});
    sentences.push_back({});
  }
  const auto data =
      *bert_pairs(tokens_in_memory(sentences), {.begin = 1, .separator = 2, .mask = 3, .first_word = 4},
                  options_for(model, 20));
  ASSERT_GT(data->size(), 5);
  const std::vector<char> wanted(5, 1);
  std::int64_t masks = 0, labels = 0, random_next = 0;
  bool differs = false;
  for (std::int64_t i = 0; i < data->size(); ++i) {
    std::int64_t lengths[2] = {}, counts[1] = {};
    data->measure(i, lengths, counts);
    const Sample one = data->get(i, 11, wanted), again = data->get(i, 11, wanted),
                 other = data->get(i, 12, wanted);
    for (std::size_t f = 0; f < 4; ++f) EXPECT_TRUE(at::equal(one[f].tensor, again[f].tensor));
    differs = differs || !at::equal(one[2].tensor, other[2].tensor);
    Order ids = values(one[0].tensor), types = values(one[1].tensor);
    EXPECT_EQ(static_cast<std::int64_t>(ids.size()), lengths[0]);
    EXPECT_LE(lengths[0], 20);
    const Order positions = values(one[2].tensor), originals = values(one[3].tensor);
    EXPECT_EQ(static_cast<std::int64_t>(positions.size()), lengths[1]);
    EXPECT_EQ(counts[0], lengths[1]);
    for (std::size_t k = 0; k < positions.size(); ++k) {
      masks += ids[positions[k]] == 3;
      ++labels;
      ids[positions[k]] = originals[k];
    }
    EXPECT_EQ(ids.front(), 1);
    EXPECT_EQ(ids.back(), 2);
    EXPECT_EQ(std::ranges::count(ids, 2), 2);
    // Unmasked, the same sentences whatever the epoch; the first segment's types are 0.
    Order restored = values(other[0].tensor);
    const Order places = values(other[2].tensor), words = values(other[3].tensor);
    for (std::size_t k = 0; k < places.size(); ++k) restored[places[k]] = words[k];
    EXPECT_EQ(ids, restored);
    const auto first = std::ranges::find(ids, 2) - ids.begin();
    EXPECT_EQ(std::ranges::count(types, 0), first + 1);
    random_next += one[4].number;
  }
  EXPECT_TRUE(differs);
  EXPECT_GT(masks, labels / 2);
  EXPECT_GT(random_next, 0);
  EXPECT_LT(random_next, data->size());
}

TEST(LanguageData, ReadsTokenFilesOfAFolder) {
  char name[] = "/tmp/millrace-language-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(name);
  const auto vocabulary = *Vocabulary::parse("a\nb\nc\n", TokenKind::Bpe, "v", 8);
  for (const char* file : {"train.de.tokens", "train.en.tokens", "train.tokens"}) {
    TokenFileWriter writer(folder / file, vocabulary, 8);
    for (std::uint32_t i = 0; i < 6; ++i) writer.write(std::vector<std::uint32_t>(1 + i, 4 + i % 3));
    writer.commit();
  }
  const auto open = [&](const LayeredModel& model, const std::string& path,
                        DataSplit split = DataSplit::Train) {
    return make_dataset(
        {.path = path, .split = split, .fields = model.fields, .dimensions = model.dimensions});
  };
  const auto pairs = open(small_gnmt(0), folder.string() + ":de-en");
  ASSERT_TRUE(pairs) << to_string(pairs.problems());
  EXPECT_EQ((*pairs)->size(), 6);
  const auto running = open(small_lm(0), folder.string());
  ASSERT_TRUE(running) << to_string(running.problems());
  const auto none = open(small_gnmt(0), folder.string() + ":de-en", DataSplit::Test);
  ASSERT_TRUE(none);
  EXPECT_EQ(*none, nullptr);
  EXPECT_NE(to_string(open(small_gnmt(0), folder.string()).problems()).find("FOLDER:SOURCE-TARGET"),
            std::string::npos);
  EXPECT_NE(to_string(open(small_gnmt(0), folder.string() + ":de-fr").problems()).find("train.fr.tokens"),
            std::string::npos);
  EXPECT_NE(to_string(open(transformer_lm_model({.vocabulary = 7}), folder.string()).problems())
                .find("--vocabulary"),
            std::string::npos);
  std::filesystem::remove_all(folder);
}

TEST(RunningText, RandomWindowsTileEveryRowOnceInEveryEpoch) {
  constexpr std::int64_t kColumns = 3;
  std::vector<Tokens> sentences(40);
  std::uint32_t next = 0;
  for (std::size_t i = 0; i < sentences.size(); ++i) {
    for (std::size_t t = 0; t < 31 + i % 7; ++t) sentences[i].push_back(next++);
  }
  LanguageOptions options = options_for(small_lm(0), 20);
  options.random_windows = true;
  const auto data = *running_text(tokens_in_memory(sentences), kColumns, -1, options);
  const std::int64_t row = next / kColumns, windows = data->size() / kColumns;
  EXPECT_NEAR(double(windows), double(row) / 19.5, 2);
  std::set<Order> all_lengths;
  for (std::int64_t epoch = 0; epoch < 6; ++epoch) {
    const Order order = data->order({.seed = 1, .epoch = epoch, .per_step = kColumns});
    ASSERT_EQ(std::ssize(order), data->size());
    Order lengths;
    for (std::int64_t c = 0; c < kColumns; ++c) {
      Order tokens;
      for (std::int64_t w = 0; w < windows; ++w) {
        const std::int64_t index = order[w * kColumns + c];
        std::int64_t length = 0, count = 0;
        data->measure(index, {&length, 1}, {&count, 1});
        const Sample sample = data->get(index, 0, std::vector<char>{1, 1});
        const Order read = values(sample[0].tensor), labels = values(sample[1].tensor);
        EXPECT_EQ(std::ssize(read), length);
        EXPECT_EQ(count, length);
        for (std::size_t t = 0; t < read.size(); ++t) EXPECT_EQ(labels[t], read[t] + 1);
        tokens.insert(tokens.end(), read.begin(), read.end());
        if (c == 0)
          lengths.push_back(length);
        else
          EXPECT_EQ(lengths[w], length) << "the rows of a step differ";
        EXPECT_GE(length, w + 1 < windows ? 5 : 1);
      }
      Order expected(static_cast<std::size_t>(row - 1));
      std::iota(expected.begin(), expected.end(), c * row);
      EXPECT_EQ(tokens, expected) << "epoch " << epoch << " row " << c;
    }
    all_lengths.insert(lengths);
  }
  EXPECT_EQ(all_lengths.size(), 6u);
  options.train = false;
  EXPECT_EQ((*running_text(tokens_in_memory(sentences), kColumns, -1, options))->size(),
            kColumns * ((row - 1 + 19) / 20))
      << "an evaluation draws no lengths";
}

TEST(RunningText, LengthsOfRandomWindowsAreThoseOfAwdLstm) {
  std::vector<Tokens> sentences(2000, Tokens(70, 1));
  LanguageOptions options = options_for(small_lm(0), 70);
  options.random_windows = true;
  const auto data = *running_text(tokens_in_memory(sentences), 1, -1, options);
  double sum = 0, half = 0, squares = 0;
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    for (std::int64_t w = 0; w + 1 < data->size(); ++w) {
      std::int64_t length = 0, count = 0;
      data->measure(epoch * data->size() + w, {&length, 1}, {&count, 1});
      sum += double(length);
      if (length < 53) {
        half += 1;
      } else {
        squares += double((length - 70) * (length - 70));
      }
    }
  }
  const double all = 4 * double(data->size() - 1);  // some 8200: deviations of a mean are 1 in 90 of theirs
  EXPECT_NEAR(sum / all, 0.95 * 69.5 + 0.05 * 34.5, 0.5);
  EXPECT_NEAR(half / all, 0.05, 0.01);
  EXPECT_NEAR(std::sqrt(squares / (all - half)), 5, 0.25);
}

class CaptionFolder : public ::testing::Test {
 protected:
  static constexpr std::int64_t kFeatures = 3;

  void SetUp() override {
    char name[] = "/tmp/millrace-captions-XXXXXX";
    folder_ = ::mkdtemp(name);
    std::filesystem::create_directory(folder_ / "features");
    write("vocabulary.txt", "a\ncat\nruns\nman\nsings\n");  // 4, 5, ...
    write("train.captions", "cat_1\ta cat runs\r\nsong\ta man sings a song\ncat_1\t  runs  \nlong\ta\n");
    write_video("cat_1", 2);
    write_video("song", 3, "<f8");
    write_video("long", 9, "<f2");
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(write_file_atomically(folder_ / name, text));
  }
  /// Feature f of frame i is 10 i + f.
  void write_video(const std::string& name, std::int64_t frames, const std::string& type = "<f4") {
    std::vector<at::Tensor> rows;
    at::Tensor all = at::empty({frames, kFeatures}, at::kFloat);
    for (std::int64_t i = 0; i < frames * kFeatures; ++i)
      all.mutable_data_ptr<float>()[i] = static_cast<float>(10 * (i / kFeatures) + i % kFeatures);
    all = all.to(type == "<f8" ? at::kDouble : type == "<f2" ? at::kHalf : at::kFloat);
    write("features/" + name + ".npy",
          npy_header(type, {frames, kFeatures}) +
              std::string(static_cast<const char*>(all.const_data_ptr()), all.nbytes()));
  }
  static LayeredModel model(std::int64_t length = 8, std::int64_t vocabulary = 9) {
    return s2vt_model({.frame_features = kFeatures,
                       .features = 2,
                       .hidden = 2,
                       .vocabulary = vocabulary,
                       .nominal_length = length});
  }
  Result<std::shared_ptr<const Dataset>> open(const LayeredModel& model, DataSplit split = DataSplit::Train) {
    return make_dataset({.path = folder_.string(),
                         .split = split,
                         .fields = model.fields,
                         .seed = 3,
                         .dimensions = model.dimensions});
  }
  /// Every part stands in the Problems.
  void expect_refused(const std::vector<std::string>& parts, const LayeredModel& of = model()) {
    std::string text;
    try {
      const auto data = open(of);
      ASSERT_FALSE(data) << parts.front();
      text = to_string(data.problems());
    } catch (const std::exception& error) {
      text = error.what();
    }
    for (const std::string& part : parts)
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }

  std::filesystem::path folder_;
};

TEST_F(CaptionFolder, FramesComeFirstThenWords) {
  const LayeredModel model = this->model();
  const auto data = *open(model);
  ASSERT_EQ(data->size(), 4);
  ASSERT_EQ(data->notes().size(), 2u);
  EXPECT_NE(data->notes()[0].find("1 words are not in the vocabulary"), std::string::npos);
  EXPECT_NE(data->notes()[1].find("of 2 videos"), std::string::npos) << data->notes()[1];
  LoaderOptions options{.microbatch = 2, .microbatches_per_step = 1, .shuffle = false, .workers = 0};
  options.read_for(model);
  const auto loader = std::move(*make_loader(data, options));
  // Steps are 6, 8 (a frame of 3 does not fit), 4, 8 (of 9 frames 6 do): longest first.
  EXPECT_EQ(loader->extent(0), (BatchExtent{2, {8}, {8}}));
  EXPECT_EQ(loader->extent(1), (BatchExtent{2, {6}, {6}}));
  const Batch long_ones = loader->get(0), short_ones = loader->get(1);
  EXPECT_EQ(values(long_ones.fields[1].t()), (Order{0, 0, 2, 4, 7, 8, 4, 1, 0, 0, 0, 0, 0, 0, 2, 4}));
  EXPECT_EQ(values(long_ones.fields[2].t()), (Order{0, 0, 4, 7, 8, 4, 1, 3, 0, 0, 0, 0, 0, 0, 4, 3}));
  EXPECT_EQ(values(short_ones.fields[1].t()), (Order{0, 0, 2, 4, 5, 6, 0, 0, 2, 6, 0, 0}));
  EXPECT_EQ(values(short_ones.fields[2].t()), (Order{0, 0, 4, 5, 6, 3, 0, 0, 6, 3, 0, 0}));
  const at::Tensor& frames = long_ones.fields[0];  // [T, B, F]
  ASSERT_EQ(frames.sizes(), (at::IntArrayRef{8, 2, kFeatures}));
  for (std::int64_t t = 0; t < 8; ++t) {
    EXPECT_EQ(frames[t][0][1].item<float>(), t < 2 ? 10 * t + 1 : 0) << t;  // from float64
    EXPECT_EQ(frames[t][1][2].item<float>(), t < 6 ? 10 * t + 2 : 0) << t;  // from float16
  }
}

TEST_F(CaptionFolder, AnEvaluationLeavesNoCaptionOut) {
  write("train.captions", "cat_1\ta a a a\ncat_1\ta\n");
  write("valid.captions", "cat_1\ta a a a\ncat_1\ta\n");
  const LayeredModel model = this->model(5);
  const auto train = *open(model), valid = *open(model, DataSplit::Test);
  EXPECT_EQ(train->size(), 1);
  ASSERT_FALSE(train->notes().empty());
  EXPECT_NE(train->notes()[0].find("1 captions leave no frame in 5 steps"), std::string::npos);
  ASSERT_EQ(valid->size(), 2);
  std::int64_t steps = 0, words = 0;
  valid->measure(0, {&steps, 1}, {&words, 1});
  EXPECT_EQ(steps, 6);
  EXPECT_EQ(words, 5);
  EXPECT_NE(train->fingerprint(), valid->fingerprint());
  ASSERT_EQ(train->recorded().size(), 1u);
  std::filesystem::remove(folder_ / "valid.captions");
  EXPECT_EQ(*open(model, DataSplit::Test), nullptr);
}

TEST_F(CaptionFolder, RefusesWhatIsWrongWithFileAndLine) {
  const std::string captions = (folder_ / "train.captions").string(),
                    features = (folder_ / "features").string();
  write("train.captions", "cat_1\ta cat\nnobody\ta cat\nnobody\truns\n");
  expect_refused({captions + ":2", "nobody.npy"});
  write("train.captions", "cat_1\ta cat\ncat_1\t \r\n");
  expect_refused({captions + ":2", "empty caption", "cat_1"});
  write("train.captions", "cat_1 a cat\n../cat_1\ta\n");
  expect_refused({captions + ":1", captions + ":2", "a tab"});
  write("train.captions", "");
  expect_refused({captions, "has no caption"});
  write("train.captions", "cat_1\ta cat\n");
  write("vocabulary.txt", "a\na\n");
  expect_refused({(folder_ / "vocabulary.txt").string(), "'a' is token 4 and token 5"});
  write("vocabulary.txt", "a\ncat\nruns\nman\nsings\n");
  expect_refused({"vocabulary.txt", "--vocabulary 9"}, model(8, 8));
  LayeredModel wide = s2vt_model({.frame_features = 4096, .vocabulary = 9, .nominal_length = 8});
  expect_refused({features + "/cat_1.npy", "[2, 3]", "[frames, 4096]", "--frame-features 3"}, wide);
  const std::string whole = *read_file(folder_ / "features" / "cat_1.npy");
  write("features/cat_1.npy", whole.substr(0, whole.size() - 4));
  expect_refused({features + "/cat_1.npy", "20 bytes", "24"});
  write("features/cat_1.npy", whole.substr(0, 20));
  expect_refused({features + "/cat_1.npy", "ends inside its header"});
  write("features/cat_1.npy", npy_header("<f4", {0, 3}));
  expect_refused({features + "/cat_1.npy", "no frame"});
  write("features/cat_1.npy", npy_header("<i4", {1, 3}) + std::string(12, '\0'));
  expect_refused({features + "/cat_1.npy", "<i4"});
  write("features/cat_1.npy", npy_header("<f4", {3}) + std::string(12, '\0'));
  expect_refused({features + "/cat_1.npy", "[3]", "[frames, 3]"});
  // If a file changes later, the run ends with an error.
  write("features/cat_1.npy", whole);
  const LayeredModel model = this->model();
  const auto data = *open(model);
  write("features/cat_1.npy", whole.substr(0, whole.size() - 4));
  EXPECT_THROW(data->get(0, 0, std::vector<char>{1, 0, 0}), DataError);
  EXPECT_NO_THROW(data->get(0, 0, std::vector<char>{0, 1, 1}));
  std::filesystem::remove(folder_ / "train.captions");
  expect_refused({"train.captions"});
}

TEST(CaptionedVideos, AnEpochHasEveryPairOnceAndStepsOfLikeLength) {
  const LayeredModel model = small_s2vt(0);
  const auto data = *make_dataset(
      {.path = "synthetic:64", .fields = model.fields, .seed = 3, .dimensions = model.dimensions});
  ASSERT_EQ(data->size(), 64);
  const auto steps = [&](std::int64_t i) {
    std::int64_t length = 0, said = 0;
    data->measure(i, {&length, 1}, {&said, 1});
    const Sample sample = data->get(i, 0, std::vector<char>{1, 1, 1});
    EXPECT_EQ(sample[1].tensor.size(0), length);
    EXPECT_EQ(sample[2].tensor.ne(0).sum().item<std::int64_t>(), said);
    EXPECT_EQ(sample[0].tensor.size(0), length - said);
    EXPECT_LE(length, 20);
    return length;
  };
  const Order first = data->order({.seed = 3, .epoch = 0, .per_step = 8}),
              second = data->order({.seed = 3, .epoch = 1, .per_step = 8});
  EXPECT_NE(first, second);
  Order sorted = first;
  std::ranges::sort(sorted);
  EXPECT_EQ(sorted, epoch_order(64, 0, 0, false));
  for (std::size_t s = 0; s < 64; s += 8) EXPECT_LE(steps(first[s]) - steps(first[s + 7]), 4);
}

}  // namespace
}  // namespace millrace
