#include "experiments/io/dlio/dlio_data.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/files.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kGenerationSeed = 10;
constexpr const char* kManifestName = "millrace-dlio.json";

std::string padded(std::int64_t number, std::int64_t count) {
  const std::string digits = std::to_string(number);
  const std::size_t width = std::to_string(count).size();
  return std::string(width - std::min(width, digits.size()), '0') + digits;
}

const char* folder_of(Split split) {
  return split == Split::Train ? "train" : "valid";
}

}  // namespace

SampleFileSpec dlio_file(const DlioConfig& config, Split split, std::int64_t file) {
  const bool train = split == Split::Train;
  const auto& d = config.dataset;
  const std::int64_t files = train ? d.num_files_train : d.num_files_eval;
  const std::int64_t folders = train ? d.num_subfolders_train : d.num_subfolders_eval;
  const fs::path root = data_path(config);
  fs::path folder = root / folder_of(split);
  if (folders > 1) folder /= padded(file % folders, folders);
  const std::string name =
      d.file_prefix + "_" + padded(file, files) + "_of_" + std::to_string(files) + "." + to_string(d.format);
  SampleFileSpec spec{.format = d.format,
                      .path = folder / name,
                      .seed = kGenerationSeed,
                      .split = folder_of(split),
                      .file = file,
                      .element = d.element,
                      .dims = d.record_dims,
                      .num_samples = d.num_samples_per_file,
                      .compression = d.compression,
                      .compression_level = static_cast<int>(d.compression_level),
                      .sets_per_record = static_cast<int>(d.sets_per_record),
                      .chunk_dims = d.chunk_dims};
  if (d.format == SampleFormat::TfRecord) spec.index = root / "index" / folder_of(split) / (name + ".idx");
  if (spec.dims.empty()) {
    // A square of bytes; a spread of the length spreads the sides.
    const double side = std::sqrt(d.record_length / static_cast<double>(info_of(d.element).bytes));
    RandomStream random(derive_seed(kGenerationSeed, std::string("side.") + folder_of(split),
                                    static_cast<std::uint64_t>(file)));
    for (int i = 0; i < 2; ++i) {
      const double drawn =
          std::floor(side) + d.record_length_stdev / (2 * std::sqrt(d.record_length)) * random.normal();
      spec.dims.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(drawn)));
    }
  }
  if (d.enable_chunking && spec.chunk_dims.empty() && d.chunk_size > 0) {
    spec.chunk_dims = {1};
    const auto side =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(std::sqrt(static_cast<double>(d.chunk_size))));
    for (std::size_t i = 0; i < spec.dims.size(); ++i) spec.chunk_dims.push_back(side);
  }
  return spec;
}

Json dlio_manifest(const DlioConfig& config) {
  const auto& d = config.dataset;
  Json dims = Json::array(), chunks = Json::array();
  for (const std::int64_t side : d.record_dims) dims.push_back(side);
  for (const std::int64_t side : d.chunk_dims) chunks.push_back(side);
  return Json::object({{"format", "millrace-dlio-1"},
                       {"samples", to_string(d.format)},
                       {"num_files_train", d.num_files_train},
                       {"num_files_eval", d.num_files_eval},
                       {"num_samples_per_file", d.num_samples_per_file},
                       {"file_prefix", d.file_prefix},
                       {"record_length", d.record_length},
                       {"record_length_stdev", d.record_length_stdev},
                       {"record_dims", dims},
                       {"element", std::string(info_of(d.element).name)},
                       {"compression", static_cast<int>(d.compression)},
                       {"chunk_dims", chunks},
                       {"sets_per_record", d.sets_per_record}});
}

Status check_dlio_folder(const DlioConfig& config) {
  const fs::path folder = data_path(config), manifest = folder / kManifestName;
  std::error_code error;
  if (fs::exists(manifest, error)) {
    const Result<Json> there = read_json(manifest.string());
    if (!there) return there.problems();
    if (there->dump() != dlio_manifest(config).dump())
      return Problem{folder.string(), "holds data that were generated with other options: " + there->dump(),
                     "give another ++workload.dataset.data_folder, or remove the folder"};
    return Ok{};
  }
  for (const char* split : {"train", "valid"}) {
    if (fs::exists(folder / split, error) && !fs::is_empty(folder / split, error))
      return Problem{
          (folder / split).string(), "holds files that were not generated here",
          "read them without workflow.generate_data, or give another ++workload.dataset.data_folder"};
  }
  return Ok{};
}

Status begin_dlio_folder(const DlioConfig& config) {
  const fs::path folder = data_path(config);
  if (const Status made = make_writable_folder(folder); !made) return made;
  if (const Status written =
          write_file_atomically(folder / kManifestName, dlio_manifest(config).dump() + "\n");
      !written)
    return written;
  for (const Split split : {Split::Train, Split::Valid}) {
    const std::int64_t folders =
        split == Split::Train ? config.dataset.num_subfolders_train : config.dataset.num_subfolders_eval;
    fs::create_directories(folder / folder_of(split));
    for (std::int64_t i = 0; folders > 1 && i < folders; ++i)
      fs::create_directories(folder / folder_of(split) / padded(i, folders));
  }
  return Ok{};
}

Bytes generate_dlio_files(const DlioConfig& config, int process, int processes, int threads) {
  if (config.dataset.format == SampleFormat::Synthetic) return 0;
  const std::int64_t train = config.dataset.num_files_train, all = train + config.dataset.num_files_eval;
  std::atomic<std::int64_t> next = process;
  std::atomic<Bytes> written = 0;
  std::mutex mutex;  // guards failure
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::int64_t i; (i = next.fetch_add(processes)) < all;) {
      try {
        const SampleFileSpec spec =
            i < train ? dlio_file(config, Split::Train, i) : dlio_file(config, Split::Valid, i - train);
        if (fs::exists(spec.path)) continue;
        fs::create_directories(spec.path.parent_path());
        if (!spec.index.empty()) fs::create_directories(spec.index.parent_path());
        write_sample_file(spec);
        written += static_cast<Bytes>(fs::file_size(spec.path));
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = all;
      }
    }
  };
  {
    std::vector<std::jthread> pool;
    for (int i = 0; i < threads; ++i) pool.emplace_back(work);
  }
  if (failure) std::rethrow_exception(failure);
  return written;
}

void remove_dlio_files(const DlioConfig& config) {
  std::error_code ignored;
  for (const Split split : {Split::Train, Split::Valid}) {
    const std::int64_t files =
        split == Split::Train ? config.dataset.num_files_train : config.dataset.num_files_eval;
    for (std::int64_t i = 0; i < files; ++i) {
      const SampleFileSpec spec = dlio_file(config, split, i);
      for (const fs::path& path : {spec.path, spec.index, fs::path(spec.path.string() + ".off.idx"),
                                   fs::path(spec.path.string() + ".sz.idx")}) {
        if (!path.empty()) fs::remove(path, ignored);
      }
    }
  }
  fs::remove(fs::path(data_path(config)) / kManifestName, ignored);
}

SampleSource dlio_source(const DlioConfig& config, Split split) {
  const bool train = split == Split::Train;
  const auto wanted =
      static_cast<std::size_t>(train ? config.dataset.num_files_train : config.dataset.num_files_eval);
  SampleSource source{.format = config.dataset.format,
                      .read = {.direct = config.reader.odirect, .transfer_size = config.reader.transfer_size},
                      .preprocess = config.reader.preprocess_time,
                      .seed = static_cast<std::uint64_t>(config.train.seed),
                      .synthetic = config.reader.synthetic,
                      .samples_per_file = config.dataset.num_samples_per_file};
  if (source.synthetic || wanted == 0) return source;
  const fs::path root = data_path(config), folder = root / folder_of(split);
  const std::string extension = std::string(".") + to_string(config.dataset.format);
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (at->path().extension() == extension && at->is_regular_file(error)) found.push_back(at->path());
  }
  std::sort(found.begin(), found.end(), [](const fs::path& a, const fs::path& b) {
    return std::pair(a.filename(), a) < std::pair(b.filename(), b);
  });
  if (found.size() < wanted)
    throw DataError(folder.string() + ": has " + std::to_string(found.size()) + " files that end in " +
                        extension + ", " + std::to_string(wanted) + " are needed",
                    "generate them: ++workload.workflow.generate_data=True");
  found.resize(wanted);
  for (const fs::path& path : found) {
    source.files.push_back(path.string());
    if (config.dataset.format == SampleFormat::TfRecord)
      source.indices.push_back(
          (root / "index" / folder_of(split) / (path.filename().string() + ".idx")).string());
  }
  return source;
}

}  // namespace millrace
