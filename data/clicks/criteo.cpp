// Criteo's clicks in the files of Meta's and of NVIDIA's DLRM, and as text.
#include <c10/util/Half.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <unordered_map>

#include "data/clicks/click_samples.h"
#include "data/files/file_writer.h"
#include "data/files/left_out.h"
#include "data/files/little_endian.h"
#include "data/files/npy.h"
#include "data/files/zip.h"
#include "runtime/base/byte_order_mark.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/numbers.h"
#include "runtime/base/random.h"
#include "runtime/base/text.h"
#include "runtime/saved/hash.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr const char* kGiveTables = "give --table-rows as the data has, or --table-rows-cap";

/// The rows of one split in files of some form. Thread-safe.
class ClickFiles {
 public:
  virtual ~ClickFiles() = default;
  virtual std::int64_t size() const = 0;
  virtual ClickRow row(std::int64_t index) const = 0;  ///< throws DataError
  virtual std::string name() const = 0;
  virtual bool in_memory() const { return false; }
  virtual LeftOut left_out() const { return {}; }
  /// Adds what tells these files from others, apart from their paths.
  virtual void describe_to(Xxh3& listing) const = 0;
};
using FilesPtr = std::shared_ptr<const ClickFiles>;

/// Adds a Problem about a file of `bytes` bytes that has no whole number of rows, or none.
void check_rows(const fs::path& path, Bytes bytes, std::int64_t row_bytes, Problems& problems) {
  if (bytes > 0 && bytes % row_bytes == 0) return;
  problems.push_back(
      {path.string(),
       "has " + std::to_string(bytes) + " bytes, no whole number of rows of " + std::to_string(row_bytes),
       "the file may be cut short, or has other columns than --dense-features and the tables"});
}

// ---- Meta's rows of int32

class MetaFile final : public ClickFiles {
 public:
  MetaFile(const fs::path& path, const ClickFields& fields)
      : file_(path, {}),
        dense_(fields.num_dense()),
        row_bytes_(4 * (1 + dense_ + static_cast<std::int64_t>(fields.num_categories()))) {}
  void check(Problems& problems) const { check_rows(file_.path(), file_.size(), row_bytes_, problems); }
  std::int64_t size() const override { return file_.size() / row_bytes_; }
  std::string name() const override { return file_.path(); }
  void describe_to(Xxh3& listing) const override { listing.add("rows " + std::to_string(size())); }
  ClickRow row(std::int64_t index) const override {
    AlignedBuffer buffer;
    const std::string_view bytes = file_.read(index * row_bytes_, row_bytes_, buffer);
    const auto number = [&](std::int64_t column) {
      return get_little<std::int32_t>(bytes, static_cast<std::size_t>(4 * column));
    };
    ClickRow row{.label = number(0)};
    for (std::int64_t d = 1; d <= dense_; ++d) row.dense.push_back(log_of_count(number(d)));
    for (std::int64_t c = 1 + dense_; 4 * c < row_bytes_; ++c) row.categories.push_back(number(c));
    return row;
  }

 private:
  FileReader file_;
  std::int64_t dense_, row_bytes_;
};

// ---- NVIDIA's files, one for each column

std::string category_file(std::size_t number) {
  return "cat_" + std::to_string(number) + ".bin";
}

class NvidiaFiles final : public ClickFiles {
 public:
  /// Opens the files of `folder`, which must exist.
  NvidiaFiles(const fs::path& folder, const ClickFields& fields)
      : folder_(folder),
        labels_(folder / "label.bin", {}),
        dense_(folder / "numerical.bin", {}),
        row_bytes_(2 * fields.num_dense()) {
    std::size_t k = 0;
    for (; k < fields.num_categories(); ++k)
      categories_.push_back(std::make_unique<FileReader>(folder / category_file(k), ReadOptions{}));
    std::error_code ignored;
    for (; fs::exists(folder / category_file(k), ignored); ++k)
      left_out_.add("columns beyond the model's tables", (folder / category_file(k)).string());
  }
  LeftOut left_out() const override { return left_out_; }
  void check(Problems& problems) const {
    const Bytes samples = labels_.size();
    if (samples == 0) problems.push_back({labels_.path(), "is empty", {}});
    if (dense_.size() != samples * row_bytes_)
      problems.push_back({dense_.path(),
                          "has " + std::to_string(dense_.size()) + " bytes; " + std::to_string(samples) +
                              " labels need " + std::to_string(samples * row_bytes_),
                          "float16, --dense-features of them a sample"});
    for (const auto& file : categories_) {
      const Bytes bytes = file->size();
      if (bytes != samples && bytes != 2 * samples && bytes != 4 * samples)
        problems.push_back({file->path(),
                            "has " + std::to_string(bytes) + " bytes, not 1, 2 or 4 for each of " +
                                std::to_string(samples) + " labels",
                            "the file may be cut short"});
    }
  }
  std::int64_t size() const override { return labels_.size(); }
  std::string name() const override { return folder_.string(); }
  void describe_to(Xxh3& listing) const override {
    listing.add("columns " + std::to_string(size()));
    for (const auto& file : categories_) listing.add(" " + std::to_string(file->size()));
  }
  ClickRow row(std::int64_t index) const override {
    AlignedBuffer buffer;
    ClickRow row{.label = static_cast<std::uint8_t>(labels_.read(index, 1, buffer)[0])};
    const std::string_view dense = dense_.read(index * row_bytes_, row_bytes_, buffer);
    for (std::int64_t at = 0; at < row_bytes_; at += 2)
      row.dense.push_back(
          c10::Half(get_little<std::uint16_t>(dense, static_cast<std::size_t>(at)), c10::Half::from_bits()));
    for (const auto& file : categories_) {
      const std::int64_t bytes = file->size() / labels_.size();
      const std::string_view value = file->read(index * bytes, bytes, buffer);
      row.categories.push_back(bytes == 1   ? get_little<std::int8_t>(value)
                               : bytes == 2 ? get_little<std::int16_t>(value)
                                            : get_little<std::int32_t>(value));
    }
    return row;
  }

 private:
  fs::path folder_;
  FileReader labels_, dense_;
  std::vector<std::unique_ptr<FileReader>> categories_;
  std::int64_t row_bytes_;
  LeftOut left_out_;
};

// ---- text

/// The numbers of each column's categories, in the order in which they first occurred.
using Vocabularies = std::vector<std::unordered_map<std::string, std::int64_t>>;

class TextRows final : public ClickFiles {
 public:
  TextRows(std::string path, std::vector<ClickRow> rows) : path_(std::move(path)), rows_(std::move(rows)) {}
  std::int64_t size() const override { return std::ssize(rows_); }
  ClickRow row(std::int64_t index) const override { return rows_[index]; }
  std::string name() const override { return path_; }
  bool in_memory() const override { return true; }
  void describe_to(Xxh3& listing) const override {
    for (const ClickRow& row : rows_) {
      listing.add(" " + std::to_string(row.label));
      for (const std::int64_t category : row.categories) listing.add("," + std::to_string(category));
    }
  }

 private:
  std::string path_;
  std::vector<ClickRow> rows_;
};

Result<std::vector<ClickRow>> read_text(const std::string& path, const ClickFields& fields,
                                        Vocabularies& known) {
  constexpr Bytes kLargest = 4 * kGiB;
  const Result<std::string> text = read_regular_file(path, kLargest);
  if (!text) return text.problems();
  known.resize(fields.num_categories());
  const std::size_t dense = static_cast<std::size_t>(fields.num_dense()),
                    columns = 1 + dense + fields.num_categories();
  std::vector<ClickRow> rows;
  std::int64_t number = 0;
  for (std::string line : split(without_mark(*text), '\n')) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty()) continue;
    const std::vector<std::string> cells = split(line, line.find('\t') != std::string::npos ? '\t' : ',');
    const auto problem = [&](const std::string& what) {
      return Problem{path + ":" + std::to_string(number), what,
                     "a line is the label, " + std::to_string(dense) + " dense features and " +
                         std::to_string(fields.num_categories()) + " categories"};
    };
    if (cells.size() != columns)
      return problem("has " + std::to_string(cells.size()) + " columns, the model reads " +
                     std::to_string(columns));
    const auto label = number_of<double>(cells[0]);
    if (!label && number == 1) continue;  // the header
    if (!label) return problem("the label '" + escaped(cells[0]) + "' is no number");
    ClickRow row{.label = static_cast<std::int64_t>(*label)};
    for (std::size_t d = 1; d <= dense; ++d) {
      const auto value = cells[d].empty() ? 0.0 : number_of<double>(cells[d]);
      if (!value || !std::isfinite(*value))
        return problem("dense feature " + std::to_string(d) + " '" + escaped(cells[d]) + "' is no number");
      row.dense.push_back(log_of_count(*value));
    }
    for (std::size_t k = 0; k < known.size(); ++k) {
      const std::string& cell = cells[1 + dense + k];
      const std::int64_t value =
          cell.empty() ? 0 : known[k].emplace(cell, std::ssize(known[k]) + 1).first->second;
      row.categories.push_back(value % fields.specs[fields.categories[k]].limit);
    }
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return Problem{path, "has no rows", {}};
  return rows;
}

// ---- the data set

class Criteo final : public Dataset {
 public:
  Criteo(FilesPtr files, const DatasetOptions& options, std::int64_t begin, std::int64_t end)
      : files_(std::move(files)), fields_(options.fields), begin_(begin), size_(end - begin) {}

  std::int64_t size() const override { return size_; }
  std::string describe() const override {
    return files_->name() + ", " + std::to_string(size_) + " rows of clicks";
  }
  std::string fingerprint() const override {
    Xxh3 listing;
    files_->describe_to(listing);
    return std::to_string(size_) + " clicks, listing " + listing.value().hex().substr(0, 16);
  }
  std::vector<std::string> notes() const override { return files_->left_out().notes(); }
  std::int64_t left_out() const override { return files_->left_out().count(); }
  std::string name_of(std::int64_t index) const override {
    return files_->name() + " row " + std::to_string(begin_ + index);
  }
  Sample get(std::int64_t index, std::uint64_t, Wanted wanted) const override {
    ClickRow row = files_->row(begin_ + index);
    const auto problem = [&](const std::string& what, const char* hint) {
      return DataError(name_of(index) + ": " + what, hint);
    };
    if (row.label != 0 && row.label != 1)
      throw problem("the label is " + std::to_string(row.label) + ", expected 0 or 1",
                    "check that the file has these columns");
    for (std::size_t k = 0; k < row.categories.size(); ++k) {
      const FieldSpec& field = fields_.specs[fields_.categories[k]];
      std::int64_t& value = row.categories[k];
      if (value >= field.limit && field.wraps) value %= field.limit;
      if (value < 0 || value >= field.limit)
        throw problem(field.name + " is " + std::to_string(value) + ", its table has " +
                          std::to_string(field.limit) + " rows",
                      kGiveTables);
    }
    return fields_.sample_of(row, wanted);
  }
  /// Permutes whole steps of a file. The rows behind the last whole step stay where they are.
  std::vector<std::int64_t> order(const EpochOrder& epoch) const override {
    if (files_->in_memory() || !epoch.shuffle) return {};
    const std::int64_t steps = size_ / epoch.per_step;
    std::vector<std::int64_t> rows(size_);
    const std::vector<std::int64_t> order = epoch_order(steps, epoch.seed, epoch.epoch, /*shuffle=*/true);
    for (std::int64_t step = 0; step < steps; ++step)
      std::iota(rows.begin() + step * epoch.per_step, rows.begin() + (step + 1) * epoch.per_step,
                order[step] * epoch.per_step);
    std::iota(rows.begin() + steps * epoch.per_step, rows.end(), steps * epoch.per_step);
    return rows;
  }

 private:
  FilesPtr files_;
  ClickFields fields_;
  std::int64_t begin_, size_;
};

/// Returns Problems about files of `folder` that are missing. Empty: all are there.
Problems missing_columns(const fs::path& folder, const ClickFields& fields) {
  std::vector<std::string> names{"label.bin", "numerical.bin"};
  for (std::size_t k = 0; k < fields.num_categories(); ++k) names.push_back(category_file(k));
  Problems problems;
  std::error_code ignored;
  for (const std::string& name : names)
    if (!fs::is_regular_file(folder / name, ignored))
      problems.push_back({(folder / name).string(), "is missing",
                          "a split has label.bin, numerical.bin and a cat_N.bin for each table"});
  return problems;
}

bool has_columns(const fs::path& folder) {
  std::error_code ignored;
  for (const char* name : {"label.bin", "numerical.bin", "cat_0.bin"})
    if (fs::exists(folder / name, ignored)) return true;
  return false;
}

/// Compares the counts of categories beside a file with the tables.
void check_counts(const fs::path& folder, const ClickFields& fields, Problems& problems) {
  const std::string path = (folder / "day_fea_count.npz").string();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  const Result<std::string> bytes = read_regular_file(path);
  if (!bytes) return append(problems, bytes.problems());
  const Result<std::vector<ZipMember>> members = parse_zip(*bytes, path);
  if (!members) return append(problems, members.problems());
  const auto member = std::ranges::find(*members, "counts.npy", &ZipMember::name);
  std::string unpacked;
  if (member == members->end()) return problems.push_back({path, "has no array counts", {}});
  const Result<std::string_view> array = zip_member(*bytes, *member, unpacked, path);
  if (!array) return append(problems, array.problems());
  const Result<NpyHeader> header = parse_npy(*array, path);
  if (!header) return append(problems, header.problems());
  if (header->descr != "<i8" && header->descr != "<i4")
    return problems.push_back({path, "has counts of type " + escaped(header->descr), "expected int64"});
  const std::int64_t count = header->data_bytes / header->element_bytes;
  if (count != std::ssize(fields.categories))
    return problems.push_back({path,
                               "has counts of " + std::to_string(count) +
                                   " categorical features, the model has " +
                                   std::to_string(fields.num_categories()) + " tables",
                               kGiveTables});
  for (std::size_t k = 0; k < fields.num_categories(); ++k) {
    const std::size_t at = header->data_offset + k * static_cast<std::size_t>(header->element_bytes);
    const std::int64_t values = header->element_bytes == 8 ? get_little<std::int64_t>(*array, at)
                                                           : get_little<std::int32_t>(*array, at);
    const FieldSpec& field = fields.specs[fields.categories[k]];
    if (values > field.limit && !field.wraps)
      problems.push_back({path,
                          field.name + " has " + std::to_string(values) + " values, its table has " +
                              std::to_string(field.limit) + " rows",
                          kGiveTables});
  }
}

Result<FilesPtr> open_columns(const fs::path& folder, const ClickFields& fields) {
  if (Problems missing = missing_columns(folder, fields); !missing.empty()) return missing;
  const auto files = std::make_shared<NvidiaFiles>(folder, fields);
  Problems problems;
  files->check(problems);
  if (!problems.empty()) return problems;
  return FilesPtr(files);
}

Result<FilesPtr> open_rows(const fs::path& path, const ClickFields& fields) {
  const auto file = std::make_shared<MetaFile>(path, fields);
  Problems problems;
  file->check(problems);
  check_counts(path.parent_path(), fields, problems);
  if (!problems.empty()) return problems;
  return FilesPtr(file);
}

/// Opens a folder. `split` is "train" or "test". `alone`: the folder is for both splits. Null: there is no
/// such split.
Result<FilesPtr> open_folder(const fs::path& folder, const std::string& split, bool alone,
                             const ClickFields& fields) {
  const bool trains = split == "train";
  std::error_code error;
  if (has_columns(folder)) return alone && !trains ? FilesPtr() : open_columns(folder, fields);
  if (fs::is_directory(folder / split, error)) return open_columns(folder / split, fields);
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename().string().ends_with("_" + split + ".bin")) found.push_back(entry.path());
  if (found.size() == 1) return open_rows(found.front(), fields);
  if (found.empty() && !trains) return FilesPtr();
  return Problem{folder.string(),
                 found.empty() ? "has neither a *_train.bin nor a folder train"
                               : "has " + std::to_string(found.size()) + " files *_" + split + ".bin",
                 "give the file itself: criteo:TRAIN.bin,TEST.bin"};
}

bool is_text(const fs::path& path) {
  return path.extension() != ".bin";
}

/// The text files are read in the order train, test, so that both splits number categories alike.
Result<std::shared_ptr<const Dataset>> open_text(const DatasetOptions& options,
                                                 const std::vector<std::string>& paths) {
  const ClickFields fields(options.fields);
  const bool trains = options.split == DataSplit::Train;
  Vocabularies known;
  FilesPtr files;
  for (std::size_t i = 0; i < (trains ? 1 : paths.size()); ++i) {
    Result<std::vector<ClickRow>> rows = read_text(paths[i], fields, known);
    if (!rows) return rows.problems();
    files = std::make_shared<TextRows>(paths[i], *std::move(rows));
  }
  const std::int64_t size = files->size(), held_out = paths.size() == 1 ? size / 10 : 0;
  const std::int64_t begin = trains || paths.size() > 1 ? 0 : size - held_out,
                     end = trains ? size - held_out : size;
  if (begin == end) return std::shared_ptr<const Dataset>();
  return std::shared_ptr<const Dataset>(std::make_shared<Criteo>(files, options, begin, end));
}

}  // namespace

Result<std::shared_ptr<const Dataset>> make_criteo(const DatasetOptions& options, const std::string& text) {
  const std::vector<std::string> paths = split(text, ',');
  if (paths.size() > 2) return Problem{"--data", "criteo:" + text + " names more than two paths", {}};
  const bool trains = options.split == DataSplit::Train, alone = paths.size() == 1;
  const fs::path path = trains ? paths.front() : paths.back();
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  if (!is_folder && !fs::exists(path, error)) return Problem{path.string(), "does not exist", {}};
  if (!is_folder && is_text(path)) return open_text(options, paths);
  if (!is_folder && alone && !trains) return std::shared_ptr<const Dataset>();
  const ClickFields fields(options.fields);
  const Result<FilesPtr> files = is_folder
                                     ? open_folder(path, std::string(to_string(options.split)), alone, fields)
                                     : open_rows(path, fields);
  if (!files) return files.problems();
  if (!*files) return std::shared_ptr<const Dataset>();
  return std::shared_ptr<const Dataset>(std::make_shared<Criteo>(*files, options, 0, (*files)->size()));
}

}  // namespace millrace
