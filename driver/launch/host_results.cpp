#include "driver/launch/host_results.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "runtime/base/files.h"
#include "runtime/base/log.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_logs.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

constexpr std::uintmax_t kTail = 1 << 20;  // a line is shorter

/// Returns the end of a log, kTail bytes at most.
std::string tail_of(const fs::path& log) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(log, error);
  if (error || !fs::is_regular_file(fs::symlink_status(log, error))) return "";
  std::string tail(std::min(size, kTail), '\0');
  std::ifstream file(log, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(size - tail.size()));
  return file.read(tail.data(), static_cast<std::streamsize>(tail.size())) ? tail : "";
}

/// Cuts off a line that was half written when the launcher was killed.
void cut_half_line(const fs::path& log) {
  const std::string tail = tail_of(log);
  const std::size_t whole = tail.rfind('\n') + 1;
  std::error_code error;
  if (whole < tail.size()) fs::resize_file(log, fs::file_size(log, error) - (tail.size() - whole), error);
}

}  // namespace

std::string last_whole_line(const fs::path& log) {
  std::string tail = tail_of(log);
  tail.resize(tail.rfind('\n') + 1);
  if (tail.empty()) return "";
  tail.pop_back();
  return tail.substr(tail.rfind('\n') + 1);
}

ResultForm HostResults::accepted(int host, const std::string& path) {
  const auto place = static_cast<std::size_t>(host);
  const ResultForm form = place < options_.ranks.size()
                              ? result_form(path, options_.ranks[place], options_.loss_rank)
                              : ResultForm::None;
  const bool may = form != ResultForm::None && senders_.try_emplace(path, host).first->second == host;
  if (!may && warned_.insert(host).second)
    log_warning("host " + std::to_string(host) + " sent a file that is not its own: " + escaped(path));
  std::error_code ignored;
  const fs::path parent = (options_.folder / path).parent_path();
  const bool follows_link = parent != options_.folder && fs::is_symlink(fs::symlink_status(parent, ignored));
  if (may && follows_link) log_warning(parent.string() + " is a link: what hosts send is not written there");
  if (!may || follows_link) return ResultForm::None;
  fs::create_directories(parent, ignored);
  return form;
}

void HostResults::whole(int host, const std::string& path, std::string_view content) {
  if (accepted(host, path) != ResultForm::Whole) return;
  if (const Status written = write_file_atomically(options_.folder / path, content); !written)
    log_warning(to_string(written.problems()));
}

/// Makes the log ready for its first piece, `bytes`.
void HostResults::begin(Log& log, const std::string& path, std::string_view& bytes) const {
  const fs::path file = options_.folder / path;
  const bool goes_on = log.is_log && (options_.keeps_all || options_.from_step.value_or(0) > 0);
  std::error_code ignored;
  const bool is_file = fs::is_regular_file(fs::symlink_status(file, ignored));
  if (is_file && goes_on && options_.keeps_all) {
    cut_half_line(file);
  } else if (is_file && goes_on && file.filename() == run_files::kJobs) {
    bool own_steps = bytes.substr(0, bytes.find('\n')).ends_with(kOwnStep);
    if (cut_table_from(file, *options_.from_step, own_steps)) bytes.remove_prefix(bytes.find('\n') + 1);
  } else if (is_file && goes_on && run_files::kSteps.rank_of(file.filename().string())) {
    cut_log_from(file, *options_.from_step);
  }
  log.file = Descriptor(::open(
      file.c_str(),
      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (goes_on ? 0 : O_TRUNC), 0644));
  if (!log.file.is_open()) log_warning(file.string() + ": cannot be opened: " + std::strerror(errno));
}

void HostResults::grown(int host, const std::string& path, std::int64_t offset, std::string_view bytes) {
  const ResultForm form = accepted(host, path);
  if (form == ResultForm::None) return;
  const auto [found, is_new] = logs_.try_emplace(path);
  Log& log = found->second;
  log.is_log = form == ResultForm::Growing;
  const std::int64_t expected = log.bytes;
  log.bytes += static_cast<std::int64_t>(bytes.size());
  if (is_new && offset == 0) begin(log, path, bytes);
  if (offset != expected && (is_new || log.file.is_open())) {
    log_warning("host " + std::to_string(host) + " sent " + path + " from byte " + std::to_string(offset) +
                ", expected byte " + std::to_string(expected) + ": the rest of this log stays on the host");
    log.file.close();
  }
  while (!bytes.empty() && log.file.is_open()) {
    const ssize_t n = ::write(log.file.get(), bytes.data(), bytes.size());
    if (n > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (n == 0 || errno != EINTR) {
      log_warning((options_.folder / path).string() + ": " + std::strerror(errno) +
                  "; the rest of this log stays on the host");
      log.file.close();
    }
  }
}

}  // namespace millrace
