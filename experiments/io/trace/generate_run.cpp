#include "experiments/io/trace/generate_run.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <vector>

#include "data/files/file_writer.h"
#include "experiments/io/trace/civil_time.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/random.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

// The traced machine has been up for some days.
constexpr std::int64_t kBootNs = 1'380'320'200'000'000;
constexpr std::int64_t kMs = 1'000'000;

/// A file written row by row. Columns are padded as the tracer does.
class RowFile {
 public:
  RowFile(const fs::path& path, std::string_view head) : out_(path), buffer_(head) {}

  RowFile& text(std::string_view text, std::size_t width = 0) {
    buffer_.append(text);
    if (text.size() < width) buffer_.append(width - text.size(), ' ');
    return *this;
  }
  RowFile& number(std::int64_t value, std::size_t width = 0) {
    char digits[24];
    const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
    return text({digits, static_cast<std::size_t>(end - digits)}, width);
  }
  void end_row() {
    buffer_ += '\n';
    ++rows_;
    if (buffer_.size() > std::size_t{1} << 18) flush();
  }
  /// bpftrace ends its output with an empty line.
  void close(GeneratedRun& run, std::string_view tail = "\n", bool counts = true) {
    buffer_ += tail;
    flush();
    run.bytes += out_.size();
    out_.commit();
    if (counts) run.rows += rows_;
  }

 private:
  void flush() {
    out_.write(buffer_);
    buffer_.clear();
  }
  FileWriter out_;
  std::string buffer_;
  std::int64_t rows_ = 0;
};

struct Stretch {
  Phase phase;
  std::int64_t start, end;  ///< nanoseconds after the tracers' start
};

class Generator {
 public:
  explicit Generator(const GenerateRunOptions& options)
      : o_(options), folder_(options.folder), unet_(options.workload == TracedWorkload::Unet3d) {
    plan_phases();
  }

  GeneratedRun run() {
    std::error_code error;
    fs::create_directories(folder_, error);
    write_bio();
    write_opens();
    write_writes();
    write_alignment();
    write_gpu();
    write_cpu();
    write_iostat();
    write_log();
    write_reads();  // last: the file by which a folder holds a run
    return total_;
  }

 private:
  RandomStream stream(const char* name) const { return RandomStream(derive_seed(o_.seed, name)); }
  std::int64_t utc_ns(std::int64_t at) const { return o_.start_utc_s * kSecond + at; }
  bool emulated() const { return o_.variant == RawRunVariant::Emulated; }

  /// INIT, then epochs of training, an evaluation and a checkpoint (DLRM: after each).
  void plan_phases() {
    const double training =
        o_.seconds > 0 ? o_.seconds : std::max(60.0, static_cast<double>(o_.rows) / 20'000.0);
    RandomStream random = stream("phases");
    std::int64_t at = 4 * kSecond;
    const auto add = [&](Phase phase, double seconds) {
      const double jitter = emulated() ? 1 : 1 + 0.02 * random.normal();
      const auto length = static_cast<std::int64_t>(std::max(0.05, seconds * jitter) * 1e3) * kMs;
      phases_.push_back({phase, at, at + length});
      at += length + 100 * kMs;
    };
    add(Phase::Init, unet_ ? 5 : 6);
    for (int epoch = 0; epoch < o_.epochs; ++epoch) {
      add(Phase::Training, training / o_.epochs);
      if (!unet_ || epoch + 1 == o_.epochs) {
        add(Phase::Eval, 0.15 * training / o_.epochs + 1);
        add(Phase::Checkpoint, 1.5);
      }
    }
    end_ = at + 2 * kSecond;
  }

  std::int64_t phases_of(Phase phase) const {
    return std::count_if(phases_.begin(), phases_.end(), [&](const Stretch& s) { return s.phase == phase; });
  }

  std::int64_t parent(std::int64_t k) const { return 2720661 + (unet_ ? k : 0); }
  std::int64_t loader(std::int64_t epoch, std::int64_t k) const { return 2720700 + epoch * o_.gpus + k; }

  std::int64_t latency(RandomStream& random, double median_us, double spread) const {
    const double sigma = emulated() ? spread / 3 : spread;
    return static_cast<std::int64_t>(median_us * 1e3 * std::exp(sigma * random.normal())) + 500;
  }

  /// Moments of `count` calls in a stretch: bursts at the start of each step, 1.4 s (DLRM: 60 ms) long.
  template <class Take>
  void in_bursts(const Stretch& stretch, std::int64_t count, RandomStream& random, Take take) const {
    const double step = unet_ ? 1.4e9 : 6e7, busy = emulated() ? 0.9 : 0.55;
    const double length = static_cast<double>(stretch.end - stretch.start);
    double phase_step = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const double place = (static_cast<double>(i) + random.uniform()) / static_cast<double>(count) * length;
      phase_step = std::floor(place / step) * step;
      const double within = (place - phase_step) * busy;
      take(stretch.start + static_cast<std::int64_t>(std::min(phase_step + within, length)), i);
    }
  }

  static constexpr std::string_view kGreeting = "Attaching 7 probes...\n";

  void write_reads() {
    RowFile file(
        folder_ / "trace_read.out",
        std::string(kGreeting) + "TIMESTAMP         PID      OFFSET   RET (B)      LAT(ns)      FILENAME\n");
    RandomStream random = stream("reads");
    const auto row = [&](std::int64_t at, std::int64_t pid, std::int64_t offset, std::int64_t size,
                         std::int64_t ns, std::string_view name) {
      file.number(kBootNs + at).text("  ").number(pid, 9).number(offset, 17).number(size, 17).number(ns, 13);
      file.text(name).end_row();
    };
    for (std::int64_t i = 0; i < 20; ++i) row(kSecond + i * 100 * kMs, parent(0), 0, 100, 5000, "speed");
    const std::int64_t each = std::max<std::int64_t>(1, reads() / phases_of(Phase::Training));
    std::int64_t epoch = 0;
    for (const Stretch& stretch : phases_) {
      if (stretch.phase != Phase::Training) continue;
      char name[40] = "terabyte_processed_train.bin";
      std::int64_t offset = 0;
      in_bursts(stretch, each, random, [&](std::int64_t at, std::int64_t i) {
        if (unet_ && i % 16 == 0) {
          std::snprintf(name, sizeof name, "case_%05d_%c.npy", static_cast<int>(random.below(168)),
                        i % 32 == 0 ? 'x' : 'y');
          offset = 0;
        }
        if (!unet_) offset = static_cast<std::int64_t>(random.below(4000)) * 327680;
        const std::int64_t pid = unet_ ? loader(epoch, i / 16 % o_.gpus) : parent(0);
        row(at, pid, offset, unet_ ? 4194304 : 327680, latency(random, unet_ ? 600 : 350, 0.5), name);
        offset += 4194304;
      });
      // Every worker tells its loaders what to read, through a pipe.
      for (std::int64_t k = 0; k < (unet_ ? o_.gpus : 0); ++k)
        row(stretch.end - (o_.gpus - k) * 1000, parent(k), 0, 4096, 12000, "pipe:[123456]");
      ++epoch;
    }
    if (o_.variant == RawRunVariant::Foreign) write_foreign(row);
    file.close(total_);
  }

  template <class Row>
  void write_foreign(Row row) {
    RandomStream random = stream("foreign");
    const Stretch& last = phases_.back();
    const std::int64_t count = reads() / 5;
    for (std::int64_t i = 0; i < count; ++i)
      row(last.end + i * (kSecond / std::max<std::int64_t>(1, count)), 991234, i * 4096, 4096,
          latency(random, 40, 0.8), "notebook_cache.db");
  }

  void write_bio() {
    RowFile file(folder_ / "trace_bio.out",
                 std::string(kGreeting) +
                     "TIMESTAMP         PID      COMM           DISK T BYTES        SECTOR LAT(ns)\n");
    RandomStream random = stream("bio");
    const auto row = [&](std::int64_t at, std::int64_t pid, std::string_view process, const char* disk,
                         char way, std::int64_t size, std::int64_t ns) {
      file.number(kBootNs + at).text("  ").number(pid, 9).text(process, 15).text(disk, 5);
      file.text({&way, 1}, 2).number(size, 13).number(static_cast<std::int64_t>(random.below(1u << 30)), 13);
      file.number(ns).end_row();
    };
    const std::int64_t count = std::max<std::int64_t>(1, bios() / phases_of(Phase::Training));
    std::int64_t epoch = 0;
    for (const Stretch& stretch : phases_) {
      if (stretch.phase == Phase::Training) {
        in_bursts(stretch, count, random, [&](std::int64_t at, std::int64_t i) {
          const std::int64_t pid = unet_ ? loader(epoch, i % o_.gpus) : parent(0);
          row(at, pid, "python", "sda", 'R', unet_ ? 2097152 : 327680, latency(random, 180, 0.7));
        });
        ++epoch;
      } else if (stretch.phase == Phase::Checkpoint) {
        const std::int64_t each = std::max<std::int64_t>(1, writes() / phases_of(Phase::Checkpoint));
        const double gap = static_cast<double>(stretch.end - stretch.start) / static_cast<double>(each);
        for (std::int64_t i = 0; i < each; ++i)
          row(stretch.start + static_cast<std::int64_t>(gap * static_cast<double>(i)) + 2 * kMs, 3600534,
              "kworker/u160:3", "sdb", 'W', 1000000, latency(random, 900, 0.4));
        for (int i = 0; i < 3; ++i) row(stretch.end + i * kMs, 911, "jbd2/sda2-8", "sda", 'W', 4096, 50000);
      }
    }
    file.close(total_);
  }

  void write_opens() {
    RowFile file(folder_ / "trace_openat.out",
                 std::string(kGreeting) + "TIMESTAMP         PID    COMM  LAT(ns)  FULLPATH FILENAME\n");
    RandomStream random = stream("opens");
    const std::int64_t each = std::max<std::int64_t>(1, opens() / phases_of(Phase::Training));
    std::int64_t epoch = 0;
    for (const Stretch& stretch : phases_) {
      if (stretch.phase != Phase::Training) continue;
      in_bursts(stretch, each, random, [&](std::int64_t at, std::int64_t i) {
        const std::int64_t pid = unet_ ? loader(epoch, i % o_.gpus) : parent(0);
        file.number(kBootNs + at).text("  ").number(pid).text(" python ").number(latency(random, 30, 0.6), 9);
        char name[40] = "terabyte_processed_train.bin";
        if (unet_)
          std::snprintf(name, sizeof name, "case_%05d_%c.npy", static_cast<int>(random.below(168)),
                        i % 2 == 0 ? 'x' : 'y');
        file.text(unet_ ? "/data/" : "/proc_data/").text(name).text(" ").text(name).end_row();
      });
      ++epoch;
    }
    file.close(total_);
  }

  void write_writes() {
    RowFile file(
        folder_ / "trace_write.out",
        std::string(kGreeting) + "TIMESTAMP         PID      OFFSET   SIZE (B)   LAT (ns)   FILENAME\n");
    RandomStream random = stream("writes");
    const auto row = [&](std::int64_t at, std::int64_t offset, std::int64_t size, std::int64_t ns,
                         std::string_view name) {
      file.number(kBootNs + at).text("  ").number(parent(0), 9).number(offset, 17).number(size, 17);
      file.number(ns, 13).text(name).end_row();
    };
    for (const Stretch& stretch : phases_) {
      if (stretch.phase == Phase::Training)
        row(stretch.start, 0, 180, 9000, unet_ ? "unet3d.log" : "dlrm.log");
      if (stretch.phase != Phase::Checkpoint) continue;
      const std::int64_t each = std::max<std::int64_t>(1, writes() / phases_of(Phase::Checkpoint));
      const double gap = static_cast<double>(stretch.end - stretch.start) / static_cast<double>(each);
      for (std::int64_t i = 0; i < each; ++i)
        row(stretch.start + static_cast<std::int64_t>(gap * (static_cast<double>(i) + 0.5)), i * 1000000,
            1000000, latency(random, 500, 0.4), unet_ ? "ckpt_mean_dice_0.71" : "dlrm.ckpt");
    }
    file.close(total_);
  }

  std::string clock_text(std::int64_t at) const {
    return iso_text(utc_ns(at) + o_.zone_offset_s * kSecond, 0);
  }

  void write_alignment() {
    RowFile file(folder_ / "trace_time_align.out", "Attaching 339 probes...\nTIMESTAMP       TIME    \n");
    RandomStream random = stream("align");
    for (std::int64_t at = 0; at < 12 * kSecond;
         at += 4 * kMs + static_cast<std::int64_t>(random.below(5 * kMs)))
      file.number(kBootNs + at).text("  ").text(clock_text(at).substr(11)).end_row();
    file.close(total_, "", false);
  }

  /// The kit's samplers, once a second.
  template <class Row>
  void each_second(Row row) {
    for (std::int64_t at = kSecond; at < end_; at += kSecond) row(at);
  }
  bool computing(std::int64_t at) const { return at > phases_.front().end && at < phases_.back().end; }

  void write_gpu() {
    RowFile file(folder_ / "gpu.out",
                 "#Date       Time        gpu        pid  type    sm   mem   enc   dec    fb   command\n"
                 "#YYYYMMDD   HH:MM:SS    Idx          #   C/G     %     %     %     %    MB   name\n");
    RandomStream random = stream("gpu");
    each_second([&](std::int64_t at) {
      const std::string time = clock_text(at);
      for (int gpu = 0; gpu < o_.gpus; ++gpu) {
        file.text(" ").text(time.substr(0, 4)).text(time.substr(5, 2)).text(time.substr(8, 2)).text("   ");
        file.text(time.substr(11)).text("      ").number(gpu, 8).text("  ");
        if (!computing(at)) {
          file.text("      -     -     -     -     -     -     -   -              ").end_row();
          continue;
        }
        file.number(parent(gpu), 10).text("C    ").number(60 + static_cast<int>(random.below(40)), 6);
        file.number(20 + static_cast<int>(random.below(40)), 6).text("-     -     ").number(13086 + gpu, 6);
        file.text("python").end_row();
      }
    });
    file.close(total_, "", false);
  }

  void write_cpu() {
    const std::string date = clock_text(0);
    RowFile file(folder_ / "cpu.out", "Linux 5.4.0 (traced) \t" + date.substr(5, 2) + "/" +
                                          date.substr(8, 2) + "/" + date.substr(0, 4) +
                                          " \t_x86_64_\t(80 CPU)\n\n");
    const std::string head =
        "  CPU    %usr   %nice    %sys %iowait    %irq   %soft  %steal  %guest  %gnice   %idle";
    file.text(clock_text(0).substr(11)).text(head).end_row();
    RandomStream random = stream("cpu");
    each_second([&](std::int64_t at) {
      const double user = computing(at) ? random.uniform(15, 40) : random.uniform(1, 5);
      const double system = random.uniform(1, 9), wait = random.uniform(0, computing(at) ? 5 : 1);
      char row[128];
      std::snprintf(row, sizeof row,
                    "  all  %6.2f    0.00  %6.2f  %6.2f    0.00    0.00    0.00    0.00    0.00  %6.2f", user,
                    system, wait, 100 - user - system - wait);
      file.text(clock_text(at).substr(11)).text(row).end_row();
    });
    file.close(total_, "", false);
  }

  void write_iostat() {
    RowFile file(folder_ / "iostat.json",
                 "{\"sysstat\": {\"hosts\": [{\"nodename\": \"traced\", \"statistics\": [\n");
    RandomStream random = stream("iostat");
    bool first = true;
    each_second([&](std::int64_t at) {
      std::string time = clock_text(at);
      time[10] = ' ';
      file.text(first ? "" : ",").text("{\"timestamp\": \"").text(time).text("\", \"disk\": [");
      first = false;
      for (const char* disk : {"sda", "sdb"}) {
        const bool reads = disk[2] == 'a';
        char row[256];
        std::snprintf(
            row, sizeof row,
            "%s{\"disk_device\": \"%s\", \"r/s\": %.2f, \"w/s\": %.2f, \"rMB/s\": %.2f, \"wMB/s\": %.2f, "
            "\"util\": %.2f}",
            reads ? "" : ", ", disk, random.uniform(100, 900), random.uniform(5, 50),
            reads && computing(at) ? random.uniform(200, 900) : 0.5,
            reads ? random.uniform(0, 5) : random.uniform(0, 40), random.uniform(2, 90));
        file.text(row);
      }
      file.text("]}").end_row();
    });
    file.close(total_, "]}]}}\n", false);
  }

  void write_log() {
    RowFile file(folder_ / (unet_ ? "unet3d.log" : "dlrm_tera.log"), "");
    const auto event = [&](std::int64_t at, const char* type, const std::string& key,
                           const std::string& value) {
      file.text(":::MLLOG {\"namespace\": \"\", \"time_ms\": ").number(utc_ns(at) / kMs);
      file.text(", \"event_type\": \"").text(type).text("\", \"key\": \"").text(key).text("\", \"value\": ");
      file.text(value).text(", \"metadata\": {\"file\": \"main.py\", \"lineno\": 37}}").end_row();
    };
    for (const Stretch& stretch : phases_) {
      static constexpr const char* kKeys[] = {"init", "epoch", "eval", "checkpoint"};
      std::string key = kKeys[static_cast<std::size_t>(stretch.phase)];
      if (!unet_ && stretch.phase == Phase::Training) key = "training";
      event(stretch.start, "INTERVAL_START", key + "_start", "null");
      if (stretch.phase == Phase::Init)
        event(stretch.start + 100 * kMs, "POINT_IN_TIME", "world_size", std::to_string(o_.gpus));
      event(stretch.end, "INTERVAL_END", key + "_stop", "null");
    }
    file.close(total_, "", false);
  }

  std::int64_t reads() const { return o_.rows * 7 / 10; }
  std::int64_t bios() const { return o_.rows * 3 / 20; }
  std::int64_t opens() const { return o_.rows / 10; }
  std::int64_t writes() const { return o_.rows / 40; }  // and as many blocks that the kernel writes back

  const GenerateRunOptions& o_;
  fs::path folder_;
  bool unet_;
  std::vector<Stretch> phases_;
  std::int64_t end_ = 0;
  GeneratedRun total_;
};

}  // namespace

Result<GeneratedRun> generate_run(const GenerateRunOptions& options) {
  Problems problems;
  const auto require = [&](bool good, const char* flag, const char* what) {
    if (!good) problems.push_back({flag, what, ""});
  };
  require(options.workload == TracedWorkload::Unet3d || options.workload == TracedWorkload::Dlrm,
          "--workload", "only unet3d and dlrm runs can be generated");
  require(options.gpus >= 1 && options.gpus <= 64, "--gpus", "must be from 1 to 64");
  require(options.rows >= 100 && options.rows <= 10'000'000'000, "--rows", "must be from 100 to 1e10");
  require(options.epochs >= 1 && options.epochs <= 10'000, "--epochs", "must be from 1 to 10,000");
  std::error_code error;
  if (fs::exists(fs::path(options.folder) / "trace_read.out", error))
    problems.push_back({options.folder, "holds a run already", "give a new folder"});
  if (!problems.empty()) return problems;
  if (const Status writable = make_writable_folder(options.folder); !writable) return writable.problems();
  return Generator(options).run();
}

}  // namespace millrace
