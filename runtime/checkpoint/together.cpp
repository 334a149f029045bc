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

// The time between two questions of ranks that have nothing to do. It is far below any deadline of messages,
// and far above the time that asking takes.
constexpr std::chrono::milliseconds kRound{100};

/// Runs this rank's work in a thread, beside the thread that talks to the others.
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

  /// Runs `work` and returns the text of its failure; empty: it succeeded.
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
  std::mutex mutex_;  // guards the next three
  std::condition_variable changed_;
  bool done_ = false;
  std::string problem_;
  std::jthread thread_;  // the last member, so that it ends first
};

std::string ranks_where(const at::Tensor& flags, double value) {
  std::string text;
  for (std::int64_t r = 0; r < flags.numel(); ++r) {
    if (flags.const_data_ptr<double>()[r] == value) text += (text.empty() ? "" : ", ") + std::to_string(r);
  }
  return text;
}

}  // namespace

std::string to_string(const RankProblem& problem) {
  return "rank " + std::to_string(problem.rank.value) + ": " + problem.what;
}

std::optional<RankProblem> run_together(Communicator& world, std::chrono::milliseconds deadline,
                                        const std::string& what, const std::function<void()>& work) {
  const int me = world.rank().value;
  if (world.size() == 1) {
    const std::string problem = Work::problem_of(work);
    return problem.empty() ? std::nullopt : std::optional(RankProblem{world.rank(), problem});
  }
  constexpr double Working = 0, Late = 1, Done = 2, Failed = 3;
  const auto start = std::chrono::steady_clock::now();
  Work mine(work);
  at::Tensor states;
  for (bool all_done = false; !all_done;) {
    double state = Working;
    if (mine.wait_for(kRound)) {
      state = mine.problem().empty() ? Done : Failed;
    } else if (std::chrono::steady_clock::now() - start > deadline) {
      state = Late;
    }
    states = at::zeros({world.size()}, at::kDouble);
    states.mutable_data_ptr<double>()[me] = state;
    world.all_reduce(states, what)->wait();
    all_done = true;
    for (int r = 0; r < world.size(); ++r) {
      const double one = states.const_data_ptr<double>()[r];
      if (one == Late) {
        const std::string text = what + " takes rank(s) " + ranks_where(states, Late) + " longer than " +
                                 std::to_string(deadline.count()) + " ms";
        if (state == Late) log_error(text);  // logged before this thread waits for the working one
        throw CheckpointError(text, "raise --checkpoint-timeout if the disk is slow, not stuck");
      }
      all_done = all_done && (one == Done || one == Failed);
    }
  }
  for (int r = 0; r < world.size(); ++r) {
    if (states.const_data_ptr<double>()[r] == Failed)
      return RankProblem{RankId(r), broadcast_text(world, mine.problem(), RankId(r))};
  }
  return std::nullopt;
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
