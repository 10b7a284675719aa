# One call per folder, so that every library, test, benchmark and fuzzer is declared in the same two lines.

# palimpsest_library(NAME [PUBLIC dep...] [PRIVATE dep...]): the folder's *.cc as static library palimpsest_NAME.
# A bare dep that names another folder ("tensor") means palimpsest_tensor.
function(palimpsest_resolve out)
  set(resolved "")
  foreach(dep IN LISTS ARGN)
    if(TARGET palimpsest_${dep})
      list(APPEND resolved palimpsest_${dep})
    else()
      list(APPEND resolved ${dep})
    endif()
  endforeach()
  set(${out} ${resolved} PARENT_SCOPE)
endfunction()

function(palimpsest_library name)
  cmake_parse_arguments(ARG "" "" "PUBLIC;PRIVATE;SOURCES" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB_RECURSE ARG_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  endif()
  add_library(palimpsest_${name} STATIC ${ARG_SOURCES})
  target_include_directories(palimpsest_${name} PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src>)
  palimpsest_resolve(public ${ARG_PUBLIC})
  palimpsest_resolve(private ${ARG_PRIVATE})
  target_link_libraries(palimpsest_${name} PUBLIC ${public} PRIVATE ${private} palimpsest_options)
  set_property(GLOBAL APPEND PROPERTY PALIMPSEST_LIBRARIES palimpsest_${name})
endfunction()

# palimpsest_test(NAME dep...): the folder's *_test.cc as one GoogleTest binary test_NAME, registered test by test.
function(palimpsest_test name)
  cmake_parse_arguments(ARG "" "" "LABELS;SOURCES" ${ARGN})
  if(NOT ARG_SOURCES)
    file(GLOB ARG_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*_test.cc)
  endif()
  add_executable(test_${name} ${ARG_SOURCES})
  palimpsest_resolve(deps ${ARG_UNPARSED_ARGUMENTS})
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(test_${name} PRIVATE ${deps} palimpsest_options palimpsest_test_support GTest::gmock GTest::gtest_main)
  set(labels ${name} ${ARG_LABELS})
  gtest_discover_tests(test_${name} DISCOVERY_TIMEOUT 120 WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
      PROPERTIES LABELS "${labels}" TIMEOUT 600 SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
endfunction()

# palimpsest_bench(NAME dep...): bench/bench_NAME.cc as a Google Benchmark binary bench_NAME.
function(palimpsest_bench name)
  add_executable(bench_${name} bench_${name}.cc)
  palimpsest_resolve(deps ${ARGN})
  target_include_directories(bench_${name} PRIVATE ${PROJECT_SOURCE_DIR}/bench)
  target_link_libraries(bench_${name} PRIVATE ${deps} palimpsest_options benchmark::benchmark)
endfunction()

# palimpsest_fuzzer(NAME dep...): fuzz/fuzz_NAME.cc, linked with libFuzzer; seeds lie in fuzz/seeds/NAME.
function(palimpsest_fuzzer name)
  add_executable(fuzz_${name} fuzz_${name}.cc)
  palimpsest_resolve(deps ${ARGN})
  target_compile_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(fuzz_${name} PRIVATE ${deps} palimpsest_options)
endfunction()
