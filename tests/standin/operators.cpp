// At load, every operator that has a kernel for CUDA gets one that computes it with the CPU's on the same
// memory. Allocation, views and metadata stay LibTorch's own, and so do its caching allocator and streams.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstdlib>
#include <cstring>
#include <set>
#include <sstream>
#include <string>

#include "counts.h"
#include "standin.h"

namespace {

using c10::IValue;
using torch::jit::Stack;

std::size_t spanned(const at::Tensor& t) {
  return at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.dtype().itemsize());
}

/// A tensor of the CPU over memory that is not its own.
at::Tensor alias_of(const at::Tensor& t) {
  void* const memory = t.storage().nbytes() == 0 ? nullptr : t.data_ptr();
  return at::from_blob(
      memory, t.sizes(), t.strides(), [](void*) {}, t.options().device(at::kCPU).requires_grad(false),
      at::kCPU);
}

/// Operators that take tensors of the CPU beside those of a GPU.
const std::set<std::string> kMixed{"aten::index.Tensor",          "aten::index_put_",
                                   "aten::_index_put_impl_",      "aten::index_put",
                                   "aten::_pack_padded_sequence", "aten::index.Tensor_out"};

/// Composite operators that would choose among CUDA's kernels: they are computed whole.
const std::set<std::string> kWhole{"aten::convolution", "aten::_convolution", "aten::convolution_backward"};

/// Stay as they are: allocation, views, metadata. Those of own.cpp have bodies there.
const std::set<std::string> kKept{
    "aten::empty.memory_format", "aten::empty_strided", "aten::as_strided", "aten::view",
    "aten::_reshape_alias", "aten::resize_", "aten::set_.source_Storage",
    "aten::set_.source_Storage_storage_offset", "aten::set_.source_Tensor", "aten::set_",
    "aten::record_stream", "aten::is_pinned", "aten::_pin_memory", "aten::unfold", "aten::view_as_real",
    "aten::view_as_complex", "aten::alias", "aten::is_set_to", "aten::_copy_from",
    "aten::_efficientzerotensor",
    // cuda_only.cpp
    "aten::_thnn_fused_lstm_cell", "aten::_thnn_fused_lstm_cell_backward_impl", "aten::_thnn_fused_gru_cell",
    "aten::_thnn_fused_gru_cell_backward", "aten::_fused_dropout", "aten::_masked_scale",
    "aten::_fused_sdp_choice", "aten::native_dropout", "aten::native_dropout_backward",
    // below
    "aten::copy_"};

std::string name_of(const c10::OperatorHandle& op) {
  const auto& name = op.operator_name();
  return name.name + (name.overload_name.empty() ? "" : "." + name.overload_name);
}

/// The arguments of one call, as the CPU's kernel takes them.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack& stack)
      : op_(op), name_(name_of(op)), begin_(stack.size() - op.schema().arguments().size()) {
    given_.assign(stack.begin() + static_cast<std::ptrdiff_t>(begin_), stack.end());
    stack.resize(begin_);
    for (std::size_t i = 0; i < given_.size(); ++i) cpu_.push_back(taken(i));
    if (!device_) device_ = c10::Device(at::kCUDA, c10::cuda::current_device());
    for (std::size_t i = 0; i < given_.size(); ++i) fill_generator(i);
    if (mixed_ && has_gpu_ && !kMixed.contains(name_))
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
                  *device_, " and cpu! (", name_, ")");
  }

  void run(Stack& stack) {
    const c10::cuda::CUDAGuard guard(*device_);
    C10_CUDA_CHECK(standin::count_call("launch"));
    standin::counts::add(standin::counts::Kind::Operator, name_);
    if (standin::settings().lazy) load_kernel_by_sizes();
    if (tells_the_host()) standin::counts::add(standin::counts::Kind::Wait, name_);
    const standin::counts::Quiet own;
    stream_ = c10::cuda::getCurrentCUDAStream(device_->index()).stream();
    if (tells_the_host()) C10_CUDA_CHECK(cudaStreamSynchronize(stream_));
    if (!standin::is_free(stream_) && later(stack)) return;
    standin::drain(stream_);
    now(stack);
    standin::note(stream_, name_, accesses_);
  }

 private:
  /// cuBLAS and cuDNN choose by the sizes of what they multiply.
  void load_kernel_by_sizes() const {
    if (name_.find("mm") == std::string::npos && name_.find("conv") == std::string::npos) return;
    std::ostringstream name;
    name << name_;
    for (const auto& [tensor, cpu] : aliases_) name << tensor.sizes();
    standin::load_kernel(name.str());
  }

  struct Written {
    at::Tensor gpu, cpu;
  };

  at::Tensor aliased(const at::Tensor& t, bool writes) {
    if (!t.defined()) return t;
    if (!t.is_cuda()) {
      mixed_ |= t.dim() > 0 && t.is_cpu();
      return t;
    }
    has_gpu_ = true;
    if (!device_) device_ = t.device();
    TORCH_CHECK(*device_ == t.device(),
                "Expected all tensors to be on the same device, but found at least two devices, ", *device_,
                " and ", t.device(), "! (", name_, ")");
    // An output without elements may grow: it gets memory of its own.
    at::Tensor cpu = writes && t.numel() == 0 ? at::empty({0}, t.options().device(at::kCPU)) : alias_of(t);
    if (writes) written_.push_back({t, cpu});
    if (t.numel() > 0) accesses_.push_back({t.data_ptr(), spanned(t), writes});
    aliases_.push_back({t, cpu});
    return cpu;
  }

  IValue taken(std::size_t i) {
    const IValue& v = given_[i];
    const auto* info = op_.schema().arguments()[i].alias_info();
    const bool writes = info && info->isWrite();
    if (v.isTensor()) return aliased(v.toTensor(), writes);
    if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : v.toTensorVector()) list.push_back(aliased(t, writes));
      return list;
    }
    if (v.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& t : v.toOptionalTensorVector())
        list.push_back(t ? std::optional(aliased(*t, writes)) : std::nullopt);
      return list;
    }
    if (v.isDevice() && v.toDevice().is_cuda()) {
      if (!device_) device_ = v.toDevice();
      return c10::Device(at::kCPU);
    }
    return v;
  }

  /// CUDA's generators have a seed and an offset. Each call takes numbers of its own from a CPU generator
  /// made of both.
  void fill_generator(std::size_t i) {
    const auto& type = *op_.schema().arguments()[i].type();
    if (type.str().find("Generator") == std::string::npos) return;
    at::Generator given =
        given_[i].isNone() ? at::globalContext().defaultGenerator(*device_) : given_[i].toGenerator();
    if (!given.defined() || !given.device().is_cuda()) return;
    const std::lock_guard lock(given.mutex());
    auto* cuda = at::check_generator<at::CUDAGeneratorImpl>(given);
    const std::uint64_t offset = cuda->philox_offset_per_thread();
    cuda->set_philox_offset_per_thread(offset + 4);
    std::uint64_t mixed = cuda->current_seed() * 0x9E3779B97F4A7C15ull + offset + 1;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
    cpu_[i] = at::make_generator<at::CPUGeneratorImpl>(mixed ^ (mixed >> 31));
  }

  /// Whether a result is a value of the host's, or the shape of one depends on the data.
  bool tells_the_host() const {
    static const std::set<std::string> kShapes{"aten::nonzero", "aten::masked_select", "aten::_unique2",
                                               "aten::unique_dim", "aten::unique_consecutive"};
    if (kShapes.contains(name_)) return true;
    for (const auto& type : op_.schema().returns())
      if (type.type()->str().find("Tensor") == std::string::npos) return true;
    return false;
  }

  void now(Stack& stack) {
    Stack work = cpu_;
    op_.callBoxed(&work);
    for (auto& [gpu, cpu] : written_) {
      if (cpu.sizes() == gpu.sizes() && cpu.strides() == gpu.strides() &&
          cpu.const_data_ptr() == gpu.const_data_ptr())
        continue;
      if (cpu.sizes() != gpu.sizes()) gpu.resize_(cpu.sizes());
      alias_of(gpu).copy_(cpu);
    }
    const auto& returns = op_.schema().returns();
    for (std::size_t r = 0; r < returns.size(); ++r) {
      const IValue& v = work[work.size() - returns.size() + r];
      if (const auto argument = argument_of(returns[r])) {
        stack.push_back(given_[*argument]);
      } else if (v.isTensor()) {
        stack.push_back(on_gpu(v.toTensor()));
      } else if (v.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& t : v.toTensorVector()) list.push_back(on_gpu(t));
        stack.push_back(std::move(list));
      } else {
        stack.push_back(v);
      }
    }
  }

  /// The argument that a result is itself: of `out=` and of operators in place.
  std::optional<std::size_t> argument_of(const c10::Argument& result) const {
    const auto* info = result.alias_info();
    if (!info || !info->isWrite()) return std::nullopt;
    for (std::size_t i = 0; i < given_.size(); ++i) {
      const auto* other = op_.schema().arguments()[i].alias_info();
      if (other && other->isWrite() && other->beforeSet() == info->beforeSet()) return i;
    }
    return std::nullopt;
  }

  at::Tensor on_gpu(const at::Tensor& t) {
    if (!t.defined() || t.is_cuda()) return t;
    for (const Written& alias : aliases_)  // a view of an argument
      if (t.numel() > 0 && t.storage().data_ptr().get() == alias.cpu.storage().data_ptr().get())
        return alias.gpu.as_strided(t.sizes(), t.strides(), alias.gpu.storage_offset() + t.storage_offset());
    at::Tensor gpu =
        at::empty_strided(t.sizes(), t.strides(), t.options().device(*device_).pinned_memory(false));
    if (t.numel() > 0) {
      std::memcpy(gpu.data_ptr(), t.const_data_ptr(), spanned(t));
      accesses_.push_back({gpu.data_ptr(), spanned(t), true});
    }
    return gpu;
  }

  /// Gives the operator to a stream that has other work. False if the results' shapes are not known without
  /// computing.
  bool later(Stack& stack) {
    if (tells_the_host()) return false;
    for (const Written& w : written_)
      if (w.gpu.numel() == 0) return false;
    std::vector<at::Tensor> results;
    const auto& returns = op_.schema().returns();
    std::vector<std::optional<std::size_t>> arguments;
    bool fresh = false;
    for (const auto& result : returns) {
      arguments.push_back(argument_of(result));
      if (!arguments.back() && result.alias_info()) return false;
      fresh |= !arguments.back();
    }
    if (fresh) {
      if (!op_.hasKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
      Stack shapes;
      for (const IValue& v : cpu_) shapes.push_back(as_meta(v));
      try {
        op_.callBoxed(&shapes);
      } catch (const std::exception&) {
        return false;
      }
      for (const IValue& v : shapes)
        if (!v.isTensor() || !v.toTensor().defined() || !v.toTensor().is_meta()) return false;
      for (std::size_t r = 0; r < returns.size(); ++r) {
        const at::Tensor& shape = shapes[r].toTensor();
        results.push_back(arguments[r] ? at::Tensor()
                                       : at::empty_strided(shape.sizes(), shape.strides(),
                                                           shape.options().device(*device_)));
        if (results[r].defined() && results[r].numel() > 0)
          accesses_.push_back({results[r].data_ptr(), spanned(results[r]), true});
      }
    }
    std::vector<at::Tensor> memory;  // raw: a stream does not keep memory alive
    for (const at::Tensor& result : results)
      memory.push_back(result.defined() ? alias_of(result) : at::Tensor());
    const auto written = written_;
    std::vector<at::Tensor> out;
    for (const Written& w : written_) out.push_back(w.cpu);
    C10_CUDA_CHECK(standin::give(stream_, {.name = name_,
                                           .accesses = accesses_,
                                           .run = [op = op_, work = cpu_, memory, name = name_]() mutable {
                                             const at::AutoDispatchBelowADInplaceOrView below;
                                             try {
                                               op.callBoxed(&work);
                                               for (std::size_t r = 0; r < memory.size(); ++r)
                                                 if (memory[r].defined()) memory[r].copy_(work[r].toTensor());
                                             } catch (const std::exception& error) {
                                               standin::say(name + " failed on its stream: " + error.what());
                                               std::abort();
                                             }
                                           }}));
    for (std::size_t r = 0; r < returns.size(); ++r)
      stack.push_back(arguments[r] ? given_[*arguments[r]] : IValue(results[r]));
    return true;
  }

  static at::Tensor meta(const at::Tensor& t) {
    if (!t.defined()) return t;
    return at::empty_strided(t.sizes(), t.strides(), t.options().device(at::kMeta).pinned_memory(false));
  }
  static IValue as_meta(const IValue& v) {
    if (v.isTensor()) return meta(v.toTensor());
    if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : v.toTensorVector()) list.push_back(meta(t));
      return list;
    }
    if (v.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& t : v.toOptionalTensorVector())
        list.push_back(t ? std::optional(meta(*t)) : std::nullopt);
      return list;
    }
    if (v.isDevice()) return c10::Device(at::kMeta);
    return v;
  }

  c10::OperatorHandle op_;
  std::string name_;
  std::size_t begin_;
  std::vector<IValue> given_;
  Stack cpu_;
  std::optional<c10::Device> device_;
  bool mixed_ = false, has_gpu_ = false;
  std::vector<Written> written_, aliases_;
  std::vector<standin::Access> accesses_;
  cudaStream_t stream_ = nullptr;
};

/// At the first operator: what LibTorch says of itself cannot be asked while it counts GPUs.
bool is_same_version() {
  const char* other = std::getenv("STANDIN_TORCH_VERSION");
  const std::string built = other ? other : STANDIN_TORCH_VERSION, key = "TORCH_VERSION=";
  const std::string told = at::show_config();
  const std::size_t begin = told.find(key) + key.size();
  const std::string here = told.substr(begin, told.find(',', begin) - begin);
  TORCH_CHECK(here == built, "standin: it was built with LibTorch ", built, ", and this is ", here,
              ". Hint: scripts/build cuda standin");
  return true;
}

/// Follows what LibTorch's allocator gives out and takes back. Memory that it took back goes to the next who
/// asks on the block's stream, so it counts as written from then on: who still uses it meets a race.
bool watch_memory() {
  if (!standin::settings().races && !standin::counts::wanted()) return true;
  using c10::cuda::CUDACachingAllocator::TraceEntry;
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker([](const TraceEntry& entry) {
    const standin::Access memory{reinterpret_cast<const void*>(static_cast<std::uintptr_t>(entry.addr_)),
                                 entry.size_, true};
    if (entry.action_ == TraceEntry::ALLOC) {
      standin::counts::took(entry.device_, memory.address, memory.bytes);
      standin::note_given_out(memory);
    } else if (entry.action_ == TraceEntry::FREE_COMPLETED) {
      standin::counts::gave_back(entry.device_, memory.address);
      standin::note_taken_back(entry.device_, static_cast<cudaStream_t>(entry.stream_), memory);
    }
  });
  return true;
}

void computed_by_cpu(const c10::OperatorHandle& op, Stack* stack) {
  static const bool checked = is_same_version() && watch_memory();
  static_cast<void>(checked);
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) ||
          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional),
      "standin: ", name_of(op),
      " has no kernel for the CPU. Hint: give it a body in tests/standin/cuda_only.cpp");
  Call(op, *stack).run(*stack);
}

bool is_locked(const at::Tensor& t) {
  return t.is_cpu() && standin::block_of(t.const_data_ptr()).bytes > 0;
}

/// Between host and GPU as the real one does it: only from and to page-locked memory the host goes on at
/// once.
at::Tensor& copy(at::Tensor& self, const at::Tensor& from, bool non_blocking) {
  if (self.numel() == 0) return self;
  const at::Tensor& gpu = self.is_cuda() ? self : from;
  c10::cuda::CUDAGuard guard(gpu.device());
  const at::Tensor source = from.sizes() == self.sizes() ? from : from.expand_as(self);
  const bool over_bus = !self.is_cuda() || !from.is_cuda();
  C10_CUDA_CHECK(standin::count_call(over_bus ? "cudaMemcpyAsync" : "launch"));
  const std::size_t bytes = self.nbytes();
  if (over_bus || from.device() != self.device())
    standin::counts::add_copy(self.data_ptr(), from.const_data_ptr(), bytes);
  else
    standin::counts::add(standin::counts::Kind::Operator, "aten::copy_", bytes);
  if (over_bus && !(non_blocking && is_locked(self.is_cuda() ? from : self)))
    standin::counts::add(standin::counts::Kind::Wait, "aten::copy_");
  const standin::counts::Quiet own;
  auto stream = c10::cuda::getCurrentCUDAStream(gpu.device().index());
  // Between GPUs: on the sender's stream, in order with the receiver's before and after.
  const bool between = !over_bus && from.device() != self.device();
  const auto receiver = stream;
  if (between) {
    stream = c10::cuda::getCurrentCUDAStream(from.device().index());
    at::cuda::CUDAEvent ready;
    ready.record(receiver);
    guard.set_device(from.device());
    ready.block(stream);
  }
  const at::Tensor& host = self.is_cuda() ? from : self;
  const bool is_free = !over_bus || (non_blocking && is_locked(host));
  if (over_bus && !is_free) C10_CUDA_CHECK(cudaStreamSynchronize(stream.stream()));
  const auto plain = [](const at::Tensor& t) { return alias_of(t); };
  C10_CUDA_CHECK(
      standin::give(stream.stream(), {.name = "aten::copy_",
                                      .accesses = {{source.const_data_ptr(), spanned(source), false},
                                                   {self.data_ptr(), spanned(self), true}},
                                      .run = [to = plain(self), what = plain(source)]() mutable {
                                        const at::AutoDispatchBelowADInplaceOrView below;
                                        to.copy_(what);
                                      }}));
  if (between) {
    at::cuda::CUDAEvent copied;
    copied.record(stream);
    copied.block(receiver);
  }
  if (over_bus && !is_free) {
    C10_CUDA_CHECK(cudaStreamSynchronize(stream.stream()));
  } else if (over_bus) {
    // The host's allocator keeps the memory until the copy is done.
    at::getHostAllocator(at::kCUDA)->record_event(host.data_ptr(), host.storage().data_ptr().get_context(),
                                                  stream.unwrap());
  }
  return self;
}

void install() {
  static auto* const handles = new std::vector<c10::RegistrationHandleRAII>;
  auto& dispatcher = c10::Dispatcher::singleton();
  // LibTorch warns of kernels that are overridden; here that is the purpose.
  struct Quiet final : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } quiet;
  const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op) continue;
    const std::string full = name_of(*op);
    if (kKept.contains(full)) continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CUDA) && !kWhole.contains(full)) continue;
    handles->push_back(dispatcher.registerImpl(name, c10::DispatchKey::CUDA,
                                               c10::KernelFunction::makeFromBoxedFunction<&computed_by_cpu>(),
                                               std::nullopt, nullptr, "standin"));
  }
  static auto* const copies =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  copies->impl("copy_", TORCH_FN(copy));
  at::globalContext().setUserEnabledCuDNN(false);
}

const bool installed = (install(), true);

}  // namespace
