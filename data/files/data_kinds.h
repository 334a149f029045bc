// The data sets that `--data PREFIX:REST` names, in one table for the help, the launcher and the worker.
// LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

struct DataKind {
  std::string_view prefix;
  std::string_view form;  ///< how `--data` is written, for the help
  bool alone = false;     ///< PREFIX is valid without a REST; otherwise such a word is a folder's name
  /// The files and folders that REST names; they must exist before a rank starts.
  std::vector<std::string> (*paths)(std::string_view rest);
};

inline constexpr std::string_view kSyntheticData = "synthetic", kArrayData = "arrays",
                                  kShapeNetData = "shapenet", kKitsData = "kits", kTableData = "csv",
                                  kTarData = "webdataset", kCriteoData = "criteo";

const std::vector<DataKind>& data_kinds();

/// Returns REST if `data` is of the kind with this prefix, and "" if it is the prefix alone. Returns nothing
/// if `data` is of another kind.
std::optional<std::string_view> rest_of(std::string_view data, std::string_view prefix);

/// Returns the files and folders that `data` names. Data without a prefix is a folder, or
/// FOLDER:SOURCE-TARGET.
std::vector<std::string> paths_of_data(const std::string& data);

/// The part of a training set that evaluates it, where the data has no other images for that.
struct Holdout {
  double share = 0;        ///< of each class; 0: none
  std::uint64_t seed = 0;  ///< draws the samples
};
/// Reads "SHARE" or "SHARE,SEED". The share is above 0 and below 1.
Result<Holdout> holdout_from(std::string_view text);

/// Returns the forms of all kinds, for the help of `--data`.
std::string data_forms();

}  // namespace millrace
