#include "experiments/io/trace/preprocess.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "experiments/io/trace/civil_time.h"
#include "experiments/io/trace/lines.h"
#include "experiments/io/trace/sampled_logs.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kLargestLog = 2 * kGiB;
// The tracers run before the program starts and after it ends, but not for long.
constexpr std::int64_t kSlack = 600;       // seconds
constexpr std::int64_t kCaptureSlack = 5;  // seconds; nvidia-smi begins later than the command
constexpr const char* kManifest = "preprocess.json";

std::vector<std::string> app_log_names(TracedWorkload workload) {
  switch (workload) {
    case TracedWorkload::Unet3d:
      return {"unet3d.log"};
    case TracedWorkload::Bert:
      return {"app.log", "bert.log"};
    case TracedWorkload::Dlrm:
      return {"dlrm_tera.log"};
    case TracedWorkload::Dlio:
      return {"dlio.log"};
    case TracedWorkload::Any:
      return {"capture.log"};
  }
  return {};
}

void write_all(const fs::path& path, std::string_view text) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  const bool good = file && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if ((file && std::fclose(file) != 0) || !good)
    throw DataError(path.string() + ": cannot be written", "is the disk full?");
}

/// Writes buffers to files in a thread of its own, so that making lines and writing them go on at once. Holds
/// at most kMostBuffers. What fails there is thrown by the next `put`, or by `finish`.
class WriteQueue {
 public:
  WriteQueue() : thread_([this] { run(); }) {}
  ~WriteQueue() { stop(); }
  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;

  void put(std::FILE* file, std::string buffer) {
    std::unique_lock lock(mutex_);
    room_.wait(lock, [this] { return queue_.size() < kMostBuffers || failed_; });
    check();
    queue_.emplace_back(file, std::move(buffer));
    work_.notify_one();
  }
  void finish() {
    stop();
    check();
  }

 private:
  static constexpr std::size_t kMostBuffers = 64;

  void check() const {
    if (failed_) throw DataError("the timeline cannot be written", "is the disk full?");
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    work_.notify_one();
    if (thread_.joinable()) thread_.join();
  }
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return !queue_.empty() || ended_; });
      if (queue_.empty()) return;
      const auto [file, buffer] = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      const bool written = std::fwrite(buffer.data(), 1, buffer.size(), file) == buffer.size();
      lock.lock();
      failed_ = failed_ || !written;
      room_.notify_one();
    }
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable work_, room_;
  std::deque<std::pair<std::FILE*, std::string>> queue_;
  bool ended_ = false, failed_ = false;
  std::thread thread_;
};

/// A file of the timeline, by lines, through a buffer of its own.
class LineWriter {
 public:
  LineWriter(const fs::path& path, WriteQueue& queue)
      : path_(path), queue_(&queue), file_(std::fopen(path.c_str(), "wb")) {
    if (!file_) throw DataError(path.string() + ": cannot be opened");
    std::setvbuf(file_, nullptr, _IONBF, 0);
  }
  LineWriter(LineWriter&& other) noexcept
      : path_(std::move(other.path_)),
        queue_(other.queue_),
        file_(std::exchange(other.file_, nullptr)),
        buffer_(std::move(other.buffer_)) {}
  ~LineWriter() {
    if (file_) std::fclose(file_);
  }
  void write(std::string_view line) {
    buffer_.append(line);
    if (buffer_.size() >= kBuffer) flush();
  }
  void flush() {
    queue_->put(file_, std::move(buffer_));
    buffer_ = {};
    buffer_.reserve(kBuffer + 256);
  }
  /// After the queue has finished.
  void close() {
    if (std::fclose(std::exchange(file_, nullptr)) != 0)
      throw DataError(path_.string() + ": cannot be written", "is the disk full?");
  }

 private:
  static constexpr std::size_t kBuffer = std::size_t{1} << 18;
  fs::path path_;
  WriteQueue* queue_;
  std::FILE* file_;
  std::string buffer_;
};

/// The files of one layout and which of them a process goes to.
struct Layout {
  std::string name;
  std::vector<std::pair<std::string, std::string>> files;  ///< name, title
  std::function<int(std::size_t parent, bool loader)> file_of;
};

std::vector<Layout> layouts_of(const ProcessGroups& groups, TracedWorkload workload) {
  const auto numbered = [](const std::string& name, std::size_t i) { return name + std::to_string(i); };
  const std::size_t parents = groups.parents.size();
  std::vector<Layout> layouts;
  layouts.push_back({"all_combined", {{"combined.log", "All Workers"}}, [](std::size_t, bool) { return 0; }});
  if (workload == TracedWorkload::Dlio) return layouts;
  Layout each{"each_parent", {}, [](std::size_t parent, bool) { return static_cast<int>(parent); }};
  for (std::size_t p = 0; p < parents; ++p)
    each.files.emplace_back(numbered("parent_", p) + ".log", numbered("Worker ", p));
  layouts.push_back(each);
  if (groups.loaders.empty()) return layouts;
  layouts.push_back({"parents_combined_loaders_combined",
                     {{"parents_0.log", "All Workers"}, {"loaders_0.log", "All Dataloaders"}},
                     [](std::size_t, bool loader) { return loader ? 1 : 0; }});
  each.name = "each_parent_and_their_loaders";
  for (std::size_t p = 0; p < parents; ++p)
    each.files.emplace_back(numbered("loader_", p) + ".log", numbered("Loader ", p));
  each.file_of = [parents](std::size_t parent, bool loader) {
    return static_cast<int>(parent + (loader ? parents : 0));
  };
  layouts.push_back(each);
  return layouts;
}

class TimelineWriter {
 public:
  TimelineWriter(const fs::path& folder, const ProcessGroups& groups, TracedWorkload workload)
      : layouts_(layouts_of(groups, workload)) {
    for (std::size_t k = 0; k < groups.parents.size(); ++k) places_[groups.parents[k]] = {k, false};
    for (std::size_t k = 0; k < groups.loaders.size(); ++k)
      places_[groups.loaders[k]] = {k % groups.parents.size(), true};
    for (const Layout& layout : layouts_) {
      fs::create_directories(folder / layout.name);
      Json info = Json::object();
      for (const auto& [file, title] : layout.files) {
        info[file] = title;
        files_[layout.name].emplace_back(folder / layout.name / file, queue_);
      }
      write_all(folder / layout.name / "plotting_info.json", info.dump(4));
    }
    for (const Layout& layout : layouts_) targets_.push_back(&files_[layout.name]);
  }

  void take(const TraceEvent& event) {
    const Place* place = place_of(event);
    if (!place) {
      ++foreign_[event.type];
      return;
    }
    char line[96];
    start_.write(event.start, line);
    line[29] = ',';
    end_.write(event.end, line + 30);
    line[59] = ',';
    const std::string_view name = kEventNames[event.type];
    std::copy(name.begin(), name.end(), line + 60);
    line[60 + name.size()] = '\n';
    const std::string_view text(line, 61 + name.size());
    for (std::size_t l = 0; l < layouts_.size(); ++l)
      (*targets_[l])[layouts_[l].file_of(place->parent, place->loader)].write(text);
    ++events_;
  }

  void finish(PreprocessReport& report) {
    for (auto& [layout, files] : files_) {
      for (LineWriter& file : files) file.flush();
    }
    queue_.finish();
    for (auto& [layout, files] : files_) {
      for (LineWriter& file : files) file.close();
    }
    report.events = events_;
    for (std::size_t t = 0; t < kEventNames.size(); ++t) {
      if (foreign_[t] > 0)
        report.events_dropped[std::string(kEventNames[t]) + " of processes that are not the run's"] =
            foreign_[t];
    }
  }

 private:
  struct Place {
    std::size_t parent = 0;
    bool loader = false;
  };

  /// Finds the place of an event. What the kernel writes back belongs to nobody, and goes to the first
  /// worker.
  const Place* place_of(const TraceEvent& event) {
    if (event.flusher) return &first_;
    if (event.pid != last_pid_ || !last_) {
      const auto found = places_.find(event.pid);
      if (found == places_.end()) return nullptr;
      last_pid_ = event.pid;
      last_ = &found->second;
    }
    return last_;
  }

  std::vector<Layout> layouts_;
  std::map<std::string, std::vector<LineWriter>> files_;
  WriteQueue queue_;  // after the files: its thread has ended when they close
  std::vector<std::vector<LineWriter>*> targets_;
  std::unordered_map<std::uint32_t, Place> places_;
  Place first_;
  std::uint32_t last_pid_ = 0;
  const Place* last_ = nullptr;
  IsoWriter start_, end_;
  std::int64_t events_ = 0;
  std::array<std::int64_t, 5> foreign_{};
};

class Preprocessor {
 public:
  explicit Preprocessor(const PreprocessOptions& options) : options_(options), folder_(options.folder) {}

  Result<PreprocessReport> run() {
    std::error_code error;
    if (!fs::is_directory(folder_, error))
      return Problem{options_.folder, "is not a folder",
                     "give the folder of one raw run (trace_read.out, gpu.out, ...)"};
    find_files();
    if (!problems_.empty()) return problems_;
    find_target();
    if (!problems_.empty()) return problems_;
    if (!read_app_log()) return problems_;
    if (!options_.app_log_only && !read_logs()) return problems_;
    try {
      return make_results();
    } catch (...) {
      remove_staging();  // it would keep a full disk full
      throw;
    }
  }

 private:
  Result<PreprocessReport> make_results() {
    make_staging();
    write_app_log();
    if (!options_.app_log_only) {
      if (!read_traces() || !classify_processes()) return remove_staging(), problems_;
      write_samples();
      write_timeline();
    }
    write_all(staging_ / kManifest, report_.json().dump(2) + "\n");
    publish();
    return std::move(report_);
  }

  bool fail(const Problems& problems) {
    append(problems_, problems);
    return false;
  }
  bool fail(Problem problem) { return fail(Problems{std::move(problem)}); }
  fs::path raw(TraceKind kind) const {
    return folder_ / (std::string("trace_") + kTraceNames[static_cast<std::size_t>(kind)] + ".out");
  }

  // ---- input

  void find_files() {
    std::error_code error;
    if (!options_.app_log_only) {
      std::vector<fs::path> needed{folder_ / "gpu.out", folder_ / "cpu.out",
                                   folder_ / "trace_time_align.out"};
      for (TraceKind kind : {TraceKind::Bio, TraceKind::Openat, TraceKind::Read, TraceKind::Write})
        needed.push_back(raw(kind));
      for (const fs::path& path : needed) {
        if (!fs::is_regular_file(path, error)) problems_.push_back({path.string(), "is missing", ""});
      }
    }
    find_app_log();
  }

  void find_app_log() {
    std::error_code error;
    if (!options_.app_log.empty()) {
      app_log_ = options_.app_log;
      if (!fs::is_regular_file(app_log_, error)) problems_.push_back({options_.app_log, "is missing", ""});
      return;
    }
    const std::vector<std::string> names = app_log_names(options_.workload);
    std::vector<fs::path> found;
    auto walk =
        fs::recursive_directory_iterator(folder_, fs::directory_options::skip_permission_denied, error);
    for (; !error && walk != fs::recursive_directory_iterator(); walk.increment(error)) {
      // Results of an earlier run hold a log of the same name.
      const bool results = walk->is_directory(error) && (walk->path().filename() == "processed" ||
                                                         fs::exists(walk->path() / kManifest, error));
      if (results) walk.disable_recursion_pending();
      const std::string name = walk->path().filename().string();
      if (walk->is_regular_file(error) && std::find(names.begin(), names.end(), name) != names.end())
        found.push_back(walk->path());
    }
    const auto depth = [](const fs::path& path) { return std::distance(path.begin(), path.end()); };
    std::sort(found.begin(), found.end(), [&](const fs::path& a, const fs::path& b) {
      return std::pair(depth(a), a) < std::pair(depth(b), b);
    });
    if (found.empty()) {
      problems_.push_back({folder_.string(), "has no log of the program (" + names.front() + ")",
                           "give it with --app-log, or another --workload"});
    } else if (found.size() > 1 && depth(found[0]) == depth(found[1])) {
      problems_.push_back({folder_.string(),
                           "has several logs: " + found[0].string() + ", " + found[1].string(),
                           "say which with --app-log"});
    } else {
      app_log_ = found.front();
    }
  }

  void find_target() {
    std::error_code error;
    fs::path whole = fs::weakly_canonical(folder_, error);
    if (whole.filename().empty()) whole = whole.parent_path();  // "runs/one/"
    target_ = options_.out.empty() ? whole / "processed" : fs::path(options_.out) / whole.filename();
    if (fs::weakly_canonical(target_, error) == whole)
      problems_.push_back({"--out " + options_.out, "would write over the raw files gpu.out and cpu.out",
                           "the results go to OUT/" + whole.filename().string() + ": give another OUT"});
    report_.folder = target_.string();
    staging_ = target_;
    staging_ += ".partial";
  }

  bool read_app_log() {
    const Result<std::string> text = read_file(app_log_, kLargestLog);
    if (!text) return fail(text.problems());
    const std::string name = app_log_.string();
    Result<AppLog> log = options_.workload == TracedWorkload::Dlio
                             ? read_dlio_log(*text, name)
                             : read_mllog(*text, options_.workload, name);
    if (!log) return fail(log.problems());
    log_ = std::move(*log);
    report_.phases = log_.phases;
    report_.init_start = *log_.init_start();
    append_notes(log_.notes);
    note_dropped(app_log_.filename().string(), log_.dropped);
    note_capture();
    return true;
  }

  /// Notes what `trace capture` says of itself: rows that it lost, or that it was killed.
  void note_capture() {
    std::error_code ignored;
    if (!fs::exists(folder_ / "capture.log", ignored)) return;
    const Result<Json> report = read_json((folder_ / "capture.json").string());
    const Json* lost = report ? report->find("lost") : nullptr;
    if (!lost)
      report_.notes.push_back(
          "the capture was cut off, or its disk was full (no capture.json): rows may be missing, and no "
          "count says how "
          "many");
    else if (lost->kind() == Json::Kind::Int && lost->as_int() > 0)
      report_.notes.push_back("the capture lost " + std::to_string(lost->as_int()) +
                              " rows: counts and bytes are too small by these");
  }

  bool read_logs() {
    const Result<std::string> gpu = read_file(folder_ / "gpu.out", kLargestLog);
    const Result<std::string> cpu = read_file(folder_ / "cpu.out", kLargestLog);
    const Result<std::string> align = read_file(folder_ / "trace_time_align.out", kLargestLog);
    for (const auto* text : {&gpu, &cpu, &align}) {
      if (!*text) fail(text->problems());
    }
    if (!problems_.empty()) return false;
    Result<GpuLog> gpu_log = read_pmon(*gpu, (folder_ / "gpu.out").string());
    if (!gpu_log) return fail(gpu_log.problems());
    gpu_ = std::move(*gpu_log);
    Result<CpuLog> cpu_log = read_mpstat(*cpu, gpu_.first, (folder_ / "cpu.out").string());
    if (!cpu_log) return fail(cpu_log.problems());
    cpu_ = std::move(*cpu_log);
    Result<TimeReference> reference = read_time_align(*align, (folder_ / "trace_time_align.out").string());
    if (!reference) return fail(reference.problems());
    report_.reference = *reference;
    note_dropped("gpu.out", gpu_.dropped);
    note_dropped("cpu.out", cpu_.dropped);
    note_dropped("trace_time_align.out", reference->dropped);
    read_disks();
    return problems_.empty() && choose_zone();
  }

  void read_disks() {
    const fs::path path = folder_ / "iostat.json";
    std::error_code error;
    if (!fs::exists(path, error)) return;
    const Result<std::string> text = read_file(path, kLargestLog);
    Result<DiskLog> log = text ? read_iostat(*text, path.string()) : Result<DiskLog>(text.problems());
    if (!log) {
      fail(log.problems());
      return;
    }
    disks_ = std::move(*log);
    note_dropped("iostat.json", disks_->dropped);
  }

  // ---- time

  /// Seconds by which the program's log lies outside of what the samplers saw; 0: inside.
  std::int64_t misfit(const TimeZone& zone) const {
    const std::int64_t first = zone.utc_of(gpu_.first), last = zone.utc_of(gpu_.last);
    const std::int64_t begin = log_.first / kSecond, end = log_.last / kSecond;
    return std::max({std::int64_t{0}, first - kSlack - begin, end - last - kSlack});
  }

  /// The clock of the machine on which `trace capture` wrote the folder.
  std::optional<TimeZone> captured_zone() const {
    const Result<std::string> text = read_file(folder_ / "capture.json", kLargestLog);
    const Result<Json> report = text ? parse_json(*text, "capture.json") : Result<Json>(text.problems());
    const Json* const offset = report ? report->find("utc_offset_s") : nullptr;
    if (!offset || offset->kind() != Json::Kind::Int) return std::nullopt;
    return TimeZone::fixed(static_cast<int>(offset->as_int()));
  }

  bool choose_zone() {
    const TimeZone wanted = options_.zone ? *options_.zone : captured_zone().value_or(TimeZone::montreal());
    zone_ = wanted;
    // A capture knows its clock. So a log beside it is no question of zones: it is of another run.
    const bool is_known = !options_.zone && captured_zone().has_value();
    const bool is_apart = log_.last / kSecond < wanted.utc_of(gpu_.first) - kCaptureSlack ||
                          log_.first / kSecond > wanted.utc_of(gpu_.last) + kCaptureSlack;
    if (is_known && is_apart) {
      return fail({app_log_.string(),
                   "covers " + iso_text(log_.first, 0) + " to " + iso_text(log_.last, 0) +
                       " UTC, and the capture " + iso_text(wanted.utc_of(gpu_.first) * kSecond, 0) + " to " +
                       iso_text(wanted.utc_of(gpu_.last) * kSecond, 0),
                   "are the log and the traces of one run?"});
    }
    if (misfit(wanted) > 0) {
      // The samplers start shortly before the program: the quarter of an hour that puts them there.
      const std::int64_t lead = gpu_.first - log_.first / kSecond;
      const auto quarters = static_cast<std::int64_t>(std::llround(static_cast<double>(lead) / 900));
      const TimeZone other =
          TimeZone::fixed(static_cast<int>(std::clamp<std::int64_t>(quarters, -64, 64) * 900));
      const bool fits = misfit(other) == 0;
      const std::string found =
          app_log_.string() + ": begins at " + iso_text(log_.first, 0) + " UTC, but gpu.out covers " +
          iso_text(wanted.utc_of(gpu_.first) * kSecond, 0) + " to " +
          iso_text(wanted.utc_of(gpu_.last) * kSecond, 0) + " if its clock is that of " + wanted.name();
      if (!fits || options_.zone) {
        return fail({app_log_.string(), found.substr(app_log_.string().size() + 2),
                     fits ? "with --kit-timezone " + other.name() + " they agree"
                          : "are the log and the traces of one run?"});
      }
      report_.notes.push_back(found + ": taken as " + other.name() + ", with which they agree");
      zone_ = other;
    }
    report_.zone = zone_.name();
    return place_traces();
  }

  bool place_traces() {
    const TimeReference& reference = report_.reference;
    const LocalSecond local = nearest_local(reference.second_of_day, gpu_.first);
    const std::int64_t utc = zone_.utc_of(local);
    window_.boot_utc_ns = utc * kSecond - reference.ns;
    window_.from = report_.init_start;
    window_.to = std::max(log_.last, zone_.utc_of(gpu_.last) * kSecond) + kDaySeconds * kSecond;
    return true;
  }

  // ---- traces

  void make_staging() {
    std::error_code error;
    fs::remove_all(staging_, error);
    fs::create_directories(staging_ / "timeline", error);
    if (error)
      throw DataError(staging_.string() + ": cannot be made: " + error.message(), "is the folder writable?");
    if (options_.app_log_only) return;
    fs::create_directories(staging_ / "sorting");
    sorter_ = std::make_unique<EventSorter>(staging_ / "sorting", options_.run_events);
  }
  void remove_staging() {
    sorter_.reset();
    std::error_code ignored;
    fs::remove_all(staging_, ignored);
  }

  void write_app_log() {
    const std::string name = to_string(options_.workload);
    write_all(staging_ / (name + ".log"), log_.json);
    write_all(staging_ / (name + ".mllog.json"), log_.json);
    write_all(staging_ / "timeline" / "timeline.csv", timeline_csv(log_));
  }

  bool read_traces() {
    std::error_code error;
    std::int64_t total = 0, done = 0;
    const TraceKind kinds[] = {TraceKind::Read, TraceKind::Bio, TraceKind::Openat, TraceKind::Write};
    for (TraceKind kind : kinds) total += static_cast<std::int64_t>(fs::file_size(raw(kind), error));
    for (TraceKind kind : kinds) {
      const std::string name = kTraceNames[static_cast<std::size_t>(kind)];
      const TraceReading reading{.kind = kind,
                                 .workload = options_.workload,
                                 .window = window_,
                                 .raw = raw(kind),
                                 .out = staging_ / (name + ".out"),
                                 .threads = options_.threads,
                                 .progress = [&](std::int64_t bytes) {
                                   done += bytes;
                                   if (options_.progress) options_.progress(done, total);
                                 }};
      const Result<TraceCounts> counts = read_trace(reading, *sorter_, evidence_.reads);
      if (!counts) return fail(counts.problems());
      report_.traces[static_cast<std::size_t>(kind)] = *counts;
      if (counts->rows == 0) report_.notes.push_back(raw(kind).string() + " has no row");
    }
    read_names_of_loaders();
    std::erase_if(evidence_.reads, [](const auto& one) { return one.second.rows == 0; });
    const TraceCounts& reads = report_.traces[static_cast<std::size_t>(TraceKind::Read)];
    if (reads.rows == 0)
      return fail({raw(TraceKind::Read).string(), "has no row: whose processes these are cannot be known",
                   "trace the whole run"});
    if (reads.kept == 0)
      return fail(
          {raw(TraceKind::Read).string(),
           "has " + std::to_string(reads.rows) + " rows, none of which is of the run: it begins at " +
               iso_text(report_.init_start, 3) + " UTC" + reasons_text(reads.dropped),
           "is --kit-timezone right (" + report_.zone + "), and are the log and the traces of one run?"});
    return true;
  }

  /// `trace capture` sampled the processes' names: monotonic_ns,pid,command,...
  void read_names_of_loaders() {
    const Result<std::string> text = read_file(folder_ / "processes.csv");
    if (!text) return;
    for (const std::string& line : split(*text, '\n')) {
      const std::vector<std::string> cells = split(line, ',');
      if (cells.size() < 3 || cells[2] != kLoaderName) continue;
      if (const auto pid = number_of<std::uint32_t>(cells[1])) evidence_.reads[*pid].loader = true;
    }
  }

  static std::string reasons_text(const Dropped& dropped) {
    std::string text;
    for (const auto& [why, count] : dropped) text += "; " + std::to_string(count) + " " + why;
    return text;
  }

  bool classify_processes() {
    std::set<std::uint32_t> readers;
    for (const auto& [pid, activity] : evidence_.reads) readers.insert(pid);
    gpu_kept_ = gpu_processes(gpu_, readers);
    evidence_.on_gpu = gpu_kept_.kept;
    for (const GpuSample& sample : gpu_.samples) {
      if (zone_.utc_of(sample.local) * kSecond < report_.init_start)
        evidence_.gpu_before_init.insert(sample.pid);
    }
    evidence_.excluded.insert(options_.ignore_pids.begin(), options_.ignore_pids.end());
    read_container();
    report_.processes = classify(evidence_, options_.workload);
    const ProcessGroups& groups = report_.processes;
    if (groups.parents.empty()) return fail(no_workers());
    // A process that is no worker does not count in the GPU's means.
    if (options_.workload != TracedWorkload::Dlio && !evidence_.on_gpu.empty()) {
      gpu_kept_.kept.clear();
      gpu_kept_.kept.insert(groups.parents.begin(), groups.parents.end());
    }
    return true;
  }

  Problem no_workers() const {
    if (options_.workload == TracedWorkload::Dlio)
      return Problem{raw(TraceKind::Read).string(), "no process reads a file of DLIO's data set", ""};
    return Problem{folder_.string(),
                   "no process is both on a GPU (gpu.out: " + std::to_string(evidence_.on_gpu.size()) +
                       ") and in trace_read.out (" + std::to_string(evidence_.reads.size()) + ")",
                   "the workers cannot be told from others: are the two files of one run?"};
  }

  void read_container() {
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("pids_") || !name.ends_with(".out")) continue;
      const Result<std::string> text = read_file(entry.path());
      if (text) evidence_.container.merge(read_container_pids(*text));
    }
  }

  // ---- output

  void write_samples() {
    const std::int64_t from = report_.init_start;
    const fs::path timeline = staging_ / "timeline";
    write_all(staging_ / "gpu.out", gpu_out(gpu_, gpu_kept_, zone_, from, report_.dropped["gpu.out"]));
    write_all(timeline / "gpu_avg.csv", gpu_csv(gpu_, gpu_kept_, zone_, from));
    write_all(staging_ / "cpu.out", cpu_out(cpu_, zone_, from, report_.dropped["cpu.out"]));
    write_all(timeline / "cpu_all.csv", cpu_csv(cpu_, zone_, from));
    if (disks_) write_all(timeline / "iostat.csv", iostat_csv(*disks_, zone_));
    for (const char* name : {"gpu.out", "cpu.out"}) {
      if (report_.dropped[name].empty()) report_.dropped.erase(name);
    }
  }

  void write_timeline() {
    TimelineWriter writer(staging_ / "timeline" / "pid", report_.processes, options_.workload);
    sorter_->merge([&](const TraceEvent& event) { writer.take(event); });
    writer.finish(report_);
    sorter_.reset();
    std::error_code ignored;
    fs::remove_all(staging_ / "sorting", ignored);
  }

  /// Moves every file to its place. Layouts that an earlier run left and this one has not go.
  void publish() {
    std::error_code error;
    if (fs::exists(target_ / kManifest, error)) fs::remove_all(target_ / "timeline" / "pid", error);
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(staging_)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
    for (const fs::path& file : files) {
      const fs::path to = target_ / fs::relative(file, staging_);
      fs::create_directories(to.parent_path());
      fs::rename(file, to);
    }
    fs::remove_all(staging_, error);
  }

  void append_notes(const std::vector<std::string>& notes) {
    report_.notes.insert(report_.notes.end(), notes.begin(), notes.end());
  }
  void note_dropped(const std::string& file, const Dropped& dropped) {
    if (!dropped.empty()) add(report_.dropped[file], dropped);
  }

  const PreprocessOptions& options_;
  fs::path folder_, app_log_, target_, staging_;
  AppLog log_;
  GpuLog gpu_;
  CpuLog cpu_;
  std::optional<DiskLog> disks_;
  TimeZone zone_ = TimeZone::fixed(0);
  TraceBounds window_;
  ProcessEvidence evidence_;
  GpuProcesses gpu_kept_;
  std::unique_ptr<EventSorter> sorter_;
  PreprocessReport report_;
  Problems problems_;
};

Json dropped_json(const Dropped& dropped) {
  Json json = Json::object();
  for (const auto& [why, count] : dropped) json[why] = count;
  return json;
}

Json pids_json(const std::vector<std::uint32_t>& pids) {
  Json json = Json::array();
  for (std::uint32_t pid : pids) json.push_back(std::int64_t{pid});
  return json;
}

}  // namespace

Result<PreprocessReport> preprocess(const PreprocessOptions& options) {
  try {
    return Preprocessor(options).run();
  } catch (const fs::filesystem_error& error) {
    throw DataError(error.what(), "is the disk full, or the folder not writable?");
  }
}

Json PreprocessReport::json() const {
  Json json = Json::object({{"format", "millrace-preprocess-1"}, {"folder", folder}});
  if (!zone.empty()) {
    json["timezone"] = zone;
    json["alignment"] = Json::object({{"boot_ns", reference.ns},
                                      {"local_second_of_day", reference.second_of_day},
                                      {"uncertainty_ns", reference.gap_ns / 2}});
  }
  json["init_start"] = iso_text(init_start, 3);
  Json files = Json::object();
  for (std::size_t k = 0; k < traces.size() && !zone.empty(); ++k) {
    files[std::string("trace_") + kTraceNames[k] + ".out"] = Json::object(
        {{"rows", traces[k].rows}, {"kept", traces[k].kept}, {"dropped", dropped_json(traces[k].dropped)}});
  }
  for (const auto& [name, reasons] : dropped)
    files[name] = Json::object({{"dropped", dropped_json(reasons)}});
  json["files"] = files;
  if (!zone.empty()) {
    json["events"] = events;
    json["events_dropped"] = dropped_json(events_dropped);
    Json foreign = Json::array();
    for (const auto& [pid, why] : processes.foreign)
      foreign.push_back(Json::object({{"pid", std::int64_t{pid}}, {"why", why}}));
    json["processes"] = Json::object({{"workers", pids_json(processes.parents)},
                                      {"loaders", pids_json(processes.loaders)},
                                      {"foreign", foreign},
                                      {"on_gpu_without_reads", pids_json(processes.gpu_without_reads)}});
  }
  Json list = Json::array();
  for (const std::string& note : notes) list.push_back(note);
  json["notes"] = list;
  return json;
}

}  // namespace millrace
