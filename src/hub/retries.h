#pragma once

#include "hub/http.h"

namespace palimpsest::hub {

/// How often one thing has failed in a row, and how long to wait before the next attempt:
///
///   for (Retries retries(patience, stop);;) {
///     try { return attempt(); } catch (const TransientError& error) { retries.wait(error); }
///   }
class Retries {
 public:
  Retries(const Patience& patience, const Stop& stop) : patience_(patience), stop_(stop) {}

  /// Waits as long as the server asked for, else twice as long as the last time. Throws the error
  /// when it was the last attempt or the server asks for too long a wait, and Error{kCancelled}.
  void wait(const TransientError& error);
  /// The last attempt brought something: its failure is the first in a row.
  void headway() { failures_ = 0; }

 private:
  const Patience& patience_;
  const Stop& stop_;
  int failures_ = 0;
};

/// Sleeps unless and until `stop`; then throws Error{kCancelled}.
void wait_for(std::chrono::milliseconds time, const Stop& stop);

}  // namespace palimpsest::hub
