#include "runtime/plan/schedule_kinds.h"

#include <algorithm>
#include <cctype>
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
  // The names in torch.distributed.pipelining and in papers, in any case.
  static constexpr std::pair<std::string_view, ScheduleKind> kTheirs[] = {
      {"interleaved1f1b", ScheduleKind::Interleaved}, {"zbvzerobubble", ScheduleKind::ZeroBubbleV},
      {"dualpipe", ScheduleKind::DualPipeV},          {"afab", ScheduleKind::GPipe},
      {"zbh1", ScheduleKind::ZeroBubbleH1},           {"zbh2", ScheduleKind::ZeroBubbleH2},
      {"zb1p", ScheduleKind::ZeroBubbleH1},           {"zbv", ScheduleKind::ZeroBubbleV},
      {"zero-bubble", ScheduleKind::ZeroBubbleH1}};
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower.starts_with("schedule")) lower.erase(0, 8);  // PyTorch's classes: ScheduleGPipe
  for (const auto& [theirs, kind] : kTheirs)
    if (theirs == lower)
      return Problem{where, "unknown schedule '" + std::string(text) + "'",
                     "here it is '" + to_string(kind) + "'"};
  std::vector<std::string> names;
  for (const ScheduleTraits& row : kScheduleKinds) {
    if (row.name == text) return row.kind;
    if (row.name == lower)
      return Problem{where, "unknown schedule '" + std::string(text) + "'", "here it is '" + lower + "'"};
    names.emplace_back(row.name);
  }
  if (text.find(',') != std::string_view::npos)
    return Problem{where, "'" + std::string(text) + "' is a list, expected one schedule",
                   "give one; `millrace simulate --sweep` compares several"};
  const auto near = nearest_name(text, names);
  return Problem{where, "unknown schedule '" + std::string(text) + "'",
                 near ? "did you mean '" + *near + "'?"
                      : "one of: " + names_of(schedule_kinds([](const auto&) { return true; }))};
}

}  // namespace millrace
