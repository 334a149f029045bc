# What `cmake --install` adds to the programs, so that a project elsewhere builds on millrace (docs/your-model.md):
#   include/millrace/   the headers of include/millrace, which are public, and what they include (millrace_headers.cmake)
#   lib/                the static libraries that driver/worker links
#   lib/cmake/millrace/ find_package(millrace), target millrace::millrace
#   lib/pkgconfig/      millrace.pc, for builds without CMake
include(CMakePackageConfigHelpers)

# Adds `target` and what it links of ours to the property MILLRACE_PACKAGED.
function(millrace_package target)
  get_property(found GLOBAL PROPERTY MILLRACE_PACKAGED)
  if(NOT TARGET ${target} OR NOT target MATCHES "^millrace_" OR target IN_LIST found)
    return()
  endif()
  get_target_property(imported ${target} IMPORTED)
  if(imported)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY MILLRACE_PACKAGED ${target})
  get_target_property(links ${target} INTERFACE_LINK_LIBRARIES)
  foreach(link ${links})
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" link "${link}")
    millrace_package("${link}")
  endforeach()
endfunction()

add_library(millrace_millrace INTERFACE)  # what users link: millrace::millrace
target_link_libraries(millrace_millrace INTERFACE millrace_worker)
millrace_package(millrace_millrace)
get_property(libraries GLOBAL PROPERTY MILLRACE_PACKAGED)
foreach(library ${libraries})
  string(REPLACE "millrace_" "" name ${library})
  set_target_properties(${library} PROPERTIES EXPORT_NAME ${name})
endforeach()
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/millrace)
install(TARGETS ${libraries} EXPORT millraceTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT millraceTargets NAMESPACE millrace:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/millraceConfig.cmake.in ${CMAKE_BINARY_DIR}/millraceConfig.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/millraceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/millraceConfig.cmake ${CMAKE_BINARY_DIR}/millraceConfigVersion.cmake
  ${CMAKE_SOURCE_DIR}/cmake/millrace_torch.cmake DESTINATION ${package_dir})
# For builds without CMake. Its archives are those of the package.
file(RELATIVE_PATH pc_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
set(pc_archives "")
foreach(library ${libraries})
  get_target_property(type ${library} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    string(APPEND pc_archives ",-l${library}")
  endif()
endforeach()
configure_file(${CMAKE_SOURCE_DIR}/cmake/millrace.pc.in ${CMAKE_BINARY_DIR}/millrace.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/millrace.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(CODE "set(source \"${CMAKE_SOURCE_DIR}\")\nset(into \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\")\n\
include(\"${CMAKE_SOURCE_DIR}/cmake/millrace_headers.cmake\")")
install(DIRECTORY ${CMAKE_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DOCDIR})
