// Labels from a CSV table beside the images: a row for each image, its file and its label.
#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>

#include "data/files/data_kinds.h"
#include "data/readers/decode_image.h"
#include "data/readers/image_set.h"
#include "runtime/base/byte_order_mark.h"
#include "runtime/base/files.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

struct Row {
  std::string file, label;
  std::size_t line = 0;
};

struct Table {
  std::string path;
  std::vector<Row> rows;
  std::string place(const Row& row) const { return path + ":" + std::to_string(row.line); }
};

fs::path file_of(const Table& table, const Row& row) {
  return fs::path(table.path).parent_path() / row.file;
}

/// Returns the cells of a line; a cell in double quotes may hold commas and doubled quotes (RFC 4180).
std::vector<std::string> cells_of(std::string_view line) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"')
      cells.back() += line[++i];
    else if (line[i] == '"')
      quoted = !quoted;
    else if (line[i] == ',' && !quoted)
      cells.emplace_back();
    else
      cells.back() += line[i];
  }
  return cells;
}

/// Returns the place of the first cell that is one of `names`.
template <std::size_t N>
std::optional<std::size_t> column_of(const std::vector<std::string>& header,
                                     const std::array<std::string_view, N>& names) {
  for (const std::string_view name : names) {
    const auto found = std::ranges::find(header, name);
    if (found != header.end()) return static_cast<std::size_t>(found - header.begin());
  }
  return std::nullopt;
}

/// The columns of a table that hold files and labels.
struct Columns {
  std::size_t file = 0, label = 1;
};

/// Reads the header. Two columns need no names that are known.
Result<Columns> columns_of(const std::vector<std::string>& header, const std::string& path) {
  constexpr std::array<std::string_view, 7> kFile{"file", "filename", "file_name", "image",
                                                  "path", "image_id", "id"};
  constexpr std::array<std::string_view, 4> kLabel{"label", "class", "target", "category"};
  const auto file = column_of(header, kFile), label = column_of(header, kLabel);
  if (file && label) return Columns{*file, *label};
  if (header.size() == 2) return Columns{};
  std::string names;
  for (const std::string& name : header) names += (names.empty() ? "" : ", ") + escaped(name);
  return Problem{path, "has the columns " + names + "; which are the files and the labels is not clear",
                 "begin with the line file,label"};
}

Result<Table> read_table(const std::string& path) {
  const Result<std::string> text = read_regular_file(path, kGiB);
  if (!text) return text.problems();
  Table table{.path = path};
  Problems problems;
  std::optional<Columns> columns;
  std::map<std::string, std::size_t> line_of;
  std::string_view rest = without_mark(*text);
  for (std::size_t number = 1; !rest.empty() && problems.size() < kMostListed; ++number) {
    const std::size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::vector<std::string> cells = cells_of(line);
    if (!columns) {
      if (std::ranges::none_of(cells, [](const std::string& cell) { return is_image_name(cell); })) {
        const Result<Columns> named = columns_of(cells, path);
        if (!named) return named.problems();
        columns = *named;
        continue;
      }
      columns = Columns{};
    }
    Row row{.line = number};
    const std::string place = table.place(row);
    if (cells.size() <= std::max(columns->file, columns->label)) {
      problems.push_back({place, "has " + std::to_string(cells.size()) + " columns", "write file,label"});
      continue;
    }
    row.file = cells[columns->file];
    row.label = cells[columns->label];
    if (row.file.empty() || row.label.empty()) {
      problems.push_back({place, row.file.empty() ? "names no file" : escaped(row.file) + " has no label",
                          "every row needs both"});
      continue;
    }
    // "./a.jpg", "a.jpg" and "b/../a.jpg" are one file.
    const auto [first, is_new] = line_of.emplace(file_of(table, row).lexically_normal().string(), number);
    if (!is_new) {
      problems.push_back({place,
                          escaped(row.file) + " stands in line " + std::to_string(first->second) + " already",
                          "leave one row for each image"});
      continue;
    }
    table.rows.push_back(std::move(row));
  }
  if (problems.empty() && table.rows.empty())
    problems.push_back({path, "has no rows", "write a line file,label for each image"});
  if (!problems.empty()) return problems;
  return table;
}

/// Turns labels into class numbers. Labels that are all whole numbers are these numbers; others are names,
/// numbered in ascending order.
struct Classes {
  bool numbers = true;
  std::vector<std::string> names;  ///< sorted
  std::int64_t count = 0;
  std::string place;  ///< of the largest number, or the table

  std::optional<int> of(const std::string& label) const {
    if (numbers) {
      const auto number = number_of<int>(label);
      return number && *number >= 0 && *number < count ? number : std::nullopt;
    }
    const auto found = std::ranges::lower_bound(names, label);
    if (found == names.end() || *found != label) return std::nullopt;
    return static_cast<int>(found - names.begin());
  }
  std::string described() const { return numbers ? "0 to " + std::to_string(count - 1) : some_of(names); }
};

/// Problem: labels are whole numbers, and one has a sign. As names they would all be renumbered.
Result<Classes> classes_of(const Table& table) {
  Classes classes{.place = table.path};
  classes.numbers = std::ranges::all_of(table.rows, [](const Row& row) {
    const auto number = number_of<int>(row.label);
    return number && *number >= 0;
  });
  if (classes.numbers) {
    for (const Row& row : table.rows) {
      const std::int64_t number = *number_of<int>(row.label);
      if (number < classes.count) continue;
      classes.count = number + 1;
      classes.place = table.place(row);
    }
    return classes;
  }
  const auto has_sign = [](const Row& row) {
    return row.label.starts_with('-') || row.label.starts_with('+');
  };
  const auto is_whole = [&](const Row& row) {
    return number_of<std::int64_t>(std::string_view(row.label).substr(has_sign(row) ? 1 : 0)).has_value();
  };
  const auto odd = std::ranges::find_if(table.rows, has_sign);
  if (odd != table.rows.end() && std::ranges::all_of(table.rows, is_whole))
    return Problem{table.place(*odd), "has the label '" + escaped(odd->label) + "', which is no class number",
                   "the labels are numbers: give 0, 1, 2, ... in every row"};
  for (const Row& row : table.rows) classes.names.push_back(row.label);
  std::ranges::sort(classes.names);
  const auto repeated = std::unique(classes.names.begin(), classes.names.end());
  classes.names.erase(repeated, classes.names.end());
  classes.count = static_cast<std::int64_t>(classes.names.size());
  return classes;
}

/// Returns the images that lie beside those of the tables and have no row.
LeftOut images_without_row(const std::vector<Table>& tables) {
  std::unordered_set<std::string> named;  // text: paths compare part by part, which is slow for a million
  std::set<std::string> folders;
  for (const Table& table : tables) {
    for (const Row& row : table.rows) {
      const fs::path file = file_of(table, row).lexically_normal();
      folders.insert(file.parent_path().string());
      named.insert(file.string());
    }
  }
  std::vector<std::string> others;
  for (const std::string& folder : folders) {
    std::error_code error;
    for (fs::directory_iterator at(folder.empty() ? "." : folder, error), end; !error && at != end;
         at.increment(error)) {
      const std::string file = (fs::path(folder) / at->path().filename()).string();
      if (is_image_name(file) && !named.contains(file)) others.push_back(file);
    }
  }
  std::ranges::sort(others);
  LeftOut left_out;
  for (std::string& file : others) {
    const std::string_view ignored = reason_to_ignore(fs::path(file).filename().string());
    const std::string reason = "images without a row in " + tables.front().path +
                               (tables.size() > 1 ? " and " + tables.back().path : "");
    left_out.add(ignored.empty() ? reason : ignored, std::move(file));
  }
  return left_out;
}

Result<ImageSet> images_of(const Table& table, const Classes& classes, const LeftOut& left_out) {
  ImageSet set{.source = fs::path(table.path).parent_path().string(), .left_out = left_out};
  if (set.source.empty()) set.source = ".";
  Problems problems;
  for (const Row& row : table.rows) {
    if (problems.size() == kMostListed) break;
    const fs::path file = file_of(table, row);
    std::error_code error;
    if (!fs::is_regular_file(file, error))
      problems.push_back({table.place(row), "there is no file " + escaped(file.string()),
                          "names are relative to the table's folder, and have their endings (.jpg)"});
    const auto target = classes.of(row.label);
    if (!target)
      problems.push_back({table.place(row),
                          "the label '" + escaped(row.label) + "' is none of the training table",
                          "its classes are " + classes.described()});
    if (target) set.items.push_back({.name = file.string(), .target = *target});
  }
  if (!problems.empty()) return problems;
  return set;
}

}  // namespace

Result<ImageSource> open_image_table(const std::string& paths) {
  std::vector<Table> tables;
  Problems problems;
  const std::vector<std::string> names = split(paths, ',');
  if (names.size() > 2)
    return Problem{"--data", "'" + paths + "' names " + std::to_string(names.size()) + " tables",
                   "give csv:TRAIN.csv or csv:TRAIN.csv,TEST.csv"};
  for (const std::string& path : names) {
    Result<Table> table = read_table(path);
    if (table)
      tables.push_back(*std::move(table));
    else
      append(problems, table.problems());
  }
  if (!problems.empty()) return problems;
  const Result<Classes> found = classes_of(tables.front());
  if (!found) return found.problems();
  const Classes& classes = *found;
  const LeftOut left_out = images_without_row(tables);
  return ImageSource{.place = classes.place,
                     .num_classes = classes.count,
                     .has_test = tables.size() > 1,
                     .open = [tables, classes, left_out](DataSplit split) {
                       return images_of(split == DataSplit::Train ? tables.front() : tables.back(), classes,
                                        left_out);
                     }};
}

}  // namespace millrace
