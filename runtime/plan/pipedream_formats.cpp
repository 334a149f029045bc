#include "runtime/plan/pipedream_formats.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <unordered_map>

#include "runtime/base/byte_order_mark.h"
#include "runtime/base/files.h"
#include "runtime/base/json.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"

namespace millrace {
namespace {

constexpr std::string_view kSeparator = " -- ";

std::vector<std::string_view> split(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  for (std::size_t start = 0;;) {
    const std::size_t end = text.find(separator, start);
    parts.push_back(text.substr(start, end == std::string_view::npos ? end : end - start));
    if (end == std::string_view::npos) return parts;
    start = end + separator.size();
  }
}

constexpr std::int64_t kMostConfNumber = 1'000'000;  // stages, ranks, depths
constexpr double kMostMilliseconds = 1e12;           // 30 years

bool parse_number(std::string_view text, double& value) {
  const std::optional<double> number = number_of<double>(text);
  value = number.value_or(0);
  return number && std::isfinite(value);
}

/// Reads one line at a time and reports problems with file:line:col.
class GraphReader {
 public:
  explicit GraphReader(std::string name) : name_(std::move(name)) {}

  Result<PipeDreamGraph> read(std::string_view text) {
    for (std::string_view line : split(text, "\n")) {
      ++line_;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.empty()) {
        if (line_ > 1 || text.empty()) continue;  // a trailing newline is harmless
        fail(line, line, "empty line", "the first line is a node");
      } else if (line[0] == '\t') {
        edge(line);
      } else {
        node(line);
      }
      if (problems_.size() >= 20) break;
    }
    if (problems_.empty() && std::ranges::max(bytes_) > static_cast<double>(kMostStoredBytes))
      problems_.push_back({name_, "the bytes of all nodes add up to more than 8 PiB", "sizes are bytes"});
    if (problems_.empty() && graph_.nodes.empty())
      problems_.push_back({name_, "has no nodes", "a profile starts with `node1 -- ...`"});
    if (!problems_.empty()) return problems_;
    return std::move(graph_);
  }

 private:
  void fail(std::string_view line, std::string_view part, std::string what, std::string hint = {}) {
    const std::size_t column =
        part.data() >= line.data() ? static_cast<std::size_t>(part.data() - line.data()) : 0;
    problems_.push_back({name_ + ":" + std::to_string(line_) + ":" + std::to_string(column + 1),
                         std::move(what), std::move(hint)});
  }

  void node(std::string_view line) {
    const auto parts = split(line, kSeparator);
    if (parts.size() != 3 && parts.size() != 4) {
      return fail(
          line, line,
          "a node has " + std::to_string(parts.size()) + " parts separated by ' -- ', expected 3 or 4",
          "id -- description -- fields [-- stage_id=N]");
    }
    PipeDreamNode node{.id = std::string(parts[0]), .description = std::string(parts[1])};
    if (!fields(line, parts[2], node)) return;
    if (parts.size() == 4) {
      double stage = 0;
      if (!parts[3].starts_with("stage_id=") || !parse_number(parts[3].substr(9), stage) ||
          stage != std::floor(stage) || stage < 0 || stage > 1e6) {
        return fail(line, parts[3], "found '" + std::string(parts[3]) + "', expected stage_id=INTEGER");
      }
      node.stage = static_cast<int>(stage);
    }
    if (!index_.emplace(node.id, static_cast<int>(graph_.nodes.size())).second)
      return fail(line, parts[0], "node '" + node.id + "' appears twice");
    graph_.nodes.push_back(std::move(node));
  }

  bool fields(std::string_view line, std::string_view text, PipeDreamNode& node) {
    const auto parts = split(text, ", ");
    static constexpr std::string_view kNames[] = {
        "forward_compute_time=", "backward_compute_time=", "activation_size=", "parameter_size="};
    if (parts.size() != 4)
      return fail(line, text, "a node has " + std::to_string(parts.size()) + " fields, expected 4",
                  "forward_compute_time=, backward_compute_time=, activation_size=, parameter_size="),
             false;
    for (std::size_t i = 0; i < 4; ++i) {
      if (!parts[i].starts_with(kNames[i]))
        return fail(line, parts[i],
                    "found '" + std::string(parts[i]) + "', expected " + std::string(kNames[i]) + "NUMBER"),
               false;
      const std::string_view value = parts[i].substr(kNames[i].size());
      double* target = i == 0 ? &node.forward_ms : i == 1 ? &node.backward_ms : &node.parameter_bytes;
      const bool good = i == 2 ? activation(value, node) : parse_number(value, *target);
      if (!good) return fail(line, value, "'" + std::string(value) + "' is not a number"), false;
      const double number = i == 2 ? node.activation_bytes() : *target;
      const double most = i < 2 ? kMostMilliseconds : static_cast<double>(kMostStoredBytes);
      const bool negative =
          i == 2 ? std::ranges::any_of(node.activation_sizes, [](double s) { return s < 0; }) : number < 0;
      if (negative)
        return fail(line, value, "'" + std::string(value) + "' is negative",
                    "times and sizes are at least 0"),
               false;
      if (number > most)
        return fail(line, value, "'" + std::string(value) + "' is out of range",
                    i < 2 ? "milliseconds, at most 1e12" : "bytes, at most 8 PiB"),
               false;
      if (i >= 2) bytes_[i - 2] += number;
    }
    return true;
  }

  static bool activation(std::string_view text, PipeDreamNode& node) {
    node.activation_text = std::string(text);
    node.activation_is_list = text.size() >= 2 && text.front() == '[' && text.back() == ']';
    if (node.activation_is_list) text = text.substr(1, text.size() - 2);
    for (std::string_view part : split(text, "; ")) {
      if (!parse_number(part, node.activation_sizes.emplace_back())) return false;
    }
    return true;
  }

  void edge(std::string_view line) {
    const auto parts = split(line.substr(1), kSeparator);
    if (parts.size() != 2)
      return fail(line, line, "an edge has " + std::to_string(parts.size()) + " parts, expected 2",
                  "TAB source -- target");
    int ends[2];
    for (int i = 0; i < 2; ++i) {
      const auto found = index_.find(std::string(parts[i]));
      if (found == index_.end())
        return fail(line, parts[i], "edge names the unknown node '" + std::string(parts[i]) + "'",
                    "nodes come before edges");
      ends[i] = found->second;
    }
    graph_.edges.emplace_back(ends[0], ends[1]);
  }

  std::string name_;
  double bytes_[2] = {0, 0};  // activations, parameters of all nodes
  std::size_t line_ = 0;
  PipeDreamGraph graph_;
  std::unordered_map<std::string, int> index_;
  Problems problems_;
};

std::string fixed3(double value) {
  return printed("%.3f", value);
}

}  // namespace

double PipeDreamNode::activation_bytes() const {
  double sum = 0;
  for (double size : activation_sizes) sum += size;
  return sum;
}

Result<PipeDreamGraph> parse_pipedream_graph(std::string_view text, const std::string& name) {
  return GraphReader(name).read(without_mark(text));
}

Result<PipeDreamGraph> read_pipedream_graph(const std::string& path) {
  Result<std::string> text = read_file(path);
  if (!text) return text.problems();
  return parse_pipedream_graph(*text, path);
}

std::string to_text(const PipeDreamGraph& graph) {
  std::string text;
  const auto line = [&](const std::string& content) {
    if (!text.empty()) text += '\n';
    text += content;
  };
  for (const PipeDreamNode& n : graph.nodes) {
    std::string activation = n.activation_text;
    if (activation.empty()) activation = Json(n.activation_bytes()).dump();
    line(n.id + " -- " + n.description + " -- forward_compute_time=" + fixed3(n.forward_ms) +
         ", backward_compute_time=" + fixed3(n.backward_ms) + ", activation_size=" + activation +
         ", parameter_size=" + fixed3(n.parameter_bytes) +
         (n.stage ? " -- stage_id=" + std::to_string(*n.stage) : ""));
  }
  for (const auto& [from, to] : graph.edges) line("\t" + graph.nodes[from].id + " -- " + graph.nodes[to].id);
  return text;
}

Result<PipeDreamConf> parse_pipedream_conf(std::string_view text, const std::string& name) {
  Result<Json> json = parse_json(text, name);
  if (!json) return json.problems();
  Problems problems;
  ObjectReader in(*json, problems);
  PipeDreamConf conf;
  const auto integer = [&](const Json& value) {
    if (value.kind() == Json::Kind::Int && value.as_int() >= 0 && value.as_int() <= kMostConfNumber)
      return static_cast<int>(value.as_int());
    problems.push_back(
        {value.where(), "expected an integer from 0 to " + std::to_string(kMostConfNumber), {}});
    return 0;
  };
  const auto stage_key = [&](const std::string& key, const Json& value) {
    const int stage = number_of<int>(key).value_or(-1);
    if (stage < 0) problems.push_back({value.where(), "'" + key + "' is not a stage number", {}});
    return stage;
  };
  if (const Json* map = in.array("module_to_stage_map")) {
    for (const Json& item : map->items()) conf.module_to_stage_map.push_back(integer(item));
  }
  if (const Json* map = in.object("stage_to_rank_map")) {
    for (const auto& [key, value] : map->members()) {
      auto& ranks = conf.stage_to_rank_map[stage_key(key, value)];
      if (!value.is_array())
        problems.push_back({value.where(), "expected a list of ranks", {}});
      else
        for (const Json& rank : value.items()) ranks.push_back(integer(rank));
    }
  }
  if (const Json* map = in.optional_object("stage_to_depth_map")) {
    for (const auto& [key, value] : map->members())
      conf.stage_to_depth_map[stage_key(key, value)] = integer(value);
  }
  in.finish();
  if (!problems.empty()) return problems;
  std::set<int> ranks;
  std::size_t count = 0;
  for (const auto& [stage, list] : conf.stage_to_rank_map) {
    count += list.size();
    ranks.insert(list.begin(), list.end());
  }
  if (ranks.size() != count ||
      (!ranks.empty() && (*ranks.begin() != 0 || *ranks.rbegin() != static_cast<int>(count) - 1))) {
    problems.push_back({name, "ranks must be 0.." + std::to_string(count - 1) + ", each in one stage", {}});
  }
  for (int stage : conf.module_to_stage_map) {
    if (!conf.stage_to_rank_map.contains(stage)) {
      problems.push_back(
          {name, "a module is in stage " + std::to_string(stage) + ", which has no ranks", {}});
      break;
    }
  }
  if (!conf.module_to_stage_map.empty() && problems.empty() &&
      conf.module_to_stage_map.back() != conf.stage_to_rank_map.rbegin()->first) {
    problems.push_back({name, "the criterion (last module) must be in the last stage", {}});
  }
  if (!problems.empty()) return problems;
  return conf;
}

std::string to_json(const PipeDreamConf& conf) {
  Json modules = Json::array(), ranks = Json::object(), depths = Json::object();
  for (int stage : conf.module_to_stage_map) modules.push_back(stage);
  for (const auto& [stage, list] : conf.stage_to_rank_map) {
    Json& target = ranks[std::to_string(stage)] = Json::array();
    for (int rank : list) target.push_back(rank);
  }
  for (const auto& [stage, depth] : conf.stage_to_depth_map) depths[std::to_string(stage)] = depth;
  Json json = Json::object({{"module_to_stage_map", modules}, {"stage_to_rank_map", ranks}});
  if (!conf.stage_to_depth_map.empty()) json["stage_to_depth_map"] = depths;
  return json.dump(1) + "\n";
}

}  // namespace millrace
