#include "runtime/trace/trace.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

const std::vector<std::string> kKinds{
    "forward", "backward", "backward_input", "backward_weight", "send", "receive", "wait",       "reduce",
    "update",  "data",     "checkpoint",     "evaluation",      "step", "load",    "preprocess", "copy",
    "loss"};

Json json_of(const Span& span) {
  return Json::object({{"kind", to_string(span.kind)},
                       {"stage", int{span.stage}},
                       {"peer", int{span.peer}},
                       {"microbatch", span.microbatch},
                       {"step", span.step},
                       {"start", span.start},
                       {"end", span.end}});
}

std::string file_json(Json spans) {
  return Json::object({{"format", "millrace-trace-1"}, {"spans", std::move(spans)}}).dump();
}

}  // namespace

const char* to_string(SpanKind kind) {
  return kKinds[static_cast<std::size_t>(kind)].c_str();
}

bool is_computation(SpanKind kind) {
  return kind == SpanKind::Forward || kind == SpanKind::Backward || kind == SpanKind::BackwardInput ||
         kind == SpanKind::BackwardWeight;
}

bool is_communication(SpanKind kind) {
  return kind == SpanKind::Send || kind == SpanKind::Recv || kind == SpanKind::Wait ||
         kind == SpanKind::Reduce;
}

SpanRing::SpanRing(std::size_t capacity) : ring_(capacity) {}

void SpanRing::record(const Span& span) {
  ring_[next_++ % ring_.size()] = span;
}

std::vector<Span> SpanRing::spans() const {
  std::vector<Span> result;
  const std::uint64_t count = std::min<std::uint64_t>(next_, ring_.size());
  result.reserve(count);
  for (std::uint64_t i = next_ - count; i < next_; ++i) result.push_back(ring_[i % ring_.size()]);
  return result;
}

std::vector<Span> SpanRing::spans_from(std::int64_t step) const {
  const std::uint64_t oldest = next_ - std::min<std::uint64_t>(next_, ring_.size());
  std::uint64_t first = next_;
  while (first > oldest && ring_[(first - 1) % ring_.size()].step >= step) --first;
  std::vector<Span> result;
  result.reserve(next_ - first);
  for (std::uint64_t i = first; i < next_; ++i) result.push_back(ring_[i % ring_.size()]);
  return result;
}

std::string to_chrome_trace(const std::vector<std::vector<Span>>& spans_by_rank) {
  std::int64_t origin = INT64_MAX;
  for (const auto& spans : spans_by_rank) {
    for (const Span& span : spans) origin = std::min(origin, span.start);
  }
  Json events = Json::array();
  for (int rank = 0; rank < static_cast<int>(spans_by_rank.size()); ++rank) {
    events.push_back(Json::object({{"name", "process_name"},
                                   {"ph", "M"},
                                   {"pid", rank},
                                   {"args", Json::object({{"name", "rank " + std::to_string(rank)}})}}));
    for (int lane : {0, 1}) {
      events.push_back(
          Json::object({{"name", "thread_name"},
                        {"ph", "M"},
                        {"pid", rank},
                        {"tid", lane},
                        {"args", Json::object({{"name", lane ? "communication" : "compute"}})}}));
    }
    for (const Span& span : spans_by_rank[rank]) {
      events.push_back(
          Json::object({{"name", std::string(to_string(span.kind)) + " " + std::to_string(span.microbatch)},
                        {"cat", to_string(span.kind)},
                        {"ph", "X"},
                        {"ts", double(span.start - origin) * 1e-3},
                        {"dur", double(span.end - span.start) * 1e-3},
                        {"pid", rank},
                        {"tid", int{is_communication(span.kind)}},
                        {"args", Json::object({{"step", span.step},
                                               {"stage", int{span.stage}},
                                               {"microbatch", span.microbatch},
                                               {"peer", int{span.peer}}})}}));
    }
  }
  return Json::object({{"displayTimeUnit", "ms"}, {"traceEvents", events}}).dump() + "\n";
}

std::string spans_to_json(const std::vector<Span>& spans) {
  Json list = Json::array();
  for (const Span& span : spans) list.push_back(json_of(span));
  return file_json(std::move(list)) + "\n";
}

SpanFile::SpanFile(const std::filesystem::path& path) : path_(path), part_(path), file_(part_ += ".part") {
  const std::string empty = file_json(Json::array());
  if (const Status begun = file_.write(empty.substr(0, empty.find("[]") + 1)); !begun)
    throw ConfigError(to_string(begun.problems()));
}

Status SpanFile::add(const std::vector<Span>& spans) {
  std::string text;
  for (const Span& span : spans) text += (text.empty() && !any_ ? "" : ",") + json_of(span).dump();
  if (const Status written = file_.write(text); !written) return written;
  any_ |= !spans.empty();
  return Ok{};
}

Status SpanFile::finish() {
  if (const Status ended = file_.write("]}\n"); !ended) return ended;
  std::error_code error;
  std::filesystem::rename(part_, path_, error);
  if (error) return Problem{part_.string(), "cannot be renamed: " + error.message(), ""};
  return Ok{};
}

Result<std::vector<Span>> spans_from_json(std::string_view text, const std::string& name) {
  Result<Json> json = parse_json(text, name);
  if (!json) return json.problems();
  Problems problems;
  ObjectReader in(*json, problems);
  if (in.string("format") != "millrace-trace-1") in.problem("format", "is not a millrace trace");
  std::vector<Span> spans;
  if (const Json* list = in.array("spans")) {
    for (const Json& item : list->items()) {
      ObjectReader s(item, problems);
      const auto kind = std::ranges::find(kKinds, s.string("kind"));
      if (kind == kKinds.end()) s.problem("kind", "is not a kind of span");
      spans.push_back({.kind = static_cast<SpanKind>(kind - kKinds.begin()),
                       .stage = static_cast<std::int16_t>(s.whole("stage", -1, INT16_MAX)),
                       .peer = s.whole("peer", -1, 1 << 20),
                       .microbatch = s.integer("microbatch"),
                       .step = s.integer("step"),
                       .start = s.integer("start"),
                       .end = s.integer("end")});
      s.finish();
    }
  }
  in.finish();
  if (!problems.empty()) return problems;
  return spans;
}

}  // namespace millrace
