// Kernels: their names are kept, and whoever launches one is told its name and ended. And the operators'
// library.
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>

#include "entry.h"
#include "standin.h"

namespace {

std::mutex names_lock;
std::map<const void*, const char*>& names() {
  static auto* const all = new std::map<const void*, const char*>;
  return *all;
}

[[noreturn]] void launched(const void* function) {
  const char* name = nullptr;
  {
    const std::lock_guard lock(names_lock);
    const auto at = names().find(function);
    if (at != names().end()) name = at->second;
  }
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> readable(
      name ? abi::__cxa_demangle(name, nullptr, nullptr, &status) : nullptr, &std::free);
  standin::say(std::string("a kernel was launched, and there is no GPU that runs it: ") +
               (readable ? readable.get()
                : name   ? name
                         : "of unknown name"));
  std::abort();
}

}  // namespace

namespace standin {

cudaError_t load_operators() {
  thread_local bool loading = false;
  if (loading) return cudaSuccess;  // the operators ask for GPUs, too
  loading = true;
  static const bool loaded = [] {
    Dl_info here{};
    if (dlsym(RTLD_DEFAULT, "_ZN3c104cuda12device_countEv") == nullptr)
      return true;  // no LibTorch in this process
    if (dladdr(reinterpret_cast<const void*>(&load_operators), &here) == 0) return false;
    std::string path = here.dli_fname;
    path = path.substr(0, path.rfind('/') + 1) + "libstandin_operators.so";
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL)) return true;
    say(std::string("the operators cannot be loaded: ") + dlerror());
    return false;
  }();
  loading = false;
  return loaded ? cudaSuccess : failed(cudaErrorInitializationError);
}

}  // namespace standin

extern "C" {

cudaError_t cudaLaunchKernel(const void* function, dim3, dim3, void**, std::size_t, cudaStream_t) {
  launched(function);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3, dim3, void**, std::size_t, cudaStream_t) {
  launched(kernel);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void* function, void**) {
  launched(function);
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3, dim3, void**, std::size_t, cudaStream_t) {
  launched(function);
}

// What the compiler of CUDA puts into a library's initialisation.
void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) {
  return 1;
}
void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*, void*,
                            void*, int*) {
  const std::lock_guard lock(names_lock);
  names()[function] = name;
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
unsigned __cudaPushCallConfiguration(dim3, dim3, std::size_t, cudaStream_t) {
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, std::size_t*, void*) {
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  return cudaSuccess;
}
/// LibTorch asks for functions of the driver and does without those that are not there.
cudaError_t cudaGetDriverEntryPointByVersion(const char*, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  *function = nullptr;
  if (result) *result = cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
}
