// The files of a DLIO workload: names, sizes, generation, listing.
#pragma once

#include <string>
#include <vector>

#include "experiments/io/dlio/batch_loader.h"
#include "experiments/io/dlio/dlio_config.h"
#include "experiments/io/generate/sample_writer.h"

namespace millrace {

enum class Split { Train, Valid };

/// File `file` of the split as it is generated: DATA/train/[SUBFOLDER/]PREFIX_00_of_10.npz, sides drawn with
/// a seed that never changes, so that the sizes are the same for every run.
SampleFileSpec dlio_file(const DlioConfig& config, Split split, std::int64_t file);

/// Returns the options that the data were generated with. The manifest millrace-dlio.json in the data
/// folder holds them.
Json dlio_manifest(const DlioConfig& config);
/// Problem if the folder has files of other options, or files and no manifest.
Status check_dlio_folder(const DlioConfig& config);
/// The manifest, and the folders that DLIO makes: train and valid with their subfolders, also where no file
/// comes. DLIO lists both before it trains.
Status begin_dlio_folder(const DlioConfig& config);

/// Writes the files `process`, `process` + `processes`, ... of both splits that are not there yet. Bytes
/// written.
Bytes generate_dlio_files(const DlioConfig& config, int process, int processes, int threads);
/// Removes what dlio_file names (keep_files: false).
void remove_dlio_files(const DlioConfig& config);

/// The first num_files of the split in the order of their names. Throws DataError if there are fewer.
SampleSource dlio_source(const DlioConfig& config, Split split);

}  // namespace millrace
