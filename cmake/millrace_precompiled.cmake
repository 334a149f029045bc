# Headers that are read once for many files: the standard library's, and with them ATen/core/Tensor.h, which with what it brings
# is most of the time that a file over LibTorch takes to compile. ccache keeps what was made with them if the compiler says which
# precompiled header it took (-fpch-preprocess).
#   millrace_precompile(target...)         of targets without LibTorch
#   millrace_precompile_torch(target...)   of targets with it
option(MILLRACE_PRECOMPILED "Compile the headers of LibTorch and of the standard library once" ON)
if(MILLRACE_TIDY)
  set(MILLRACE_PRECOMPILED OFF)  # clang-tidy does not read GCC's
endif()
set(standard_headers <algorithm> <chrono> <cmath> <condition_variable> <cstdint> <cstdio> <cstring> <deque> <filesystem>
  <functional> <map> <memory> <mutex> <optional> <set> <span> <string> <thread> <unordered_map> <utility> <vector>)

# millrace_precompiled_headers(name LINK ... HEADERS ...)
function(millrace_precompiled_headers name)
  cmake_parse_arguments(ARG "" "" "LINK;HEADERS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${name}.cpp CONTENT "" @ONLY)
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/${name}.cpp)
  target_link_libraries(${name} PUBLIC millrace_options ${ARG_LINK})
  target_precompile_headers(${name} PRIVATE ${ARG_HEADERS})
  target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endfunction()

function(millrace_precompile_from name)
  foreach(target ${ARGN})
    get_target_property(type ${target} TYPE)
    if(MILLRACE_PRECOMPILED AND NOT type STREQUAL INTERFACE_LIBRARY)
      target_precompile_headers(${target} REUSE_FROM ${name})
      # Without two warnings: GCC 12's false ones of "a" + std::string (its bug 105329), which it keeps to itself only where
      # the standard library was not read from a precompiled header.
      target_compile_options(${target} PRIVATE
        "$<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess;-Wno-stringop-overflow;-Wno-array-bounds>")
    endif()
  endforeach()
endfunction()

if(MILLRACE_PRECOMPILED)
  millrace_precompiled_headers(millrace_precompiled HEADERS ${standard_headers})
  if(MILLRACE_TORCH)
    millrace_precompiled_headers(millrace_precompiled_torch LINK millrace_torch HEADERS <ATen/core/Tensor.h>
      <ATen/core/grad_mode.h> <ATen/ops/add.h> <ATen/ops/empty.h> <ATen/ops/zeros.h> ${standard_headers})
  endif()
endif()
function(millrace_precompile)
  millrace_precompile_from(millrace_precompiled ${ARGN})
endfunction()
function(millrace_precompile_torch)
  millrace_precompile_from(millrace_precompiled_torch ${ARGN})
endfunction()
