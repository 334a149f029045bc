#include "driver/hosts/host_list.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <sstream>

#include "runtime/base/byte_order_mark.h"
#include "runtime/base/files.h"
#include "runtime/base/numbers.h"
#include "runtime/base/text.h"
#include "runtime/plan/limits.h"

namespace millrace {
namespace {

constexpr std::size_t kLongestName = 253;
constexpr Bytes kMostFileBytes = kMiB;

bool is_letter_or_digit(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0;
}

bool is_host_name(const std::string& name) {
  in6_addr address{};
  if (::inet_pton(AF_INET6, name.c_str(), &address) == 1) return true;
  const auto is_end = [](char c) {
    return is_letter_or_digit(c) || c == '_';
  };  // aliases of ssh have underscores
  return !name.empty() && name.size() <= kLongestName && is_end(name.front()) && is_end(name.back()) &&
         std::ranges::all_of(name, [&](char c) { return is_end(c) || c == '.' || c == '-'; });
}

bool is_user_name(const std::string& name) {
  const auto is_first = [](char c) { return is_letter_or_digit(c) || c == '_'; };
  return !name.empty() && name.size() <= 64 && is_first(name.front()) &&
         std::ranges::all_of(name, [&](char c) { return is_first(c) || c == '.' || c == '-'; });
}

Result<HostEntry> parse_host(const std::string& text) {
  const std::string where = "host '" + escaped(text) + "'";
  HostEntry host;
  std::string rest = text;
  if (const std::size_t at = rest.find('@'); at != std::string::npos) {
    host.user = rest.substr(0, at);
    rest.erase(0, at + 1);
    if (!is_user_name(host.user))
      return Problem{where, "'" + escaped(host.user) + "' cannot be a user",
                     "use letters, digits, dots, dashes and underscores"};
  }
  std::string slots;
  if (rest.starts_with('[')) {
    const std::size_t close = rest.find(']');
    if (close == std::string::npos) return Problem{where, "has a [ without a ]", "for example [fe80::1]:2"};
    host.name = rest.substr(1, close - 1);
    slots = rest.substr(close + 1);
    if (!slots.empty() && slots.front() != ':')
      return Problem{where, "has '" + escaped(slots) + "' behind the address", "for example [fe80::1]:2"};
  } else if (const std::size_t colon = rest.find(':'); colon != std::string::npos) {
    host.name = rest.substr(0, colon);
    slots = rest.substr(colon);
  } else {
    host.name = rest;
  }
  if (!is_host_name(host.name))
    return Problem{
        where, "'" + escaped(host.name) + "' cannot be a host",
        "use letters, digits, dots, dashes and underscores, as in node-1.cluster; an IPv6 address in "
        "brackets"};
  if (slots.empty()) return host;
  slots.erase(0, 1);
  if (const std::size_t colon = slots.find(':'); colon != std::string::npos) {
    const std::optional<int> port = number_of<int>(slots.substr(0, colon));
    if (!port || *port < 1 || *port > 65535)
      return Problem{where, "'" + escaped(slots.substr(0, colon)) + "' is no port of ssh",
                     "give HOST:PORT:RANKS, or HOST:PORT: without a number of ranks"};
    host.port = *port;
    slots.erase(0, colon + 1);
    if (slots.empty()) return host;
  }
  const std::optional<int> number = number_of<int>(slots);
  if (!number || *number < 1 || *number > kMostJobRanks)
    return Problem{where, "'" + escaped(slots) + "' is no number of ranks",
                   "give HOST:N or HOST:PORT:N with N from 1 to " + std::to_string(kMostJobRanks)};
  host.slots = *number;
  return host;
}

/// Several ports of one name are several hosts: containers, or machines behind a router.
auto is_same_as(const HostEntry& one) {
  return [&one](const HostEntry& other) { return other.name == one.name && other.port == one.port; };
}

/// "node1", "node1:2" or "node1 slots=2 max_slots=4" as a word of a list; empty: a comment.
std::string word_of_line(std::string line) {
  line.erase(std::min(line.find('#'), line.size()));
  std::istringstream words(line);
  std::string host, word;
  words >> host;
  while (words >> word)
    if (word.starts_with("slots=")) host += ":" + word.substr(6);
  return host;
}

Result<std::vector<HostEntry>> read_host_file(const std::string& path) {
  const Result<std::string> text = read_regular_file(path, kMostFileBytes);
  if (!text) return text.problems();
  std::vector<HostEntry> hosts;
  Problems problems;
  bool repeats = false;
  for (const std::string& line : split(without_mark(*text), '\n')) {
    const std::string word = word_of_line(line);
    if (word.empty()) continue;
    Result<HostEntry> host = parse_host(word);
    if (!host) {
      append(problems, host.problems());
      continue;
    }
    const auto before = std::ranges::find_if(hosts, is_same_as(*host));
    if (before == hosts.end()) {
      hosts.push_back(*std::move(host));
    } else {
      repeats = true;
      before->slots = std::max(1, before->slots) + std::max(1, host->slots);
    }
  }
  for (HostEntry& host : hosts)
    if (repeats) host.slots = std::max(1, host.slots);
  for (Problem& problem : problems) problem.where = path + ": " + problem.where;
  if (!problems.empty()) return problems;
  if (hosts.empty()) return Problem{path, "names no host", "write a host a line: node1:2"};
  return hosts;
}

}  // namespace

Result<std::vector<HostEntry>> parse_hosts(const std::string& list) {
  if (list.starts_with('@')) return read_host_file(list.substr(1));
  std::vector<HostEntry> hosts;
  Problems problems;
  for (const std::string& text : split(list, ',')) {
    Result<HostEntry> host = parse_host(text);
    if (!host) {
      append(problems, host.problems());
    } else if (std::ranges::any_of(hosts, is_same_as(*host))) {
      problems.push_back(
          {"host '" + host->name + "'", "is in the list twice", "give it once, as HOST:RANKS"});
    } else {
      hosts.push_back(*std::move(host));
    }
  }
  if (!problems.empty()) return problems;
  return hosts;
}

std::string in_list(const HostEntry& host, int ranks) {
  std::string text = host.user.empty() ? "" : host.user + "@";
  text += host.name.find(':') == std::string::npos ? host.name : "[" + host.name + "]";
  if (host.port > 0) text += ":" + std::to_string(host.port) + ":";
  if (ranks > 0) text += (host.port > 0 ? "" : ":") + std::to_string(ranks);
  return text;
}

Result<std::vector<int>> ranks_of_hosts(const std::vector<HostEntry>& hosts, int ranks) {
  const auto open = std::ranges::count(hosts, 0, &HostEntry::slots);
  const auto count = static_cast<int>(hosts.size());
  const std::string has = "the job has " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
  if (open == count) {
    if (ranks % count == 0) return std::vector<int>(hosts.size(), ranks / count);
    return Problem{"hosts", has + ", which " + std::to_string(count) + " hosts cannot share equally",
                   "say how many ranks each host has: HOST:N"};
  }
  if (open > 0)
    return Problem{"hosts", "some have a number of ranks and others have none",
                   "give HOST:N for all or for none"};
  std::vector<int> counts;
  int left = ranks;
  for (const HostEntry& host : hosts) {
    counts.push_back(std::min(left, host.slots));
    left -= counts.back();
    if (counts.back() == 0)
      return Problem{"hosts", has + ", and the hosts before " + host.name + " take them all",
                     "leave " + host.name + " out, or give fewer ranks to the others"};
  }
  if (left > 0)
    return Problem{"hosts", has + ", the hosts have room for " + std::to_string(ranks - left),
                   "add hosts, or give more ranks to one: HOST:N"};
  return counts;
}

void drop_idle_hosts(std::vector<HostEntry>& hosts, int ranks) {
  std::size_t needed = 0;
  for (int room = 0; needed < hosts.size() && room < ranks; ++needed)
    room += std::max(1, hosts[needed].slots);
  hosts.resize(needed);
}

Result<std::vector<std::vector<HostEntry>>> groups_of_hosts(const std::vector<HostEntry>& hosts, int ranks) {
  std::vector<const HostEntry*> places;
  for (const HostEntry& host : hosts)
    places.insert(places.end(), static_cast<std::size_t>(std::max(1, host.slots)), &host);
  std::vector<std::vector<HostEntry>> groups(places.size() / static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < groups.size() * static_cast<std::size_t>(ranks); ++i) {
    std::vector<HostEntry>& group = groups[i / static_cast<std::size_t>(ranks)];
    if (group.empty() || !is_same_as(group.back())(*places[i])) {
      group.push_back(*places[i]);
      group.back().slots = 0;
    }
    ++group.back().slots;
  }
  if (groups.empty())
    return Problem{"hosts",
                   "a run has " + std::to_string(ranks) + " ranks, the hosts have room for " +
                       std::to_string(places.size()),
                   "add hosts, or give more ranks to one: HOST:N"};
  return groups;
}

bool is_this_host(const HostEntry& host) {
  if (!host.user.empty() || host.port > 0) return false;
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) name[0] = '\0';
  return host.name == "localhost" || host.name == "127.0.0.1" || host.name == "::1" || host.name == name;
}

}  // namespace millrace
