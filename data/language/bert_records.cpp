#include <algorithm>
#include <filesystem>
#include <utility>

#include "data/files/left_out.h"
#include "data/files/tfrecord.h"
#include "data/language/bucketing.h"
#include "data/language/language_datasets.h"
#include "data/loading/samples.h"
#include "data/text/hash.h"
#include "runtime/base/check.h"
#include "runtime/base/mapped_file.h"
#include "runtime/base/random.h"
#include "runtime/base/read_time.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

/// Touches each page, so that those that are not in memory come now: that is the read of mapped bytes.
void fetch(std::string_view bytes) {
  constexpr std::size_t kPage = 4096;
  const CountedRead counted;
  for (std::size_t at = 0; at < bytes.size(); at += kPage)
    static_cast<void>(*static_cast<const volatile char*>(&bytes[at]));
  if (!bytes.empty()) static_cast<void>(*static_cast<const volatile char*>(&bytes.back()));
}

/// The content of a record without its padding.
struct Instance {
  std::vector<std::int64_t> ids, types, positions, labels;
  bool random = false;
};

class RecordParser {
 public:
  RecordParser(std::string_view payload, std::string where) : where_(std::move(where)) {
    Result<Example> parsed = parse_example(payload, where_);
    if (parsed) example_ = *std::move(parsed);
    if (!parsed) problems_ = parsed.problems();
  }

  /// Returns the record's content, which has no ids if its mask is all zeros. Problem: more than `longest`
  /// tokens, or a token not below `vocabulary`.
  Result<Instance> instance(std::int64_t vocabulary, std::int64_t longest) {
    if (!problems_.empty()) return problems_;
    Instance made;
    const std::vector<std::int64_t> mask = integers("input_mask");
    const auto length = static_cast<std::size_t>(std::ranges::find(mask, 0) - mask.begin());
    made.ids = prefix(integers("input_ids"), length, "input_ids");
    made.types = prefix(integers("segment_ids"), length, "segment_ids");
    const std::vector<float> weights = floats("masked_lm_weights");
    const auto masked = static_cast<std::size_t>(std::ranges::find(weights, 0.0F) - weights.begin());
    made.positions = prefix(integers("masked_lm_positions"), masked, "masked_lm_positions");
    made.labels = prefix(integers("masked_lm_ids"), masked, "masked_lm_ids");
    const std::vector<std::int64_t> next = integers("next_sentence_labels");
    if (next.size() != 1)
      problem("next_sentence_labels has " + std::to_string(next.size()) + " numbers, not one");
    if (!problems_.empty()) return problems_;
    made.random = next[0] != 0;
    if (std::ranges::any_of(mask.begin() + static_cast<std::ptrdiff_t>(length), mask.end(),
                            [](std::int64_t m) { return m != 0; }))
      problem("input_mask has a 1 behind a 0");
    if (static_cast<std::int64_t>(length) > longest)
      problem("has " + std::to_string(length) + " tokens, the model takes " + std::to_string(longest),
              "give --length " + std::to_string(length));
    below(made.ids, vocabulary, "input_ids");
    below(made.labels, vocabulary, "masked_lm_ids");
    below(made.types, 2, "segment_ids");
    below(made.positions, static_cast<std::int64_t>(length), "masked_lm_positions");
    if (!problems_.empty()) return problems_;
    return made;
  }

 private:
  void problem(const std::string& what,
               const std::string& hint = "records as BERT's create_pretraining_data writes") {
    problems_.push_back({where_, what, hint});
  }
  const Feature* feature(const char* name, Feature::Kind kind) {
    const auto found = example_.find(name);
    if (found != example_.end() && found->second.kind == kind) return &found->second;
    problem(std::string("has no feature ") + name +
            (kind == Feature::Kind::Int64 ? " of int64" : " of float"));
    return nullptr;
  }
  std::vector<std::int64_t> integers(const char* name) {
    const Feature* found = feature(name, Feature::Kind::Int64);
    return found ? found->integers : std::vector<std::int64_t>{};
  }
  std::vector<float> floats(const char* name) {
    const Feature* found = feature(name, Feature::Kind::Float);
    return found ? found->floats : std::vector<float>{};
  }
  std::vector<std::int64_t> prefix(std::vector<std::int64_t> all, std::size_t count, const char* name) {
    if (all.size() < count && problems_.empty())
      problem(std::string(name) + " has " + std::to_string(all.size()) + " numbers of " +
              std::to_string(count));
    all.resize(std::min(all.size(), count));
    return all;
  }
  void below(const std::vector<std::int64_t>& values, std::int64_t limit, const char* name) {
    const auto wrong = std::ranges::find_if(values, [&](std::int64_t v) { return v < 0 || v >= limit; });
    if (wrong != values.end())
      problem(std::string(name) + " has " + std::to_string(*wrong) + ", not below " + std::to_string(limit),
              "is it of another vocabulary (--vocabulary) or another kind of record?");
  }

  std::string where_;
  Example example_;
  Problems problems_;
};

class BertRecords final : public Dataset {
 public:
  BertRecords(const LanguageOptions& options, std::string path, LeftOut left_out)
      : options_(options),
        path_(std::move(path)),
        vocabulary_(options.fields[0].limit),
        left_out_(std::move(left_out)) {
    constexpr const char* names[] = {"input_ids", "token_type_ids", "masked_positions", "masked_labels",
                                     "next_sentence"};
    for (std::size_t i = 0; i < std::size(names); ++i) fields_[i] = field_index(options.fields, names[i]);
  }

  /// Reads a file once. It checks frames and their sums, and stores the sizes that the sampler needs.
  Problems add(const std::string& path) {
    Result<MappedFile> mapped = MappedFile::open(path);
    if (!mapped) return mapped.problems();
    if (mapped->bytes().empty()) return Problems{{path, "is empty", "give TFRecord files"}};
    TfRecordReader reader(mapped->bytes(), path);
    while (!reader.at_end()) {
      const std::size_t begin = reader.offset() + kTfRecordHead;
      const Result<std::string_view> payload = reader.next();
      if (!payload) return payload.problems();
      const Result<Instance> instance =
          RecordParser(*payload, place(path, begin)).instance(vocabulary_, options_.longest);
      if (!instance) return instance.problems();
      if (instance->ids.empty()) {
        left_out_.add("records whose input_mask is all zeros", place(path, begin));
        continue;
      }
      records_.push_back({files_.size(), begin, payload->size(),
                          static_cast<std::int32_t>(instance->ids.size()),
                          static_cast<std::int32_t>(instance->positions.size())});
      sums_ = xxh3_64(std::to_string(sums_) + std::to_string(xxh3_64(*payload)));
    }
    files_.push_back(*std::move(mapped));
    names_.push_back(path);
    return {};
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(records_.size()); }

  Sample get(std::int64_t index, std::uint64_t, Wanted wanted) const override {
    const Record& record = records_[index];
    const std::string_view payload = files_[record.file].bytes().substr(record.begin, record.bytes);
    fetch(payload);
    const Result<Instance> instance = RecordParser(payload, place(names_[record.file], record.begin))
                                          .instance(vocabulary_, options_.longest);
    MILLRACE_CHECK(instance, to_string(instance.problems()));
    Sample sample(options_.fields.size());
    set_field(sample, wanted, fields_[0], integers(instance->ids));
    set_field(sample, wanted, fields_[1], integers(instance->types));
    set_field(sample, wanted, fields_[2], integers(instance->positions));
    set_field(sample, wanted, fields_[3], integers(instance->labels));
    set_field(sample, wanted, fields_[4], {.number = instance->random ? 1 : 0});
    return sample;
  }

  void measure(std::int64_t index, std::span<std::int64_t> lengths,
               std::span<std::int64_t> counts) const override {
    const Record& record = records_[index];
    if (lengths.size() > 0) lengths[0] = record.tokens;
    if (lengths.size() > 1) lengths[1] = record.masked;
    if (!counts.empty()) counts[0] = record.masked;
  }

  std::vector<std::int64_t> order(const EpochOrder& epoch) const override {
    std::vector<std::int64_t> order = epoch_order(size(), epoch.seed, epoch.epoch, epoch.shuffle);
    sort_within_steps(order, epoch.shuffle ? epoch.per_step : std::max<std::int64_t>(1, size()),
                      [&](std::int64_t i) { return std::int64_t{records_[i].tokens}; });
    return order;
  }

  std::string describe() const override {
    return "BERT's records, " + std::to_string(size()) + " in " + std::to_string(files_.size()) +
           " files of " + path_;
  }
  std::vector<std::string> notes() const override { return left_out_.notes(); }
  std::int64_t left_out() const override { return left_out_.count(); }
  std::string fingerprint() const override {
    return "records " + std::to_string(size()) + " " + std::to_string(sums_);
  }

 private:
  struct Record {
    std::size_t file, begin, bytes;
    std::int32_t tokens, masked;
  };
  static std::string place(const std::string& path, std::size_t begin) {
    return path + ": record at byte " + std::to_string(begin - kTfRecordHead);
  }

  LanguageOptions options_;
  std::string path_;
  std::int64_t vocabulary_;
  int fields_[5];
  std::vector<MappedFile> files_;
  std::vector<std::string> names_;
  std::vector<Record> records_;
  LeftOut left_out_;
  std::uint64_t sums_ = 0;
};

}  // namespace

RecordFiles record_files(const std::string& folder, const std::string& split) {
  RecordFiles files;
  std::vector<std::string> parts;
  std::error_code ignored;
  const fs::path own = fs::path(folder) / split;
  const bool has_folder = fs::is_directory(own, ignored);
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(has_folder ? own : fs::path(folder), ignored))
    paths.push_back(entry.path());
  std::ranges::sort(paths);
  for (const fs::path& path : paths) {
    const std::string name = path.filename().string();
    if (name == kDatasetManifest) continue;
    std::string_view reason = reason_to_ignore(name);
    if (reason.empty() && (name.ends_with(".json") || !fs::is_regular_file(path, ignored)))
      reason = "files and folders that are no records";
    if (!reason.empty() && has_folder)
      files.left_out.add(reason, path.string());
    else if (reason.empty() &&
             (has_folder || (name.starts_with(split) && name.find(".tfrecord") != std::string::npos)))
      files.paths.push_back(path.string());
    else if (reason.empty() && name.starts_with("part-") && name.find("-of-") != std::string::npos)
      parts.push_back(path.string());
  }
  if (files.paths.empty() && split == to_string(DataSplit::Train)) files.paths = std::move(parts);
  return files;
}

Result<std::shared_ptr<const Dataset>> bert_records(const RecordFiles& files,
                                                    const LanguageOptions& options) {
  auto set = std::make_shared<BertRecords>(options, fs::path(files.paths.front()).parent_path().string(),
                                           files.left_out);
  for (const std::string& file : files.paths) {
    if (const Problems problems = set->add(file); !problems.empty()) return problems;
  }
  if (set->size() == 0) return Problem{files.paths.front(), "holds no record that has tokens", {}};
  return std::shared_ptr<const Dataset>(std::move(set));
}

}  // namespace millrace
