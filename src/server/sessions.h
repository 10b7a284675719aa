#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/task_thread.h"
#include "palimpsest/engine.h"
#include "runtime/session_file.h"

namespace palimpsest::server {

/// Session files in one folder, by name: what an engine has computed of a prompt, so that another
/// start of the server goes on from it. Answers do not wait for files: between two steps of the
/// engine what is to be written is taken hold of, and what was read and checked is copied into the
/// memories. (Where the memories lie on a device, they wait while a file is written.) Throws
/// ApiError, which names no path.
class Sessions {
 public:
  /// Removes what killed processes had begun to write. Throws Error{kIo} for a folder that is not
  /// there.
  Sessions(Engine& engine, std::filesystem::path folder);
  ~Sessions();
  Sessions(const Sessions&) = delete;
  Sessions& operator=(const Sessions&) = delete;

  /// Runs `task` on the store's own thread, one after the other: everything below may wait, which
  /// no other thread of a server may. It throws nothing. ApiError 503 when too many wait.
  void post(std::function<void()> task);

  struct Entry {
    std::string name;
    std::int64_t bytes = 0, modified = 0;  ///< modified: seconds since 1970
  };
  std::vector<Entry> list() const;  ///< by name
  /// Of a prompt that the engine has read to its end just now. ApiError 503 when it is not held any
  /// more, or no slot comes free within 10 seconds.
  Entry save(const std::string& name, const std::vector<std::int32_t>& prompt);
  /// Makes what was saved known to the engine; returns its tokens. ApiError 404, 400 for a file that
  /// is damaged or belongs to another model, 503 for want of a slot or of room.
  std::int64_t restore(const std::string& name);
  void remove(const std::string& name);  ///< ApiError 404

 private:
  std::filesystem::path path_of(const std::string& name) const;
  Entry entry(const std::string& name) const;
  void with_slot(const std::function<void(SequenceCache&)>& f);
  void let_go(std::optional<HeldSession>& held);

  Engine& engine_;
  std::filesystem::path folder_;
  SessionOrigin origin_;
  std::vector<HeldSession> left_;  ///< held when the engine stopped
  std::optional<base::TaskThread> tasks_;
};

/// Letters, digits, '.', '_' and '-', not '.' first, at most 100 of them.
bool is_session_name(std::string_view name);

}  // namespace palimpsest::server
