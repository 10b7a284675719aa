#pragma once

#include <atomic>

namespace palimpsest::cli {

/// What Ctrl-C does. While an Interruptible lives, the first SIGINT sets cancelled() and the work
/// ends where it can; a second one leaves the process with code 130. Outside of any, the first
/// leaves. One at a time.
class Interruptible {
 public:
  Interruptible();
  ~Interruptible();
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;

  const std::atomic<bool>& flag() const;
  bool cancelled() const { return flag().load(std::memory_order_relaxed); }
};

/// Installs the handler. Called once, before threads start.
void install_interrupt_handler();

inline constexpr int kInterruptedExit = 130;

}  // namespace palimpsest::cli
