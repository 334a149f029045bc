#include <charconv>
#include <string>

#include "runtime/schedule/op_names.h"

namespace millrace {
namespace {

bool take_integer(std::string_view& text, std::int64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return false;
  text.remove_prefix(end - text.data());
  return true;
}

/// One token: STAGE NAME MICROBATCH [> or < PEER_STAGE @ PEER_RANK].
bool parse_action(std::string_view token, Action& action) {
  std::int64_t stage = 0, microbatch = 0, peer_stage = 0, peer = 0;
  if (!take_integer(token, stage)) return false;
  std::size_t best = kOpNames.size(), length = 0;
  for (std::size_t i = 0; i < kOpNames.size(); ++i) {
    const std::string_view name = kOpNames[i];
    if (token.starts_with(name) && name.size() > length) best = i, length = name.size();
  }
  if (best == kOpNames.size()) return false;
  token.remove_prefix(length);
  if (!take_integer(token, microbatch)) return false;
  action = {.op = static_cast<Op>(best),
            .stage = StageId(static_cast<int>(stage)),
            .microbatch = MicrobatchId(microbatch)};
  if (!is_transfer(action.op)) return token.empty();
  if (token.empty() || (token[0] != '>' && token[0] != '<')) return false;
  token.remove_prefix(1);
  if (!take_integer(token, peer_stage) || token.empty() || token[0] != '@') return false;
  token.remove_prefix(1);
  if (!take_integer(token, peer) || !token.empty()) return false;
  action.peer_stage = StageId(static_cast<int>(peer_stage));
  action.peer = RankId(static_cast<int>(peer));
  return true;
}

}  // namespace

std::string to_string(const Action& a) {
  std::string text = std::to_string(a.stage.value) + name_of(a.op) + std::to_string(a.microbatch.value);
  if (is_transfer(a.op)) {
    const bool sends = is_send(a.op);
    text += (sends ? ">" : "<") + std::to_string(a.peer_stage.value) + "@" + std::to_string(a.peer.value);
  }
  return text;
}

std::string to_string(const Schedule& schedule) {
  std::string text = to_string(schedule.kind) + "\n";
  for (const auto& actions : schedule.ranks) {
    for (std::size_t i = 0; i < actions.size(); ++i) text += (i ? " " : "") + to_string(actions[i]);
    text += '\n';
  }
  return text;
}

Result<Schedule> parse_schedule(std::string_view text, const std::string& name) {
  Schedule schedule;
  int line = 0;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view row = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (row.ends_with('\r')) row.remove_suffix(1);
    if (++line == 1) {
      Result<ScheduleKind> kind = parse_schedule_kind(row, name + ":1:1");
      if (!kind) return kind.problems();
      schedule.kind = *kind;
      continue;
    }
    auto& actions = schedule.ranks.emplace_back();
    for (std::size_t column = 0; column < row.size();) {
      const std::size_t stop = std::min(row.find(' ', column), row.size());
      const std::string_view token = row.substr(column, stop - column);
      if (!parse_action(token, actions.emplace_back())) {
        return Problem{name + ":" + std::to_string(line) + ":" + std::to_string(column + 1),
                       "'" + std::string(token) + "' is not an action",
                       "for example 2F0, 1SEND_F0>2@3, 0UPDATE7"};
      }
      column = stop + 1;
    }
  }
  if (line == 0)
    return Problem{name, "is empty", "the first line names the schedule, each further line is a rank"};
  return schedule;
}

}  // namespace millrace
