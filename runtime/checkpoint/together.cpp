#include "runtime/checkpoint/together.h"

#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "runtime/base/error.h"
#include "runtime/base/failure_text.h"
#include "runtime/base/log.h"

namespace millrace {
namespace {

// The polling interval of idle ranks. It is far below any deadline of messages, and far above the time of a
// poll.
constexpr std::chrono::milliseconds kRound{100};

/// Runs this rank's work in a separate thread; the calling thread communicates with the others.
class Work {
 public:
  explicit Work(const std::function<void()>& work)
      : thread_([this, &work] {
          at::NoGradGuard no_grad;
          std::string problem = problem_of(work);
          std::lock_guard lock(mutex_);
          problem_ = std::move(problem);
          done_ = true;
          changed_.notify_all();
        }) {}

  /// Runs `work` and returns the text of its error; empty if it succeeded.
  static std::string problem_of(const std::function<void()>& work) {
    try {
      work();
      return {};
    } catch (const Error& error) {
      return error.what() + (error.hint().empty() ? "" : ". Hint: " + error.hint());
    } catch (...) {
      return text_of_failure();
    }
  }

  bool wait_for(std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [&] { return done_; });
  }
  std::string problem() {
    std::lock_guard lock(mutex_);
    return problem_;
  }

 private:
  std::mutex mutex_;  // guards the next three members
  std::condition_variable changed_;
  bool done_ = false;
  std::string problem_;
  std::jthread thread_;  // the last member, so that it ends first
};

/// Returns the ranks on which `mine` is true, ascending. Collective.
std::vector<int> ranks_where(Communicator& world, bool mine, const std::string& what) {
  const at::Tensor flags = at::zeros({world.size()}, at::kByte);
  flags.mutable_data_ptr<std::uint8_t>()[world.rank().value] = mine;
  world.all_reduce(flags, what)->wait();
  std::vector<int> ranks;
  for (int r = 0; r < world.size(); ++r)
    if (flags.const_data_ptr<std::uint8_t>()[r] != 0) ranks.push_back(r);
  return ranks;
}

}  // namespace

std::string to_string(const RankProblem& problem) {
  return "rank " + std::to_string(problem.rank.value) + ": " + problem.what;
}

std::optional<RankProblem> run_together(Communicator& world, std::chrono::milliseconds deadline,
                                        const std::string& what, const std::function<void()>& work) {
  if (world.size() == 1) {
    const std::string problem = Work::problem_of(work);
    return problem.empty() ? std::nullopt : std::optional(RankProblem{world.rank(), problem});
  }
  enum State { Working, Late, Done, Failed, kStates };
  const auto start = std::chrono::steady_clock::now();
  Work mine(work);
  const at::Tensor counts = at::zeros({kStates}, at::kDouble);  // number of ranks in each state
  double* count = counts.mutable_data_ptr<double>();
  State state = Working;
  do {
    if (mine.wait_for(kRound)) {
      state = mine.problem().empty() ? Done : Failed;
    } else if (std::chrono::steady_clock::now() - start > deadline) {
      state = Late;
    }
    counts.zero_();
    count[state] = 1;
    world.all_reduce(counts, what)->wait();
    if (count[Late] > 0) {
      std::string ranks;
      for (const int r : ranks_where(world, state == Late, what))
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
      const std::string text =
          what + " takes rank(s) " + ranks + " longer than " + std::to_string(deadline.count()) + " ms";
      if (state == Late) log_error(text);  // logged before this thread waits for the working one
      throw CheckpointError(text, "raise --checkpoint-timeout if the disk is slow, not stuck");
    }
  } while (count[Working] > 0);
  if (count[Failed] == 0) return std::nullopt;
  const RankId first(ranks_where(world, state == Failed, what).front());
  return RankProblem{first, broadcast_text(world, mine.problem(), first)};
}

std::string broadcast_text(Communicator& world, const std::string& text, RankId root) {
  if (world.size() == 1) return text;
  at::Tensor size = at::full({1}, static_cast<double>(text.size()), at::kDouble);
  world.broadcast(size, root);
  const auto bytes = static_cast<std::int64_t>(*size.const_data_ptr<double>());
  if (bytes == 0) return {};
  at::Tensor content = at::zeros({bytes}, at::kByte);
  if (world.rank() == root) std::memcpy(content.mutable_data_ptr(), text.data(), text.size());
  world.broadcast(content, root);
  return {static_cast<const char*>(content.const_data_ptr()), static_cast<std::size_t>(bytes)};
}

}  // namespace millrace
