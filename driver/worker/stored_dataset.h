// A data set whose samples come as late as from a modelled storage behind a cache.
#pragma once

#include <memory>

#include "data/loading/dataset.h"
#include "driver/flags/compute_specs.h"

namespace millrace {

/// Returns `dataset`, whose samples wait for `flags.storage` if the cache does not have them. A sample counts
/// as the mean of the data's `bytes`. The cache begins as after epochs that read every sample once. `seed`
/// draws the orders of those.
std::shared_ptr<const Dataset> stored(std::shared_ptr<const Dataset> dataset, const StorageFlags& flags,
                                      Bytes bytes, std::uint64_t seed);

/// Returns the bytes of all files of `data` (--data). Problem: it has none.
Result<Bytes> bytes_of_data(const std::string& data);

}  // namespace millrace
