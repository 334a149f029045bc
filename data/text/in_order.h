// Work on the parts of a stream in several threads, with the results in the stream's order.
#pragma once

#include <functional>

namespace millrace {

/// A thread holds one part at a time: `read` gets it, `work` works on it, `take` uses the result. Only one
/// `read` runs at a time, and only one `take`; takes come in the order of the reads. Calls of `work` run side
/// by side. All get the number of the thread, from 0: the caller keeps a part's data in a slot of that
/// number.
struct OrderedWork {
  std::function<bool(int thread)> read;  ///< false: there are no more parts
  std::function<void(int thread)> work;
  std::function<void(int thread)> take;
};

/// Runs the work in `threads` threads, one of which is the caller's. At most so many parts are in memory. If
/// parts throw, this throws the exception of the earliest such part, after the takes of all parts before it.
/// That does not depend on `threads`.
void run_in_order(int threads, const OrderedWork& work);

}  // namespace millrace
