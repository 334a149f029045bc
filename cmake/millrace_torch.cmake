# LibTorch from the torch wheel as an imported target of our own: find_package(Torch) of that wheel demands a
# CUDA toolkit, this does not. The folder holds torch/ and nvidia/ as scripts/bootstrap lays them out. Installed with
# the package too: find_package(millrace) finds LibTorch by the same recipe.
if(TARGET millrace_torch)
  return()
endif()
if(NOT MILLRACE_LIBTORCH)
  if(NOT "$ENV{MILLRACE_LIBTORCH}" STREQUAL "")
    set(MILLRACE_LIBTORCH "$ENV{MILLRACE_LIBTORCH}")
  elseif(EXISTS "${millrace_built_with}/torch/lib/libtorch_cpu.so")  # said by the package
    set(MILLRACE_LIBTORCH "${millrace_built_with}")
  elseif(NOT "$ENV{MILLRACE_CACHE}" STREQUAL "")
    set(MILLRACE_LIBTORCH "$ENV{MILLRACE_CACHE}/libtorch-2.11.0")
  else()
    set(MILLRACE_LIBTORCH "$ENV{HOME}/.cache/millrace/libtorch-2.11.0")
  endif()
endif()
if(NOT MILLRACE_LIBTORCH OR NOT EXISTS "${MILLRACE_LIBTORCH}/torch/lib/libtorch_cpu.so")
  message(FATAL_ERROR "No LibTorch in '${MILLRACE_LIBTORCH}'. Run scripts/bootstrap, or configure with "
    "-DMILLRACE_LIBTORCH=DIR (the folder that holds torch/), or -DMILLRACE_TORCH=OFF.")
endif()
set(torch_dir "${MILLRACE_LIBTORCH}/torch")
set(torch_nvidia "${MILLRACE_LIBTORCH}/nvidia/cu13/lib")
add_library(millrace_torch INTERFACE IMPORTED)
target_include_directories(millrace_torch SYSTEM INTERFACE ${torch_dir}/include
  ${torch_dir}/include/torch/csrc/api/include)
target_compile_definitions(millrace_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
# libgloo stands before libtorch_cpu in every program: LibTorch exports its own, newer copy of gloo, and the code
# that runs must be the one whose headers we compile with (createUnboundBuffer crashes otherwise).
find_library(MILLRACE_GLOO gloo REQUIRED)
target_link_libraries(millrace_torch INTERFACE ${MILLRACE_GLOO} ${torch_dir}/lib/libtorch_cpu.so ${torch_dir}/lib/libc10.so)
target_link_options(millrace_torch INTERFACE -Wl,-rpath,${torch_dir}/lib
  -Wl,-rpath-link,${torch_dir}/lib:${torch_nvidia})
