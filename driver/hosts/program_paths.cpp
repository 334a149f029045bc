#include "driver/hosts/program_paths.h"

#include <cstdlib>
#include <filesystem>

namespace millrace {

std::string own_program() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

std::string program_beside(const std::string& name) {
  const std::filesystem::path self = own_program();
  return self.empty() ? name : (self.parent_path() / name).string();
}

std::string worker_path(ComputeDevice device) {
  const bool gpu = device == ComputeDevice::Cuda;
  if (const char* named = std::getenv(gpu ? "MILLRACE_WORKER_CUDA" : "MILLRACE_WORKER"); named && *named)
    return named;
  return program_beside(gpu ? "millrace-worker-cuda" : "millrace-worker");
}

std::string worker_hint(ComputeDevice device) {
  return device == ComputeDevice::Cuda
             ? "`scripts/build cuda` builds it into build/cuda/bin where the CUDA toolkit is; or set "
               "MILLRACE_WORKER_CUDA, or train with --device cpu"
             : "build with LibTorch (scripts/build), or set MILLRACE_WORKER";
}

}  // namespace millrace
