// A decode step in steady state allocates nothing: counted by replacing the global allocation functions of this test binary. Sanitizers bring
// allocation functions of their own; there the tests are skipped.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "palimpsest/session.h"
#include "support/forward_runner.h"
#include "support/shared_data.h"

namespace {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCounting = false;
#else
constexpr bool kCounting = true;
#endif
std::atomic<long> allocations{0};
}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

void* operator new(std::size_t bytes) {
  allocations.fetch_add(1);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  allocations.fetch_add(1);
  const auto a = static_cast<std::size_t>(alignment);
  if (void* p = std::aligned_alloc(a, (bytes + a - 1) / a * a)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
#endif

namespace palimpsest {
namespace {

TEST(Decode, AllocatesNothingAfterTheFirstToken) {
  if (!kCounting) GTEST_SKIP() << "sanitizers replace the allocation functions";
  for (const int threads : {1, 2}) {
    Session session(Model::load(test::project_path("models/demo")), {.threads = threads, .context = 1024});
    const std::vector<std::int32_t> prompt = {528, 713, 440, 995, 649};
    session.append(prompt);
    std::int32_t token = test::argmax(session.logits());
    session.append(std::span(&token, 1));  // kernels take their scratch memory here
    const long before = allocations.load();
    for (int step = 0; step < 100; ++step) {
      token = test::argmax(session.logits());
      session.append(std::span(&token, 1));
    }
    EXPECT_EQ(allocations.load(), before) << threads << " threads";
  }
}

TEST(Decode, TheCounterSeesAllocations) {
  if (!kCounting) GTEST_SKIP() << "sanitizers replace the allocation functions";
  const long before = allocations.load();
  const auto made = std::make_unique<int>(1);
  EXPECT_EQ(*made, 1);
  EXPECT_EQ(allocations.load(), before + 1);
}

}  // namespace
}  // namespace palimpsest
