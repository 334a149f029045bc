// Ranks whose processes outlive the failure of another rank: what they and their parent say to each other,
// and the parent's list of them between two runs of a job. The parent is the launcher, or the agent of
// another host. LibTorch-free.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "driver/hosts/rank_process.h"
#include "runtime/base/result.h"

namespace millrace {

/// A rank says these bytes over the socket that kOrders names.
inline constexpr char kHasJoined = 'J';  ///< it has met the others: if one is lost, it wants to be kept
inline constexpr char kWaits = 'W';  ///< its run has ended because a peer is lost, and it waits for an order

/// Returns the next word that a rank has said over its socket; empty: there is none now. Closes a socket
/// whose rank is gone.
std::optional<char> next_word(Descriptor& orders);

/// How long a rank waits: longer than the longest delay before a restart.
inline constexpr std::chrono::seconds kOrderPatience{180};

/// The order to run a job again: the words of the command line, and the variables that the environment gets.
struct RankOrder {
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> environment;
};
/// One line, with its end.
std::string text_of(const RankOrder& order);
Result<RankOrder> order_from(const std::string& line);

/// Processes that wait for an order. Those that get none are killed with the object.
class KeptRanks {
 public:
  KeptRanks() = default;
  KeptRanks(const KeptRanks&) = delete;
  KeptRanks& operator=(const KeptRanks&) = delete;
  ~KeptRanks() { end(); }

  void keep(const RankProcess& rank, ChildProcess process);
  /// Orders the process of this rank to run as `rank` says, and gives it up. Nothing: there is none, or it
  /// would not do the same as a new one (another program or environment); it is killed then.
  std::optional<ChildProcess> take(const RankProcess& rank);
  /// Kills all.
  void end();

 private:
  struct Kept {
    RankProcess rank;
    ChildProcess process;
  };
  std::map<int, Kept> kept_;  ///< by rank
};

}  // namespace millrace
