#include "experiments/io/trace/event_sorter.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <tuple>

#include "runtime/base/error.h"
#include "runtime/base/write_hint.h"

namespace millrace {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

File open_run(const std::filesystem::path& path, const char* mode) {
  File file(std::fopen(path.c_str(), mode), &std::fclose);
  if (!file) throw DataError(path.string() + ": cannot be opened: " + std::strerror(errno));
  std::setvbuf(file.get(), nullptr, _IONBF, 0);  // read and written in large pieces
  return file;
}

/// A run on disk, or in memory, from its front.
class Run {
 public:
  explicit Run(const std::filesystem::path& path, std::size_t piece)
      : file_(open_run(path, "rb")), piece_(piece) {
    next();
  }
  explicit Run(std::vector<TraceEvent> events) : file_(nullptr, &std::fclose), events_(std::move(events)) {}
  bool ended() const { return at_ == events_.size(); }
  const TraceEvent& front() const { return events_[at_]; }
  void next_event() {
    if (++at_ == events_.size() && file_) next();
  }

 private:
  void next() {
    events_.resize(piece_);
    const std::size_t got = std::fread(events_.data(), sizeof(TraceEvent), piece_, file_.get());
    if (got < piece_ && std::ferror(file_.get())) throw DataError("a sorted run cannot be read back");
    events_.resize(got);
    at_ = 0;
  }
  File file_;
  std::size_t piece_ = 0;
  std::vector<TraceEvent> events_;
  std::size_t at_ = 0;
};

}  // namespace

bool operator<(const TraceEvent& a, const TraceEvent& b) {
  if (a.start != b.start) return a.start < b.start;
  return std::tie(a.end, a.type, a.pid) < std::tie(b.end, b.type, b.pid);
}

EventSorter::EventSorter(std::filesystem::path folder, std::size_t run_events)
    : folder_(std::move(folder)), run_events_(run_events) {}

EventSorter::~EventSorter() {
  if (spill_.valid()) spill_.wait();
  std::error_code ignored;
  for (std::size_t r = 0; r < runs_; ++r)
    std::filesystem::remove(folder_ / ("run." + std::to_string(r)), ignored);
}

void EventSorter::add(const std::vector<TraceEvent>& events) {
  buffer_.insert(buffer_.end(), events.begin(), events.end());
  size_ += static_cast<std::int64_t>(events.size());
  if (buffer_.size() >= run_events_) spill();
}

void EventSorter::wait() {
  if (spill_.valid()) spill_.get();
}

void EventSorter::spill() {
  wait();
  std::swap(buffer_, spilling_);
  buffer_.clear();
  const std::filesystem::path path = folder_ / ("run." + std::to_string(runs_++));
  spill_ = std::async(std::launch::async, [this, path] {
    std::sort(spilling_.begin(), spilling_.end());
    const File file = open_run(path, "wb");
    if (std::fwrite(spilling_.data(), sizeof(TraceEvent), spilling_.size(), file.get()) != spilling_.size())
      throw DataError(path.string() + ": cannot be written: " + std::strerror(errno), write_hint(errno));
  });
}

void EventSorter::merge(const std::function<void(const TraceEvent&)>& take) {
  wait();
  spilling_ = {};
  std::sort(buffer_.begin(), buffer_.end());
  std::vector<std::unique_ptr<Run>> runs;
  // All pieces together stay below one run, however many there are.
  const std::size_t piece = std::clamp<std::size_t>(run_events_ / (runs_ + 1), 64, 65536);
  for (std::size_t r = 0; r < runs_; ++r)
    runs.push_back(std::make_unique<Run>(folder_ / ("run." + std::to_string(r)), piece));
  runs.push_back(std::make_unique<Run>(std::move(buffer_)));
  std::erase_if(runs, [](const auto& run) { return run->ended(); });
  const auto later = [](const auto& a, const auto& b) { return b->front() < a->front(); };
  std::make_heap(runs.begin(), runs.end(), later);
  while (!runs.empty()) {
    std::pop_heap(runs.begin(), runs.end(), later);
    Run& first = *runs.back();
    // Runs overlap little: the first one often stays first for long.
    const Run* second = runs.size() > 1 ? runs.front().get() : nullptr;
    do {
      take(first.front());
      first.next_event();
    } while (!first.ended() && (!second || !(second->front() < first.front())));
    if (first.ended()) {
      runs.pop_back();
    } else {
      std::push_heap(runs.begin(), runs.end(), later);
    }
  }
}

}  // namespace millrace
