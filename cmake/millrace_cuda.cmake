# The GPU part, in a program of its own: libtorch_cuda is linked against libraries that exist only where a GPU is
# used, so nothing else may link it. Defines
#   millrace_torch_cuda   LibTorch's CUDA libraries and the toolkit's headers
#   millrace_nccl_found   ON where nccl.h is
find_package(CUDAToolkit)
if(NOT CUDAToolkit_FOUND)
  message(FATAL_ERROR "No CUDA toolkit (nvcc, cuda_runtime_api.h). Install one (13.0 fits the pinned LibTorch), or "
    "name it with -DCUDAToolkit_ROOT=DIR, or configure with -DMILLRACE_CUDA=OFF.")
endif()
if(CUDAToolkit_VERSION_MAJOR LESS 13)
  message(FATAL_ERROR "CUDA toolkit ${CUDAToolkit_VERSION} in ${CUDAToolkit_BIN_DIR}: the pinned LibTorch was built with "
    "CUDA 13. Name a newer one with -DCUDAToolkit_ROOT=DIR.")
endif()

# A whole torch installation (MILLRACE_LIBTORCH=site-packages) has the libraries itself; otherwise they are beside it.
if(NOT MILLRACE_LIBTORCH_CUDA)
  if(NOT "$ENV{MILLRACE_LIBTORCH_CUDA}" STREQUAL "")
    set(MILLRACE_LIBTORCH_CUDA "$ENV{MILLRACE_LIBTORCH_CUDA}")
  elseif(EXISTS "${MILLRACE_LIBTORCH}/torch/lib/libtorch_cuda.so")
    set(MILLRACE_LIBTORCH_CUDA "${MILLRACE_LIBTORCH}")
  else()
    set(MILLRACE_LIBTORCH_CUDA "${MILLRACE_LIBTORCH}-cuda")
  endif()
endif()
set(torch_cuda_dir "${MILLRACE_LIBTORCH_CUDA}/torch/lib")
if(NOT EXISTS "${torch_cuda_dir}/libtorch_cuda.so")
  message(FATAL_ERROR "No libtorch_cuda.so in '${torch_cuda_dir}'. Run scripts/bootstrap --cuda, or configure with "
    "-DMILLRACE_LIBTORCH_CUDA=DIR (the folder that holds torch/).")
endif()

# The wheel's NCCL is the one that runs; its headers, else the toolkit's.
find_path(MILLRACE_NCCL_INCLUDE nccl.h
  HINTS ${MILLRACE_LIBTORCH_CUDA}/nvidia/nccl/include ${CUDAToolkit_INCLUDE_DIRS})
find_library(MILLRACE_NCCL_LIBRARY NAMES libnccl.so.2 nccl NAMES_PER_DIR
  HINTS ${MILLRACE_LIBTORCH_CUDA}/nvidia/nccl/lib ${CUDAToolkit_LIBRARY_DIR})
if(MILLRACE_NCCL_INCLUDE AND MILLRACE_NCCL_LIBRARY)
  set(millrace_nccl_found ON)
  message(STATUS "NCCL: ${MILLRACE_NCCL_INCLUDE}/nccl.h, ${MILLRACE_NCCL_LIBRARY}")
else()
  set(millrace_nccl_found OFF)
  message(WARNING "No NCCL (nccl.h, libnccl): millrace-worker-cuda is built WITHOUT --backend nccl; ranks on GPUs "
    "will talk through page-locked memory. scripts/bootstrap --cuda-runtime fetches one; else name it with "
    "-DMILLRACE_NCCL_INCLUDE=DIR -DMILLRACE_NCCL_LIBRARY=FILE.")
endif()

add_library(millrace_torch_cuda INTERFACE)
target_include_directories(millrace_torch_cuda SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
# Registration of CUDA's kernels happens when libtorch_cuda is loaded; no symbol of ours may ask for it. Its own needs
# (cusparselt, nvshmem, cufile, ...) are there when the program runs (scripts/bootstrap --cuda-runtime), and perhaps not
# where it is linked.
set(nvidia "${MILLRACE_LIBTORCH_CUDA}/nvidia")
target_link_libraries(millrace_torch_cuda INTERFACE millrace_torch
  -Wl,--no-as-needed ${torch_cuda_dir}/libtorch_cuda.so ${torch_cuda_dir}/libc10_cuda.so CUDA::cudart)
# libgloo stands before libtorch_cuda too, for the reason in millrace_torch.cmake: options come before all libraries.
target_link_options(millrace_torch_cuda INTERFACE -Wl,--push-state,--no-as-needed,${MILLRACE_GLOO},--pop-state
  -Wl,--unresolved-symbols=ignore-in-shared-libs
  -Wl,-rpath,${torch_cuda_dir}
  -Wl,-rpath-link,${torch_cuda_dir}:${nvidia}/cudnn/lib:${nvidia}/nccl/lib:${nvidia}/cu13/lib:${CUDAToolkit_LIBRARY_DIR})
