#include "base/file_memory.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

namespace palimpsest::base {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

std::size_t within_huge_page(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % kHugePage; }

/// Copies in steps, after each of which the source's pages are let go: else the process would seem to hold the bytes twice.
void copy_and_let_go(std::span<const std::byte> from, char* to) {
  constexpr std::size_t kStep = std::size_t{64} << 20;  // whole pages
  for (std::size_t done = 0; done < from.size(); done += kStep) {
    const std::size_t count = std::min(kStep, from.size() - done);
    std::memcpy(to + done, from.data() + done, count);
    ::madvise(const_cast<std::byte*>(from.data()) + done, count, MADV_DONTNEED);
  }
}

}  // namespace

Result<bool> copy_into_memory(std::span<const std::byte> mapping) {
  if (mapping.empty()) return true;
  void* const address = const_cast<std::byte*>(mapping.data());
  // A huge page lies at a multiple of its size, and stays whole when it is moved by one: so the copy is made at an address that lies like the
  // mapping's in its huge page.
  const std::size_t size = mapping.size(), room = size + kHugePage;
  void* reserved = ::mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return fail(ErrorCode::kOutOfMemory, "the system refused {} bytes of memory", room);
  char* const begin = static_cast<char*>(reserved);
  char* const copy = begin + (within_huge_page(address) + kHugePage - within_huge_page(begin)) % kHugePage;
  ::madvise(copy, size, MADV_HUGEPAGE);
  ::madvise(address, size, MADV_SEQUENTIAL);
  copy_and_let_go(mapping, copy);
  ::mprotect(copy, size, PROT_READ);
  if (::mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, address) == MAP_FAILED) {
    const int reason = errno;
    ::munmap(reserved, room);
    return fail(ErrorCode::kOutOfMemory, "the system cannot move {} bytes: {}", size, std::strerror(reason));
  }
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  char* const after = copy + (size + page - 1) / page * page;
  if (copy > begin) ::munmap(begin, static_cast<std::size_t>(copy - begin));
  if (after < begin + room) ::munmap(after, static_cast<std::size_t>(begin + room - after));
  return true;
}

Result<bool> lock_in_memory(std::span<const std::byte> bytes) {
  if (bytes.empty() || ::mlock(bytes.data(), bytes.size()) == 0) return true;
  const int reason = errno;
  struct rlimit most {};
  const bool limited = ::getrlimit(RLIMIT_MEMLOCK, &most) == 0 && most.rlim_cur != RLIM_INFINITY;
  return fail(ErrorCode::kOutOfMemory, "cannot lock {} bytes in memory: {}{}", bytes.size(), std::strerror(reason),
              limited ? fmt::format(" (the limit of this process is {} bytes, see ulimit -l)", most.rlim_cur) : "");
}

}  // namespace palimpsest::base
