// The hosts of a job as a user writes them, and the ranks that each of them runs.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace millrace {

/// "alice@node1:22:4": a user (optional), a host's name, alias or IPv4 address, a port of ssh (optional), and
/// the number of ranks (optional). "node1:4" has no port, and "node1:22:" no number. An IPv6 address is in
/// brackets.
struct HostEntry {
  std::string user;  ///< empty: as the ssh configuration says
  std::string name;  ///< without brackets
  int slots = 0;     ///< the most ranks that it takes; 0: an equal share
  int port = 0;      ///< of its ssh; 0: as the ssh configuration says

  /// Returns "alice@node1", as ssh takes it.
  std::string login() const { return user.empty() ? name : user + "@" + name; }
};
/// Returns the entry as a list has it, with so many ranks; 0: without a number.
std::string in_list(const HostEntry& host, int ranks = 0);

/// Reads a list such as "node1:4,node2:4", or the file of "@FILE". A line of the file is HOST, HOST:N or, as
/// in MPI's hostfiles, HOST slots=N; a host that stands on N lines has N ranks. Problem: a name with other
/// characters than letters, digits, dots, dashes and underscores, or with a dash or a dot in front; a host of
/// a list twice; a port or a number of ranks that is none; a file that cannot be read.
Result<std::vector<HostEntry>> parse_hosts(const std::string& list);

/// Returns the number of ranks on each host, at least 1. The first ranks are on the first host. Hosts with
/// slots are filled in order; hosts without share equally. Problem: more ranks than slots, a host that would
/// have none, ranks that cannot be shared equally.
Result<std::vector<int>> ranks_of_hosts(const std::vector<HostEntry>& hosts, int ranks);

/// Removes hosts at the end of an allocation that `ranks` ranks do not need.
void drop_idle_hosts(std::vector<HostEntry>& hosts, int ranks);

/// Divides hosts into groups that have room for `ranks` ranks each, for runs side by side. A host without a
/// number has room for one rank. A host may be in several groups. Problem: there is no room for one run.
Result<std::vector<std::vector<HostEntry>>> groups_of_hosts(const std::vector<HostEntry>& hosts, int ranks);

/// Tells whether the entry is this host: its name, or localhost. No ssh is needed to get there.
bool is_this_host(const HostEntry& host);

}  // namespace millrace
