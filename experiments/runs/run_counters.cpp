#include "experiments/runs/run_counters.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string_view>

#include "runtime/base/json.h"
#include "runtime/base/run_files.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostSamples = 2000;  // more than a screen shows
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

std::int64_t integer(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value && value->kind() == Json::Kind::Int ? value->as_int() : 0;
}

bool flag(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value && value->kind() == Json::Kind::Bool && value->as_bool();
}

std::string text(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value && value->is_string() ? value->as_string() : "";
}

class File {
 public:
  File(const fs::path& path, std::vector<ProcessCounters>& all) : path_(path), all_(all) {}

  void read() {
    std::int64_t lines = 0;
    each_line([&](const std::string&) { ++lines; });
    every_ = std::max<std::int64_t>(1, (lines + kMostSamples - 1) / kMostSamples);
    each_line([&](const std::string& line) { take(line); });
    take_last();
  }

 private:
  template <class Use>
  void each_line(Use use) const {
    std::ifstream in(path_);
    for (std::string line; std::getline(in, line);)
      if (!line.empty()) use(line);
  }

  void take(const std::string& line) {
    if (line.starts_with("{\"clock_ns\"")) {
      if (!process_) return;
      ++process_->samples;
      if ((process_->samples - 1) % every_ == 0) {
        last_.clear();
        take_sample(line);
      } else {
        last_ = line;
      }
      return;
    }
    take_last();
    const Result<Json> json = parse_json(line, path_.string());
    if (!json || !json->is_object()) {
      if (process_) ++process_->damaged;
    } else if (json->find("format")) {
      all_.push_back({.host = text(*json, "host"),
                      .rank = static_cast<int>(integer(*json, "rank")),
                      .ranks = static_cast<int>(integer(*json, "ranks")),
                      .of_host = flag(*json, "of_host")});
      process_ = &all_.back();
      to_unix_ns_ =
          integer(*json, "unix_ns") - integer(*json, "clock_ns") + integer(*json, "clock_offset_ns");
    } else if (process_ && json->find("cache")) {
      process_->cache.push_back({.when = text(*json, "cache"),
                                 .files = integer(*json, "files"),
                                 .bytes = integer(*json, "bytes"),
                                 .resident_bytes = integer(*json, "resident_bytes"),
                                 .unreadable_files = integer(*json, "unreadable_files"),
                                 .is_whole = flag(*json, "whole")});
    } else if (process_ && json->find("end")) {
      take_end(*json);
    }
  }

  /// The last sample says what a counter came to: it is read in any case.
  void take_last() {
    if (!last_.empty() && process_) take_sample(last_);
    last_.clear();
  }

  void take_end(const Json& end) {
    process_->is_ended = true;
    process_->skipped = integer(end, "skipped");
    if (const Json* own = end.find("own_cpu_s"); own && own->is_number())
      process_->own_cpu_s = own->as_double();
    const Json* missing = end.find("missing");
    if (!missing || !missing->is_object()) return;
    process_->missing.clear();  // the end knows all samples
    for (const auto& [what, of] : missing->members())
      if (of.is_object()) process_->missing[what] = {integer(of, "samples"), text(of, "because")};
  }

  void take_sample(const std::string& line) {
    const Result<Json> json = parse_json(line, path_.string());
    if (!json || !json->is_object()) {
      ++process_->damaged;
      return;
    }
    process_->unix_ns.push_back(integer(*json, "clock_ns") + to_unix_ns_);
    for (const auto& [name, value] : json->members())
      if (name != "clock_ns" && name != "missing") take_value(name, value);
    if (const Json* missing = json->find("missing"); missing && missing->is_array())
      for (const Json& what : missing->items())
        if (what.is_string()) process_->missing[what.as_string()].first += every_;
    for (auto& [name, column] : process_->values) column.resize(process_->unix_ns.size(), kNone);
  }

  void take_value(const std::string& name, const Json& value) {
    if (value.is_number()) {
      std::vector<double>& column = process_->values[name];
      column.resize(process_->unix_ns.size(), kNone);
      column.back() = value.as_double();
    } else if (value.is_object()) {
      for (const auto& [part, of_part] : value.members()) take_value(name + "." + part, of_part);
    } else if (value.is_array()) {
      for (std::size_t i = 0; i < value.size(); ++i)
        take_value(name + "." + std::to_string(i), value.items()[i]);
    }
  }

  fs::path path_;
  std::vector<ProcessCounters>& all_;
  ProcessCounters* process_ = nullptr;
  std::int64_t every_ = 1, to_unix_ns_ = 0;
  std::string last_;  // a sample that was passed over
};

}  // namespace

const std::vector<double>* ProcessCounters::find(const std::string& name) const {
  const auto found = values.find(name);
  return found == values.end() ? nullptr : &found->second;
}

std::vector<std::string> ProcessCounters::between(const std::string& begin, const std::string& end) const {
  std::vector<std::string> names;
  for (auto it = values.lower_bound(begin); it != values.end() && it->first.starts_with(begin); ++it)
    if (it->first.size() > begin.size() + end.size() && it->first.ends_with(end))
      names.push_back(it->first.substr(begin.size(), it->first.size() - begin.size() - end.size()));
  return names;
}

double ProcessCounters::growth(const std::string& name, std::int64_t from_ns, std::int64_t to_ns) const {
  const std::vector<double>* column = find(name);
  if (!column) return kNone;
  std::vector<std::pair<std::int64_t, double>> known;
  for (std::size_t i = 0; i < column->size(); ++i)
    if (!std::isnan((*column)[i])) known.emplace_back(unix_ns[i], (*column)[i]);
  if (known.empty()) return kNone;
  const auto at = [&](std::int64_t ns) {
    const auto next = std::ranges::lower_bound(known, ns, {}, [](const auto& one) { return one.first; });
    if (next == known.begin()) return known.front().second;
    if (next == known.end()) return known.back().second;
    const auto before = std::prev(next);
    const double share =
        static_cast<double>(ns - before->first) / static_cast<double>(next->first - before->first);
    return before->second + share * (next->second - before->second);
  };
  return at(to_ns) - at(from_ns);
}

std::vector<ProcessCounters> read_counters(const std::string& folder) {
  std::vector<ProcessCounters> all;
  std::map<int, fs::path> files;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (const auto rank = run_files::kCounters.rank_of(entry.path().filename().string()))
      files[*rank] = entry.path();
  for (const auto& [rank, path] : files) File(path, all).read();
  return all;
}

}  // namespace millrace
