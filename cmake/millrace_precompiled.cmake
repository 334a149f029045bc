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
      # Without two warnings: GCC 12's false ones of "a" + std::string (its bug 105329), which it keeps to itself only where
      # the standard library was not read from a precompiled header.
      target_compile_options(${target} PRIVATE
        "$<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess;-Wno-stringop-overflow;-Wno-array-bounds>")
    endforeach()
  endif()
endfunction()
