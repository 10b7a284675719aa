#include "cli/session_keeper.h"

#include <cstdio>
#include <utility>

#include "cli/io.h"
#include "report/numbers.h"

namespace palimpsest::cli {

void SessionKeeper::check(const Options& options) {
  if (options.session) require_writable(*options.session);
}

SessionKeeper::SessionKeeper(const Options& options, Session& session)
    : session_(session), every_(options.save_every) {
  if (!options.session) return;
  path_ = *options.session;
  std::error_code error;
  // A link that leads nowhere is there too: restore() refuses it.
  if (std::filesystem::symlink_status(*path_, error).type() == std::filesystem::file_type::not_found)
    return;
  note_ = session_.restore(*path_);
  restored_ = true;
  std::fprintf(stderr, "restored %s tokens from %s, nothing recomputed\n",
               report::format_grouped(session_.length()).c_str(), path_->c_str());
}

void SessionKeeper::save(SessionNote note) {
  note_ = std::move(note);
  if (!path_) return;
  session_.save(*path_, note_);
  last_ = Clock::now();
}

void SessionKeeper::save_now_and_then() {
  if (!path_ || Clock::now() - last_ < every_) return;
  note_.pending.clear();  // they are part of the prompt now
  save(note_);
}

}  // namespace palimpsest::cli
