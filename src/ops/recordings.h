#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "tensor/exec_context.h"

namespace palimpsest::ops {

/// Passes over the same memories, recorded on a CUDA device when they are asked for a second time and played from then on: hundreds of launches
/// become one. On the host, while planning or profiling, and with PALIMPSEST_NO_GRAPHS in the environment every pass is run. Not thread-safe.
class Recordings {
 public:
  /// All that a pass's launches depend on besides what lies in memory: addresses, sizes, choices.
  using Key = std::vector<std::uint64_t>;

  Recordings() = default;
  ~Recordings() { clear(); }
  Recordings(const Recordings&) = delete;
  Recordings& operator=(const Recordings&) = delete;

  /// What `pass` returns: a tensor on the device. It asks for kernels and copies from pinned memory alone, and waits for nothing.
  Tensor play(ExecContext& ctx, const Key& key, const std::function<Tensor()>& pass);

 private:
  struct Recording {
    Tensor result;
    void* graph = nullptr;
  };
  void clear();
  std::map<Key, Recording> recordings_;
};

}  // namespace palimpsest::ops
