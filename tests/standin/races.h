// The race detector: which work may run beside which, by the clocks of streams, events and the host.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "standin.h"

namespace standin {

/// How much of each stream is known to be done. The host is number kHost.
using Clock = std::map<int, std::uint64_t>;
inline constexpr int kHost = -1;

/// All are called with one lock held. Without STANDIN_RACES they do nothing.
namespace races {

/// Work is given to a stream. Says which earlier work it may meet in memory, and ends the process then.
void launch(int stream, const std::string& name, const std::vector<Access>& accesses);
/// What is given to the stream so far.
Clock clock_of(int stream);
void stream_joins(int stream, const Clock& clock);
void host_joins(const Clock& clock);
void host_joins(int stream);
/// LibTorch's allocator takes memory back: the next work on the stream may be its new owner's. Work of other
/// streams that the stream does not know to be done meets a race, and so does all work until the memory is
/// given out again.
void take_back(int stream, const Access& memory);
void give_out(const Access& memory);
/// The memory is given back to the GPU: what was done to it is forgotten.
void forget(const Block& block);

}  // namespace races
}  // namespace standin
