# Language level, warnings, sanitizers, compiler cache, and whether CUDA sources are compiled.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
# CHECK() stays on in release builds; assert() is not used.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

find_program(CCACHE ccache)
if(CCACHE)
  # Objects do not depend on where the tree lies, so every build folder and every clone shares them.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()

add_library(palimpsest_options INTERFACE)
target_compile_options(palimpsest_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers>)
if(PALIMPSEST_WERROR)
  target_compile_options(palimpsest_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
# Bits must not depend on whether the compiler chose to contract a*b+c: kernels ask for FMA where they want it.
target_compile_options(palimpsest_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

if(PALIMPSEST_SANITIZE)
  target_compile_options(palimpsest_options INTERFACE
      $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${PALIMPSEST_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -g1>)
  target_link_options(palimpsest_options INTERFACE -fsanitize=${PALIMPSEST_SANITIZE})
endif()

# Fuzzers follow the coverage of the libraries, not only of their own file.
if(PALIMPSEST_BUILD_FUZZERS)
  target_compile_options(palimpsest_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

set(PALIMPSEST_HAVE_CUDA OFF)
if(NOT PALIMPSEST_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES 90a)
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    find_package(CUDAToolkit REQUIRED)
    # CMake 3.25 does not know that nvcc speaks C++20.
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
      list(APPEND CMAKE_CUDA_COMPILE_FEATURES cuda_std_20)
    endif()
    set(PALIMPSEST_HAVE_CUDA ON)
    message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION}: compiling device code for sm_90a")
  elseif(PALIMPSEST_CUDA STREQUAL "ON")
    message(FATAL_ERROR "PALIMPSEST_CUDA=ON, but no CUDA compiler was found (set CMAKE_CUDA_COMPILER or PATH)")
  endif()
endif()
if(NOT PALIMPSEST_HAVE_CUDA)
  message(STATUS "No CUDA toolkit: building for the CPU only")
endif()
