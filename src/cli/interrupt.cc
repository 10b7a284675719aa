#include "cli/interrupt.h"

#include <unistd.h>

#include <csignal>

namespace palimpsest::cli {
namespace {

// Lock-free atomics are all that a signal handler may touch.
std::atomic<bool> g_armed{false};
std::atomic<bool> g_cancelled{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void on_interrupt(int) {
  if (g_armed.load(std::memory_order_relaxed) &&
      !g_cancelled.exchange(true, std::memory_order_relaxed))
    return;
  // Ends a half-written line; nothing to do if it fails.
  if (write(STDERR_FILENO, "\n", 1) < 0) _exit(kInterruptedExit);
  _exit(kInterruptedExit);
}

}  // namespace

Interruptible::Interruptible() {
  g_cancelled.store(false, std::memory_order_relaxed);
  g_armed.store(true, std::memory_order_relaxed);
}

Interruptible::~Interruptible() {
  g_armed.store(false, std::memory_order_relaxed);
}

const std::atomic<bool>& Interruptible::flag() const {
  return g_cancelled;
}

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_interrupt;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;  // reads and writes go on: only the answer is stopped
  sigaction(SIGINT, &action, nullptr);
}

}  // namespace palimpsest::cli
