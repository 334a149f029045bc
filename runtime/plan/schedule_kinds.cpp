#include "runtime/plan/schedule_kinds.h"

#include <utility>

#include "runtime/base/json.h"

namespace millrace {

std::string to_string(ScheduleKind kind) {
  return std::string(traits_of(kind).name);
}

std::string names_of(const std::vector<ScheduleKind>& kinds) {
  std::string names;
  for (ScheduleKind kind : kinds) names += (names.empty() ? "" : ", ") + to_string(kind);
  return names;
}

std::vector<ScheduleKind> named_kinds(bool asynchronous) {
  return schedule_kinds(
      [&](const ScheduleTraits& row) { return has_flag(row) && is_asynchronous(row.kind) == asynchronous; });
}

Result<ScheduleKind> parse_schedule_kind(std::string_view text, const std::string& where) {
  // The names of torch.distributed.pipelining and of papers.
  static constexpr std::pair<std::string_view, std::string_view> kTheirs[] = {
      {"1F1B", "1f1b"},          {"GPipe", "gpipe"},         {"Interleaved1F1B", "interleaved"},
      {"ZBVZeroBubble", "zb-v"}, {"DualPipeV", "dualpipev"}, {"dualpipe", "dualpipev"},
      {"afab", "gpipe"},         {"zbh1", "zb-h1"},          {"zb1p", "zb-h1"},
      {"zbv", "zb-v"},           {"zero-bubble", "zb-h1"}};
  for (const auto& [theirs, here] : kTheirs)
    if (theirs == text)
      return Problem{where, "unknown schedule '" + std::string(text) + "'",
                     "here it is '" + std::string(here) + "'"};
  std::vector<std::string> names;
  for (const ScheduleTraits& row : kScheduleKinds) {
    if (row.name == text) return row.kind;
    names.emplace_back(row.name);
  }
  const auto near = nearest_name(text, names);
  return Problem{where, "unknown schedule '" + std::string(text) + "'",
                 near ? "did you mean '" + *near + "'?"
                      : "one of: " + names_of(schedule_kinds([](const auto&) { return true; }))};
}

}  // namespace millrace
