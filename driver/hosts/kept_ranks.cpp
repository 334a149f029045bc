#include "driver/hosts/kept_ranks.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "runtime/base/files.h"
#include "runtime/base/json.h"

namespace millrace {
namespace {

constexpr timeval kSendPatience{.tv_sec = 2, .tv_usec = 0};

/// Each run has values of its own for these: where and when its ranks meet, and as which run.
constexpr const char* kOfRun[] = {"MILLRACE_STORE", "MILLRACE_RUN", "MILLRACE_TOKEN",
                                  "MASTER_ADDR",    "MASTER_PORT",  kSpent};

std::vector<std::pair<std::string, std::string>> lasting(const RankProcess& rank) {
  auto variables = rank.environment;
  std::erase_if(variables,
                [](const auto& one) { return std::ranges::find(kOfRun, one.first) != std::end(kOfRun); });
  return variables;
}

/// Whether the process runs what it was started with, and not what a script has made of that.
bool runs_as_started(const ChildProcess& process) {
  std::string words;
  for (const std::string& word : process.argv) words += word + '\0';
  const Result<std::string> now = read_file("/proc/" + std::to_string(process.pid) + "/cmdline");
  return now && *now == words;
}

bool send_all(int socket, const std::string& text) {
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &kSendPatience, sizeof kSendPatience);
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t n = ::send(socket, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    sent += static_cast<std::size_t>(n);
  }
  return true;
}

void kill_now(const ChildProcess& process) {
  ::kill(-process.pid, SIGKILL);
  ::waitpid(process.pid, nullptr, 0);
}

}  // namespace

std::optional<char> next_word(Descriptor& orders) {
  while (orders.is_open()) {
    char said = 0;
    const ssize_t n = ::recv(orders.get(), &said, 1, MSG_DONTWAIT);
    if (n > 0) return said;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    orders.close();
  }
  return std::nullopt;
}

std::string text_of(const RankOrder& order) {
  Json argv = Json::array(), environment = Json::array();
  for (const std::string& word : order.argv) argv.push_back(word);
  for (const auto& [name, value] : order.environment) {
    environment.push_back(name);
    environment.push_back(value);
  }
  return Json::object({{"argv", argv}, {"environment", environment}}).dump() + "\n";
}

Result<RankOrder> order_from(const std::string& line) {
  const Result<Json> json = parse_json(line, "the launcher's order");
  if (!json) return json.problems();
  const auto words = [&](const char* name) -> std::optional<std::vector<std::string>> {
    const Json* list = json->find(name);
    if (!list || !list->is_array() || !std::ranges::all_of(list->items(), &Json::is_string))
      return std::nullopt;
    std::vector<std::string> texts;
    for (const Json& word : list->items()) texts.push_back(word.as_string());
    return texts;
  };
  const auto argv = words("argv"), environment = words("environment");
  if (!argv || !environment || environment->size() % 2 != 0)
    return Problem{"the launcher's order", "is not of this version", {}};
  RankOrder order{.argv = *argv, .environment = {}};
  for (std::size_t i = 0; i < environment->size(); i += 2)
    order.environment.emplace_back((*environment)[i], (*environment)[i + 1]);
  return order;
}

void KeptRanks::keep(const RankProcess& rank, ChildProcess process) {
  kept_[rank.rank] = {.rank = rank, .process = std::move(process)};
}

std::optional<ChildProcess> KeptRanks::take(const RankProcess& rank) {
  const auto found = kept_.find(rank.rank);
  if (found == kept_.end()) return std::nullopt;
  Kept kept = std::move(found->second);
  kept_.erase(found);
  const bool is_same = kept.rank.argv.at(0) == rank.argv.at(0) && lasting(kept.rank) == lasting(rank) &&
                       runs_as_started(kept.process);
  if (is_same &&
      send_all(kept.process.orders.get(), text_of({.argv = rank.argv, .environment = rank.environment})))
    return std::move(kept.process);
  kill_now(kept.process);
  return std::nullopt;
}

void KeptRanks::end() {
  for (const auto& [rank, kept] : kept_) kill_now(kept.process);
  kept_.clear();
}

}  // namespace millrace
