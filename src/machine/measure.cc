// The measurements behind plans and benchmarks: best of several, since a busy neighbour only ever
// makes a run slower.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/thread_pool.h"
#include "machine/machine.h"
#include "machine/probe_kernels.h"

namespace palimpsest {
namespace {

constexpr std::int64_t kPage = 4096;

double seconds_of(auto&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Anonymous memory, in huge pages where they are asked for and the system grants them.
class Memory {
 public:
  Memory(std::int64_t bytes, Pages pages) : bytes_(static_cast<std::size_t>(bytes)) {
    data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED)
      throw make_error(ErrorCode::kOutOfMemory, "no memory for a probe of {} bytes", bytes);
    madvise(data_, bytes_, pages == Pages::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  }
  ~Memory() { munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::uint8_t* data() const { return static_cast<std::uint8_t*>(data_); }

 private:
  void* data_;
  std::size_t bytes_;
};

}  // namespace

namespace {

/// Bytes per second of `sweep(slice, bytes, pass)`, which each thread runs over its own slice: the best of several passes, about a third of a
/// second in all.
template <class Sweep>
double best_sweep(std::int64_t bytes, int threads, Pages page_size, Sweep sweep) {
  base::ThreadPool pool(threads);
  const std::int64_t slice = std::max(kPage, bytes / threads / kPage * kPage);
  const Memory memory(slice * threads, page_size);
  const auto each_slice = [&](auto work) {
    pool.parallel_for(threads, 1, [&](std::int64_t begin, std::int64_t, int) {
      work(memory.data() + begin * slice);
    });
  };
  each_slice([&](std::uint8_t* p) {
    std::memset(p, 1, static_cast<std::size_t>(slice));
  });  // touched by its reader

  // Small buffers are read often enough in one timing that the clock does not matter.
  const std::int64_t repeats = std::max<std::int64_t>(1, (std::int64_t{16} << 20) / slice);
  double best = 0, spent = 0;
  for (int pass = 0; pass < 3 || (spent < 0.3 && pass < 1000); ++pass) {
    const double seconds = seconds_of([&] {
      each_slice([&](std::uint8_t* p) {
        for (std::int64_t r = 0; r < repeats; ++r) sweep(p, slice, pass);
      });
    });
    best = std::max(best, static_cast<double>(slice * threads * repeats) / seconds);
    spent += seconds;
  }
  return best;
}

}  // namespace

double measure_read_bandwidth(std::int64_t bytes, int threads, Pages page_size) {
  std::atomic<std::uint64_t> checksum{0};
  return best_sweep(bytes, threads, page_size,
                    [&](const std::uint8_t* p, std::int64_t slice, int pass) {
                      static constexpr int kStreams[] = {1, 4, 8};
                      checksum.fetch_add(machine::read_streams(p, slice, kStreams[pass % 3]),
                                         std::memory_order_relaxed);
                    });
}

double measure_memory_reads(int threads) {
  const MachineInfo machine = probe_machine();
  // Read end to end, little of one pass is left for the next.
  const std::int64_t buffer = std::clamp<std::int64_t>(2 * machine.l3_bytes, 64 << 20, 512 << 20);
  return buffer < machine.memory_available / 2 ? measure_read_bandwidth(buffer, threads) : 0;
}

double measure_update_bandwidth(std::int64_t bytes, int threads) {
  // A factor of one leaves the numbers normal, however often.
  return 2 * best_sweep(bytes, threads, Pages::kHuge, [](std::uint8_t* p, std::int64_t slice, int) {
           machine::update_stream(reinterpret_cast<float*>(p), slice, 1.0f);
         });
}

double measure_fma_rate(int threads) {
  base::ThreadPool pool(threads);
  std::vector<float> sinks(static_cast<std::size_t>(threads) * 16);  // a cache line apart
  std::vector<double> operations(static_cast<std::size_t>(threads) * 8);
  double best = 0;
  for (int pass = 0; pass < 20; ++pass) {
    const double seconds = seconds_of([&] {
      pool.parallel_for(threads, 1, [&](std::int64_t begin, std::int64_t, int) {
        const auto t = static_cast<std::size_t>(begin);
        operations[t * 8] = machine::fma_chains(1 << 20, &sinks[t * 16]);
      });
    });
    double total = 0;
    for (std::size_t t = 0; t < static_cast<std::size_t>(threads); ++t) total += operations[t * 8];
    best = std::max(best, total / seconds);
  }
  return best;
}

}  // namespace palimpsest
