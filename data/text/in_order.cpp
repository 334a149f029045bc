#include "data/text/in_order.h"

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace millrace {
namespace {

class OrderedRun {
 public:
  explicit OrderedRun(const OrderedWork& work) : work_(work) {}

  void run(int thread) {
    for (;;) {
      std::exception_ptr failed;
      std::uint64_t mine = 0;
      {
        const std::lock_guard reading(reading_);
        if (ended_) return;
        try {
          ended_ = !work_.read(thread);
          if (ended_) return;
        } catch (...) {
          failed = std::current_exception();
          ended_ = true;
        }
        mine = read_++;
      }
      if (!failed) {
        try {
          work_.work(thread);
        } catch (...) {
          failed = std::current_exception();
        }
      }
      std::unique_lock taking(taking_);
      turn_.wait(taking, [&] { return taken_ == mine || error_; });
      if (error_) return;
      if (!failed) {
        try {
          work_.take(thread);
        } catch (...) {
          failed = std::current_exception();
        }
      }
      ++taken_;
      if (failed) {
        error_ = failed;
        ended_ = true;
      }
      turn_.notify_all();
    }
  }

  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const OrderedWork& work_;
  std::mutex reading_;  // guards read_ and the stream
  std::uint64_t read_ = 0;
  std::atomic<bool> ended_ = false;
  std::mutex taking_;  // guards taken_, error_ and the data that `take` functions use
  std::condition_variable turn_;
  std::uint64_t taken_ = 0;
  std::exception_ptr error_;
};

}  // namespace

void run_in_order(int threads, const OrderedWork& work) {
  OrderedRun run(work);
  {
    std::vector<std::jthread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back([&run, i] { run.run(i); });
    run.run(0);
  }
  run.rethrow();
}

}  // namespace millrace
