#include "runtime/comm/rank_threads.h"

#include <barrier>
#include <exception>
#include <mutex>
#include <thread>

#include "runtime/base/failure_text.h"

namespace millrace {

void run_as_threads(const std::vector<std::unique_ptr<Communicator>>& communicators,
                    const std::function<void(Communicator& communicator)>& body, Clock& clock) {
  std::mutex mutex;
  std::exception_ptr first;
  std::barrier all_here(std::ssize(communicators));  // virtual time waits for the last thread to begin
  {
    std::vector<std::jthread> threads;
    for (const auto& communicator : communicators) {
      threads.emplace_back([&, c = communicator.get()] {
        const ClockUser user(clock);
        all_here.arrive_and_wait();
        try {
          body(*c);
        } catch (...) {
          {
            std::lock_guard lock(mutex);
            if (!first) first = std::current_exception();
          }
          c->abort(text_of_failure());
        }
      });
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace millrace
