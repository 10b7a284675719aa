#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>

#include "base/thread_pool.h"
#include "machine/machine.h"

namespace palimpsest {
namespace {

constexpr std::int64_t kBlock = 1 << 20;
constexpr int kReaders =
    4;  // requests in flight: one alone leaves a solid-state disk idle between them
constexpr double kSeconds = 0.25;

struct Descriptor {
  explicit Descriptor(const std::filesystem::path& path)
      : fd(::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC)) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int fd;
};

struct Free {
  void operator()(void* p) const { std::free(p); }
};

}  // namespace

double measure_disk_bandwidth(const std::filesystem::path& path) {
  std::error_code failed;
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path, failed));
  const Descriptor file(path);
  const std::int64_t blocks = size / kBlock;
  if (failed || file.fd < 0 || blocks < kReaders) return 0;

  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  const auto seconds = [start] {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  // Every stride-th block in turn, with a stride that is prime to the number of blocks often
  // enough: neighbours would be read ahead.
  const std::int64_t stride = std::max<std::int64_t>(1, blocks / 64) | 1;
  std::atomic<std::int64_t> next{0}, bytes{0};
  std::atomic<bool> broken{false};
  base::ThreadPool readers(kReaders);
  readers.parallel_for(kReaders, 1, [&](std::int64_t, std::int64_t, int) {
    const std::unique_ptr<void, Free> buffer(std::aligned_alloc(4096, kBlock));
    while (buffer && seconds() < kSeconds) {
      const std::int64_t i = next.fetch_add(1);
      if (i >= blocks) return;
      if (::pread(file.fd, buffer.get(), kBlock, i * stride % blocks * kBlock) != kBlock) {
        broken = true;
        return;
      }
      bytes += kBlock;
    }
  });
  return broken || bytes == 0 ? 0 : static_cast<double>(bytes) / seconds();
}

}  // namespace palimpsest
