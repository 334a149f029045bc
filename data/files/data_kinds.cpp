#include "data/files/data_kinds.h"

#include <algorithm>
#include <filesystem>

#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {

const std::vector<DataKind>& data_kinds() {
  static const std::vector<DataKind> kinds{
      {.prefix = kTableData,
       .form = "of images and a table of their labels: csv:TRAIN.csv[,TEST.csv]",
       .paths = [](std::string_view rest) { return split(rest, ','); }},
      {.prefix = kTarData,
       .form = "of tar archives: webdataset:TRAIN[,TEST], each a folder or 'shard-{000..146}.tar'",
       .paths =
           [](std::string_view rest) {
             std::vector<std::string> paths = split(rest, ',');
             for (std::string& path : paths)  // of a range of archives: their folder
               if (const std::size_t brace = path.find('{'); brace != std::string::npos)
                 path = std::filesystem::path(path.substr(0, brace) + "x").parent_path().string();
             std::erase(paths, "");
             return paths;
           }},
      {.prefix = kShapeNetData,
       .form = "of point clouds: shapenet:FOLDER[,CATEGORY...]",
       .paths = [](std::string_view rest) { return std::vector{split(rest, ',').front()}; }},
      {.prefix = kKitsData,
       .form = "of volumes: kits:FOLDER or kits:TRAIN,TEST",
       .paths = [](std::string_view rest) { return split(rest, ','); }},
      {.prefix = kCriteoData,
       .form = "of clicks: criteo:FOLDER, criteo:FILE or criteo:TRAIN,TEST",
       .paths = [](std::string_view rest) { return split(rest, ','); }},
      {.prefix = kArrayData,
       .form = "an array for each input of the model: arrays:TRAIN.npz[,TEST.npz]",
       .paths = [](std::string_view rest) { return split(rest, ','); }},
      {.prefix = kSyntheticData,
       .form = "made up: synthetic[:SIZE]",
       .alone = true,
       .paths = [](std::string_view) { return std::vector<std::string>(); }}};
  return kinds;
}

std::optional<std::string_view> rest_of(std::string_view data, std::string_view prefix) {
  const auto kind = std::ranges::find(data_kinds(), prefix, &DataKind::prefix);
  if (kind == data_kinds().end() || !data.starts_with(prefix)) return std::nullopt;
  data.remove_prefix(prefix.size());
  if (data.starts_with(':')) return data.substr(1);
  if (data.empty() && kind->alone) return data;
  return std::nullopt;
}

std::vector<std::string> paths_of_data(const std::string& data) {
  for (const DataKind& kind : data_kinds())
    if (const auto rest = rest_of(data, kind.prefix)) return kind.paths(*rest);
  std::error_code ignored;
  const std::size_t colon = data.rfind(':');
  if (colon == std::string::npos || std::filesystem::exists(data, ignored)) return {data};
  return {data.substr(0, colon)};
}

Result<Holdout> holdout_from(std::string_view text) {
  const std::size_t comma = text.find(',');
  const auto share = number_of<double>(text.substr(0, comma));
  const auto seed = comma == std::string_view::npos ? std::optional<std::uint64_t>(0)
                                                    : number_of<std::uint64_t>(text.substr(comma + 1));
  if (!share || !seed || !(*share > 0 && *share < 1))
    return Problem{"", "'" + std::string(text) + "' is no share between 0 and 1",
                   "for example 0.1, or 0.1,7 with a seed of its own"};
  return Holdout{*share, *seed};
}

std::string data_forms() {
  std::string forms;
  for (const DataKind& kind : data_kinds()) forms += (forms.empty() ? "" : "; ") + std::string(kind.form);
  return forms;
}

}  // namespace millrace
