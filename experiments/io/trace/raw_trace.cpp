#include "experiments/io/trace/raw_trace.h"

#include <algorithm>
#include <cctype>

#include "experiments/io/trace/civil_time.h"
#include "runtime/base/numbers.h"

namespace millrace {
namespace {

constexpr std::size_t kMostColumns = 9;
// A negative errno printed unsigned is larger than any read.
constexpr std::uint64_t kLargestRead = 1'000'000'000'000'000;

struct Columns {
  std::array<std::string_view, kMostColumns + 1> at;
  std::size_t count = 0;  ///< kMostColumns + 1: too many
};

Columns split(std::string_view line) {
  Columns columns;
  const char* p = line.data();
  const char* const end = p + line.size();
  while (columns.count <= kMostColumns) {
    while (p != end && is_blank(*p)) ++p;
    if (p == end) break;
    const char* const start = p;
    while (p != end && !is_blank(*p)) ++p;
    columns.at[columns.count++] = {start, static_cast<std::size_t>(p - start)};
  }
  return columns;
}

template <class Number>
bool read_number(std::string_view text, Number& value) {
  const std::optional<Number> number = number_of<Number>(text);
  if (number) value = *number;
  return number.has_value();
}

/// Stamps and latencies: not negative, and below 146 years, so that sums cannot overflow.
bool read_time(std::string_view text, std::int64_t& value) {
  return read_number(text, value) && value >= 0 && value < std::int64_t{1} << 62;
}

/// A count; a negative one is an errno, and larger than any size as the tracer prints it.
bool read_size(std::string_view text, std::uint64_t& value) {
  std::int64_t negative = 0;
  if (!text.empty() && text.front() == '-') {
    if (!read_number(text, negative)) return false;
    value = static_cast<std::uint64_t>(negative);
    return true;
  }
  return read_number(text, value);
}

/// bio: ns pid comm disk R|W bytes sector lat; the command may have a blank in it.
bool parse_bio(const Columns& c, RawRow& row) {
  if (c.count != 8 && c.count != 9) return false;
  const std::size_t disk = c.count - 5;
  const std::string_view way = c.at[disk + 1];
  std::uint64_t sector = 0;
  if (way.front() != 'R' && way.front() != 'W') return false;
  row.type = way.front() == 'R' ? EventType::BioRead : EventType::BioWrite;
  row.process = {c.at[2].data(), static_cast<std::size_t>(c.at[disk - 1].end() - c.at[2].begin())};
  row.disk = c.at[disk];
  return read_size(c.at[disk + 2], row.bytes) && read_number(c.at[disk + 3], sector) &&
         read_time(c.at[disk + 4], row.latency_ns);
}

/// read, write: ns pid offset bytes lat [file].
bool parse_transfer(const Columns& c, TraceKind kind, RawRow& row) {
  std::uint64_t offset = 0;
  row.type = kind == TraceKind::Read ? EventType::Read : EventType::Write;
  if (c.count == 6) row.file = c.at[5];
  return read_size(c.at[2], offset) && read_size(c.at[3], row.bytes) && read_time(c.at[4], row.latency_ns);
}

/// openat: ns pid comm lat path [file].
bool parse_openat(const Columns& c, RawRow& row) {
  row.type = EventType::Openat;
  row.process = c.at[2];
  row.file = c.at[c.count - 1];
  return read_time(c.at[3], row.latency_ns);
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool is_workload_process(std::string_view process, TracedWorkload workload) {
  const auto any = [&](std::initializer_list<std::string_view> names) {
    return std::any_of(names.begin(), names.end(), [&](auto name) { return contains(process, name); });
  };
  switch (workload) {
    case TracedWorkload::Unet3d:
    case TracedWorkload::Dlrm:
      return any({"python"});
    case TracedWorkload::Bert:
      return any({"python", "horovodrun", "run_pretraining"});
    case TracedWorkload::Dlio:
      return any({"python3", "mpirun", "horovodrun"});
    case TracedWorkload::Any:
      return true;
  }
  return false;
}

/// Words of a header, without units: "RET (B)", "LAT(ns)" -> "RET", "LAT".
std::vector<std::string> header_names(std::string_view line) {
  std::vector<std::string> names;
  for (std::string_view word : words_of(line)) {
    word = word.substr(0, word.find('('));
    if (!word.empty()) names.emplace_back(word);
  }
  return names;
}

const std::vector<std::string>& header_of(TraceKind kind) {
  static const std::array<std::vector<std::string>, 4> kHeaders{{
      {"TIMESTAMP", "PID", "COMM", "DISK", "T", "BYTES", "SECTOR", "LAT"},
      {"TIMESTAMP", "PID", "COMM", "LAT", "FULLPATH", "FILENAME"},
      {"TIMESTAMP", "PID", "OFFSET", "RET", "LAT", "FILENAME"},
      {"TIMESTAMP", "PID", "OFFSET", "SIZE", "LAT", "FILENAME"},
  }};
  return kHeaders[static_cast<std::size_t>(kind)];
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

}  // namespace

bool parse_row(std::string_view line, TraceKind kind, RawRow& row) {
  const Columns c = split(line);
  const bool bio = kind == TraceKind::Bio;
  if (!bio && c.count != 5 && c.count != 6) return false;
  if (c.count < 5 || !read_time(c.at[0], row.ns) || !read_number(c.at[1], row.pid)) return false;
  row.process = row.disk = row.file = {};
  row.bytes = 0;
  row.columns = {c.at[1].data(), static_cast<std::size_t>(c.at[c.count - 1].end() - c.at[1].begin())};
  if (bio) return parse_bio(c, row);
  return kind == TraceKind::Openat ? parse_openat(c, row) : parse_transfer(c, kind, row);
}

const char* why_filtered(const RawRow& row, TraceKind kind, TracedWorkload workload) {
  if (kind == TraceKind::Read && row.bytes > kLargestRead) return "reads that failed";
  if (kind == TraceKind::Write) {
    // "0" is the terminal (/dev/pts/0). Names that only begin so are files.
    if (row.file == "0" || contains(row.file, ".log")) return "writes to logs and to the terminal";
  }
  if (kind == TraceKind::Bio) {
    const bool flusher = contains(row.process, "kworker");
    if (flusher && (row.disk != "sdb" || row.type != EventType::BioWrite))
      return "block I/O of kernel workers elsewhere than to the data disk (sdb)";
    if (!flusher && !is_workload_process(row.process, workload)) return "block I/O of other processes";
  }
  return nullptr;
}

bool is_data(std::string_view line) {
  const std::size_t first = line.find_first_not_of(" \t");
  if (first == std::string_view::npos) return false;
  return !line.substr(first).starts_with("Attaching ") && !line.substr(first).starts_with("TIMESTAMP");
}

std::optional<Problem> wrong_header(std::string_view line, TraceKind kind, const std::string& name) {
  const std::vector<std::string> found = header_names(line);
  if (found.empty() || found[0] != "TIMESTAMP" || found == header_of(kind)) return std::nullopt;
  return Problem{name, "has the columns " + joined(found) + ", not " + joined(header_of(kind)),
                 "is it a trace of another kind, or of another version of the tracer?"};
}

void append_columns(std::string& to, std::string_view columns) {
  const char* p = columns.data();
  const char* const end = p + columns.size();
  while (true) {
    const char* start = p;
    while (p != end && !is_blank(*p)) ++p;
    to.append(start, static_cast<std::size_t>(p - start));
    while (p != end && is_blank(*p)) ++p;
    if (p == end) return;
    to.push_back(' ');
  }
}

Result<TimeReference> read_time_align(std::string_view text, const std::string& name) {
  TimeReference best{.gap_ns = INT64_MAX};
  std::int64_t previous_ns = 0, previous_second = -1;
  bool whole = true;
  while (!text.empty()) {
    const std::string_view line = next_line(text, whole);
    if (!is_data(line)) continue;
    const std::vector<std::string_view> words = words_of(line);
    std::int64_t ns = 0;
    const std::optional<std::int64_t> second =
        words.size() == 2 && whole && read_time(words[0], ns) ? parse_time_of_day(words[1]) : std::nullopt;
    if (!second) {
      ++best.dropped[whole ? "damaged rows" : "a last row that is cut off"];
      continue;
    }
    ++best.rows;
    // Rows of several processors may be out of order, and a clock may be set: only one second forward counts.
    const bool next = previous_second >= 0 && *second == (previous_second + 1) % kDaySeconds;
    if (next && ns >= previous_ns && ns - previous_ns < best.gap_ns) {
      best.gap_ns = ns - previous_ns;
      best.ns = ns - best.gap_ns / 2;
      best.second_of_day = *second;
    }
    if (ns < previous_ns) ++best.dropped["rows whose clock went back (kept)"];
    previous_ns = ns;
    previous_second = *second;
  }
  if (best.gap_ns == INT64_MAX)
    return Problem{name, "shows no change of second in " + std::to_string(best.rows) + " rows",
                   "the traces cannot be aligned without: keep time_align running for some seconds"};
  if (best.gap_ns > kSecond)
    return Problem{name,
                   "is too sparse: its rows are never less than a second apart around a change of second",
                   "the traces cannot be aligned to better than that"};
  return best;
}

std::uint64_t name_pattern(std::string_view file) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a, each run of digits as one '#'
  bool digits = false;
  for (char c : file) {
    const bool digit = c >= '0' && c <= '9';
    if (digit && digits) continue;
    digits = digit;
    hash = (hash ^ static_cast<unsigned char>(digit ? '#' : c)) * 1099511628211u;
  }
  return hash;
}

bool is_dataset_file(std::string_view file, TracedWorkload workload) {
  switch (workload) {
    case TracedWorkload::Unet3d:
      return file.starts_with("case_") && file.ends_with(".npy");
    case TracedWorkload::Bert:
      return file.starts_with("part-") || file.ends_with(".tfrecord");
    case TracedWorkload::Dlrm:
      return file.starts_with("terabyte_processed") || file.starts_with("day_");
    case TracedWorkload::Dlio:
      return file.find("_of_") != std::string_view::npos;
    case TracedWorkload::Any:
      return false;  // its names are not known: what is read most counts
  }
  return false;
}

}  // namespace millrace
