# LibTorch from the torch wheel as an imported target of our own: find_package(Torch) of that wheel demands a
# CUDA toolkit, this does not. The folder holds torch/ and nvidia/ as scripts/bootstrap lays them out.
if(NOT MILLRACE_LIBTORCH)
  if(NOT "$ENV{MILLRACE_LIBTORCH}" STREQUAL "")
    set(MILLRACE_LIBTORCH "$ENV{MILLRACE_LIBTORCH}")
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
add_library(millrace_torch INTERFACE)
target_include_directories(millrace_torch SYSTEM INTERFACE ${torch_dir}/include
  ${torch_dir}/include/torch/csrc/api/include)
target_compile_definitions(millrace_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
# libgloo stands before libtorch_cpu in every program: LibTorch exports its own, newer copy of gloo, and the code
# that runs must be the one whose headers we compile with (createUnboundBuffer crashes otherwise).
find_library(MILLRACE_GLOO gloo REQUIRED)
target_link_libraries(millrace_torch INTERFACE ${MILLRACE_GLOO} ${torch_dir}/lib/libtorch_cpu.so ${torch_dir}/lib/libc10.so)
target_link_options(millrace_torch INTERFACE -Wl,-rpath,${torch_dir}/lib
  -Wl,-rpath-link,${torch_dir}/lib:${torch_nvidia})

# ATen/core/Tensor.h and what it brings is most of the time that a file of ours takes to compile: it is read once, for all
# libraries and tests that are given to millrace_precompile. ccache keeps what was made with it if it is told to (and if
# the compiler says which precompiled header it took).
option(MILLRACE_PRECOMPILED "Compile the headers of LibTorch and of the standard library once" ON)
if(MILLRACE_PRECOMPILED)
  if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache$")
    list(PREPEND CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros)
  endif()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/precompiled.cpp CONTENT "" @ONLY)
  add_library(millrace_precompiled OBJECT ${CMAKE_BINARY_DIR}/precompiled.cpp)
  target_link_libraries(millrace_precompiled PUBLIC millrace_options millrace_torch)
  target_precompile_headers(millrace_precompiled PRIVATE <ATen/core/Tensor.h> <ATen/core/grad_mode.h> <ATen/ops/add.h>
    <ATen/ops/empty.h> <ATen/ops/zeros.h> <algorithm> <chrono> <cmath> <condition_variable> <cstdint> <cstdio> <cstring>
    <deque> <filesystem> <functional> <map> <memory> <mutex> <optional> <set> <span> <string> <thread> <unordered_map>
    <utility> <vector>)
  target_compile_options(millrace_precompiled PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endif()
function(millrace_precompile)
  if(MILLRACE_PRECOMPILED)
    foreach(target ${ARGN})
      target_precompile_headers(${target} REUSE_FROM millrace_precompiled)
      # Without that warning: GCC 12's false one of "a" + std::string (its bug 105329), which it keeps to itself only where
      # the standard library was not read from a precompiled header.
      target_compile_options(${target} PRIVATE "$<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess;-Wno-stringop-overflow>")
    endforeach()
  endif()
endfunction()
