# Third-party libraries, all Debian 12 packages (scripts/install_dependencies.sh lists them with their purpose).

find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(spdlog REQUIRED)
find_package(simdjson REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(CURL 7.85 REQUIRED)
# Headers alone (Beast and Asio), seen by src/server/http.cc only.
find_package(Boost 1.81 REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
# Exactly three targets: SCALAR, AVX2, AVX3 (AVX-512), whatever -march says and whichever compiler it is (some would get 128-bit emulation
# in place of SCALAR). They keep compile time bearable and cover the machines people have.
target_compile_definitions(PkgConfig::HWY INTERFACE
    "HWY_BASELINE_TARGETS=HWY_SCALAR" "HWY_BROKEN_EMU128=1" "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL)")
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
# Snapshots on disk and session files.
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
# Pictures, seen by src/media/ only.
pkg_check_modules(PNG REQUIRED IMPORTED_TARGET libpng)
pkg_check_modules(JPEG REQUIRED IMPORTED_TARGET libjpeg)
pkg_check_modules(WEBP REQUIRED IMPORTED_TARGET libwebp)
pkg_check_modules(WEBPDEMUX REQUIRED IMPORTED_TARGET libwebpdemux)
pkg_check_modules(GIF REQUIRED IMPORTED_TARGET libgif)
if(PALIMPSEST_BUILD_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
  find_package(rapidcheck QUIET)
endif()
if(PALIMPSEST_BUILD_BENCH)
  find_package(benchmark REQUIRED)
endif()
