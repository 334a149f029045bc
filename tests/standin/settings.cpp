// The environment of the stand-in, and the errors that it asks for.
#include "entry.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string_view>
#include <utility>

namespace standin {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  say(text);
  _exit(2);
}

std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  if (!text || !*text) return otherwise;
  char* end = nullptr;
  const std::uint64_t value = std::strtoull(text, &end, 10);
  if (*end != 0 || *text == '-') refuse(std::string(name) + "=" + text + " is no whole number");
  return value;
}

/// What STANDIN_FAIL may name, and the error that it gives unless it says another.
struct CanFail {
  std::string_view name;
  cudaError_t error;
};
constexpr std::array kCanFail{
    CanFail{"cudaMalloc", cudaErrorMemoryAllocation},
    CanFail{"cudaHostAlloc", cudaErrorMemoryAllocation},
    CanFail{"cudaMemcpyAsync", cudaErrorIllegalAddress},
    CanFail{"cudaStreamSynchronize", cudaErrorLaunchFailure},
    CanFail{"cudaDeviceSynchronize", cudaErrorLaunchFailure},
    CanFail{"cudaEventCreateWithFlags", cudaErrorMemoryAllocation},
    CanFail{"cudaEventRecord", cudaErrorInvalidResourceHandle},
    CanFail{"cudaEventQuery", cudaErrorLaunchFailure},
    CanFail{"cudaEventSynchronize", cudaErrorLaunchFailure},
    CanFail{"cudaStreamCreateWithPriority", cudaErrorMemoryAllocation},
    CanFail{"launch", cudaErrorLaunchFailure},
    CanFail{"ncclSend", static_cast<cudaError_t>(3)},
    CanFail{"ncclRecv", static_cast<cudaError_t>(3)},
    CanFail{"ncclCommInitRankConfig", static_cast<cudaError_t>(2)},
};

constexpr int kWaits = -1;  // as an error: none, but a wait for all work of the GPU

struct Failure {
  std::string name;
  std::uint64_t at = 0;
  cudaError_t error = cudaSuccess;
  int device = -1;
  std::uint64_t seen = 0;
};

/// STANDIN_FAIL=cudaMalloc:3,launch:100:999@1: name, number of the call, error, GPU.
std::vector<Failure> failures() {
  std::vector<Failure> found;
  const char* text = std::getenv("STANDIN_FAIL");
  std::string_view rest = text ? text : "";
  while (!rest.empty()) {
    const std::string one(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(rest.size(), one.size() + 1));
    char name[64] = {};
    unsigned long long at = 0;
    int error = 0, device = -1;
    const std::size_t where = one.find('@');
    if (where != std::string::npos) device = std::atoi(one.c_str() + where + 1);
    const int read = std::sscanf(one.c_str(), "%63[^:]:%llu:%d", name, &at, &error);
    const auto* row =
        std::find_if(kCanFail.begin(), kCanFail.end(), [&](const CanFail& c) { return c.name == name; });
    if (read < 2 || at == 0 || row == kCanFail.end()) {
      std::string names;
      for (const CanFail& c : kCanFail) names += " " + std::string(c.name);
      refuse("STANDIN_FAIL: '" + one + "' is not NAME:CALL[:ERROR][@GPU] with a name of:" + names);
    }
    found.push_back({name, at, read == 3 ? static_cast<cudaError_t>(error) : row->error, device});
  }
  return found;
}

std::mutex failures_lock;
std::atomic<bool> any_failures{true};
std::array<std::atomic<int>, 64> sticky{};  // by GPU: each has a context of its own
thread_local cudaError_t last_error = cudaSuccess;

std::atomic<int>& sticky_now() {
  return sticky[static_cast<std::size_t>(physical_device(current_device()))];
}

/// After these the real context is of no more use.
bool stays(cudaError_t error) {
  return error == cudaErrorIllegalAddress || error == cudaErrorLaunchFailure ||
         error == cudaErrorECCUncorrectable || error == cudaErrorHardwareStackError ||
         error == cudaErrorAssert || error == cudaErrorUnknown || error == cudaErrorDevicesUnavailable;
}

}  // namespace

void say(const std::string& text) {
  const std::string line = "standin: " + text + "\n";
  static_cast<void>(!write(2, line.data(), line.size()));
}

const Settings& settings() {
  static const Settings read = [] {
    const char* elsewhere = std::getenv("STANDIN_REAL_DRIVER");
    for (const char* driver : {"/proc/driver/nvidia/version", "/dev/nvidiactl", elsewhere ? elsewhere : ""})
      if (access(driver, F_OK) == 0)
        refuse(std::string("a real driver is here (") + driver +
               "): the stand-in does not mix with it. Take it out of LD_PRELOAD");
    Settings s;
    s.gpus = static_cast<int>(number("STANDIN_GPUS", 2));
    if (s.gpus > 64) refuse("STANDIN_GPUS: at most 64");
    s.bytes = number("STANDIN_BYTES", s.bytes);
    if (const char* text = std::getenv("STANDIN_CAPABILITY");
        text && std::sscanf(text, "%d.%d", &s.major, &s.minor) != 2)
      refuse(std::string("STANDIN_CAPABILITY=") + text + " is not like 9.0");
    const char* late = std::getenv("STANDIN_LATE");
    s.late = late && *late;
    s.seed = number("STANDIN_LATE", 0);
    s.races = number("STANDIN_RACES", 0) != 0;
    s.lazy = number("STANDIN_LAZY", 0) != 0;
    s.malloc_waits = number("STANDIN_MALLOC_WAITS", 0) != 0;
    s.host_waits = number("STANDIN_HOST_WAITS", 0) != 0;
    s.nccl_slow = number("STANDIN_NCCL_SLOW", 0) != 0;
    return s;
  }();
  return read;
}

cudaError_t missing(const char* name) {
  say(std::string(name) + " is not here");
  return failed(cudaErrorNotSupported);
}

cudaError_t failed(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t count_call(const char* name) {
  if (const int error = sticky_now().load(std::memory_order_relaxed))
    return failed(static_cast<cudaError_t>(error));
  if (!any_failures.load(std::memory_order_relaxed)) return cudaSuccess;
  std::unique_lock lock(failures_lock);
  static std::vector<Failure> wanted = failures();
  if (wanted.empty()) any_failures = false;
  const Failure* due = nullptr;
  for (Failure& failure : wanted) {
    const bool here = failure.device < 0 || failure.device == physical_device(current_device());
    if (failure.name == name && here && ++failure.seen == failure.at) due = &failure;
  }
  if (!due) return cudaSuccess;
  if (static_cast<int>(due->error) == kWaits) {
    say("call " + std::to_string(due->at) + " of " + name + " waits, as STANDIN_FAIL wants");
    lock.unlock();
    drain_device();
    return cudaSuccess;
  }
  say("call " + std::to_string(due->at) + " of " + name + " fails, as STANDIN_FAIL wants");
  if (stays(due->error)) sticky_now() = due->error;
  return std::string_view(name).starts_with("nccl") ? due->error : failed(due->error);
}

}  // namespace standin

extern "C" {

cudaError_t cudaGetLastError() {
  if (const int error = standin::sticky_now()) return static_cast<cudaError_t>(error);
  return std::exchange(standin::last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  if (const int error = standin::sticky_now()) return static_cast<cudaError_t>(error);
  return standin::last_error;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    case cudaErrorDevicesUnavailable:
      return "cudaErrorDevicesUnavailable";
    case cudaErrorECCUncorrectable:
      return "cudaErrorECCUncorrectable";
    default:
      return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorNotSupported:
      return "operation not supported";
    case cudaErrorDevicesUnavailable:
      return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorECCUncorrectable:
      return "uncorrectable ECC error encountered";
    default:
      return "unknown error";
  }
}
}
