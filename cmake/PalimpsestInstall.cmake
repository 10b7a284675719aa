# `cmake --install`: the binary, one static and one shared library made of all folders, public headers, CMake package, pkg-config file,
# manual page and shell completions.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The libraries hold every folder but the command line, which is a program, and downloads and the server, which no public header offers:
# programs that link the library need no libcurl.
get_property(folder_libraries GLOBAL PROPERTY PALIMPSEST_LIBRARIES)
list(REMOVE_ITEM folder_libraries palimpsest_hub palimpsest_server)
set(library_objects "")
foreach(library IN LISTS folder_libraries)
  list(APPEND library_objects $<TARGET_OBJECTS:${library}>)
endforeach()
# What these objects need at link time; header-only dependencies leave nothing to link.
set(library_dependencies fmt::fmt spdlog::spdlog simdjson::simdjson PkgConfig::HWY PkgConfig::PCRE2 PkgConfig::UTF8PROC PkgConfig::ZSTD
    PkgConfig::XXHASH PkgConfig::PNG PkgConfig::JPEG PkgConfig::WEBP PkgConfig::WEBPDEMUX PkgConfig::GIF Threads::Threads)
set(pc_cuda_libraries "")
if(PALIMPSEST_HAVE_CUDA)
  list(APPEND library_dependencies CUDA::cudart_static)
  set(pc_cuda_libraries "-L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
endif()

add_library(palimpsest_static STATIC ${library_objects})
add_library(palimpsest_shared SHARED ${library_objects})
foreach(library palimpsest_static palimpsest_shared)
  set_target_properties(${library} PROPERTIES OUTPUT_NAME palimpsest LINKER_LANGUAGE CXX)
  target_compile_features(${library} PUBLIC cxx_std_20)
  target_include_directories(${library} INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(${library} PRIVATE ${library_dependencies} $<BUILD_INTERFACE:palimpsest_options>)
endforeach()
set_target_properties(palimpsest_static PROPERTIES EXPORT_NAME static)
set_target_properties(palimpsest_shared PROPERTIES EXPORT_NAME palimpsest
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
if(NOT PALIMPSEST_SANITIZE)
  target_link_options(palimpsest_shared PRIVATE LINKER:--no-undefined)
endif()

install(TARGETS palimpsest_shared EXPORT palimpsestShared)
install(TARGETS palimpsest_static EXPORT palimpsestStatic)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/palimpsest DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# CMake package. The targets lie in two files, so that a program that links the shared library needs none of its dependencies.
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/palimpsest)
install(EXPORT palimpsestShared NAMESPACE palimpsest:: DESTINATION ${package_dir})
install(EXPORT palimpsestStatic NAMESPACE palimpsest:: DESTINATION ${package_dir})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/palimpsestConfig.cmake.in
    ${PROJECT_BINARY_DIR}/package/palimpsestConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/palimpsestConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/palimpsestConfig.cmake ${PROJECT_BINARY_DIR}/package/palimpsestConfigVersion.cmake
    DESTINATION ${package_dir})

# pkg-config. The prefix is found from where the file lies, so that an installed tree can be moved.
if(IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR} OR IS_ABSOLUTE ${CMAKE_INSTALL_INCLUDEDIR})
  message(FATAL_ERROR "CMAKE_INSTALL_LIBDIR and CMAKE_INSTALL_INCLUDEDIR must be relative to the prefix")
endif()
file(RELATIVE_PATH pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${PROJECT_SOURCE_DIR}/cmake/palimpsest.pc.in ${PROJECT_BINARY_DIR}/package/palimpsest.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/palimpsest.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The program; its manual page and completions are written from the table of flags that it prints itself.
install(TARGETS palimpsest_cli)
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
  set(cli_docs_dir ${PROJECT_BINARY_DIR}/cli_docs)
  set(cli_docs ${cli_docs_dir}/palimpsest.1 ${cli_docs_dir}/palimpsest.bash ${cli_docs_dir}/_palimpsest ${cli_docs_dir}/palimpsest.fish)
  add_custom_command(OUTPUT ${cli_docs}
      COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/generate_cli_docs.py
              $<TARGET_FILE:palimpsest_cli> ${cli_docs_dir} --version ${PROJECT_VERSION}
      DEPENDS palimpsest_cli ${PROJECT_SOURCE_DIR}/scripts/generate_cli_docs.py
      COMMENT "Writing the manual page and shell completions" VERBATIM)
  add_custom_target(palimpsest_cli_docs ALL DEPENDS ${cli_docs})
  install(FILES ${cli_docs_dir}/palimpsest.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${cli_docs_dir}/palimpsest.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME palimpsest)
  install(FILES ${cli_docs_dir}/_palimpsest DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${cli_docs_dir}/palimpsest.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
else()
  message(STATUS "No Python 3: the manual page and shell completions are not made")
endif()
