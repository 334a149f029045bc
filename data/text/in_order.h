// Work on the parts of a stream in several threads, with the results in the stream's order.
#pragma once

#include <functional>

namespace millrace {

/// A thread holds one part at a time: `read` gets it, `work` works on it, `take` uses the result. Reads are
/// one after the other, and so are takes, in the order of the reads; only `work` runs beside others. All get
/// the number of the thread, from 0: what they share for a part lies in a slot of that number.
struct OrderedWork {
  std::function<bool(int thread)> read;  ///< false: there are no more parts
  std::function<void(int thread)> work;
  std::function<void(int thread)> take;
};

/// Runs it in `threads` threads, the caller's among them; memory is that of as many parts. What is thrown for
/// the earliest part is thrown here, after the takes of all parts before it: the same for any `threads`.
void run_in_order(int threads, const OrderedWork& work);

}  // namespace millrace
