#include "experiments/export/exporters.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <chrono>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <queue>
#include <set>
#include <tuple>

#include "data/files/file_writer.h"
#include "data/files/protobuf.h"
#include "data/files/scalar_files.h"
#include "runtime/base/flag.h"
#include "runtime/base/text.h"
#include "runtime/plan/fingerprint.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

std::int64_t first_time(const EventLog& log) {
  std::int64_t first = INT64_MAX;
  for (const LoggedSpan& span : log.spans) first = std::min(first, span.start);
  for (const LoggedPhase& phase : log.phases) first = std::min(first, phase.start);
  for (const LoggedValue& value : log.values) first = std::min(first, value.time);
  return first == INT64_MAX ? 0 : first;
}

// ---- lanes without overlaps
// -----------------------------------------------------------------------------------

/// A span with the track it is drawn on: (rank, lane, number). Spans of one track never overlap: viewers drop
/// those that do.
struct PlacedSpan {
  const LoggedSpan* span;
  std::size_t track;
};
struct Track {
  int rank;
  std::string name;
};
struct Tracks {
  std::vector<Track> tracks;
  std::vector<PlacedSpan> spans;  ///< by start
};

Tracks place_spans(const EventLog& log) {
  Tracks placed;
  std::vector<const LoggedSpan*> sorted;
  for (const LoggedSpan& span : log.spans) sorted.push_back(&span);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::pair(a->start, a->end) < std::pair(b->start, b->end);
  });
  using Free = std::pair<std::int64_t, std::size_t>;  // free from, track
  struct Lane {
    std::priority_queue<Free, std::vector<Free>, std::greater<>> free;
    std::size_t tracks = 0;
  };
  std::map<std::pair<int, std::string>, Lane> lanes;
  for (const LoggedSpan* span : sorted) {
    Lane& lane = lanes[{span->rank, span->lane}];
    std::size_t track = placed.tracks.size();
    if (!lane.free.empty() && lane.free.top().first <= span->start) {
      track = lane.free.top().second;
      lane.free.pop();
    } else {
      placed.tracks.push_back(
          {span->rank, lane.tracks == 0 ? span->lane : span->lane + " " + std::to_string(lane.tracks + 1)});
      ++lane.tracks;
    }
    lane.free.emplace(span->end, track);
    placed.spans.push_back({span, track});
  }
  return placed;
}

// ---- mllog
// ----------------------------------------------------------------------------------------------------

/// The order of lines of one moment. The job is initialised before it runs, and runs before it does anything.
/// Ends come before beginnings, so that starts and stops of a key take turns.
enum MllogOrder {
  kFacts,
  kInitStart,
  kInitStop,
  kRunStart,
  kValue,
  kStop,
  kStart,
  kStopAtOnce,  ///< of a phase that took no time
  kRunStop
};

struct MllogLine {
  std::int64_t time = 0;
  MllogOrder order = kFacts;
  std::string text;
};

std::string mllog_text(std::int64_t time_ns, const char* type, const std::string& key, const Json& value,
                       int rank, const Json& metadata) {
  Json where = Json::object({{"file", "millrace"}, {"lineno", 0}, {"rank", rank}});
  for (const auto& [name, item] : metadata.members()) where[name] = item;
  return ":::MLLOG " +
         Json::object({{"namespace", ""},
                       {"time_ms", time_ns / 1'000'000},
                       {"event_type", type},
                       {"key", key},
                       {"value", value},
                       {"metadata", where}})
             .dump() +
         "\n";
}

/// Times are intervals that end here, with their length: milliseconds are too coarse to pair.
std::string mllog_value(const EventLog& log, const LoggedValue& value, std::int64_t time_ns) {
  const Json metadata = Json::object({{"step_num", value.step}});
  const bool seconds = value.name.ends_with("_s") && value.name != "samples_per_s";
  if (!seconds && log.kind != "dlio")
    return mllog_text(time_ns, "POINT_IN_TIME", value.name, value.value, value.rank, metadata);
  const std::string key = value.name == "step_s" ? "step_end"
                          : seconds              ? value.name.substr(0, value.name.size() - 2)
                                                 : value.name;
  const Json length =
      Json::object({{"duration", static_cast<std::int64_t>(std::llround(value.value * 1e9))}});
  return mllog_text(time_ns, "INTERVAL_END", key, length, value.rank, metadata);
}

/// The kit's interval of a kind of span; empty: it has none. `by_sample`: samples are loaded one by one.
std::string kit_key(const std::string& category, bool evaluates, bool by_sample) {
  static const std::map<std::string, std::string> keys{{"data", "load_batch_mem"},
                                                       {"copy", "load_batch_gpu"},
                                                       {"forward", "model_forward_pass"},
                                                       {"loss", "loss_tensor_calc"},
                                                       {"backward", "model_backward_pass"},
                                                       {"backward_input", "model_backward_pass"},
                                                       {"backward_weight", "model_backward_pass"},
                                                       {"update", "model_optim_step"}};
  static const std::map<std::string, std::string> of_evaluation{{"data", "eval_load_batch_mem"},
                                                                {"copy", "eval_load_batch_gpu"},
                                                                {"forward", "eval_forward_pass"},
                                                                {"loss", "eval_loss_and_score_fn"}};
  if (category == "load") return by_sample ? "sample_load" : "batch_load";
  if (category == "preprocess") return by_sample ? "sample_preproc" : "batch_preproc";
  const auto& of = evaluates ? of_evaluation : keys;
  const auto found = of.find(category);
  return found == of.end() ? "" : found->second;
}

/// The step intervals of the I/O kit, of every rank, for a run whose phases were all traced: its sums over
/// the microbatches of a step. A forward is without its loss. Loads are of one microbatch each, and where the
/// kit's are of one sample, a microbatch's share of it.
void add_kit_steps(const EventLog& log, std::vector<MllogLine>& lines) {
  const bool traced = std::ranges::any_of(
      log.spans, [](const LoggedSpan& span) { return span.category == "copy" || span.category == "loss"; });
  if (log.kind != "run" || !traced) return;
  const auto fact = [&](const char* name) {
    const auto found = std::ranges::find(log.facts, name, &std::pair<std::string, Json>::first);
    return found == log.facts.end() ? Json() : found->second;
  };
  const Json model = fact("model"), samples = fact("microbatch");
  const bool by_sample = model.is_string() && model.as_string() == "unet3d";
  const std::int64_t of_microbatch =
      by_sample && samples.kind() == Json::Kind::Int ? std::max<std::int64_t>(1, samples.as_int()) : 1;
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> evaluations(
      static_cast<std::size_t>(log.world_size));
  for (const LoggedSpan& span : log.spans)
    if (span.category == "evaluation") evaluations[span.rank].emplace_back(span.start, span.end);
  struct Sum {
    std::int64_t ns = 0, end = 0;
  };
  std::map<std::tuple<int, std::int64_t, std::string>, Sum> sums;  // by rank, step and key
  const auto line_of = [&](const std::string& key, int rank, std::int64_t step, const Sum& sum) {
    lines.push_back({sum.end, kValue,
                     mllog_text(sum.end, "INTERVAL_END", key, Json::object({{"duration", sum.ns}}), rank,
                                Json::object({{"step_num", step}}))});
  };
  for (const LoggedSpan& span : log.spans) {
    const bool evaluates = std::ranges::any_of(evaluations[span.rank], [&](const auto& one) {
      return span.start >= one.first && span.end <= one.second;
    });
    const bool loads = span.category == "load" || span.category == "preprocess";
    const std::string key = kit_key(span.category, evaluates && !loads, by_sample);
    if (key.empty()) continue;
    if (loads) {
      line_of(key, span.rank, span.step, {(span.end - span.start) / of_microbatch, span.end});
      continue;
    }
    const auto add = [&](const std::string& to, std::int64_t ns) {
      Sum& sum = sums[{span.rank, span.step, to}];
      sum.ns += ns;
      sum.end = std::max(sum.end, span.end);
    };
    add(key, span.end - span.start);
    if (span.category == "loss")
      add(evaluates ? "eval_forward_pass" : "model_forward_pass", span.start - span.end);
  }
  for (const auto& [at, sum] : sums) line_of(std::get<2>(at), std::get<0>(at), std::get<1>(at), sum);
  // Everything after the batch is in the host's memory.
  for (const LoggedValue& value : log.values) {
    if (value.name != "step_s") continue;
    const auto wait = sums.find({value.rank, value.step, "load_batch_mem"});
    const std::int64_t waited = wait == sums.end() ? 0 : wait->second.ns;
    const auto step = static_cast<std::int64_t>(std::llround(value.value * 1e9));
    line_of("all_compute", value.rank, value.step, {std::max<std::int64_t>(0, step - waited), value.time});
  }
}

/// The borders of the job's phases. A job is initialised and runs once, from the first rank to the last.
/// MLPerf's checker wants it so, and it and the I/O kit pair each start with the next stop. So other phases
/// are those of rank 0. Evaluations and checkpoints of all ranks follow as intervals with their length.
void add_phases(const EventLog& log, std::vector<MllogLine>& lines) {
  // The job is initialised until its first rank begins a step, and runs until all is done.
  LoggedPhase init{.name = "init", .start = INT64_MAX, .end = INT64_MAX};
  LoggedPhase run{.name = "run", .start = INT64_MAX, .end = INT64_MIN};
  for (const LoggedPhase& phase : log.phases) {
    init.start = std::min(init.start, phase.start);
    run.end = std::max(run.end, phase.end);
    const bool begins = log.kind == "dlio" || phase.name == "run";  // DLIO's files have neither
    if (begins) init.end = run.start = std::min(run.start, phase.start);
  }
  const bool has_run = run.start < INT64_MAX;  // a traced command's timeline has none
  std::vector<LoggedPhase> phases;
  if (has_run) phases = {init, run};
  for (const LoggedPhase& phase : log.phases) {
    const bool is_pause = phase.name == "eval" || phase.name == "checkpoint";
    const bool is_once = phase.name == "init" || phase.name == "run";
    if (phase.rank == 0 && (!is_once || !has_run)) phases.push_back(phase);
    if (!is_pause || log.kind == "timeline") continue;
    const std::string key = phase.name == "eval" ? "evaluation" : phase.name;
    lines.push_back(
        {phase.end, kValue,
         mllog_text(phase.end, "INTERVAL_END", key, Json::object({{"duration", phase.end - phase.start}}),
                    phase.rank, Json::object({{"epoch_num", phase.number}}))});
  }
  for (const LoggedPhase& phase : phases) {
    Json metadata = Json::object();
    if (phase.number >= 0) metadata[phase.name == "block" ? "first_epoch_num" : "epoch_num"] = phase.number;
    if (phase.name == "block") metadata["epoch_count"] = phase.epochs;
    const bool inits = phase.name == "init", runs = phase.name == "run";
    lines.push_back({phase.start,
                     inits  ? kInitStart
                     : runs ? kRunStart
                            : kStart,
                     mllog_text(phase.start, "INTERVAL_START", phase.name + "_start", nullptr, 0, metadata)});
    if (runs) metadata["status"] = log.succeeded ? "success" : "aborted";
    lines.push_back({phase.end,
                     inits                     ? kInitStop
                     : runs                    ? kRunStop
                     : phase.end > phase.start ? kStop
                                               : kStopAtOnce,
                     mllog_text(phase.end, "INTERVAL_END", phase.name + "_stop", nullptr, 0, metadata)});
  }
}

/// The metric that stands for the quality of an evaluation, as MLPerf has it; the loss where there is no
/// other.
void add_accuracy(const EventLog& log, std::vector<MllogLine>& lines) {
  const auto epoch_at = [&](std::int64_t time) {
    std::int64_t epoch = 1;
    for (const LoggedPhase& phase : log.phases)
      if (phase.name == "epoch" && phase.rank == 0 && phase.start <= time) epoch = phase.number;
    return epoch;
  };
  for (const std::string_view metric : {"dice", "auc", "bleu", "accuracy", "top1", "loss"}) {
    // "evaluation_dice"; of a model with several heads "evaluation_mlm.accuracy", of which the first counts.
    const auto is_it = [&](const LoggedValue& value) {
      const std::string_view name = value.name;
      if (metric == "bleu" && name == metric) return true;
      return name == "evaluation_" + std::string(metric) ||
             (name.starts_with("evaluation_") && name.ends_with("." + std::string(metric)));
    };
    const auto first = std::ranges::find_if(log.values, is_it);
    if (first == log.values.end()) continue;
    for (const LoggedValue& value : log.values)
      if (value.name == first->name)
        lines.push_back({value.time, kValue,
                         mllog_text(value.time, "POINT_IN_TIME", "eval_accuracy", value.value, value.rank,
                                    Json::object({{"epoch_num", epoch_at(value.time)}}))});
    return;
  }
}

void write_mllog(const EventLog& log, const fs::path& folder, Exported& done) {
  std::vector<MllogLine> lines;
  add_phases(log, lines);
  add_accuracy(log, lines);
  std::int64_t first = first_time(log);
  for (const MllogLine& line : lines) first = std::min(first, line.time);
  const Json none = Json::object();
  for (const auto& [key, value] : log.facts)
    lines.push_back({first, kFacts, mllog_text(first, "POINT_IN_TIME", key, value, 0, none)});
  lines.push_back({first, kFacts, mllog_text(first, "POINT_IN_TIME", "world_size", log.world_size, 0, none)});
  add_kit_steps(log, lines);  // first: the kit's warm-up ends at `step_end`, with all of the step before it
  for (const LoggedValue& value : log.values) {
    if (value.step >= 0) lines.push_back({value.time, kValue, mllog_value(log, value, value.time)});
  }
  std::stable_sort(lines.begin(), lines.end(), [](const MllogLine& a, const MllogLine& b) {
    return std::pair(a.time, a.order) < std::pair(b.time, b.order);
  });
  FileWriter out(folder / "run.mllog");
  for (const MllogLine& line : lines) out.write(line.text);
  out.commit();
  done.files.push_back("run.mllog");
  done.values = static_cast<std::int64_t>(lines.size());
}

// ---- Chrome
// ---------------------------------------------------------------------------------------------------

std::string quoted(const std::string& text) {
  return Json(text).dump();
}

/// Microseconds with three digits, exactly: a double would lose the nanoseconds of a date.
std::string micros(std::int64_t ns) {
  return printed("%lld.%03lld", static_cast<long long>(ns / 1000), static_cast<long long>(ns % 1000));
}

/// `only`: this rank's events, or -1 for all.
void write_chrome_file(const EventLog& log, const Tracks& placed, int only, const fs::path& path,
                       Exported& done) {
  FileWriter out(path);
  const std::int64_t origin = first_time(log);
  out.write("{\"schemaVersion\": 1, \"displayTimeUnit\": \"ms\", \"baseTimeNanoseconds\": " +
            std::to_string(log.has_unix_time ? origin : 0) + ", \"distributedInfo\": {\"backend\": " +
            quoted(log.backend) + ", \"rank\": " + std::to_string(std::max(0, only)) +
            ", \"world_size\": " + std::to_string(log.world_size) + "},\n\"traceEvents\": [\n");
  bool first = true;
  const auto event = [&](const std::string& text) {
    out.write(first ? text : ",\n" + text);
    first = false;
  };
  const auto wanted = [&](int rank) { return only < 0 || rank == only; };
  std::set<int> ranks;
  for (std::size_t t = 0; t < placed.tracks.size(); ++t) {
    const Track& track = placed.tracks[t];
    if (!wanted(track.rank)) continue;
    ranks.insert(track.rank);
    event(
        printed("{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": %zu, \"args\": {\"name\": ",
                track.rank, t) +
        quoted(track.name) + "}}");
  }
  for (const int rank : ranks)
    event(
        printed("{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": {\"name\": \"rank %d\"}}",
                rank, rank));
  for (const auto& [span, track] : placed.spans) {
    if (!wanted(span->rank)) continue;
    const std::string place = printed(", \"pid\": %d, \"tid\": %zu", span->rank, track);
    const std::string ts = ", \"ts\": " + micros(span->start - origin);
    std::string args;
    for (const auto& [name, value] :
         {std::pair{"step", span->step}, std::pair{"microbatch", span->microbatch},
          std::pair{"stage", span->stage}}) {
      if (value >= 0)
        args += (args.empty() ? "" : ", ") + ("\"" + std::string(name)) + "\": " + std::to_string(value);
    }
    event("{\"ph\": \"X\", \"name\": " + quoted(span->name) + ", \"cat\": " + quoted(span->category) + ts +
          ", \"dur\": " + micros(span->end - span->start) + place + ", \"args\": {" + args + "}}");
    if (only < 0 && span->flow_out)
      event(printed("{\"ph\": \"s\", \"name\": \"message\", \"cat\": \"message\", \"id\": %llu",
                    static_cast<unsigned long long>(span->flow_out)) +
            ts + place + "}");
    if (only < 0 && span->flow_in)
      event(
          printed("{\"ph\": \"f\", \"bp\": \"e\", \"name\": \"message\", \"cat\": \"message\", \"id\": %llu",
                  static_cast<unsigned long long>(span->flow_in)) +
          ", \"ts\": " + micros(span->end - origin) + place + "}");
    ++done.spans;
  }
  for (const LoggedValue& value : log.values) {
    if (!wanted(value.rank) || !std::isfinite(value.value)) continue;
    event("{\"ph\": \"C\", \"name\": " + quoted(value.name) + ", \"ts\": " + micros(value.time - origin) +
          printed(", \"pid\": %d, \"args\": {\"value\": ", value.rank) + Json(value.value).dump() + "}}");
    ++done.values;
  }
  out.write("\n]}\n");
  out.commit();
  done.files.push_back(path.filename().string());
}

void write_chrome(const EventLog& log, const fs::path& folder, Exported& done) {
  const Tracks placed = place_spans(log);
  write_chrome_file(log, placed, -1, folder / "trace.chrome.json", done);
  Exported each;  // the same events once more
  for (int rank = 0; log.kind != "timeline" && rank < log.world_size; ++rank)
    write_chrome_file(log, placed, rank, folder / ("trace.rank" + std::to_string(rank) + ".chrome.json"),
                      each);
  done.files.insert(done.files.end(), each.files.begin(), each.files.end());
}

// ---- Perfetto
// -------------------------------------------------------------------------------------------------

// Field numbers of perfetto/trace/{trace_packet,track_event/...}.proto, the part declared stable.
namespace field {
constexpr int kPacket = 1, kTimestamp = 8, kSequence = 10, kTrackEvent = 11, kSequenceFlags = 13,
              kTrackDescriptor = 60;
constexpr int kUuid = 1, kTrackName = 2, kProcess = 3, kThread = 4, kParent = 5, kCounter = 8;
constexpr int kAnnotations = 4, kType = 9, kTrack = 11, kCategories = 22, kEventName = 23,
              kDoubleCounter = 44, kFlows = 47, kEndingFlows = 48;
constexpr int kBegin = 1, kEnd = 2, kInstant = 3, kCounterType = 4;
}  // namespace field

class PerfettoFile {
 public:
  explicit PerfettoFile(const fs::path& path) : out_(path) {}

  std::uint64_t process(int rank, const std::string& name) {
    ProtoWriter process;
    process.integer(1, static_cast<std::uint64_t>(rank) + 1);  // pid: 0 is the idle process
    process.bytes(6, name);
    ProtoWriter track;
    track.integer(field::kUuid, ++uuid_);
    track.message(field::kProcess, process);
    descriptor(track);
    return uuid_;
  }
  std::uint64_t child(std::uint64_t parent, const std::string& name, bool counter) {
    ProtoWriter track;
    track.integer(field::kUuid, ++uuid_);
    track.bytes(field::kTrackName, name);
    track.integer(field::kParent, parent);
    if (counter) track.message(field::kCounter, {});
    descriptor(track);
    return uuid_;
  }
  void event(std::int64_t time, const ProtoWriter& event) {
    ProtoWriter packet;
    packet.integer(field::kTimestamp, static_cast<std::uint64_t>(time));
    packet.message(field::kTrackEvent, event);
    write(packet);
  }
  static void annotate(ProtoWriter& event, const char* name, std::int64_t value) {
    ProtoWriter annotation;
    annotation.bytes(10, name);
    annotation.integer(4, static_cast<std::uint64_t>(value));
    event.message(field::kAnnotations, annotation);
  }
  static void annotate(ProtoWriter& event, const char* name, const std::string& value) {
    ProtoWriter annotation;
    annotation.bytes(10, name);
    annotation.bytes(6, value);
    event.message(field::kAnnotations, annotation);
  }
  void commit() { out_.commit(); }

 private:
  void descriptor(const ProtoWriter& track) {
    ProtoWriter packet;
    packet.message(field::kTrackDescriptor, track);
    write(packet);
  }
  void write(ProtoWriter& packet) {
    packet.integer(field::kSequence, 1);
    if (first_)
      packet.integer(field::kSequenceFlags, 1);  // starts the sequence: nothing before it is missing
    first_ = false;
    ProtoWriter trace;
    trace.message(field::kPacket, packet);
    out_.write(trace.text());
  }
  FileWriter out_;
  std::uint64_t uuid_ = 0;
  bool first_ = true;
};

ProtoWriter perfetto_event(int type, std::uint64_t track) {
  ProtoWriter event;
  event.integer(field::kType, static_cast<std::uint64_t>(type));
  event.integer(field::kTrack, track);
  return event;
}

void write_perfetto(const EventLog& log, const fs::path& folder, Exported& done) {
  PerfettoFile out(folder / "trace.perfetto-trace");
  const Tracks placed = place_spans(log);
  const std::int64_t origin = log.has_unix_time ? 0 : first_time(log);
  std::set<int> ranks;
  for (const Track& track : placed.tracks) ranks.insert(track.rank);
  for (const LoggedValue& value : log.values) ranks.insert(value.rank);
  std::map<int, std::uint64_t> processes;
  for (const int rank : ranks) {
    processes[rank] = out.process(rank, "rank " + std::to_string(rank));
    ProtoWriter info = perfetto_event(field::kInstant, processes[rank]);
    info.bytes(field::kEventName, "distributedInfo");
    PerfettoFile::annotate(info, "backend", log.backend);
    PerfettoFile::annotate(info, "rank", rank);
    PerfettoFile::annotate(info, "world_size", log.world_size);
    out.event(first_time(log) - origin, info);
  }
  std::vector<std::uint64_t> tracks;
  for (const Track& track : placed.tracks)
    tracks.push_back(out.child(processes.at(track.rank), track.name, false));
  // Ends before begins of the same time, so that neighbours on a track do not nest.
  struct Edge {
    std::int64_t time;
    int order;
    std::size_t span;
  };
  std::vector<Edge> edges;
  for (std::size_t i = 0; i < placed.spans.size(); ++i) {
    const LoggedSpan& span = *placed.spans[i].span;
    const bool empty = span.start == span.end;
    edges.push_back({span.start, 1, i});
    edges.push_back({span.end, empty ? 2 : 0, i});
  }
  std::stable_sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
    return std::tuple(a.time, a.order == 2 ? 1 : a.order) < std::tuple(b.time, b.order == 2 ? 1 : b.order);
  });
  for (const Edge& edge : edges) {
    const auto& [span, track] = placed.spans[edge.span];
    ProtoWriter event = perfetto_event(edge.order == 1 ? field::kBegin : field::kEnd, tracks[track]);
    if (edge.order == 1) {
      event.bytes(field::kCategories, span->category);
      event.bytes(field::kEventName, span->name);
      if (span->step >= 0) PerfettoFile::annotate(event, "step", span->step);
      if (span->microbatch >= 0) PerfettoFile::annotate(event, "microbatch", span->microbatch);
      if (span->stage >= 0) PerfettoFile::annotate(event, "stage", span->stage);
      if (span->flow_out) event.fixed64(field::kFlows, span->flow_out);
      if (span->flow_in) event.fixed64(field::kEndingFlows, span->flow_in);
      ++done.spans;
    }
    out.event(edge.time - origin, event);
  }
  std::map<std::pair<int, std::string>, std::uint64_t> counters;
  for (const LoggedValue& value : log.values) {
    auto& counter = counters[{value.rank, value.name}];
    if (counter == 0) counter = out.child(processes.at(value.rank), value.name, true);
    ProtoWriter event = perfetto_event(field::kCounterType, counter);
    event.number(field::kDoubleCounter, value.value);
    out.event(value.time - origin, event);
    ++done.values;
  }
  out.commit();
  done.files.push_back("trace.perfetto-trace");
}

// ---- TensorBoard
// ----------------------------------------------------------------------------------------------

void write_tensorboard(const EventLog& log, const fs::path& folder, Exported& done) {
  std::map<int, std::unique_ptr<FileWriter>> files;
  int order = 0;
  std::vector<const LoggedValue*> sorted;
  for (const LoggedValue& value : log.values) sorted.push_back(&value);
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) {
    return std::tuple(a->rank, a->step, a->time) < std::tuple(b->rank, b->step, b->time);
  });
  std::map<std::pair<int, std::string>, std::int64_t> counted;
  std::error_code error;
  fs::remove_all(folder / "tensorboard", error);  // its reader adds up all files of a folder
  for (const LoggedValue* value : sorted) {
    std::unique_ptr<FileWriter>& file = files[value->rank];
    const double wall = static_cast<double>(value->time) * 1e-9;
    if (!file) {
      const std::string name =
          "tensorboard/rank" + std::to_string(value->rank) + "/" + tensorboard_file_name(wall, ++order);
      fs::create_directories((folder / name).parent_path());
      file = std::make_unique<FileWriter>(folder / name);
      done.files.push_back(name);
      file->write(tensorboard_header(wall));
    }
    const std::int64_t step = value->step >= 0 ? value->step : counted[{value->rank, value->name}]++;
    file->write(tensorboard_scalar(wall, step, value->name, value->value));
    ++done.values;
  }
  for (const auto& [rank, file] : files) file->commit();
}

// ---- Prometheus
// -----------------------------------------------------------------------------------------------

/// A metric's name: base units spelt out, nothing but letters, digits and _.
std::string prometheus_name(std::string name) {
  if (name.ends_with("_per_s")) {
    name = name.substr(0, name.size() - 2) + "_second";
  } else if (name.ends_with("_s")) {
    name = name.substr(0, name.size() - 2) + "_seconds";
  }
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return "millrace_" + name;
}

void write_prometheus(const EventLog& log, const fs::path& folder, Exported& done) {
  std::map<std::string, std::map<int, double>> last;
  std::map<int, std::int64_t> steps;
  for (const LoggedValue& value : log.values) {
    last[prometheus_name(value.name)][value.rank] = value.value;
    if (value.name == "step_s" || value.name == "step_end") ++steps[value.rank];
  }
  FileWriter out(folder / "metrics.prom");
  const auto number = [](double value) {
    if (std::isnan(value)) return std::string("NaN");
    if (std::isinf(value)) return std::string(value > 0 ? "+Inf" : "-Inf");
    return Json(value).dump();
  };
  for (const auto& [name, ranks] : last) {
    out.write("# HELP " + name + " Last value of the run.\n# TYPE " + name + " gauge\n");
    for (const auto& [rank, value] : ranks) {
      out.write(name + "{rank=\"" + std::to_string(rank) + "\"} " + number(value) + "\n");
      ++done.values;
    }
  }
  if (!steps.empty()) {
    out.write("# HELP millrace_steps_total Steps done.\n# TYPE millrace_steps_total counter\n");
    for (const auto& [rank, count] : steps)
      out.write("millrace_steps_total{rank=\"" + std::to_string(rank) + "\"} " + std::to_string(count) +
                "\n");
  }
  std::map<std::string, std::pair<double, std::int64_t>> kinds;
  for (const LoggedSpan& span : log.spans) {
    auto& [seconds, count] = kinds[span.category];
    seconds += static_cast<double>(span.end - span.start) * 1e-9;
    ++count;
  }
  const auto escaped = [](const std::string& text) {
    std::string result;
    for (const char c : text)
      result += c == '\\' ? "\\\\" : c == '"' ? "\\\"" : c == '\n' ? "\\n" : std::string(1, c);
    return result;
  };
  if (!kinds.empty()) {
    out.write("# HELP millrace_spans_total Spans by kind.\n# TYPE millrace_spans_total counter\n");
    for (const auto& [kind, sum] : kinds)
      out.write("millrace_spans_total{kind=\"" + escaped(kind) + "\"} " + std::to_string(sum.second) + "\n"),
          done.spans += sum.second;
    out.write(
        "# HELP millrace_span_seconds_total Time in spans by kind.\n# TYPE millrace_span_seconds_total "
        "counter\n");
    for (const auto& [kind, sum] : kinds)
      out.write("millrace_span_seconds_total{kind=\"" + escaped(kind) + "\"} " + number(sum.first) + "\n");
  }
  out.commit();
  done.files.push_back("metrics.prom");
}

// ---- CSV
// ------------------------------------------------------------------------------------------------------

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? "\"\"" : std::string(1, c);
  return result + "\"";
}

void write_csv(const EventLog& log, const fs::path& folder, Exported& done) {
  {
    FileWriter out(folder / "spans.csv");
    out.write("rank,lane,name,start_ns,end_ns,step,microbatch,stage\n");
    for (const LoggedSpan& s : log.spans) {
      out.write(std::to_string(s.rank) + "," + csv_field(s.lane) + "," + csv_field(s.name) + "," +
                std::to_string(s.start) + "," + std::to_string(s.end) + "," + std::to_string(s.step) + "," +
                std::to_string(s.microbatch) + "," + std::to_string(s.stage) + "\n");
      ++done.spans;
    }
    out.commit();
  }
  FileWriter out(folder / "values.csv");
  out.write("rank,name,step,time_ns,value\n");
  for (const LoggedValue& v : log.values) {
    out.write(std::to_string(v.rank) + "," + csv_field(v.name) + "," + std::to_string(v.step) + "," +
              std::to_string(v.time) + "," + (std::isfinite(v.value) ? Json(v.value).dump() : "") + "\n");
    ++done.values;
  }
  out.commit();
  done.files.insert(done.files.end(), {"spans.csv", "values.csv"});
}

// ---- MLflow
// ---------------------------------------------------------------------------------------------------

/// Letters, digits and "_-. /" are what MLflow takes in a name.
std::string mlflow_name(std::string name) {
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' ? c : '_';
  return name;
}

/// Writes the store of `mlflow ui --backend-store-uri mlruns`: experiment 0 with one run, whose id is a hash
/// of the run and its folder. Values of ranks other than the first that has them have the rank in their name.
/// Source: mlflow/store/tracking/file_store.py.
void write_mlflow(const EventLog& log, const fs::path& folder, Exported& done) {
  std::error_code ignored;
  fs::remove_all(folder / "mlruns", ignored);
  std::string origin = log.source;
  for (const auto& [key, value] : log.facts)
    if (key == "run") origin += value.dump();
  const std::string id = fingerprint_of(origin) + fingerprint_of(log.kind + origin);
  const std::string name = fs::path(log.source).filename().string(), run = "mlruns/0/" + id + "/";
  std::int64_t first = first_time(log), last = first;
  for (const LoggedValue& value : log.values) last = std::max(last, value.time);
  constexpr std::int64_t kMs = 1'000'000;  // nanoseconds
  const auto write = [&](const std::string& file, const std::string& text) {
    fs::create_directories((folder / file).parent_path());
    FileWriter out(folder / file);
    out.write(text);
    out.commit();
    done.files.push_back(file);
  };
  const std::string begin = std::to_string(first / kMs), end = std::to_string(last / kMs);
  write("mlruns/0/meta.yaml", "artifact_location: mlruns/0\ncreation_time: " + begin +
                                  "\nexperiment_id: '0'\nlast_update_time: " + end +
                                  "\nlifecycle_stage: active\nname: Default\n");
  constexpr int kFinished = 3, kFailed = 4;  // mlflow.entities.RunStatus
  write(run + "meta.yaml",
        "artifact_uri: " + Json(run + "artifacts").dump() + "\nend_time: " + end +
            "\nentry_point_name: ''\nexperiment_id: '0'\nlifecycle_stage: active\nrun_id: " +
            Json(id).dump() + "\nrun_name: " + Json(name).dump() + "\nrun_uuid: " + Json(id).dump() +
            "\nsource_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: " + begin +
            "\nstatus: " + std::to_string(log.succeeded ? kFinished : kFailed) + "\ntags: []\nuser_id: ''\n");
  fs::create_directories(folder / run / "artifacts");
  fs::create_directories(folder / run / "metrics");
  fs::create_directories(folder / run / "params");
  write(run + "tags/mlflow.runName", name);
  for (const auto& [key, value] : log.facts)
    write(run + "params/" + mlflow_name(key), value.is_string() ? value.as_string() : value.dump());
  std::map<std::string, int> first_rank;
  for (const LoggedValue& value : log.values) {
    const auto [found, is_new] = first_rank.try_emplace(value.name, value.rank);
    if (!is_new) found->second = std::min(found->second, value.rank);
  }
  std::map<std::string, std::string> lines;
  std::map<std::string, std::int64_t> counted;
  for (const LoggedValue& value : log.values) {
    std::string metric = mlflow_name(value.name);
    if (value.rank != first_rank.at(value.name)) metric += ".rank" + std::to_string(value.rank);
    const std::int64_t step = value.step >= 0 ? value.step : counted[metric]++;
    const std::string number = std::isnan(value.value)   ? "nan"
                               : std::isinf(value.value) ? (value.value > 0 ? "inf" : "-inf")
                                                         : Json(value.value).dump();
    lines[metric] += std::to_string(value.time / kMs) + " " + number + " " + std::to_string(step) + "\n";
    ++done.values;
  }
  for (const auto& [metric, text] : lines) write(run + "metrics/" + metric, text);
}

/// The writer of each format, in the order of ExportFormat.
constexpr void (*kWriters[])(const EventLog&, const fs::path&, Exported&) = {
    write_mllog, write_chrome, write_perfetto, write_tensorboard, write_prometheus, write_csv, write_mlflow};
static_assert(std::size(kWriters) == names_of(ExportFormat{}).size());

}  // namespace

Result<std::vector<ExportFormat>> parse_export_formats(const std::string& text) {
  std::vector<std::string> names = all_names<ExportFormat>();
  const std::size_t all = names.size();
  names.emplace_back("all");
  const Result<std::vector<std::size_t>> places = choices_from(text, "format", names);
  if (!places) return places.problems();
  std::vector<ExportFormat> formats;
  const auto add = [&](std::size_t place) {
    const auto format = static_cast<ExportFormat>(place);
    if (std::ranges::find(formats, format) == formats.end()) formats.push_back(format);
  };
  for (const std::size_t place : *places) {
    for (std::size_t each = 0; each < all && place == all; ++each) add(each);
    if (place != all) add(place);
  }
  return formats;
}

Exported export_log(const EventLog& log, ExportFormat format, const fs::path& folder) {
  fs::create_directories(folder);
  Exported done{.format = format};
  kWriters[static_cast<std::size_t>(format)](log, folder, done);
  return done;
}

}  // namespace millrace
