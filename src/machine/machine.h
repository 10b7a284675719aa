#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace palimpsest {

/// What the operating system says about this machine. A number it does not tell is 0.
struct MachineInfo {
  int cores = 1;                      ///< physical cores this process may run on
  std::int64_t l1d_bytes = 0;         ///< of one core
  std::int64_t l2_bytes = 0;          ///< of one core
  std::int64_t l3_bytes = 0;          ///< of the group of cores that share it
  std::int64_t memory_total = 0;      ///< bytes; the control group's limit where that is lower
  std::int64_t memory_available = 0;  ///< bytes that can be used without swapping, within the limit
  std::string target;  ///< instruction set the kernels run with: "AVX3", "AVX2" or "SCALAR"
};

/// Reads the system's tables; takes well under a millisecond. Never fails.
MachineInfo probe_machine();

/// Small pages are what files are mapped in; huge ones are what anonymous memory can have where the system grants them.
enum class Pages { kSmall, kHuge };

/// Bytes per second that `threads` threads read from one buffer of `bytes` bytes, each its own contiguous slice, with vector loads: the floor
/// for kernels that stream weights. With a buffer larger than the last cache this is the memory's bandwidth, with a smaller one that
/// cache's. The best of several passes with 1, 4 and 8 streams a thread, about a third of a second in all. Throws Error{kOutOfMemory}.
double measure_read_bandwidth(std::int64_t bytes, int threads, Pages pages = Pages::kHuge);

/// The same of a buffer that is larger than the last cache: 64 to 512 MiB. 0 where memory for it lacks.
double measure_memory_reads(int threads);

/// The same for threads that read and write again every number of their slice in one sweep, in huge pages: the floor for kernels that update
/// a state. Counts each byte twice, as it is read and as it is written.
double measure_update_bandwidth(std::int64_t bytes, int threads);

/// Bytes per second that a file is read with from its device, past the system's cache: direct reads of 1 MiB by four threads, spread over the
/// file, for a quarter of a second at most. 0 where that cannot be done (a file of less than 4 MiB, a file system without direct reads).
double measure_disk_bandwidth(const std::filesystem::path& file);

/// F32 operations per second (a fused multiply-add counts as two) of `threads` threads on registers
/// only, with the vectors of the active target: the ceiling for dense products. The best of several
/// runs, about a tenth of a second in all.
double measure_fma_rate(int threads);

}  // namespace palimpsest
