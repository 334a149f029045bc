// All ranks of a job as threads of one process.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/comm/communicator.h"

namespace millrace {

/// Calls `body` for each communicator (make_local_communicators), each in a thread of its own, and waits for
/// all. If threads fail, it throws the exception of the first one; the later failures follow from that one.
/// All threads are users of `clock`, from before any of them begins.
void run_as_threads(const std::vector<std::unique_ptr<Communicator>>& communicators,
                    const std::function<void(Communicator& communicator)>& body,
                    Clock& clock = steady_clock());

}  // namespace millrace
