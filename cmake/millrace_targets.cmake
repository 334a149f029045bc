# millrace_library(name FOLDER dir [LINK ...] [PRIVATE_LINK ...] [EXCLUDE regex] [ONLY regex])
#   static target millrace_<name> of the .cpp files in the folder. *_main.cpp are programs, never in a library.
# millrace_program(name SOURCES ... LINK ...)
# millrace_test(name FOLDER tests/dir LABEL unit|torch|multi|slow LINK ... [TIMEOUT s] [OPTIMISE -O0])
#   one program and one ctest entry for each folder: loading LibTorch is what costs. main() is tests/harness/test_main.cpp.
include(GNUInstallDirs)

add_library(millrace_options INTERFACE)
target_compile_features(millrace_options INTERFACE cxx_std_20)
# GCC collects garbage from 128 MiB on, a seventh of its time here; from 1 GiB on it needs a seventh more memory (2 GiB at most).
target_compile_options(millrace_options INTERFACE $<BUILD_INTERFACE:$<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1048576>>)
target_compile_options(millrace_options INTERFACE $<BUILD_INTERFACE:-Wall;-Wextra;-Wno-missing-field-initializers;-Wno-restrict>
  $<BUILD_INTERFACE:$<$<BOOL:${MILLRACE_WERROR}>:-Werror>>)
target_include_directories(millrace_options INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}>
  $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

function(millrace_library name)
  cmake_parse_arguments(ARG "" "FOLDER;EXCLUDE;ONLY" "LINK;PRIVATE_LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${ARG_FOLDER}/*.cpp)
  list(FILTER sources EXCLUDE REGEX "_main\\.cpp$")
  if(ARG_EXCLUDE)
    list(FILTER sources EXCLUDE REGEX "/(${ARG_EXCLUDE})[^/]*$")
  endif()
  if(ARG_ONLY)
    list(FILTER sources INCLUDE REGEX "/(${ARG_ONLY})[^/]*$")
  endif()
  if(sources)
    add_library(millrace_${name} STATIC ${sources})
    target_link_libraries(millrace_${name} PUBLIC millrace_options ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK})
  else()
    add_library(millrace_${name} INTERFACE)
    target_link_libraries(millrace_${name} INTERFACE millrace_options ${ARG_LINK} ${ARG_PRIVATE_LINK})
  endif()
endfunction()

# Makes text files of the tree string literals: #include <embedded/PATH> in `source`.
function(millrace_embed source)
  foreach(file ${ARGN})
    file(READ ${CMAKE_SOURCE_DIR}/${file} text)
    file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/include/embedded/${file} CONTENT "R\"embedded(@text@)embedded\"" @ONLY)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${file})
  endforeach()
  set_source_files_properties(${source} PROPERTIES INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/include)
endfunction()

function(millrace_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK})
  # An installed program finds libraries beside itself, then LibTorch where it was at build time.
  set_target_properties(${name} PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}"
    INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# With PARTS n, CTest has the tests of the folder as n tests <name>_1 ... <name>_n, which can run at the same time.
# QUICK: one of those that `scripts/test` builds and runs. WAITS: its processes wait for each other half of the time, so that
# twice as many of such tests run at once: CTest counts two slots for a core (scripts/test).
function(millrace_test name)
  cmake_parse_arguments(ARG "QUICK;WAITS" "FOLDER;LABEL;TIMEOUT;OPTIMISE;PARTS" "LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${ARG_FOLDER}/*.cpp)
  if(NOT sources)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${sources} ${CMAKE_SOURCE_DIR}/tests/harness/test_main.cpp)
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gtest Threads::Threads)
  target_compile_definitions(${name} PRIVATE MILLRACE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    MILLRACE_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  if(ARG_OPTIMISE)
    target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:${ARG_OPTIMISE}>)
  endif()
  set(tests)
  if(ARG_PARTS)
    foreach(part RANGE 1 ${ARG_PARTS})
      math(EXPR index "${part} - 1")
      add_test(NAME ${name}_${part} COMMAND ${name})
      set_tests_properties(${name}_${part} PROPERTIES ENVIRONMENT "GTEST_TOTAL_SHARDS=${ARG_PARTS};GTEST_SHARD_INDEX=${index}")
      list(APPEND tests ${name}_${part})
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${name})
    list(APPEND tests ${name})
  endif()
  # Those that may take long begin first, so that no long one is left alone at the end.
  set(labels ${ARG_LABEL})
  if(ARG_QUICK)
    list(APPEND labels quick)
    add_dependencies(quick_tests ${name})
  endif()
  set(slots 2)
  if(ARG_WAITS)
    set(slots 1)
  endif()
  set_tests_properties(${tests} PROPERTIES LABELS "${labels}" TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT} SKIP_RETURN_CODE 77
    PROCESSORS ${slots})
endfunction()
