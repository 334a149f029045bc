#include "driver/worker/emulation.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>

#include "driver/cli/command_support.h"
#include "driver/flags/planning_files.h"
#include "runtime/base/cpu_time.h"
#include "runtime/base/error.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/mean.h"
#include "runtime/base/option_names.h"
#include "runtime/base/random.h"
#include "runtime/base/text.h"
#include "runtime/emulation/emulated_model.h"
#include "runtime/plan/array_profiles.h"
#include "runtime/plan/cluster_spec.h"

namespace millrace {
namespace {

/// Flags that ask for values, which an emulated device has none of.
Problems values_asked_for(const TrainSpec& spec) {
  Problems problems;
  TrainFlags given = spec;
  const std::vector<Flag> usual = train_spec().flags;
  for (const Flag& flag : flags_of(given))
    if (flag.emulated != Emulated::Runs &&
        flag.target.fallback != std::ranges::find(usual, flag.name, &Flag::name)->target.fallback)
      problems.push_back(
          {"--" + flag.name, "an emulated device computes no values", "leave it out of an emulated run"});
  return problems;
}

/// Tells the device how long its thread is kept waiting for each batch. The thread's processor time meanwhile
/// is not part of that: it is the thread's own work.
class CountedBatches final : public BatchSource {
 public:
  CountedBatches(std::unique_ptr<BatchSource> inner, std::shared_ptr<Clock> clock)
      : inner_(std::move(inner)), clock_(std::move(clock)) {}
  Batch get(std::int64_t position) override {
    const TimePoint start = clock_->now();
    const auto computed = cpu_time(CLOCK_THREAD_CPUTIME_ID);
    Batch batch = inner_->get(position);
    EmulatedDevice::of_thread().host_waited(start + (cpu_time(CLOCK_THREAD_CPUTIME_ID) - computed), {});
    return batch;
  }
  void seek(std::int64_t position) override { inner_->seek(position); }
  BatchExtent extent(std::int64_t position) const override { return inner_->extent(position); }

 private:
  std::unique_ptr<BatchSource> inner_;
  std::shared_ptr<Clock> clock_;
};

FieldReads field_reads(const LayeredModel& model, int microbatch) {
  FieldReads reads;
  const auto add = [&](const LayeredModel& turn, const std::string& layer,
                       const std::vector<std::string>& inputs) {
    for (const std::string& input : std::set(inputs.begin(), inputs.end())) {
      const FieldSpec* const field = turn.field(input);
      if (!field) continue;
      const auto [read, is_first] = reads.of_layers[layer].emplace(input, FieldReads::Read{});
      if (!is_first) ++read->second.turns;
      read->second.bytes = static_cast<Bytes>(c10::elementSize(field->dtype)) *
                           c10::multiply_integers(field_shape(*field, model.nominal_extent(microbatch)));
    }
  };
  std::vector<const LayeredModel*> turns;
  for (const Turn& turn : model.turns) turns.push_back(&turn.model);
  if (turns.empty()) turns.push_back(&model);
  for (const LayeredModel* turn : turns) {
    std::vector<std::string> of_last = turn->layers.back().inputs;
    for (const NamedHead& head : turn->heads)
      of_last.insert(of_last.end(), head.inputs.begin(), head.inputs.end());
    for (const NamedLayer& layer : turn->layers)
      add(*turn, layer.name, &layer == &turn->layers.back() ? of_last : layer.inputs);
  }
  return reads;
}

/// Compares what the profile in `file` was measured with to the run.
Problems compare(const TrainSpec& spec, const LayerGraph& profile, const std::string& file) {
  Problems problems;
  if (profile.microbatch != spec.options.microbatch)
    problems.push_back({file,
                        "it is of microbatches of " + std::to_string(profile.microbatch) +
                            " samples, the run has " + std::to_string(spec.options.microbatch),
                        "give --microbatch " + std::to_string(profile.microbatch) +
                            ", or measure with --microbatch " + std::to_string(spec.options.microbatch)});
  if (profile.precision != to_string(spec.options.precision))
    problems.push_back({file,
                        "it was measured in " + profile.precision + ", the run computes in " +
                            to_string(spec.options.precision),
                        "give --precision " + profile.precision});
  return problems;
}

/// Gives `layers`, in all turns, the times of `from`, which has the same layers, turns and microbatches; with
/// `loss` the loss too.
void take_times(LayerGraph& costs, const LayerGraph& from, const std::set<std::string>& layers, bool loss) {
  std::map<std::string, const LayerNode*> nodes;
  for (const LayerNode& node : from.nodes) nodes[node.name] = &node;
  for (LayerNode& node : costs.nodes) {
    if (!layers.contains(node.name)) continue;
    const LayerNode& other = *nodes.at(node.name);
    node.forward_s = other.forward_s;
    node.backward_input_s = other.backward_input_s;
    node.backward_weight_s = other.backward_weight_s;
    node.of_microbatches = other.of_microbatches;
  }
  if (loss) {
    costs.loss_s = from.loss_s;
    for (std::size_t m = 0; m < costs.microbatches.size(); ++m)
      costs.microbatches[m].loss_s = from.microbatches[m].loss_s;
  }
  for (std::size_t t = 0; t < costs.turns.size(); ++t)
    take_times(costs.turns[t], from.turns[t], layers, loss);
}

}  // namespace

std::shared_ptr<SharedTimeline> SharedWorld::timeline(RankId rank) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<SharedTimeline>& made = timelines_[rank];
  if (!made) made = SharedTimeline::of_this_process();
  return made;
}

void SharedWorld::expect(int ranks) {
  const std::lock_guard lock(mutex_);
  missing_ += ranks;
}

void SharedWorld::arrive() {
  std::unique_lock lock(mutex_);
  --missing_;
  changed_.notify_all();
  changed_.wait(lock, [this] { return missing_ <= 0; });
}

void SharedWorld::leave(int ranks) {
  const std::lock_guard lock(mutex_);
  missing_ -= ranks;
  changed_.notify_all();
}

Status Emulation::set_up(TrainSpec& spec) {
  Problems problems = values_asked_for(spec);
  if (spec.emulation.profile.empty()) {
    problems.push_back({"--device-profile", "an emulated device takes the times of a profile",
                        "give one of the model: millrace profile --model " + spec.model.name +
                            " --microbatch " + std::to_string(spec.options.microbatch) +
                            " --out profile.json"});
    return problems;
  }
  Result<LayerGraph> profile = LayerGraph::load(spec.emulation.profile);
  if (!profile) {
    append(problems, profile.problems());
    return problems;
  }
  append(problems, compare(spec, *profile, spec.emulation.profile));
  if (spec.emulation.jitter.of_profile && profile->measured.jitter == 0)
    problems.push_back({spec.emulation.profile, "does not say how much its times vary",
                        "measure it again with --repetitions 2 or more, or give --jitter 0.05"});
  if (!spec.emulation.share.empty() && spec.emulation.clock == EmulatedClock::Virtual)
    problems.push_back({"--share-devices", "each process has a virtual time of its own",
                        "give --clock wall, or all jobs to one command: millrace emulate a.yaml b.yaml"});
  if (spec.emulation.devices > 0 && spec.emulation.share.empty() &&
      spec.emulation.clock == EmulatedClock::Wall)
    problems.push_back({"--emulated-devices", "ranks that are processes share devices by a folder",
                        "give --share-devices DIR too, or --clock virtual"});
  if (spec.storage.storage && spec.emulation.clock == EmulatedClock::Virtual)
    problems.push_back({"--storage", "reading takes no time in virtual time", "give --clock wall"});
  if (!spec.emulation.share.empty())
    if (const Status made = make_writable_folder(spec.emulation.share); !made)
      append(problems, made.problems());
  if (!problems.empty()) return problems;
  std::shared_ptr<Emulation> made(new Emulation);
  made->plan_ = spec.pipeline;
  const auto ranks = static_cast<std::size_t>(spec.pipeline.num_ranks());
  made->memory_.assign(ranks, 0);
  made->slowdown_.assign(ranks, 1);
  if (const Status read = made->read_cluster(spec); !read) return read.problems();
  for (LayeredModel& network : spec.networks) {
    Result<LayerGraph> costs = profile_of_array(*profile, network.jobs());
    if (!costs)
      return Problem{spec.emulation.profile, costs.problems().front().what, costs.problems().front().hint};
    if (const Status taken = made->take_times_of_kinds(*costs, made->arrays_.size()); !taken)
      return taken.problems();
    Result<LayeredModel> emulated = emulated_model(std::move(network), *costs, spec.pipeline);
    if (!emulated) return about_file(spec.emulation.profile, emulated.problems());
    network = *std::move(emulated);
    made->reads_.push_back(field_reads(network, spec.options.microbatch));
    made->arrays_.push_back(*std::move(costs));
  }
  made->flags_ = spec.emulation;
  made->profile_ = *std::move(profile);
  made->links_ = spec.decorators;
  made->free_host_ = spec.emulation.clock == EmulatedClock::Wall && spec.workers > 0;
  const bool over_memory = spec.backend == Backend::Auto || spec.backend == Backend::SharedMemory;
  if (made->profile_.device == "cpu" && over_memory) made->shared_ = SharedMemory::WithinHosts;
  made->jitter_ =
      spec.emulation.jitter.of_profile ? made->profile_.measured.jitter : spec.emulation.jitter.sigma;
  made->seed_ = spec.options.seed;
  const auto clips = [](const auto& of) { return clip_norm_of(of.rule, of.clip) > 0; };
  made->clips_ = clips(spec.options) || std::ranges::any_of(spec.options.jobs, clips);
  if (spec.emulation.devices > 0 && spec.emulation.clock == EmulatedClock::Virtual && !made->flags_.world)
    made->flags_.world = std::make_shared<SharedWorld>();  // its ranks share devices as several jobs would
  if (made->flags_.world)
    made->clock_ = std::shared_ptr<Clock>(made->flags_.world, &made->flags_.world->clock());
  else if (spec.emulation.clock == EmulatedClock::Virtual)
    made->clock_ = std::make_shared<VirtualClock>();
  else
    made->clock_ = std::make_shared<SteadyClock>();
  if (const Status slowed = made->slow_stragglers(spec.emulation.stragglers); !slowed)
    return slowed.problems();
  spec.evaluate = false;
  spec.options.has_weights = false;
  spec.emulated = std::move(made);
  return Ok{};
}

/// Reads the cluster file: memory and speeds of the ranks, and profiles of their kinds.
Status Emulation::read_cluster(const TrainSpec& spec) {
  if (spec.emulation.links.empty()) return Ok{};
  Result<ClusterSpec> cluster = ClusterSpec::load(spec.emulation.links);
  if (!cluster) return cluster.problems();
  cluster_ = *std::move(cluster);
  Result<std::map<std::string, LayerGraph>> profiles = load_kind_profiles(cluster_);
  if (!profiles) return profiles.problems();
  for (const DeviceKind& kind : cluster_.kinds) {
    if (kind.profile.empty()) continue;
    const LayerGraph& profile = profiles->at(kind.name);
    if (const Problems differ = compare(spec, profile, kind.profile); !differ.empty()) return differ;
    Kind& own = kinds_[kind.name] = {.file = kind.profile, .profile = profile, .arrays = {}};
    for (const LayeredModel& network : spec.networks) {
      Result<LayerGraph> costs = profile_of_array(profile, network.jobs());
      if (!costs) return about_file(kind.profile, costs.problems());
      const auto fits = emulated_model(network, *costs, spec.pipeline);
      if (!fits) return about_file(kind.profile, fits.problems());
      own.arrays.push_back(*std::move(costs));
    }
  }
  for (std::size_t r = 0; r < slowdown_.size(); ++r) {
    const RankId rank(static_cast<int>(r));
    memory_[r] = cluster_.memory_of(rank);
    if (!kind_of(rank)) slowdown_[r] /= cluster_.speed_of(rank);
  }
  return Ok{};
}

/// Returns the rank's kind if that has a profile of its own, else null.
const Emulation::Kind* Emulation::kind_of(RankId rank) const {
  const int kind = cluster_.kind_of(rank);
  const auto found = kind < 0 ? kinds_.end() : kinds_.find(cluster_.kinds[kind].name);
  return found == kinds_.end() ? nullptr : &found->second;
}

/// Gives the layers of each stage the times that they have on the devices of its ranks.
Status Emulation::take_times_of_kinds(LayerGraph& costs, std::size_t array) const {
  for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
    const PlanStage& stage = plan_.stages[s];
    const Kind* const kind = kind_of(stage.ranks.front());
    for (const RankId rank : stage.ranks)
      if (const Kind* const other = kind_of(rank);
          other != kind && !(kind && other && other->file == kind->file))
        return Problem{"stage " + std::to_string(s),
                       "its replicas are on kinds of devices with different profiles, and the layers of an "
                       "emulated stage have one",
                       "give the kinds a speed in the place of a profile, or the stage one kind of device"};
    if (!kind) continue;
    const LayerGraph& own = kind->arrays[array];
    if (own.length_ranges() != costs.length_ranges() || own.microbatches.size() != costs.microbatches.size())
      return Problem{kind->file, "it is of microbatches of other lengths than the run's profile",
                     "measure both with the same --data and --measured-microbatches"};
    take_times(costs, own, {stage.layers.begin(), stage.layers.end()}, s + 1 == plan_.stages.size());
  }
  return Ok{};
}

Status Emulation::slow_stragglers(const EmulatedStragglers& stragglers) {
  for (const Straggler& straggler : stragglers.of_ranks) {
    if (const Status known = check(straggler, static_cast<int>(slowdown_.size())); !known) return known;
    slowdown_[static_cast<std::size_t>(straggler.rank)] *= straggler.factor;
  }
  if (!stragglers.of_profile) return Ok{};
  const std::vector<double>& seconds = profile_.measured.rank_seconds;
  if (seconds.size() != slowdown_.size())
    return Problem{"--straggler",
                   "the profile has times of " + std::to_string(seconds.size()) +
                       " single ranks, the plan has " + std::to_string(slowdown_.size()) + " ranks",
                   "measure it with as many: millrace profile --ranks " + std::to_string(slowdown_.size())};
  for (std::size_t r = 0; r < seconds.size(); ++r) slowdown_[r] *= seconds[r] / mean(seconds);
  return Ok{};
}

bool Emulation::is_virtual() const {
  return flags_.clock == EmulatedClock::Virtual;
}

/// Returns the bytes of the batches of an array that wait on a rank, where they wait in the device's memory.
/// The loader is ahead by some. Where several turns read a batch, those of a step are kept for the later
/// ones. A field counts once, however many layers read it.
Bytes Emulation::batches_of(RankId rank, std::size_t array) const {
  constexpr double kLoadedAhead = 8;  // LoaderOptions::prefetch
  double profiled = 0, counted = 0;   // both are sums over layers: of the profile's bytes, of nominal ones
  std::map<std::string, FieldReads::Read> fields;
  std::size_t kept_for_turns = 0;  // microbatches besides the one that is computed
  for (const PlanStage& stage : plan_.stages) {
    if (std::ranges::find(stage.ranks, rank) == stage.ranks.end()) continue;
    const auto microbatches = static_cast<std::size_t>(plan_.microbatches);
    kept_for_turns = (microbatches + stage.ranks.size() - 1) / stage.ranks.size() - 1;
    for (const LayerNode& node : arrays_[array].nodes) {
      const auto reads = reads_[array].of_layers.find(node.name);
      if (reads == reads_[array].of_layers.end() ||
          std::ranges::find(stage.layers, node.name) == stage.layers.end())
        continue;
      profiled += double(node.field_bytes);
      for (const auto& [name, read] : reads->second) {
        counted += double(read.bytes);
        FieldReads::Read& field = fields[name];
        field = {read.bytes, std::max(field.turns, read.turns)};
      }
    }
  }
  double waiting = 0;
  for (const auto& [name, field] : fields)
    waiting += double(field.bytes) * (kLoadedAhead + (field.turns > 1 ? double(kept_for_turns) : 0));
  return counted > 0 ? std::llround(profiled / counted * waiting) : 0;
}

std::shared_ptr<EmulatedDevice> Emulation::device(RankId rank) const {
  if (const double share = profile_.measured.core_share;
      share < 1 && flags_.devices == 0 && rank == RankId(0))
    log_warning(flags_.profile + " was measured by " + std::to_string(profile_.measured.ranks) +
                " ranks that had " + printed("%.0f %%", share * 100) +
                " of a core each: waits for each other are in its times. Hint: measure with as many ranks as "
                "cores, or share devices as they shared cores (--emulated-devices)");
  const Kind* const kind = kind_of(rank);
  EmulatedCosts costs{.rank = rank.value,
                      .memory = memory_.at(static_cast<std::size_t>(rank.value)),
                      .sum_s_per_byte = (kind ? kind->profile : profile_).sum_s_per_byte,
                      .factor = slowdown_.at(static_cast<std::size_t>(rank.value)) *
                                (flags_.devices > 0 ? profile_.measured.core_share : 1),
                      .jitter = jitter_,
                      .free_host = free_host_,
                      .seed = derive_seed(seed_, "emulated work", static_cast<std::uint64_t>(rank.value))};
  for (std::size_t a = 0; a < arrays_.size(); ++a) {
    const LayerGraph& array = arrays_[a];
    costs.fixed_bytes += batches_of(rank, a);
    // Arrays of equal size have the same profile.
    const LayerGraph& own = kind ? kind->arrays[a] : array;
    EmulatedUpdate update{.s_per_byte = own.update_s_per_byte,
                          .copy_s_per_byte = own.update_copy_s_per_byte,
                          .norm_s_per_byte = clips_ ? own.norm_s_per_byte : 0};
    std::map<std::string, const LayerNode*> nodes;
    for (const LayerNode& node : array.nodes) nodes[node.name] = &node;
    for (std::size_t s = 0; s < plan_.stages.size(); ++s) {
      if (std::ranges::find(plan_.stages[s].ranks, rank) == plan_.stages[s].ranks.end()) continue;
      const int stage = static_cast<int>(s);
      for (const std::string& layer : plan_.stages[s].layers)
        update.untouched_bytes[stage] += nodes.at(layer)->untouched_bytes;
    }
    costs.updates[array.jobs] = std::move(update);
  }
  auto device = std::make_shared<EmulatedDevice>(*clock_, "emulated " + profile_.device, costs);
  // The first of the ranks on a device names it.
  const RankId first(flags_.devices > 0 ? rank.value % flags_.devices : rank.value);
  if (flags_.world) device->share(flags_.world->timeline(first));
  if (!flags_.share.empty()) {
    const std::filesystem::path file =
        std::filesystem::path(flags_.share) / ("device" + std::to_string(first.value));
    Result<std::shared_ptr<SharedTimeline>> timeline = SharedTimeline::open(file.string(), clock_->now());
    if (!timeline) throw ConfigError(to_string(timeline.problems()));
    device->share(*std::move(timeline));
  }
  return device;
}

std::vector<ChannelDecorator> Emulation::decorators(
    std::function<EmulatedDevice&(int rank)> device_of) const {
  std::vector<ChannelDecorator> all;
  all.push_back([payload = flags_.payload](std::shared_ptr<Channel> channel) {
    return make_valueless(std::move(channel), payload);
  });
  all.insert(all.end(), links_.begin(), links_.end());
  all.push_back([device_of = std::move(device_of), shared = shared_](std::shared_ptr<Channel> channel) {
    EmulatedDevice& device = device_of(channel->rank());
    return make_device_ordered(std::move(channel), device, shared);
  });
  return all;
}

MakeBatches Emulation::counted(MakeBatches batches) const {
  if (!free_host_) return batches;  // all that the thread does between two waits counts
  return
      [batches = std::move(batches), clock = clock_](const BatchNeeds& train, const BatchNeeds& evaluation) {
        BatchSources sources = batches(train, evaluation);  // an emulated run evaluates nothing
        sources.train = std::make_unique<CountedBatches>(std::move(sources.train), clock);
        return sources;
      };
}

Json Emulation::as_json() const {
  return Json::object({{"profile", profile_.fingerprint()},
                       {"device", profile_.device},
                       {"profile_spread", profile_.measured.spread},
                       {"clock", to_string(flags_.clock)},
                       {"payload", to_string(flags_.payload)},
                       {"jitter", jitter_}});
}

}  // namespace millrace
