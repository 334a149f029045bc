// The data sets of the I/O study: made up, but in the exact formats that the training programs read.
// Sources: the kit's generator (names, ranges, shapes); docs/data.md says what a file holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "data/made_up/payload.h"
#include "experiments/io/generate/record_stream.h"
#include "runtime/base/choices.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace millrace {

enum class Workload { Imseg, Bert, Dlrm, Images, Text, Kidneys, Clicks };
constexpr auto names_of(Workload) {
  return std::to_array<std::string_view>({"imseg", "bert", "dlrm", "images", "text", "kidneys", "clicks"});
}
/// Returns the workload called "imseg" (also "unet3d"), "bert", "dlrm", "images", "text", "kidneys" or
/// "clicks"; else nothing.
std::optional<Workload> workload_named(std::string_view name);

struct GenerateOptions {
  Workload workload = Workload::Imseg;
  std::filesystem::path out;
  Bytes size =
      0;  ///< size of all records (dlrm, clicks: of the training file); the last record may exceed it
  std::uint64_t seed = 1;
  int threads = 2;
  Randomness randomness;
  int classes = 10;                 ///< images: number of classes
  std::int64_t image_side = 256;    ///< images and kidneys: mean side in pixels
  std::int64_t table_rows_cap = 0;  ///< clicks: the most values of a categorical feature; 0: no cap
};

struct GenerateReport {
  std::int64_t files = 0;
  std::int64_t records = 0;
  Bytes bytes = 0;                         ///< bytes of all records
  Bytes kept = 0;                          ///< the part of `bytes` that was there before
  Bytes extra = 0;                         ///< bytes of other files (dlrm, clicks: test set, counts)
  std::optional<double> entropy_per_word;  ///< text: bits per word of the chain that makes the words
  std::optional<double> auc_ceiling;       ///< clicks: the best possible AUC of the test set
};

/// Writes the data set and its manifest millrace-dataset.json. A folder with the same manifest is completed.
/// A folder with another manifest, or with files and no manifest, is a Problem. Throws DataError when the
/// disk fails.
Result<GenerateReport> generate_workload(const GenerateOptions& options, const Progress& progress);

/// Compares every byte of a finished data set with what its manifest says. Throws DataError at a difference.
Result<GenerateReport> check_workload(const std::filesystem::path& folder, int threads,
                                      const Progress& progress);

/// Reads the options in the folder's manifest.
Result<GenerateOptions> read_manifest(const std::filesystem::path& folder);

}  // namespace millrace
