#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "hub/cache.h"
#include "hub/checksum.h"
#include "hub/remote.h"
#include "hub/retries.h"

namespace palimpsest::hub {

/// Bytes of all transfers together, for one progress bar. `total` changes when something has to be
/// fetched anew, or not any more.
struct Progress {
  std::atomic<std::int64_t> done{0}, total{0};
};

/// One file on its way into the cache: bytes go to the blob's .incomplete file, which gets its
/// final name when size and checksum are right. Whatever ends a transfer, what has come stays
/// there, and the next one asks for the rest.
class Transfer {
 public:
  /// `file` has a size and a checksum. All references must outlive the transfer.
  Transfer(HttpClient& client, const Settings& settings, const ModelId& id, const ModelCache& cache,
           const std::string& commit, const RemoteFile& file, Progress& progress);

  /// Throws Error without the file's name: kInvalidFile when the bytes are not those that the list
  /// of files promised, kIo, kCancelled.
  void run();

 private:
  void open();
  void restart();
  void fetch_rest();
  void request_once();
  void on_start(const HttpResponse& response);
  void on_body(std::span<const std::byte> bytes);
  void commit_blob();

  HttpClient& client_;
  const Settings& settings_;
  const ModelId& id_;
  const ModelCache& cache_;
  const RemoteFile& file_;
  Progress& progress_;
  const std::string url_;
  const std::uint64_t size_;
  const std::uint64_t planned_;  ///< bytes that were there when the total was added up

  FileHandle partial_;
  Checksum checksum_;
  std::uint64_t have_ = 0;  ///< bytes that are in the file and in the sum
  bool resumed_ = false;    ///< some of them are of an earlier run
};

}  // namespace palimpsest::hub
