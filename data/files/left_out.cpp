#include "data/files/left_out.h"

#include <algorithm>
#include <utility>

namespace millrace {
namespace {
constexpr std::size_t kShown = 3;  // names of a note
}

void LeftOut::add(std::string_view reason, std::string name) {
  auto group = std::ranges::find(groups_, reason, &Group::reason);
  if (group == groups_.end()) group = groups_.insert(groups_.end(), Group{.reason = std::string(reason)});
  ++group->count;
  if (group->first.size() < kShown) group->first.push_back(std::move(name));
}

std::int64_t LeftOut::count() const {
  std::int64_t sum = 0;
  for (const Group& group : groups_) sum += group.count;
  return sum;
}

std::vector<std::string> LeftOut::notes() const {
  std::vector<std::string> notes;
  for (const Group& group : groups_) {
    std::string text = "left out: " + std::to_string(group.count) + " " + group.reason;
    for (std::size_t i = 0; i < group.first.size(); ++i) text += (i ? ", " : ": ") + group.first[i];
    const auto others = group.count - static_cast<std::int64_t>(group.first.size());
    notes.push_back(text + (others > 0 ? " and " + std::to_string(others) + " more" : ""));
  }
  return notes;
}

std::string_view reason_to_ignore(std::string_view name) {
  if (name == "__MACOSX" || name.starts_with("._")) return "files and folders that macOS added to an archive";
  return name.starts_with('.') ? "hidden files and folders" : "";
}

}  // namespace millrace
