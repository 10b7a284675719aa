#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace palimpsest {

class SpillFile;

/// A snapshot on disk: one file for what is fixed in size and the newest list rows, and files of
/// list rows that snapshots with the same beginning share. The files go when the last holder goes.
struct SpilledState {
  std::shared_ptr<const SpillFile> newest;
  std::vector<std::shared_ptr<const SpillFile>> older;  ///< whole segments of rows, in order

  bool defined() const { return newest != nullptr; }
};

}  // namespace palimpsest
