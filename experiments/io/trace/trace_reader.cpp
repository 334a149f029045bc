#include "experiments/io/trace/trace_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <future>
#include <memory>

#include "experiments/io/trace/civil_time.h"
#include "runtime/base/error.h"
#include "runtime/base/write_hint.h"

namespace millrace {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr std::size_t kLongestRow = std::size_t{1} << 16;
constexpr std::int64_t kMostDamaged = 5000;  // as the kit
constexpr std::int64_t kMostBack = 60 * kSecond;

/// Counts by reason; there are few, and each is a constant text.
class Reasons {
 public:
  void count(const char* why) {
    for (auto& [known, n] : counts_) {
      if (known == why) {
        ++n;
        return;
      }
    }
    counts_.emplace_back(why, 1);
  }
  void add_to(Dropped& dropped) const {
    for (const auto& [why, n] : counts_) dropped[why] += n;
  }

 private:
  std::vector<std::pair<const char*, std::int64_t>> counts_;
};

constexpr const char* kDamaged = "damaged rows";

/// One piece of the file, parsed.
struct Piece {
  struct Row {
    std::uint64_t hash;
    std::int64_t ns;
    std::uint32_t out_end;  ///< in `out`
  };
  std::string out;
  std::vector<Row> rows;           ///< those kept
  std::vector<TraceEvent> events;  ///< one for each
  std::int64_t data_rows = 0;
  std::int64_t damaged = 0;
  Reasons reasons;
  ReadActivities reads;
  std::vector<Problem> problems;
};

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0x9E3779B97F4A7C15u ^ text.size();
  const char* p = text.data();
  std::size_t left = text.size();
  for (; left >= 8; p += 8, left -= 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    hash = (hash ^ word) * 0x9FB21C651E98DF25u;
    hash ^= hash >> 32;
  }
  std::uint64_t word = 0;
  std::memcpy(&word, p, left);
  hash = (hash ^ word) * 0x9FB21C651E98DF25u;
  return hash ^ hash >> 29;
}

class PieceParser {
 public:
  PieceParser(const TraceReading& reading) : reading_(reading) {}

  Piece parse(const std::string& text, bool last) {
    piece_.out.reserve(text.size() + text.size() / 8);
    std::string_view rest = text;
    bool whole = true;
    while (!rest.empty()) {
      const std::string_view line = next_line(rest, whole);
      if (!is_data(line)) {
        if (const auto wrong = wrong_header(line, reading_.kind, reading_.raw.string()))
          piece_.problems.push_back(*wrong);
        continue;
      }
      ++piece_.data_rows;
      if (last && !whole) {
        piece_.reasons.count("a last row that is cut off");
      } else {
        take(line);
      }
    }
    return std::move(piece_);
  }

 private:
  void take(std::string_view line) {
    RawRow row;
    if (!parse_row(line, reading_.kind, row) || row.latency_ns > row.ns) {
      ++piece_.damaged;
      return piece_.reasons.count(kDamaged);
    }
    const std::int64_t end = reading_.window.boot_utc_ns + row.ns;
    if (end > reading_.window.to) {
      ++piece_.damaged;
      return piece_.reasons.count(kDamaged);
    }
    if (end < reading_.window.from) return piece_.reasons.count("rows before the start of INIT");
    if (const char* why = why_filtered(row, reading_.kind, reading_.workload))
      return piece_.reasons.count(why);
    write(row, end);
    const bool flusher =
        reading_.kind == TraceKind::Bio && row.process.find("kworker") != std::string_view::npos;
    piece_.events.push_back(
        {end - row.latency_ns, end, row.pid, static_cast<std::uint8_t>(row.type), flusher});
    piece_.rows.push_back({hash_of(line), row.ns, static_cast<std::uint32_t>(piece_.out.size())});
    if (reading_.kind == TraceKind::Read) note_read(row);
    if (reading_.kind == TraceKind::Openat && row.process == kLoaderName) piece_.reads[row.pid].loader = true;
  }

  void write(const RawRow& row, std::int64_t end) {
    const std::size_t at = piece_.out.size();
    piece_.out.resize(at + IsoWriter::kLength + 1);
    iso_.write(end, piece_.out.data() + at);
    piece_.out[at + IsoWriter::kLength] = ' ';
    append_columns(piece_.out, row.columns);
    piece_.out.push_back('\n');
  }

  void note_read(const RawRow& row) {
    if (!activity_ || row.pid != pid_) {
      pid_ = row.pid;
      activity_ = &piece_.reads[pid_];
      pattern_bytes_ = nullptr;
    }
    ++activity_->rows;
    if (row.file.empty()) return;
    const std::uint64_t pattern = name_pattern(row.file);
    if (!pattern_bytes_ || pattern != pattern_) {
      pattern_ = pattern;
      activity_->dataset_files |= is_dataset_file(row.file, reading_.workload);
      static thread_local std::uint64_t beyond = 0;
      const bool room = activity_->by_pattern.size() < 64 || activity_->by_pattern.count(pattern) != 0;
      pattern_bytes_ = room ? &activity_->by_pattern[pattern] : &beyond;
    }
    *pattern_bytes_ += row.bytes;
  }

  const TraceReading& reading_;
  Piece piece_;
  IsoWriter iso_;
  std::uint32_t pid_ = 0;
  ReadActivity* activity_ = nullptr;
  std::uint64_t pattern_ = 0;
  std::uint64_t* pattern_bytes_ = nullptr;
};

/// Rows that were seen among the last 65,536: what a tracer printed twice.
class RecentRows {
 public:
  bool seen(std::uint64_t hash) {
    ++now_;
    Slot* free = nullptr;
    for (std::size_t i = 0; i < kProbes; ++i) {
      Slot& slot = slots_[(hash + i) & (slots_.size() - 1)];
      const bool fresh = slot.when != 0 && now_ - slot.when <= kWindow;
      if (fresh && slot.hash == hash) return slot.when = now_, true;
      if (!fresh && !free) free = &slot;
    }
    *(free ? free : &slots_[hash & (slots_.size() - 1)]) = {hash, now_};
    return false;
  }

 private:
  static constexpr std::uint64_t kWindow = 65536;
  static constexpr std::size_t kProbes = 8;
  struct Slot {
    std::uint64_t hash = 0, when = 0;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(4 * kWindow);
  std::uint64_t now_ = 0;
};

class OutFile {
 public:
  explicit OutFile(const std::filesystem::path& path)
      : path_(path.string()), file_(std::fopen(path_.c_str(), "wb")) {
    if (!file_) throw DataError(path_ + ": cannot be opened: " + std::strerror(errno));
  }
  ~OutFile() {
    if (file_) std::fclose(file_);
  }
  OutFile(const OutFile&) = delete;
  OutFile& operator=(const OutFile&) = delete;
  void write(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) fail();
  }
  void close() {
    std::FILE* const file = std::exchange(file_, nullptr);
    if (std::fclose(file) != 0) fail();
  }

 private:
  [[noreturn]] void fail() {
    throw DataError(path_ + ": cannot be written: " + std::strerror(errno), write_hint(errno));
  }
  std::string path_;
  std::FILE* file_;
};

class RawFile {
 public:
  explicit RawFile(const std::filesystem::path& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ >= 0) ::posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~RawFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  RawFile(const RawFile&) = delete;
  RawFile& operator=(const RawFile&) = delete;
  bool is_open() const { return fd_ >= 0; }
  std::int64_t size() const {
    struct stat info {};
    return ::fstat(fd_, &info) == 0 && S_ISREG(info.st_mode) ? info.st_size : -1;
  }
  /// Whole lines, about a megabyte; empty at the end. What is left without an end of line comes last, alone.
  /// False: a row is longer than any can be, or the disk fails.
  bool next(std::string& piece, bool& last) {
    piece = std::move(left_);
    left_.clear();
    last = false;
    while (true) {
      const std::size_t had = piece.size();
      piece.resize(had + kPieceBytes);
      const ssize_t got = ::read(fd_, piece.data() + had, kPieceBytes);
      if (got < 0 && errno == EINTR) {
        piece.resize(had);
        continue;
      }
      piece.resize(had + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      if (got < 0) return false;
      if (got == 0) return last = true;
      const std::size_t end = piece.rfind('\n');
      if (end == std::string::npos) {
        if (piece.size() > kLongestRow) return false;
        continue;
      }
      left_ = piece.substr(end + 1);
      piece.resize(end + 1);
      return left_.size() <= kLongestRow;
    }
  }

 private:
  int fd_;
  std::string left_;
};

class TraceReader {
 public:
  TraceReader(const TraceReading& reading, EventSorter& events, ReadActivities& reads)
      : reading_(reading), sorter_(events), reads_(reads), out_(reading.out) {}

  Result<TraceCounts> run() {
    RawFile file(reading_.raw);
    const std::int64_t size = file.is_open() ? file.size() : -1;
    if (size < 0) return problem(std::string("cannot be read: ") + std::strerror(errno), "");
    bool last = false;
    while (!last && problems_.empty()) {
      auto text = std::make_unique<std::string>();
      if (!file.next(*text, last)) return problem("is no text of rows, or cannot be read", "is it damaged?");
      submit(std::move(text), last);
      while (pending_.size() > static_cast<std::size_t>(std::max(1, reading_.threads)) + 1) commit();
    }
    while (!pending_.empty()) commit();
    if (problems_.empty()) check_trust();
    if (file.size() != size)
      problems_.push_back({reading_.raw.string(), "grew while it was read: the run is still being written",
                           "wait until the tracer has ended"});
    if (!problems_.empty()) return problems_;
    out_.close();
    reasons_.add_to(counts_.dropped);
    return counts_;
  }

 private:
  Problem problem(const std::string& what, const std::string& hint) const {
    return Problem{reading_.raw.string(), what, hint};
  }

  struct Pending {
    std::int64_t bytes;
    std::future<Piece> piece;
  };

  void submit(std::unique_ptr<std::string> text, bool last) {
    const auto bytes = static_cast<std::int64_t>(text->size());
    pending_.push_back({bytes, std::async(std::launch::async, [this, text = std::move(text), last] {
                          return PieceParser(reading_).parse(*text, last);
                        })});
  }

  void commit() {
    Piece piece = pending_.front().piece.get();
    const std::int64_t bytes = pending_.front().bytes;
    pending_.pop_front();
    append(problems_, piece.problems);
    if (!problems_.empty()) return;
    counts_.rows += piece.data_rows;
    damaged_ += piece.damaged;
    piece.reasons.add_to(counts_.dropped);
    add(reads_, piece.reads);
    take_rows(piece);
    if (damaged_ > kMostDamaged)
      problems_.push_back(problem("has more than " + std::to_string(kMostDamaged) + " damaged rows",
                                  "is it a trace of this kind, of the kit's tracer?"));
    if (reading_.progress) reading_.progress(bytes);
  }

  void take_rows(Piece& piece) {
    std::size_t written = 0, kept_events = 0, start = 0;
    for (std::size_t r = 0; r < piece.rows.size(); ++r) {
      const Piece::Row& row = piece.rows[r];
      const bool repeated = recent_.seen(row.hash);
      if (repeated) {
        reasons_.count("repeated rows");
        out_.write(std::string_view(piece.out).substr(written, start - written));
        written = row.out_end;
      } else {
        check_clock(row);
        piece.events[kept_events++] = piece.events[r];
      }
      start = row.out_end;
    }
    out_.write(std::string_view(piece.out).substr(written));
    piece.events.resize(kept_events);
    counts_.kept += static_cast<std::int64_t>(kept_events);
    sorter_.add(piece.events);
  }

  void check_clock(const Piece::Row& row) {
    if (row.ns < latest_ - kMostBack && problems_.empty())
      problems_.push_back(problem("has a clock that goes back by " +
                                      std::to_string((latest_ - row.ns) / kSecond) + " s at stamp " +
                                      std::to_string(row.ns),
                                  "are the traces of two runs in one file?"));
    latest_ = std::max(latest_, row.ns);
  }

  void check_trust() {
    if (damaged_ > 0 && damaged_ * 2 > counts_.rows)
      problems_.push_back(
          problem(std::to_string(damaged_) + " of its " + std::to_string(counts_.rows) + " rows are damaged",
                  "is it a trace of this kind, of the kit's tracer?"));
  }

  const TraceReading& reading_;
  EventSorter& sorter_;
  ReadActivities& reads_;
  OutFile out_;
  std::deque<Pending> pending_;
  RecentRows recent_;
  std::int64_t latest_ = 0;
  std::int64_t damaged_ = 0;
  Reasons reasons_;
  TraceCounts counts_;
  Problems problems_;
};

}  // namespace

Result<TraceCounts> read_trace(const TraceReading& reading, EventSorter& events, ReadActivities& reads) {
  return TraceReader(reading, events, reads).run();
}

}  // namespace millrace
