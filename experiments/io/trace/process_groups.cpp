#include "experiments/io/trace/process_groups.h"

#include <algorithm>

#include "experiments/io/trace/lines.h"

namespace millrace {
namespace {

constexpr std::size_t kMostPatterns = 64;

/// The file-name pattern from which most bytes were read.
std::uint64_t main_pattern(const ReadActivities& reads) {
  std::map<std::uint64_t, std::uint64_t> bytes;
  for (const auto& [pid, activity] : reads) {
    for (const auto& [pattern, size] : activity.by_pattern) bytes[pattern] += size;
  }
  const auto most = std::max_element(bytes.begin(), bytes.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? 0 : most->first;
}

std::uint32_t distance_to_nearest(std::uint32_t pid, const std::vector<std::uint32_t>& parents) {
  std::uint32_t least = UINT32_MAX;
  for (std::uint32_t parent : parents) least = std::min(least, pid > parent ? pid - parent : parent - pid);
  return least;
}

class Classifier {
 public:
  Classifier(const ProcessEvidence& evidence, TracedWorkload workload)
      : evidence_(evidence), workload_(workload) {
    const auto any = [](const auto& entry) { return entry.second.dataset_files; };
    known_names_ = std::any_of(evidence.reads.begin(), evidence.reads.end(), any);
    pattern_ = main_pattern(evidence.reads);
  }

  ProcessGroups run() {
    for (const auto& [pid, activity] : evidence_.reads) place(pid, activity);
    for (std::uint32_t pid : evidence_.on_gpu) {
      if (evidence_.reads.count(pid) == 0) groups_.gpu_without_reads.push_back(pid);
    }
    even_out();
    return std::move(groups_);
  }

 private:
  void place(std::uint32_t pid, const ReadActivity& activity) {
    if (evidence_.excluded.count(pid) != 0) return foreign(pid, "excluded by the command line");
    const bool on_gpu = evidence_.on_gpu.count(pid) != 0;
    const bool dlio = workload_ == TracedWorkload::Dlio;
    if (workload_ == TracedWorkload::Any && activity.loader) {
      groups_.loaders.push_back(pid);
      // Whatever ran without a GPU: each other process that reads works by itself.
    } else if (workload_ == TracedWorkload::Any && evidence_.on_gpu.empty()) {
      groups_.parents.push_back(pid);
    } else if (on_gpu && !dlio) {
      if (const char* why = why_no_parent(pid)) return foreign(pid, why);
      groups_.parents.push_back(pid);
    } else if (!reads_data(activity) && evidence_.container.count(pid) == 0 &&
               !(dlio && (on_gpu || is_near_a_reader(pid)))) {
      foreign(pid, "reads no file of the data set, and is on no GPU");
    } else if (dlio) {
      groups_.parents.push_back(pid);
    } else if (workload_ == TracedWorkload::Bert) {
      foreign(pid, "is on no GPU: BERT's workers read for themselves");
    } else {
      groups_.loaders.push_back(pid);
    }
  }

  const char* why_no_parent(std::uint32_t pid) const {
    const auto is_on_gpu = [&](std::uint32_t other) { return evidence_.on_gpu.count(other) != 0; };
    const bool container_known =
        std::any_of(evidence_.container.begin(), evidence_.container.end(), is_on_gpu);
    if (container_known && evidence_.container.count(pid) == 0)
      return "is on a GPU, but not of the container";
    const bool others_came_later =
        std::any_of(evidence_.on_gpu.begin(), evidence_.on_gpu.end(), [&](std::uint32_t other) {
          return evidence_.gpu_before_init.count(other) == 0 && evidence_.reads.count(other) != 0;
        });
    if (others_came_later && evidence_.gpu_before_init.count(pid) != 0)
      return "was on a GPU before the run began, unlike others";
    return nullptr;
  }

  bool reads_data(const ReadActivity& activity) const {
    return known_names_ ? activity.dataset_files : activity.by_pattern.count(pattern_) != 0;
  }

  /// DLIO's ranks are on no GPU, and with loaders of their own read no data: started with them, they have
  /// PIDs close to theirs.
  bool is_near_a_reader(std::uint32_t pid) const {
    constexpr std::uint32_t kNear = 1000;
    return std::any_of(evidence_.reads.begin(), evidence_.reads.end(), [&](const auto& other) {
      const std::uint32_t distance = pid > other.first ? pid - other.first : other.first - pid;
      return distance <= kNear && reads_data(other.second);
    });
  }

  void even_out() {
    // The process that started the loaders may read nothing itself.
    if (workload_ == TracedWorkload::Any && groups_.parents.empty()) groups_.parents.swap(groups_.loaders);
    if (groups_.parents.empty() || groups_.loaders.empty()) return;
    const std::size_t over = groups_.loaders.size() % groups_.parents.size();
    std::vector<std::uint32_t> furthest = groups_.loaders;
    std::erase_if(furthest, [&](std::uint32_t pid) { return evidence_.reads.at(pid).loader; });
    if (over == 0 || furthest.size() < over) return;
    std::stable_sort(furthest.begin(), furthest.end(), [&](std::uint32_t a, std::uint32_t b) {
      const bool known_a = evidence_.container.count(a) != 0, known_b = evidence_.container.count(b) != 0;
      if (known_a != known_b) return known_b;
      return distance_to_nearest(a, groups_.parents) > distance_to_nearest(b, groups_.parents);
    });
    furthest.resize(over);
    for (std::uint32_t pid : furthest) {
      std::erase(groups_.loaders, pid);
      foreign(pid, "is one loader too many for the number of workers, and its PID the furthest from theirs");
    }
  }

  void foreign(std::uint32_t pid, std::string why) { groups_.foreign.emplace_back(pid, std::move(why)); }

  const ProcessEvidence& evidence_;
  TracedWorkload workload_;
  bool known_names_ = false;
  std::uint64_t pattern_ = 0;
  ProcessGroups groups_;
};

}  // namespace

void add(ReadActivities& to, const ReadActivities& more) {
  for (const auto& [pid, activity] : more) {
    ReadActivity& total = to[pid];
    total.rows += activity.rows;
    total.dataset_files |= activity.dataset_files;
    total.loader |= activity.loader;
    for (const auto& [pattern, bytes] : activity.by_pattern) {
      if (total.by_pattern.size() < kMostPatterns || total.by_pattern.count(pattern) != 0)
        total.by_pattern[pattern] += bytes;
    }
  }
}

std::set<std::uint32_t> read_container_pids(std::string_view text) {
  std::set<std::uint32_t> pids;
  std::size_t column = 1;  // UID PID SPID PPID ...
  bool whole = true;
  while (!text.empty()) {
    const std::vector<std::string_view> words = words_of(next_line(text, whole));
    const auto header = std::find(words.begin(), words.end(), "PID");
    if (header != words.end()) {
      column = static_cast<std::size_t>(header - words.begin());
    } else if (words.size() > column) {
      if (const std::optional<std::uint32_t> pid = number_of<std::uint32_t>(words[column])) pids.insert(*pid);
    }
  }
  return pids;
}

ProcessGroups classify(const ProcessEvidence& evidence, TracedWorkload workload) {
  return Classifier(evidence, workload).run();
}

}  // namespace millrace
