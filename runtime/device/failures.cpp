#include "runtime/device/failures.h"

#include <c10/util/Exception.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <new>

#include "runtime/base/error.h"
#include "runtime/base/failure_text.h"
#include "runtime/base/text.h"
#include "runtime/device/host_memory.h"

namespace millrace {
namespace {

std::string gib(double bytes) {
  return bytes < double(1 << 30) ? printed("%.1f MiB", bytes / (1 << 20))
                                 : printed("%.1f GiB", bytes / (1 << 30));
}

/// Returns whether the address-space limit (ulimit -v) leaves less than 64 MiB.
bool is_short_of_address_space() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const std::uint64_t used = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return used + (64u << 20) > limit.rlim_cur;
}

/// oneDNN reports this text for any failure, including a lack of memory.
bool is_primitive_failure(const std::string& text) {
  return text.find("could not create a primitive") != std::string::npos;
}

}  // namespace

const char* const kLessMemory =
    "use a smaller --microbatch, more stages, --recompute, or a schedule that stashes less; `millrace plan "
    "--memory` plans for a limit";

std::string out_of_memory_text(std::size_t asked) {
  const HostMemory memory = host_memory();
  std::string text = asked > 0 ? "out of memory: no room for a tensor of " + gib(double(asked)) + "; "
                               : std::string("out of memory: ");
  text += gib(double(memory.live)) + " of tensors are live, " + gib(double(memory.cached)) +
          " are kept for the next ones";
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    text += "; the process may have " + gib(double(limit.rlim_cur)) + " (ulimit -v)";
  return text;
}

void rethrow_with(const std::string& context) {
  try {
    throw;
  } catch (const PeerError&) {
    throw;
  } catch (const Error& error) {
    error.throw_with(context);
    throw;  // not reached: throw_with() throws
  } catch (const c10::OutOfMemoryError& error) {
    throw OutOfMemory(context + text_of_failure(), kLessMemory);
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(context + out_of_memory_text(), kLessMemory);
  } catch (...) {
    const std::string text = text_of_failure();
    if (is_primitive_failure(text) && is_short_of_address_space())
      throw OutOfMemory(context + out_of_memory_text() + "; " + text, kLessMemory);
    throw Error(ExitCode::RunFailed, context + text);
  }
}

}  // namespace millrace
