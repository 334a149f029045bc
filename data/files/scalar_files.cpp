#include "data/files/scalar_files.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "data/files/protobuf.h"
#include "data/files/tfrecord.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEventFile = "events.out.tfevents.";
constexpr std::uint64_t kSessionStart = 1;  // SessionLog.SessionStatus

// Fields of Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log.
ProtoWriter event_at(double unix_s) {
  ProtoWriter event;
  event.number(1, unix_s);
  return event;
}

std::string framed(const ProtoWriter& event) {
  std::string record;
  append_tfrecord(record, event.text());
  return record;
}

double unix_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

[[noreturn]] void refuse_earlier(const fs::path& path, const char* what) {
  throw ConfigError(path.string() + " holds " + what + " of another run",
                    "give another name, or --overwrite to delete them");
}

std::vector<fs::path> event_files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().filename().string().starts_with(kEventFile)) files.push_back(entry.path());
  return files;
}

class TensorBoardFile : public ScalarSink {
 public:
  TensorBoardFile(const fs::path& folder, std::int64_t from, EarlierRun earlier) {
    if (const Status made = make_writable_folder(folder); !made)
      throw ConfigError(to_string(made.problems()));
    const std::vector<fs::path> there = event_files_in(folder);
    if (!there.empty() && earlier == EarlierRun::Refused) refuse_earlier(folder, "event files");
    if (earlier == EarlierRun::Replaced)
      for (const fs::path& file : there) fs::remove(file);
    const double now = unix_now();
    int number = 1;
    while (fs::exists(folder / tensorboard_file_name(now, number))) ++number;
    file_ = LineFile(folder / tensorboard_file_name(now, number));
    std::string begin = tensorboard_header(now);
    if (earlier == EarlierRun::Continued) begin += tensorboard_purge(now, from);
    if (const Status written = file_.write(begin); !written) throw ConfigError(to_string(written.problems()));
  }
  Status write(std::int64_t step, double unix_s, const Scalars& values) override {
    std::string records;  // all go out in one write
    for (const auto& [name, value] : values) records += tensorboard_scalar(unix_s, step, name, value);
    return file_.write(records);
  }

 private:
  LineFile file_;
};

class ScalarTable : public ScalarSink {
 public:
  ScalarTable(fs::path path, std::int64_t from, EarlierRun earlier) : path_(std::move(path)) {
    if (const Status place = make_place_for_file(path_); !place)
      throw ConfigError(to_string(place.problems()));
    std::error_code ignored;
    if (earlier == EarlierRun::Refused && fs::exists(path_, ignored)) refuse_earlier(path_, "scalars");
    if (earlier == EarlierRun::Continued && from > 0) go_on(from);
    if (!file_.is_open()) file_ = LineFile(path_);
  }
  ~ScalarTable() override {
    if (const Status written = flush(); !written) log_warning(to_string(written.problems()));
  }
  Status write(std::int64_t step, double unix_s, const Scalars& values) override {
    Status before = Ok{};
    if (step_ && *step_ != step) before = flush();
    if (!std::exchange(step_, step))
      cell("step") = std::to_string(step), cell("unix_s") = printed("%.3f", unix_s);
    for (const auto& [name, value] : values) append_number(cell(name), value);
    return before;
  }

 private:
  /// The cell of the row under way. A name that is new becomes the last column.
  std::string& cell(const std::string& name) {
    const std::size_t column = columns_.try_emplace(name, columns_.size()).first->second;
    row_.resize(columns_.size());
    row_[column].clear();
    return row_[column];
  }

  /// Keeps the rows of steps before `from` of the table that is there.
  void go_on(std::int64_t from) {
    const Result<std::string> text = read_file(path_, kGiB);
    if (!text || !text->starts_with("step,")) return;
    std::string kept;
    for (std::size_t at = 0, end; (end = text->find('\n', at)) != std::string::npos; at = end + 1) {
      if (at > 0 && std::strtoll(text->c_str() + at, nullptr, 10) >= from) continue;
      kept.append(*text, at, end + 1 - at);
    }
    for (const std::string& name : split(kept.substr(0, kept.find('\n')), ',')) cell(name);
    written_columns_ = columns_.size();
    if (const Status written = write_file_atomically(path_, kept); !written)
      throw ConfigError(to_string(written.problems()));
    file_ = LineFile(path_, /*append=*/true);
  }

  /// Writes the row under way.
  Status flush() {
    if (!std::exchange(step_, {})) return Ok{};
    Status columns = columns_.size() > written_columns_ ? add_columns() : Status(Ok{});
    std::string line;
    for (std::string& text : row_) line += (line.empty() ? "" : ",") + std::exchange(text, {});
    return columns ? file_.write_line(line) : columns;
  }

  /// Gives the table in the file the columns that it lacks. The rows there get empty cells.
  Status add_columns() {
    const Result<std::string> text = read_file(path_, kGiB);
    if (!text) return text.problems();
    std::vector<std::string> names(columns_.size());
    for (const auto& [name, column] : columns_) names[column] = name;
    std::string wider;
    for (const std::string& name : names) wider += (wider.empty() ? "" : ",") + name;
    const std::string cells(columns_.size() - written_columns_, ',');
    for (std::size_t at = 0, end; (end = text->find('\n', at)) != std::string::npos; at = end + 1)
      wider += at == 0 ? "\n" : text->substr(at, end - at) + cells + "\n";
    if (text->empty()) wider += '\n';
    if (Status written = write_file_atomically(path_, wider); !written) return written;
    file_ = LineFile(path_, /*append=*/true);
    written_columns_ = columns_.size();
    return Ok{};
  }

  fs::path path_;
  LineFile file_;
  std::unordered_map<std::string, std::size_t> columns_;
  std::size_t written_columns_ = 0;   ///< in the file; 0: it has no header yet
  std::optional<std::int64_t> step_;  ///< of the row under way; empty: there is none
  std::vector<std::string> row_;      ///< cells by column, not in the file yet
};

}  // namespace

std::string tensorboard_header(double unix_s) {
  ProtoWriter event = event_at(unix_s);
  event.bytes(3, "brain.Event:2");
  return framed(event);
}

std::string tensorboard_scalar(double unix_s, std::int64_t step, std::string_view name, double value) {
  ProtoWriter scalar, summary, event = event_at(unix_s);
  scalar.bytes(1, name);
  scalar.number32(2, static_cast<float>(value));
  summary.message(1, scalar);
  event.integer(2, static_cast<std::uint64_t>(step));
  event.message(5, summary);
  return framed(event);
}

std::string tensorboard_purge(double unix_s, std::int64_t step) {
  ProtoWriter session, event = event_at(unix_s);
  session.integer(1, kSessionStart);
  event.integer(2, static_cast<std::uint64_t>(step));
  event.message(7, session);
  return framed(event);
}

std::string tensorboard_file_name(double unix_s, int number) {
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  return std::string(kEventFile) + std::to_string(static_cast<std::int64_t>(unix_s)) + "." + host + "." +
         std::to_string(number);
}

std::unique_ptr<ScalarSink> open_tensorboard(const fs::path& folder, std::int64_t from, EarlierRun earlier) {
  return std::make_unique<TensorBoardFile>(folder, from, earlier);
}

std::unique_ptr<ScalarSink> open_scalar_table(const fs::path& file, std::int64_t from, EarlierRun earlier) {
  return std::make_unique<ScalarTable>(file, from, earlier);
}

}  // namespace millrace
