// A channel that tells a FlightRecorder of each message: to whom, how long it was waited for, how it ended.
#pragma once

#include <memory>

#include "runtime/comm/channel.h"
#include "runtime/trace/flight_recorder.h"

namespace millrace {

/// `recorder` must outlive the channel and what it posts. A message that is only posted is not waited for.
std::shared_ptr<Channel> make_recorded_channel(std::shared_ptr<Channel> channel, FlightRecorder& recorder);

}  // namespace millrace
