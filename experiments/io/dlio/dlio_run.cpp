#include "experiments/io/dlio/dlio_run.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <thread>

#include "experiments/io/dlio/batch_loader.h"
#include "experiments/io/dlio/checkpoint_writer.h"
#include "experiments/io/dlio/dlio_data.h"
#include "experiments/io/dlio/dlio_output.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/median.h"
#include "runtime/base/progress_line.h"
#include "runtime/base/text.h"
#include "runtime/counters/page_cache.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

double seconds_between(TimePoint a, TimePoint b) {
  return Seconds(b - a).count();
}

std::chrono::nanoseconds nanoseconds_of(double seconds) {
  return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
}

/// One emulated rank of this process.
struct LocalRank {
  LocalRank(int number, std::uint64_t seed) : rank(number), random(seed) {}
  int rank;
  RandomStream random;
  double time_s = 0;  ///< of its virtual time line
  Json output = Json::object();
  Json stats = Json::object();
  std::vector<BlockMetrics> epoch_blocks;  // of the running epoch
  std::vector<double> epoch_steps;
  std::vector<double> epoch_calibrated;
};

/// Sums over ranks of one epoch.
struct EpochTotals {
  double au = 0, calibrated = 0, asked = 0, throughput = 0;
  double load = 0, copy = 0, compute = 0, barrier = 0, wall = 0, bytes = 0, samples = 0;
};

class Emulation {
 public:
  Emulation(const DlioConfig& config, const DlioRunOptions& options, ProcessGroup& group)
      : config_(config),
        options_(options),
        group_(group),
        leads_(group.process() == 0),
        wait_(longest_spin(options, group)),
        start_unix_(
            std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()),
        start_(std::chrono::steady_clock::now()) {
    const RankRange own = ranks_of(group.process(), group.size(), options.ranks);
    for (int rank = own.first; rank < own.end; ++rank)
      ranks_.emplace_back(rank, derive_seed(static_cast<std::uint64_t>(config.train.seed), "compute",
                                            static_cast<std::uint64_t>(rank)));
    if (leads_) log_ = LineFile(fs::path(options.output) / config.output.log_file);
  }

  void run() {
    begin();
    if (config_.workflow.generate_data) generate();
    if (!config_.only_generates()) {
      if (config_.workflow.train) train();
      if (config_.only_checkpoints()) only_checkpoints();
    }
    finish();
  }

 private:
  // ---- time
  // -----------------------------------------------------------------------------------------------------

  static std::chrono::nanoseconds longest_spin(const DlioRunOptions& options, const ProcessGroup& group) {
    (void)options;
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    return group.size() <= cores ? std::chrono::microseconds(200) : std::chrono::microseconds(0);
  }
  bool is_virtual() const { return options_.clock == EmulationClock::Virtual; }
  double unix_now() const {
    if (!is_virtual()) return start_unix_ + seconds_between(start_, std::chrono::steady_clock::now());
    return start_unix_ + ranks_.front().time_s;
  }
  std::string now_text() const { return stamp(unix_now()); }

  /// A line that cannot be written (disk full) does not end the run: it is warned of once.
  void write_log(const std::string& line) {
    const Status written = log_.write_line(line);
    if (written || std::exchange(log_failed_, true)) return;
    std::fprintf(stderr, "warning: %s; the run goes on without this line of its log\n",
                 to_string(written.problems()).c_str());
  }
  /// Writes to dlio.log and stdout, from rank 0.
  void say(const std::string& text) {
    if (!leads_) return;
    const std::string line = "[OUTPUT] " + now_text() + " " + text;
    write_log(line);
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }
  void warn(const std::string& text) {
    if (!leads_) return;
    write_log("[WARNING] " + now_text() + " " + text);
    std::fprintf(stderr, "warning: %s\n", text.c_str());
  }

  // ---- begin, generate
  // ------------------------------------------------------------------------------------------

  void begin() {
    if (leads_) {
      std::string phases;
      const auto add = [&](bool on, const char* name) {
        phases += on ? (phases.empty() ? "" : " & ") + std::string(name) : "";
      };
      add(config_.workflow.generate_data, "Generating data");
      add(config_.workflow.train, "Training");
      add(config_.workflow.evaluation, "Evaluation");
      add(config_.workflow.checkpoint, "Checkpointing");
      write_hydra_files(config_, options_.output, options_.ranks);
      say("Running DLIO [" + phases + "] with " + std::to_string(options_.ranks) + " process(es)");
      for (const std::string& note : config_.notes) write_log("[INFO] " + note);
    }
    summary_["start"] = now_text();
    group_.barrier("start");
  }

  void generate() {
    say("Starting data generation");
    if (leads_) {
      if (const Status good = check_dlio_folder(config_); !good)
        throw ConfigError(to_string(good.problems()));
      if (const Status good = begin_dlio_folder(config_); !good) throw DataError(to_string(good.problems()));
    }
    group_.barrier("generation");
    std::optional<WorkingLine> working;
    if (leads_) working.emplace("generates data");
    const auto started = std::chrono::steady_clock::now();
    const int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / group_.size());
    const double own =
        static_cast<double>(generate_dlio_files(config_, group_.process(), group_.size(), threads));
    double bytes = 0;
    for (const auto& values : group_.exchange({&own, 1}, "generation")) bytes += values[0];
    const double seconds = seconds_between(started, std::chrono::steady_clock::now());
    working.reset();
    say(printed("Generation done: %.3f MB in %.2f s, %.0f MB/s", bytes / 1e6, seconds,
                bytes / 1e6 / std::max(seconds, 1e-9)));
    summary_["millrace_generated_bytes"] = bytes;
  }

  // ---- the step loop
  // --------------------------------------------------------------------------------------------

  struct Phase {
    const SampleSource* source;
    const SampleOrder* order;
    std::int64_t samples, batch, steps;
    const TimeSpec* time;
    bool barriers;
    const char* name;
  };

  struct Loaders {
    std::vector<std::unique_ptr<BatchLoader>> real;
    std::vector<std::unique_ptr<VirtualLoader>> simulated;
  };

  Loaders make_loaders(const Phase& phase) {
    Loaders loaders;
    for (const LocalRank& rank : ranks_) {
      const BatchLoaderOptions options{.samples = phase.samples,
                                       .ranks = options_.ranks,
                                       .batch = phase.batch,
                                       .rank = rank.rank,
                                       .steps = phase.steps,
                                       .threads = static_cast<int>(config_.reader.read_threads),
                                       .prefetch = config_.reader.prefetch_size};
      if (is_virtual()) {
        loaders.simulated.push_back(
            std::make_unique<VirtualLoader>(*phase.source, *phase.order, options, rank.time_s));
      } else {
        loaders.real.push_back(std::make_unique<BatchLoader>(*phase.source, *phase.order, options, signal_));
      }
    }
    return loaders;
  }

  static void record(RankBlock& block, const LoadedBatch& batch, double load, double copy, double asked,
                     double compute, double proc) {
    block.asked.push_back(asked);
    block.load.push_back(load);
    block.copy.push_back(copy);
    block.compute.push_back(compute);
    block.proc.push_back(proc);
    block.samples += batch.samples;
    block.bytes += batch.bytes;
    block.places += batch.places;
  }

  std::vector<RankBlock> run_steps(const Phase& phase, Loaders& loaders, std::int64_t steps) {
    std::vector<RankBlock> blocks(ranks_.size());
    for (RankBlock& block : blocks) {
      for (auto* values :
           {&block.load, &block.copy, &block.asked, &block.compute, &block.proc, &block.barrier})
        values->reserve(steps);
    }
    if (is_virtual()) {
      virtual_steps(phase, loaders, steps, blocks);
    } else {
      real_steps(phase, loaders, steps, blocks);
    }
    return blocks;
  }

  /// All ranks of this process step by step. A rank waits for its batch, then until its computation is over;
  /// the one whose time comes next is what the thread waits for.
  void real_steps(const Phase& phase, Loaders& loaders, std::int64_t steps, std::vector<RankBlock>& blocks) {
    struct State {
      enum { Loading, Computing, Done } at = Loading;
      LoadedBatch batch;
      TimePoint loaded, until, done;
      double load = 0, copy = 0, asked = 0;
    };
    std::vector<State> states(ranks_.size());
    std::vector<WaitPlan> plans(ranks_.size());
    const TimePoint block_start = std::chrono::steady_clock::now();
    TimePoint start = block_start;
    ProgressLine line(steady_clock(), phase.name);
    for (std::int64_t step = 0; step < steps; ++step) {
      if (leads_) line.show(step, steps, "steps");
      std::fill(states.begin(), states.end(), State{});
      for (std::size_t open = states.size(); open > 0;) {
        bool loading = false;
        TimePoint next = TimePoint::max();
        for (std::size_t i = 0; i < states.size(); ++i) {
          State& state = states[i];
          if (state.at == State::Loading) {
            if (!loaders.real[i]->is_ready()) {
              loading = true;
              continue;
            }
            const TimePoint before = std::chrono::steady_clock::now();
            state.batch = loaders.real[i]->take();
            state.loaded = std::chrono::steady_clock::now();
            state.load = seconds_between(start, state.loaded);
            state.copy = seconds_between(before, state.loaded);
            // A process that got nothing of the last, shared step computes nothing.
            const std::chrono::nanoseconds drawn = state.batch.samples > 0
                                                       ? nanoseconds_of(draw(*phase.time, ranks_[i].random))
                                                       : std::chrono::nanoseconds(0);
            state.asked = Seconds(drawn).count();
            state.until = plans[i].begin(state.loaded) + drawn;
            state.at = State::Computing;
          }
          if (state.at != State::Computing) continue;
          const TimePoint now = std::chrono::steady_clock::now();
          if (now < state.until) {
            next = std::min(next, state.until);
            continue;
          }
          state.at = State::Done;
          state.done = now;
          --open;
          plans[i].ended(state.until, now);
          record(blocks[i], state.batch, state.load, state.copy, state.asked,
                 seconds_between(state.loaded, now), seconds_between(start, now));
        }
        if (open == 0) break;
        if (!loading) {
          wait_.until(next);
        } else {
          wait_for_batch(phase, loaders, states, start, next);
        }
      }
      if (phase.barriers) group_.barrier(phase.name);
      const TimePoint after = std::chrono::steady_clock::now();
      for (std::size_t i = 0; i < states.size(); ++i)
        blocks[i].barrier.push_back(seconds_between(states[i].done, after));
      start = after;
    }
    const double wall = seconds_between(block_start, std::chrono::steady_clock::now());
    for (RankBlock& block : blocks) block.wall = wall;
  }

  /// Until a batch is ready or a computation is over.
  template <class States>
  void wait_for_batch(const Phase& phase, Loaders& loaders, const States& states, TimePoint start,
                      TimePoint next) {
    const TimePoint deadline = start + options_.timeout;
    std::unique_lock lock(signal_.mutex);
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (states[i].at == 0 && loaders.real[i]->is_ready()) return;
    }
    if (next != TimePoint::max()) {
      // Sleeps end late: the last part is spun away by the loop.
      const TimePoint early = next - std::chrono::microseconds(100);
      if (std::chrono::steady_clock::now() < early) signal_.changed.wait_until(lock, early);
      return;
    }
    signal_.changed.wait_until(
        lock, std::min(deadline, std::chrono::steady_clock::now() + std::chrono::seconds(1)));
    if (std::chrono::steady_clock::now() >= deadline)
      throw DataError(
          std::string(phase.name) + ": no batch after " +
              std::to_string(std::chrono::duration_cast<std::chrono::seconds>(options_.timeout).count()) +
              " s",
          "is the storage hanging? --timeout sets the wait");
  }

  void virtual_steps(const Phase& phase, Loaders& loaders, std::int64_t steps,
                     std::vector<RankBlock>& blocks) {
    std::vector<double> began;
    for (const LocalRank& rank : ranks_) began.push_back(rank.time_s);
    std::vector<double> done(ranks_.size());
    for (std::int64_t step = 0; step < steps; ++step) {
      double latest = 0;
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        LocalRank& rank = ranks_[i];
        const auto [batch, ready] = loaders.simulated[i]->take(rank.time_s);
        const double compute = batch.samples > 0 ? draw(*phase.time, rank.random) : 0;
        record(blocks[i], batch, ready - rank.time_s, 0, compute, compute, ready + compute - rank.time_s);
        rank.time_s = ready + compute;
        latest = std::max(latest, rank.time_s);
      }
      if (phase.barriers && group_.size() > 1) latest = group_.maximum(latest, phase.name);
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        blocks[i].barrier.push_back(phase.barriers ? latest - ranks_[i].time_s : 0);
        if (phase.barriers) ranks_[i].time_s = latest;
      }
    }
    for (std::size_t i = 0; i < ranks_.size(); ++i) blocks[i].wall = ranks_[i].time_s - began[i];
  }

  /// Measures what a step costs beyond its computation when nothing is read: timers, barrier, bookkeeping. It
  /// takes the median, so that the time of other programs is not taken for the loop's own.
  void calibrate() {
    if (is_virtual() || options_.calibration_steps == 0) return;
    const double mean = config_.train.computation_time.mean();
    const auto fit = static_cast<std::int64_t>(2.0 / std::max(mean, 1e-5));
    const std::int64_t steps = std::clamp<std::int64_t>(fit, 5, options_.calibration_steps);
    SampleSource nothing{.synthetic = true};
    const SampleOrder order({.files = options_.ranks * steps});
    const TimeSpec time{.a = std::min(mean, 0.1)};
    const Phase phase{&nothing, &order, options_.ranks * steps, 1, steps, &time, true, "calibration"};
    Loaders loaders = make_loaders(phase);
    const std::vector<RankBlock> blocks = run_steps(phase, loaders, steps);
    std::vector<double> costs;
    for (const RankBlock& block : blocks) {
      for (std::size_t i = 1; i < block.proc.size(); ++i)
        costs.push_back(block.proc[i] + block.barrier[i] - block.compute[i]);
    }
    own_cost_s_ = group_.maximum(median(costs), "calibration");
    say(printed("The loop itself costs %.2f us a step (%lld steps without data)", own_cost_s_ * 1e6,
                static_cast<long long>(steps)));
  }

  // ---- training
  // -------------------------------------------------------------------------------------------------

  SampleOrder order_of(Split split, std::int64_t epoch) const {
    const auto seed = [&] {
      const bool random =
          config_.reader.file_shuffle == Shuffle::Random || config_.reader.sample_shuffle == Shuffle::Random;
      if (random) return derive_seed(options_.random_seed, "epoch", static_cast<std::uint64_t>(epoch));
      return static_cast<std::uint64_t>(config_.train.seed) +
             (config_.train.seed_change_epoch ? static_cast<std::uint64_t>(epoch) : 0);
    };
    return SampleOrder(
        {.files = split == Split::Train ? config_.dataset.num_files_train : config_.dataset.num_files_eval,
         .samples_per_file = config_.dataset.num_samples_per_file,
         .shuffle_files = config_.reader.file_shuffle != Shuffle::Off,
         .shuffle_samples = config_.reader.sample_shuffle != Shuffle::Off,
         .key = seed()});
  }

  SampleSource source_of(Split split) {
    SampleSource source = dlio_source(config_, split);
    if (source.synthetic) return source;
    if (options_.check == ContentCheck::Contents) {
      source.check = [this, split](std::int64_t file, std::int64_t sample, std::string_view bytes) {
        const SampleFileSpec spec = dlio_file(config_, split, file);
        if (const std::optional<std::string> wrong = wrong_content(spec, sample, bytes))
          throw DataError(spec.path.string() + ": sample " + std::to_string(sample) + ": " + *wrong,
                          "remove the file and generate it again");
      };
    }
    if (config_.reader.in_memory) load_into_memory(source);
    return source;
  }

  void load_into_memory(SampleSource& source) {
    const std::int64_t samples = static_cast<std::int64_t>(source.files.size()) * source.samples_per_file;
    std::vector<std::string> memory(samples);
    for (std::size_t f = 0; f < source.files.size(); ++f) {
      const auto file = open_sample_file(source.format, source.files[f],
                                         source.indices.empty() ? "" : source.indices[f], source.read);
      for (std::int64_t s = 0; s < source.samples_per_file; ++s) {
        const std::string_view bytes = file->sample(s);
        if (source.check) source.check(static_cast<std::int64_t>(f), s, bytes);
        memory[f * static_cast<std::size_t>(source.samples_per_file) + static_cast<std::size_t>(s)] = bytes;
      }
    }
    source.memory = std::move(memory);
  }

  void train() {
    const SampleSource train_source = source_of(Split::Train);
    const SampleSource eval_source = config_.workflow.evaluation ? source_of(Split::Valid) : SampleSource{};
    if (leads_) cached_before_ = cached_share(train_source.files);
    calibrate();
    const std::int64_t samples = config_.samples(true), batch = config_.reader.batch_size;
    const std::int64_t per_epoch = num_steps(samples, options_.ranks, batch);
    std::int64_t left =
        config_.train.total_training_steps > 0 ? config_.train.total_training_steps : INT64_MAX;
    say(printed("Max steps per epoch: %lld for %lld samples, batch %lld, %d ranks",
                static_cast<long long>(per_epoch), static_cast<long long>(samples),
                static_cast<long long>(batch), options_.ranks));
    next_checkpoint_epoch_ = config_.checkpoint.after_epoch;
    std::int64_t next_eval = config_.evaluation.eval_after_epoch;
    for (std::int64_t epoch = 1; epoch <= config_.train.epochs && left > 0; ++epoch) {
      const std::int64_t steps = std::min(per_epoch, left);
      left -= steps;
      train_epoch(epoch, steps, train_source);
      if (config_.workflow.evaluation && epoch >= next_eval) {
        next_eval += config_.evaluation.epochs_between_evals;
        evaluate(epoch, eval_source);
      }
      end_epoch(epoch);
    }
    if (leads_) cached_after_ = cached_share(train_source.files);
  }

  Json& stats_of(LocalRank& rank, std::int64_t epoch) { return rank.stats[std::to_string(epoch)]; }

  void train_epoch(std::int64_t epoch, std::int64_t steps, const SampleSource& source) {
    const std::string began = now_text(), key = std::to_string(epoch);
    epoch_began_ = unix_now();
    const Json memory = proc_lines("/proc/meminfo");
    for (LocalRank& rank : ranks_) {
      Json entry = Json::object({{"start", began}});
      rank.stats[key] = std::move(entry);
      rank.output[key] = Json::object({{"load", Json::object()},
                                       {"proc", Json::object()},
                                       {"throughput", Json::object()},
                                       {"au", Json::object()},
                                       {"compute", Json::object()},
                                       {"host_meminfo", memory}});
      rank.epoch_blocks.clear(), rank.epoch_steps.clear(), rank.epoch_calibrated.clear();
    }
    totals_ = {};
    say("Starting epoch " + key + ": " + std::to_string(steps) + " steps expected");
    const SampleOrder order = order_of(Split::Train, epoch);
    const Phase phase{&source,
                      &order,
                      config_.samples(true),
                      config_.reader.batch_size,
                      steps,
                      &config_.train.computation_time,
                      true,
                      "training step"};
    Loaders loaders = make_loaders(phase);
    group_.barrier("epoch");
    const std::int64_t between = config_.workflow.checkpoint ? config_.checkpoint.steps_between : -1;
    std::uint64_t places = 0;
    std::int64_t seen = 0, block = 1;
    for (std::int64_t at = 0; at < steps; ++block) {
      const std::int64_t now = between > 0 ? std::min(between, steps - at) : steps - at;
      say("Starting block " + std::to_string(block));
      const double block_began = unix_now();
      const std::vector<RankBlock> blocks = run_steps(phase, loaders, now);
      at += now;
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        places += blocks[i].places;
        seen += blocks[i].samples;
        close_block(ranks_[i], epoch, "block" + std::to_string(block), blocks[i], config_.reader.batch_size,
                    block_began);
      }
      tell_block(epoch, block, blocks.front(), now);
      if (between > 0 && now == between && at <= steps) save(epoch, block, at);
    }
    check_coverage(epoch, steps, places, seen);
    for (LocalRank& rank : ranks_) {
      stats_of(rank, epoch)["end"] = now_text();
      stats_of(rank, epoch)["duration"] = printed("%.2f", unix_now() - epoch_began_);
    }
    say("Ending epoch " + key + " - " + std::to_string(steps) + " steps completed in " +
        printed("%.2f s", unix_now() - epoch_began_));
    if (config_.workflow.checkpoint && between < 0 && epoch == next_checkpoint_epoch_) {
      save(epoch, block - 1, steps);
      next_checkpoint_epoch_ += config_.checkpoint.epochs_between;
    }
  }

  static Json list_of(const std::vector<double>& values) {
    Json list = Json::array();
    for (const double value : values) list.push_back(value);
    return list;
  }

  void close_block(LocalRank& rank, std::int64_t epoch, const std::string& name, const RankBlock& block,
                   std::int64_t batch, double began) {
    const BlockMetrics raw = block_metrics(config_, block, batch, 0);
    const BlockMetrics calibrated = block_metrics(config_, block, batch, own_cost_s_);
    Json& out = rank.output[std::to_string(epoch)];
    out["load"][name] = list_of(block.load);
    out["proc"][name] = list_of(block.proc);
    out["compute"][name] = list_of(block.compute);
    out["throughput"][name] = raw.throughput;
    out["au"][name] = raw.au;
    const auto total = [](const std::vector<double>& values) {
      return average_of(values) * static_cast<double>(values.size());
    };
    const double wall = std::max(block.wall, 1e-12);
    out["millrace"][name] = Json::object({{"au_calibrated", calibrated.au},
                                          {"au_asked", raw.au_asked},
                                          {"barrier", list_of(block.barrier)},
                                          {"load_share", (total(block.load) - total(block.copy)) / wall},
                                          {"copy_share", total(block.copy) / wall},
                                          {"compute_share", total(block.compute) / wall},
                                          {"barrier_share", total(block.barrier) / wall},
                                          {"bytes", block.bytes},
                                          {"samples", block.samples}});
    stats_of(rank, epoch)[name] = Json::object(
        {{"start", stamp(began)}, {"end", now_text()}, {"duration", printed("%.2f", unix_now() - began)}});
    if (name == "eval") return;
    rank.epoch_blocks.push_back(raw);
    rank.epoch_calibrated.push_back(calibrated.au);
    rank.epoch_steps.push_back(static_cast<double>(block.proc.size()));
    totals_.load += total(block.load) - total(block.copy);
    totals_.copy += total(block.copy);
    totals_.compute += total(block.compute);
    totals_.barrier += total(block.barrier);
    totals_.wall += block.wall;
    totals_.bytes += static_cast<double>(block.bytes);
    totals_.samples += static_cast<double>(block.samples);
  }

  void tell_block(std::int64_t epoch, std::int64_t block, const RankBlock& first, std::int64_t steps) {
    const std::string where = printed("Epoch %lld - Block %lld [Training] ", static_cast<long long>(epoch),
                                      static_cast<long long>(block));
    const BlockMetrics metrics = block_metrics(config_, first, config_.reader.batch_size, 0);
    say(printed("Ending block %lld - %lld steps completed in %.2f s", static_cast<long long>(block),
                static_cast<long long>(steps), first.wall));
    say(where + printed("Accelerator Utilization [AU] (%%): %.4f", metrics.au));
    say(where + printed("Throughput (samples/second): %.4f", metrics.throughput * options_.ranks));
    say(where + printed("Computation time per step (second): %.6f+/-%.6f", average_of(first.compute),
                        spread_of(first.compute)));
    if (counted_steps(config_, first.proc.size()).steps() == 0)
      warn(where + "has no step that counts: output.metric excludes them all, so its utilisation is 0");
  }

  /// Each sample once: the sum of hashes of what was read is that of all there is.
  void check_coverage(std::int64_t epoch, std::int64_t steps, std::uint64_t places, std::int64_t seen) {
    const double own[] = {static_cast<double>(places >> 32), static_cast<double>(places & 0xffffffff),
                          static_cast<double>(seen)};
    std::uint64_t sum = 0;
    std::int64_t count = 0;
    for (const auto& values : group_.exchange(own, "coverage")) {
      sum += (static_cast<std::uint64_t>(values[0]) << 32) + static_cast<std::uint64_t>(values[1]);
      count += static_cast<std::int64_t>(values[2]);
    }
    const std::int64_t samples = config_.samples(true);
    if (steps < num_steps(samples, options_.ranks, config_.reader.batch_size))
      return;  // total_training_steps cut it
    if (all_places_ == 0) {
      for (std::int64_t i = 0; i < samples; ++i) all_places_ += hash_of_place(i);
    }
    if (sum != all_places_ || count != samples)
      throw InternalError("epoch " + std::to_string(epoch) + " read " + std::to_string(count) + " of " +
                          std::to_string(samples) + " samples, or some twice");
    ++covered_epochs_;
  }

  void end_epoch(std::int64_t epoch) {
    for (LocalRank& rank : ranks_) {
      double au = 0, calibrated = 0, asked = 0, throughput = 0, steps = 0;
      for (std::size_t i = 0; i < rank.epoch_blocks.size(); ++i) {
        au += rank.epoch_blocks[i].au * rank.epoch_steps[i];
        throughput += rank.epoch_blocks[i].throughput * rank.epoch_steps[i];
        asked += rank.epoch_blocks[i].au_asked * rank.epoch_steps[i];
        calibrated += rank.epoch_calibrated[i] * rank.epoch_steps[i];
        steps += rank.epoch_steps[i];
      }
      steps = std::max(steps, 1.0);
      totals_.au += au / steps, totals_.throughput += throughput / steps,
          totals_.calibrated += calibrated / steps, totals_.asked += asked / steps;
      rank.output[std::to_string(epoch)]["end"] = now_text();
      stats_of(rank, epoch)["end"] = now_text();  // with the evaluation; its duration is the training's
    }
    const double own[] = {totals_.au,    totals_.calibrated, totals_.throughput, totals_.load,
                          totals_.copy,  totals_.compute,    totals_.barrier,    totals_.wall,
                          totals_.bytes, totals_.samples,    totals_.asked};
    std::vector<double> sums(std::size(own), 0.0);
    for (const auto& values : group_.exchange(own, "end of an epoch")) {
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
    }
    train_au_.push_back(sums[0] / options_.ranks);
    train_calibrated_.push_back(sums[1] / options_.ranks);
    train_throughput_.push_back(sums[2]);
    train_asked_.push_back(sums[10] / options_.ranks);
    const double wall = std::max(sums[7], 1e-12);
    Json shares = Json::object({{"load", sums[3] / wall},
                                {"copy", sums[4] / wall},
                                {"compute", sums[5] / wall},
                                {"barrier", sums[6] / wall}});
    epoch_shares_.push_back(shares);
    read_bytes_ += sums[8];
    read_samples_ += sums[9];
  }

  // ---- evaluation
  // -----------------------------------------------------------------------------------------------

  void evaluate(std::int64_t epoch, const SampleSource& source) {
    const std::int64_t samples = config_.samples(false), batch = config_.reader.batch_size_eval;
    const std::int64_t steps = num_steps(samples, options_.ranks, batch);
    say("Starting eval - " + std::to_string(steps) + " steps expected");
    const double began = unix_now();
    const SampleOrder order = order_of(Split::Valid, epoch);
    const Phase phase{&source, &order,           samples, batch, steps, &config_.evaluation.eval_time,
                      false,   "evaluation step"};
    Loaders loaders = make_loaders(phase);
    const std::vector<RankBlock> blocks = run_steps(phase, loaders, steps);
    double au = 0, asked = 0, throughput = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      close_block(ranks_[i], epoch, "eval", blocks[i], batch, began);
      // DLIO counts so too: all steps over the whole time.
      const double wall = std::max(blocks[i].wall, 1e-12);
      const double own = static_cast<double>(steps * batch) / wall;
      ranks_[i].output[std::to_string(epoch)]["throughput"]["eval"] = own;
      const BlockMetrics metrics = block_metrics(config_, blocks[i], batch, 0);
      au += metrics.au, asked += metrics.au_asked;
      throughput += own;
    }
    const double own[] = {au, throughput, asked};
    double au_sum = 0, asked_sum = 0, throughput_sum = 0;
    for (const auto& values : group_.exchange(own, "evaluation"))
      au_sum += values[0], throughput_sum += values[1], asked_sum += values[2];
    eval_au_.push_back(au_sum / options_.ranks);
    eval_asked_.push_back(asked_sum / options_.ranks);
    eval_throughput_.push_back(throughput_sum);
    say("Ending eval - " + std::to_string(steps) + printed(" steps completed in %.2f s", unix_now() - began));
    say(printed("Epoch %lld [Eval] Accelerator Utilization [AU] (%%): %.4f", static_cast<long long>(epoch),
                eval_au_.back()));
    say(printed("Epoch %lld [Eval] Throughput (samples/second): %.4f", static_cast<long long>(epoch),
                throughput_sum));
  }

  // ---- checkpoints
  // ----------------------------------------------------------------------------------------------

  std::string checkpoint_folder(std::int64_t epoch, std::int64_t step) const {
    return (fs::path(config_.checkpoint.folder) /
            ("global_epoch" + std::to_string(epoch) + "_step" + std::to_string(step)))
        .string();
  }

  enum class Direction { Save, Load };

  /// All ranks of this process at once, each in a thread; the slowest rank of the job is what counts.
  void move_checkpoint(Direction direction, std::int64_t epoch, std::int64_t block, std::int64_t step) {
    const bool saves = direction == Direction::Save;
    const char* verb = saves ? "saving" : "loading";
    const std::string number = std::to_string(block);
    say(std::string("Starting ") + verb + " checkpoint " + number + " after total step " +
        std::to_string(step) + " for epoch " + std::to_string(epoch));
    const std::string folder = checkpoint_folder(epoch, step), began = now_text();
    // A restarted job reads what another host wrote.
    const int shift = !saves && config_.checkpoint.recovery_rank_shift ? std::max(1, options_.ranks / 2) : 0;
    std::vector<double> seconds(ranks_.size(), 0), bytes(ranks_.size(), 0);
    std::vector<std::exception_ptr> failures(ranks_.size());
    {
      std::vector<std::jthread> threads;
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        threads.emplace_back([&, i] {
          try {
            const auto started = std::chrono::steady_clock::now();
            const std::vector<CheckpointFile> files =
                checkpoint_files(config_, (ranks_[i].rank + shift) % options_.ranks, options_.ranks);
            bytes[i] = static_cast<double>(saves ? write_checkpoint(folder, files, config_.checkpoint.fsync,
                                                                    config_.checkpoint.randomize,
                                                                    static_cast<std::uint64_t>(step))
                                                 : read_checkpoint(folder, files));
            seconds[i] = seconds_between(started, std::chrono::steady_clock::now());
          } catch (...) {
            failures[i] = std::current_exception();
          }
        });
      }
    }
    for (const std::exception_ptr& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
    if (is_virtual()) {
      for (std::size_t i = 0; i < ranks_.size(); ++i) ranks_[i].time_s += seconds[i];
    }
    if (config_.checkpoint.rank_sync) group_.barrier("checkpoint");
    double own[] = {0, 0};
    for (std::size_t i = 0; i < ranks_.size(); ++i) own[0] = std::max(own[0], seconds[i]), own[1] += bytes[i];
    double slowest = 0, total = 0;
    for (const auto& values : group_.exchange(own, "checkpoint"))
      slowest = std::max(slowest, values[0]), total += values[1];
    slowest = std::max(slowest, 1e-9);
    checkpoint_gib_ = total / static_cast<double>(kGiB);
    const double rate = checkpoint_gib_ / slowest;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      stats_of(ranks_[i], epoch)[(saves ? "save_ckpt" : "load_ckpt") + number] = Json::object(
          {{"start", began}, {"end", now_text()}, {"duration", seconds[i]}, {"throughput", rate}});
    }
    (saves ? save_seconds_ : load_seconds_).push_back(slowest);
    (saves ? save_rates_ : load_rates_).push_back(rate);
    say(std::string("Finished ") + verb + " checkpoint " + number + " for epoch " + std::to_string(epoch) +
        printed(" in %.4f s; Throughput: %.4f GB/s", slowest, rate));
  }

  void save(std::int64_t epoch, std::int64_t block, std::int64_t step) {
    move_checkpoint(Direction::Save, epoch, block, step);
  }

  void only_checkpoints() {
    for (LocalRank& rank : ranks_) {
      rank.stats["1"] = Json::object({{"start", now_text()}});
      rank.output["1"] = Json::object({{"start", now_text()},
                                       {"load", Json::object()},
                                       {"proc", Json::object()},
                                       {"throughput", Json::object()},
                                       {"au", Json::object()},
                                       {"compute", Json::object()}});
    }
    const auto each = [&](std::int64_t count, Direction direction) {
      for (std::int64_t i = 1; i <= count; ++i) {
        if (config_.checkpoint.time_between > 0) pause(config_.checkpoint.time_between);
        group_.barrier("checkpoint");
        move_checkpoint(direction, 1, i, i);
      }
    };
    each(config_.checkpoint.num_write, Direction::Save);
    each(config_.checkpoint.num_read, Direction::Load);
    for (LocalRank& rank : ranks_) rank.output["1"]["end"] = rank.stats["1"]["end"] = now_text();
  }

  void pause(double seconds) {
    if (is_virtual()) {
      for (LocalRank& rank : ranks_) rank.time_s += seconds;
    } else {
      std::this_thread::sleep_for(nanoseconds_of(seconds));
    }
  }

  // ---- the end
  // --------------------------------------------------------------------------------------------------

  void put_series(const char* name, const std::vector<double>& values, Json& metric) const {
    const std::string key = name;
    metric[key] = list_of(values);
    const std::size_t unit = key.find(key.find("au_") != std::string::npos ? "_percentage" : "_samples");
    metric[key.substr(0, unit) + "_mean" + key.substr(unit)] = average_of(values);
    metric[key.substr(0, unit) + "_stdev" + key.substr(unit)] = spread_of(values);
  }

  void put_io(const char* prefix, const std::vector<double>& throughput, Json& metric) const {
    const double record = config_.dataset.record_length / 1048576;
    metric[std::string(prefix) + "_io_mean_MB_per_second"] = average_of(throughput) * record;
    metric[std::string(prefix) + "_io_stdev_MB_per_second"] = spread_of(throughput) * record;
  }

  Json metric() const {
    Json metric = Json::object();
    if (!save_rates_.empty()) {
      metric["save_checkpoint_io_mean_GB_per_second"] = average_of(save_rates_);
      metric["save_checkpoint_io_stdev_GB_per_second"] = spread_of(save_rates_);
      metric["save_checkpoint_duration_mean_seconds"] = average_of(save_seconds_);
      metric["save_checkpoint_duration_stdev_seconds"] = spread_of(save_seconds_);
    }
    if (!load_rates_.empty()) {
      metric["load_checkpoint_io_mean_GB_per_second"] = average_of(load_rates_);
      metric["load_checkpoint_io_stdev_GB_per_second"] = spread_of(load_rates_);
      metric["load_checkpoint_duration_mean_seconds"] = average_of(load_seconds_);
      metric["load_checkpoint_duration_stdev_seconds"] = spread_of(load_seconds_);
    }
    if (config_.workflow.checkpoint) metric["checkpoint_size_GB"] = checkpoint_gib_;
    if (config_.workflow.train) {
      put_series("train_au_percentage", train_au_, metric);
      metric["train_au_meet_expectation"] =
          au_verdict(average_of(train_au_), average_of(train_asked_), config_.expected_au);
      put_series("train_throughput_samples_per_second", train_throughput_, metric);
      put_io("train", train_throughput_, metric);
    }
    if (config_.workflow.evaluation) {
      put_series("eval_au_percentage", eval_au_, metric);
      metric["eval_au_meet_expectation"] =
          au_verdict(average_of(eval_au_), average_of(eval_asked_), config_.expected_au);
      put_series("eval_throughput_samples_per_second", eval_throughput_, metric);
      put_io("eval", eval_throughput_, metric);
    }
    return metric;
  }

  /// Bytes that this process's reads took from devices, by the kernel's count; -1: not told.
  static double device_bytes() {
    const Json* line = nullptr;
    const Json lines = proc_lines("/proc/self/io");
    if ((line = lines.find("read_bytes")) && line->is_string())
      return std::strtod(line->as_string().c_str(), nullptr);
    return -1;
  }

  void finish() {
    char host[256] = "";
    ::gethostname(host, sizeof host - 1);
    const Json cpu = proc_lines("/proc/cpuinfo"), memory = proc_lines("/proc/meminfo");
    const Json* total = memory.find("MemTotal");
    const double memory_gib = total ? std::strtod(total->as_string().c_str(), nullptr) / (1 << 20) : 0;
    const auto cores = static_cast<int>(std::thread::hardware_concurrency());
    const double data_gib = static_cast<double>(config_.samples(true)) * config_.dataset.record_length /
                            static_cast<double>(kGiB);
    const double own_device = device_bytes();
    double device = 0;
    for (const auto& values : group_.exchange({&own_device, 1}, "end")) device += values[0];
    const Json processor = cpu.find("model name") ? *cpu.find("model name") : Json("");
    for (LocalRank& rank : ranks_) {
      Json output = Json::object({{"host_memory_GB", memory_gib},
                                  {"host_cpu_count", cores},
                                  {"host_processor_name", processor},
                                  {"potential_caching", data_gib <= memory_gib ? 1 : 0},
                                  {"host_cpuinfo", cpu},
                                  {"host_meminfo", memory}});
      for (const auto& [epoch, told] : rank.output.members()) output[epoch] = told;
      output["hostname"] = std::string(host);
      const fs::path folder = options_.output;
      write_json_file((folder / (std::to_string(rank.rank) + "_output.json")).string(), output);
      write_json_file((folder / (std::to_string(rank.rank) + "_per_epoch_stats.json")).string(), rank.stats);
    }
    group_.barrier("end");
    if (!leads_) return;
    // The name that DLIO's postprocessor asks for.
    write_json_file((fs::path(options_.output) / "per_epoch_stats.json").string(), ranks_.front().stats);
    Json one = Json::array(), memories = Json::array(), cores_list = Json::array();
    one.push_back(data_gib <= memory_gib ? 1 : 0), memories.push_back(memory_gib),
        cores_list.push_back(cores);
    summary_["num_accelerators"] = options_.ranks;
    summary_["num_hosts"] = 1;
    summary_["hostname"] = std::string(host);
    summary_["metric"] = metric();
    summary_["num_files_train"] = config_.dataset.num_files_train;
    summary_["num_files_eval"] = config_.dataset.num_files_eval;
    summary_["num_samples_per_file"] = config_.dataset.num_samples_per_file;
    summary_["host_cpu_count"] = cores_list;
    summary_["host_processor_name"] = processor;
    summary_["potential_caching"] = one;
    summary_["host_cpuinfo"] = cpu;
    summary_["host_meminfo"] = memory;
    summary_["host_memory_GB"] = memories;
    summary_["data_size_per_host_GB"] = data_gib;
    summary_["epochs"] = static_cast<std::int64_t>(train_au_.size());
    Json shares = Json::array();
    for (const Json& share : epoch_shares_) shares.push_back(share);
    summary_["millrace"] = Json::object(
        {{"train_au_calibrated_percentage", list_of(train_calibrated_)},
         {"train_au_calibrated_mean_percentage", average_of(train_calibrated_)},
         {"train_au_asked_mean_percentage", average_of(train_asked_)},
         {"train_compute_error_percentage", compute_error(average_of(train_au_), average_of(train_asked_))},
         {"eval_compute_error_percentage", compute_error(average_of(eval_au_), average_of(eval_asked_))},
         {"loop_cost_us_per_step", own_cost_s_ * 1e6},
         {"shares_by_epoch", shares},
         {"clock", is_virtual() ? "virtual" : "real"},
         {"processes", group_.size()},
         {"samples_read", read_samples_},
         {"bytes_read", read_bytes_},
         {"bytes_from_devices", device},
         {"page_cache_share_before", cached_before_},
         {"page_cache_share_after", cached_after_},
         {"epochs_with_each_sample_once", covered_epochs_},
         {"contents_checked", options_.check == ContentCheck::Contents}});
    summary_["end"] = now_text();
    print_metrics();
    write_json_file((fs::path(options_.output) / "summary.json").string(), summary_);
    say("Saved outputs in " + options_.output);
    if (!config_.dataset.keep_files && config_.workflow.generate_data) remove_dlio_files(config_);
  }

  void print_metrics() {
    const auto line = [&](const std::string& text) {
      write_log("[METRIC] " + text);
      std::printf("[METRIC] %s\n", text.c_str());
    };
    const auto pair = [](const std::vector<double>& values, double factor = 1) {
      return printed("%.4f (%.4f)", average_of(values) * factor, spread_of(values) * factor);
    };
    const auto tell_compute_error = [&](const char* phase, const auto& au, const auto& asked) {
      const double error = compute_error(average_of(au), average_of(asked));
      if (std::abs(error) > kMostComputeError)
        line(
            printed("INVALID: emulated computation of %s took %.1f %% %s than asked for (1 %% is allowed): "
                    "use fewer --ranks, or a machine with idle cores",
                    phase, std::abs(error), error > 0 ? "longer" : "less"));
    };
    const std::string rule(58, '=');
    const double record = config_.dataset.record_length / 1048576;
    line(rule);
    line("Number of Simulated Accelerators: " + std::to_string(options_.ranks));
    if (config_.workflow.train) {
      line("Training Accelerator Utilization [AU] (%): " + pair(train_au_));
      if (!is_virtual() && options_.calibration_steps > 0)
        line("Training AU without the loop's own cost (%): " + pair(train_calibrated_));
      line("Training AU of the computation asked for (%): " + pair(train_asked_));
      line("Training Throughput (samples/second): " + pair(train_throughput_));
      line("Training I/O Throughput (MB/second): " + pair(train_throughput_, record));
      line(std::string("train_au_meet_expectation: ") +
           au_verdict(average_of(train_au_), average_of(train_asked_), config_.expected_au));
      tell_compute_error("training", train_au_, train_asked_);
      if (cached_after_ >= 0)
        line(printed("Data in the page cache before and after (%%): %.1f %.1f", cached_before_ * 100,
                     cached_after_ * 100));
      if (covered_epochs_ > 0)
        line("Epochs in which each sample was read once: " + std::to_string(covered_epochs_) + " of " +
             std::to_string(train_au_.size()));
    }
    if (!save_seconds_.empty()) {
      line("Checkpoint save duration (seconds): " + pair(save_seconds_));
      line("Checkpoint save I/O Throughput (GB/second): " + pair(save_rates_));
    }
    if (!load_seconds_.empty()) {
      line("Checkpoint load duration (seconds): " + pair(load_seconds_));
      line("Checkpoint load I/O Throughput (GB/second): " + pair(load_rates_));
    }
    if (config_.workflow.evaluation) {
      line("Eval Accelerator Utilization [AU] (%): " + pair(eval_au_));
      line("Eval Throughput (samples/second): " + pair(eval_throughput_));
      tell_compute_error("evaluation", eval_au_, eval_asked_);
    }
    line(rule);
    std::fflush(stdout);
  }

  const DlioConfig& config_;
  const DlioRunOptions& options_;
  ProcessGroup& group_;
  bool leads_;
  PreciseWait wait_;
  double start_unix_;
  TimePoint start_;
  std::vector<LocalRank> ranks_;
  LineFile log_;
  bool log_failed_ = false;
  ReadySignal signal_;
  Json summary_ = Json::object();
  double own_cost_s_ = 0;
  EpochTotals totals_;
  double epoch_began_ = 0;
  std::int64_t next_checkpoint_epoch_ = 1;
  std::uint64_t all_places_ = 0;
  std::int64_t covered_epochs_ = 0;
  std::vector<double> train_au_, train_calibrated_, train_asked_, train_throughput_, eval_au_, eval_asked_,
      eval_throughput_;
  std::vector<double> save_seconds_, save_rates_, load_seconds_, load_rates_;
  std::vector<Json> epoch_shares_;
  double read_bytes_ = 0, read_samples_ = 0, checkpoint_gib_ = 0, cached_before_ = -1, cached_after_ = -1;
};

}  // namespace

RankRange ranks_of(int process, int processes, int ranks) {
  const int each = ranks / processes, more = ranks % processes;
  const int first = process * each + std::min(process, more);
  return {first, first + each + (process < more)};
}

Problems check_run(const DlioConfig& config, const DlioRunOptions& options) {
  Problems problems;
  if (config.workflow.checkpoint) append(problems, check_checkpoint_shape(config, options.ranks));
  if (options.check == ContentCheck::Contents && config.workflow.train && !config.reader.synthetic &&
      !config.workflow.generate_data) {
    const std::string manifest = data_path(config) + "/millrace-dlio.json";
    const Result<Json> there = read_json(manifest);
    if (!there || there->dump() != dlio_manifest(config).dump())
      problems.push_back(
          {"--check",
           "contents cannot be checked: " + manifest + (there ? " is of other data" : " is missing"),
           "generate the data with `millrace dlio ++workload.workflow.generate_data=True`"});
  }
  if (config.reader.in_memory && config.workflow.train && !config.reader.synthetic) {
    const Json memory = proc_lines("/proc/meminfo");
    const Json* free = memory.find("MemAvailable");
    const double bytes =
        static_cast<double>(config.samples(true) + config.samples(false)) * config.dataset.record_length;
    if (free && bytes > std::strtod(free->as_string().c_str(), nullptr) * 1024)
      problems.push_back(
          {"workload.reader.read_type",
           printed("memory: the data have %.1f GB, more than the memory that is free", bytes / 1e9),
           "on_demand, or fewer files"});
  }
  return problems;
}

void run_dlio_process(const DlioConfig& config, const DlioRunOptions& options, ProcessGroup& group) {
  Emulation(config, options, group).run();
}

}  // namespace millrace
