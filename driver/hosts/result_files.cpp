#include "driver/hosts/result_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <initializer_list>
#include <utility>

#include "driver/hosts/descriptor.h"
#include "driver/hosts/frames.h"
#include "runtime/base/run_files.h"
#include "runtime/base/run_folder.h"

namespace millrace {
namespace {
namespace fs = std::filesystem;

/// The cluster file of `profile --network`.
constexpr std::string_view kMeasured = "measured.yaml";

/// Returns the rank of a file that each rank has; nothing for other names. "rank07" and "rank+7" are no
/// ranks.
std::optional<int> rank_in(const RankFiles& files, std::string_view name) {
  const std::optional<int> rank = files.rank_of(name);
  return rank && files.of(*rank) == name ? rank : std::nullopt;
}

bool is_hypotheses(std::string_view path) {
  const std::string prefix = std::string(run_files::kHypotheses) + "/step-";
  return path.starts_with(prefix) && path.size() > prefix.size() &&
         std::ranges::all_of(path.substr(prefix.size()), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::string piece_of_file(const fs::path& path, std::int64_t offset) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size <= offset) return "";
  std::string bytes(std::min(kPiece, static_cast<std::size_t>(info.st_size - offset)), '\0');
  ssize_t n;
  do {
    n = ::pread(file.get(), bytes.data(), bytes.size(), offset);
  } while (n < 0 && errno == EINTR);
  bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return bytes;
}

ResultForm result_form(std::string_view path, const std::vector<int>& ranks, int loss_rank) {
  const auto has = [&](int rank) { return std::ranges::find(ranks, rank) != ranks.end(); };
  std::string_view name = path;
  if (const std::size_t slash = path.find('/'); slash != std::string_view::npos) {
    const std::string_view folder = path.substr(0, slash);
    if (rank_in(run_files::kRounds, folder)) name = path.substr(slash + 1);
  }
  for (const RankFiles& files : {run_files::kSteps, run_files::kCounters})
    if (const auto rank = rank_in(files, name)) return has(*rank) ? ResultForm::Growing : ResultForm::None;
  for (const RankFiles& files :
       {run_files::kTrace, run_files::kStatus, run_files::kFailure, run_files::kFlight})
    if (const auto rank = rank_in(files, name)) return has(*rank) ? ResultForm::Whole : ResultForm::None;
  const bool owns_loss = loss_rank < 0 || has(loss_rank);
  if (name == run_files::kJobs) return owns_loss ? ResultForm::Growing : ResultForm::None;
  if (name == run_files::kSummary) return owns_loss ? ResultForm::Whole : ResultForm::None;
  const bool of_rank_0 =
      name == run_files::kPlan || name == run_files::kSchedule || name == kMeasured || is_hypotheses(name);
  return of_rank_0 && has(0) ? ResultForm::Whole : ResultForm::None;
}

std::vector<std::string> log_names(const std::vector<int>& ranks) {
  std::vector<std::string> names{run_files::kJobs};
  for (const int rank : ranks)
    for (const RankFiles& files : {run_files::kSteps, run_files::kCounters}) names.push_back(files.of(rank));
  return names;
}

std::string_view lines_behind(std::string_view log, std::string_view line) {
  log = log.substr(0, log.rfind('\n') + 1);  // the last line may be half written
  if (line.empty()) return log;
  const std::string whole = std::string(line) + '\n';
  for (std::size_t at = log.rfind(whole); at != std::string_view::npos; at = log.rfind(whole, at - 1)) {
    if (at == 0 || log[at - 1] == '\n') return log.substr(at + whole.size());
  }
  return {};
}

GrowingLogs::GrowingLogs(fs::path folder, const std::vector<int>& ranks)
    : folder_(std::move(folder)), names_(log_names(ranks)) {
  std::error_code ignored;
  for (const std::string& path : paths()) fs::remove(folder_ / path, ignored);
}

std::vector<std::string> GrowingLogs::paths() const {
  std::vector<std::string> all = names_;
  for (const fs::path& round : rounds_in(folder_))
    for (const std::string& name : names_) all.push_back((round.filename() / name).string());
  return all;
}

std::vector<GrowingLogs::Piece> GrowingLogs::next() {
  std::vector<Piece> pieces;
  for (const std::string& path : paths()) {
    std::int64_t& sent = sent_[path];
    std::string bytes = piece_of_file(folder_ / path, sent);
    if (const std::size_t end = bytes.rfind('\n'); end != std::string::npos)
      bytes.resize(end + 1);
    else if (bytes.size() < kPiece)
      continue;
    pieces.push_back({.path = path, .offset = sent, .bytes = bytes});
    sent += static_cast<std::int64_t>(bytes.size());
  }
  return pieces;
}

}  // namespace millrace
