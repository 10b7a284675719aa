#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cli/options.h"
#include "palimpsest/session.h"

namespace palimpsest::cli {

/// The file of --session: read at the start if it is there, written after each answer, and now and
/// then while a long prompt is read, so that a killed run goes on from there. Without --session it
/// does nothing.
class SessionKeeper {
 public:
  /// Throws Error{kIo} when such a file could not be written; to be called before work begins.
  static void check(const Options& options);

  /// Restores the session if there is a file, and says so on standard error. Throws as
  /// Session::restore; then the file stays as it is.
  SessionKeeper(const Options& options, Session& session);

  bool restored() const { return restored_; }
  /// What the file said, then what save() was given.
  const SessionNote& note() const { return note_; }

  /// Writes what the session holds.
  void save(SessionNote note);
  /// The same while a prompt is read, if the last time is --save-every seconds ago. What is read
  /// belongs to no message yet: the text stays what it was.
  void save_now_and_then();

 private:
  using Clock = std::chrono::steady_clock;

  Session& session_;
  std::optional<std::filesystem::path> path_;
  std::chrono::seconds every_;
  SessionNote note_;
  bool restored_ = false;
  Clock::time_point last_ = Clock::now();
};

}  // namespace palimpsest::cli
