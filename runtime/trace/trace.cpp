#include "runtime/trace/trace.h"

#include <algorithm>

#include "runtime/base/json.h"

namespace millrace {
namespace {

const std::vector<std::string> kKinds{
    "forward", "backward", "backward_input", "backward_weight", "send", "receive", "wait",       "reduce",
    "update",  "data",     "checkpoint",     "evaluation",      "step", "load",    "preprocess", "copy",
    "loss"};

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
  for (const Span& s : spans) {
    list.push_back(Json::object({{"kind", to_string(s.kind)},
                                 {"stage", int{s.stage}},
                                 {"peer", int{s.peer}},
                                 {"microbatch", s.microbatch},
                                 {"step", s.step},
                                 {"start", s.start},
                                 {"end", s.end}}));
  }
  return Json::object({{"format", "millrace-trace-1"}, {"spans", list}}).dump() + "\n";
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
