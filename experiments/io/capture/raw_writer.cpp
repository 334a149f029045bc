#include "experiments/io/capture/raw_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "runtime/base/error.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 18;

struct Layout {
  const char* name;
  const char* header;
};
// The kit's names and headers; its readers find columns by them.
constexpr Layout kLayouts[] = {
    {"trace_bio.out", "TIMESTAMP         PID      COMM           DISK T BYTES        SECTOR LAT(ns)\n"},
    {"trace_openat.out", "TIMESTAMP         PID    COMM  LAT(ns)  FULLPATH FILENAME\n"},
    {"trace_read.out", "TIMESTAMP         PID    OFFSET   RET (B)      LAT(ns)      FILENAME\n"},
    {"trace_write.out", "TIMESTAMP         PID      OFFSET   SIZE (B)   LAT (ns)   FILENAME\n"},
    {"trace_close.out", "TIMESTAMP         PID    FD    LAT(ns)  FILENAME\n"},
    {"trace_create_del.out", "TIMESTAMP         PID    CALL   ARGUMENTS\n"},
    {"trace_mmap.out", "TIMESTAMP         PID    FD    ADDRESS   LAT(ns)  FILENAME\n"},
};

/// A name as one column: no blank, no control character.
std::string column(std::string_view name) {
  std::string text;
  for (char c : escaped(name)) c == ' ' ? text += "\\x20" : text += c;
  return text.empty() ? "-" : text;
}

std::string base_name(const std::string& path) {
  return column(path.substr(path.rfind('/') + 1));
}

std::string join(std::initializer_list<std::string> columns) {
  std::string row;
  for (const std::string& text : columns) row.append(row.empty() ? "" : " ").append(text);
  return row += '\n';
}

std::string number(std::int64_t value) {
  return std::to_string(value);
}

}  // namespace

RowFile::RowFile(const std::filesystem::path& path, std::string_view header)
    : fd_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644)) {
  if (fd_ < 0)
    throw DataError(path.string() + ": cannot be made: " + std::strerror(errno), "is the folder writable?");
  waiting_ = header;
  flush();
}

RowFile::~RowFile() {
  flush();
  close(fd_);
}

void RowFile::add(std::string_view row) {
  waiting_ += row;
  ++waiting_rows_;
  ++rows_;
  if (waiting_.size() >= kBuffer) flush();
}

void RowFile::flush() {
  if (waiting_.empty()) return;
  const off_t before = lseek(fd_, 0, SEEK_END);
  std::size_t done = 0;
  while (done < waiting_.size()) {
    const ssize_t wrote = write(fd_, waiting_.data() + done, waiting_.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;
    done += static_cast<std::size_t>(wrote);
  }
  if (done < waiting_.size()) {
    // Whole rows only: what does not fit goes.
    if (ftruncate(fd_, before) != 0) done = 0;
    lost_ += waiting_rows_;
    rows_ -= waiting_rows_;
  }
  waiting_.clear();
  waiting_rows_ = 0;
}

RawWriter::RawWriter(const std::filesystem::path& folder) {
  for (std::size_t k = 0; k < files_.size(); ++k)
    files_[k] = std::make_unique<RowFile>(folder / kLayouts[k].name, kLayouts[k].header);
}

void RawWriter::add(const FileEvent& event) {
  const std::lock_guard lock(mutex_);
  if (event.result < 0 && event.call != FileCall::Unseen) return count("calls that failed");
  const std::string stamp = number(event.end_ns), pid = number(event.process), lat = number(event.latency_ns);
  switch (event.call) {
    case FileCall::Read:
    case FileCall::Copy:
      return transfer(event, kRead);
    case FileCall::Write:
      return transfer(event, kWrite);
    case FileCall::Open:
      if (const FileTable::File* file = opened(event)) {
        files_[kOpenat]->add(
            join({stamp, pid, column(event.command), lat, column(file->path), base_name(file->path)}));
      } else {
        count("opens of what is no regular file");
      }
      return;
    case FileCall::Close: {
      // The descriptor is gone by now: only a file that was seen before has a name.
      if (const FileTable::File* file = table_.known(event.process, event.descriptor))
        files_[kClose]->add(join({stamp, pid, number(event.descriptor), lat, base_name(file->path)}));
      table_.forget(event.process, event.descriptor);
      return;
    }
    case FileCall::Make:
      return files_[kCreateDelete]->add(
          join({stamp, pid, "mkdir()", number(event.mode), lat, column(event.path)}));
    case FileCall::Remove:
      return files_[kCreateDelete]->add(join({stamp, pid, "rmdir()", lat, column(event.path)}));
    case FileCall::Unlink:
      return files_[kCreateDelete]->add(
          join({stamp, pid, "unlink()", lat, base_name(event.path), column(event.path)}));
    case FileCall::Map:
      if (const FileTable::File* file = table_.find(event.process, event.descriptor)) {
        files_[kMmap]->add(join({stamp, pid, number(event.descriptor),
                                 printed("%#llx", static_cast<unsigned long long>(event.result)), lat,
                                 base_name(file->path)}));
      }
      return;
    case FileCall::Seek:
      if (FileTable::File* file = table_.find(event.process, event.descriptor)) file->position = event.result;
      return;
    case FileCall::Duplicate:
      return table_.duplicate(event.process, event.descriptor, event.result);
    case FileCall::Rename:
      return;
    case FileCall::Clone:
      return count("clones of files (FICLONE), which share blocks and move no bytes");
    case FileCall::Unseen:
      return count("calls of io_uring or aio, whose reads and writes are not seen");
  }
}

/// A source that comes late tells the name; one that stops the process leaves it to /proc.
const FileTable::File* RawWriter::opened(const FileEvent& event) {
  if (!event.path.empty()) return table_.open(event.process, event.result, event.path);
  table_.forget(event.process, event.result);
  return table_.find(event.process, event.result);
}

void RawWriter::transfer(const FileEvent& event, Kind kind) {
  bool any = add_side(event, kind, event.descriptor, event.offset);
  // A copy that found the end of its source has written nothing.
  if (event.call == FileCall::Copy && event.result > 0)
    any |= add_side(event, kWrite, event.target, event.target_offset);
  if (!any) count("reads and writes of pipes, sockets and devices");
}

bool RawWriter::add_side(const FileEvent& event, Kind kind, std::int64_t descriptor, std::int64_t offset) {
  const bool at_position = offset < 0;
  FileTable::File* const file =
      descriptor < 0 ? nullptr : table_.find(event.process, descriptor, at_position ? event.result : 0);
  if (!file) return false;
  files_[kind]->add(
      join({number(event.end_ns), number(event.process), number(at_position ? file->position : offset),
            number(event.result), number(event.latency_ns), base_name(file->path)}));
  if (at_position) file->position += event.result;
  (kind == kRead ? bytes_read_ : bytes_written_) += event.result;
  return true;
}

void RawWriter::add_bio(std::string_view row) {
  const std::lock_guard lock(mutex_);
  files_[kBio]->add(row);
}

void RawWriter::forget(std::uint32_t process) {
  const std::lock_guard lock(mutex_);
  table_.forget(process);
}

void RawWriter::fork(std::uint32_t parent, std::uint32_t child) {
  const std::lock_guard lock(mutex_);
  table_.fork(parent, child);
}

void RawWriter::flush() {
  const std::lock_guard lock(mutex_);
  for (const auto& file : files_) file->flush();
}

std::map<std::string, std::int64_t> RawWriter::rows() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::int64_t> rows;
  for (std::size_t k = 0; k < files_.size(); ++k) rows[kLayouts[k].name] = files_[k]->rows();
  return rows;
}

std::map<std::string, std::int64_t> RawWriter::left_out() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::int64_t> all = left_out_;
  if (table_.unknown() > 0) all["descriptors of processes that had ended"] = table_.unknown();
  return all;
}

std::int64_t RawWriter::lost() const {
  const std::lock_guard lock(mutex_);
  std::int64_t lost = 0;
  for (const auto& file : files_) lost += file->lost();
  return lost;
}

}  // namespace millrace
