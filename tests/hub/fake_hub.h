#pragma once

#include <fmt/format.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>

#include "hub/checksum.h"
#include "hub/settings.h"
#include "support/http_server.h"
#include "support/temp_folder.h"

namespace palimpsest::test {

inline const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";

/// A hub with one model, owner/model, on this machine: small files it serves itself, large ones
/// ("lfs") on a second server to which it redirects, as the real one does. `fault` may answer a
/// call in its place.
class FakeHub {
 public:
  using Fault = std::function<bool(const HttpCall&, HttpReply&)>;  ///< true: answered

  void add(const std::string& name, const std::string& bytes, bool lfs = false) {
    files_[name] = {bytes, checksum(bytes, lfs ? std::string(64, '0') : std::string(40, '0')), lfs};
  }
  /// Answers that are under way end with the fault they began with.
  void set_fault(Fault fault) { replace(fault_, std::move(fault)); }
  void set_storage_fault(Fault fault) { replace(storage_fault_, std::move(fault)); }
  /// Changes what the list of files says.
  void set_list(std::function<void(nlohmann::json&)> edit) { edit_list_ = std::move(edit); }

  const std::string& bytes(const std::string& name) const { return files_.at(name).bytes; }
  const std::string& sum(const std::string& name) const { return files_.at(name).sum; }

  hub::Settings settings() const {
    hub::Settings settings;
    settings.endpoint = server.url();
    settings.cache = folder_ / "hub";
    settings.patience = {.connect = std::chrono::seconds(5),
                         .stall = std::chrono::seconds(1),
                         .attempts = 4,
                         .first_wait = std::chrono::milliseconds(1),
                         .longest_wait = std::chrono::seconds(2)};
    return settings;
  }
  std::filesystem::path model_folder() const { return folder_ / "hub" / "models--owner--model"; }
  std::filesystem::path snapshot() const { return model_folder() / "snapshots" / kCommit; }
  std::filesystem::path blob(const std::string& name) const {
    return model_folder() / "blobs" / sum(name);
  }
  std::filesystem::path partial(const std::string& name) const {
    return blob(name).string() + ".incomplete";
  }

  static std::string checksum(const std::string& bytes, const std::string& kind) {
    hub::Checksum sum(kind, bytes.size());
    sum.update(std::as_bytes(std::span(bytes)));
    return sum.finish();
  }

 private:
  struct File {
    std::string bytes, sum;
    bool lfs = false;
  };

  using SharedFault = std::shared_ptr<const Fault>;

  void replace(SharedFault& place, Fault fault) {
    auto shared = std::make_shared<const Fault>(std::move(fault));
    const std::lock_guard lock(mutex_);
    place.swap(shared);
  }
  SharedFault current(const SharedFault& place) const {
    const std::lock_guard lock(mutex_);
    return place;
  }

  /// Everything stands under "/moved" again.
  void answer(HttpCall call, HttpReply& reply) {
    if (const auto fault = current(fault_); fault && *fault && (*fault)(call, reply)) return;
    if (call.target.starts_with("/moved")) call.target.erase(0, 6);
    if (call.target.starts_with("/api/models/owner/model/revision/"))
      return reply.answer(200, {}, list());
    const std::string prefix = "/owner/model/resolve/" + kCommit + "/";
    const auto found = call.target.starts_with(prefix)
                           ? files_.find(call.target.substr(prefix.size()))
                           : files_.end();
    if (found == files_.end()) return reply.answer(404, {{"X-Error-Code", "EntryNotFound"}});
    const File& file = found->second;
    std::map<std::string, std::string> headers = {{"X-Repo-Commit", kCommit},
                                                  {"ETag", '"' + file.sum + '"'}};
    if (!file.lfs) return send_file(call, reply, file, headers);
    headers["X-Linked-Etag"] = '"' + file.sum + '"';
    headers["X-Linked-Size"] = std::to_string(file.bytes.size());
    headers["Location"] = storage.url() + "/" + file.sum + "?signature=x";
    reply.answer(302, headers, "", call.method == "HEAD");
  }

  void answer_storage(const HttpCall& call, HttpReply& reply) {
    if (const auto fault = current(storage_fault_); fault && *fault && (*fault)(call, reply))
      return;
    for (const auto& [name, file] : files_) {
      if (call.target == "/" + file.sum + "?signature=x")
        return send_file(call, reply, file, {{"ETag", "\"other\""}});
    }
    reply.answer(404, {});
  }

  static void send_file(const HttpCall& call, HttpReply& reply, const File& file,
                        std::map<std::string, std::string> headers) {
    const std::string range = call.header("range");
    if (range.empty()) return reply.answer(200, headers, file.bytes, call.method == "HEAD");
    const std::size_t from = std::stoull(range.substr(6));
    if (from >= file.bytes.size()) return reply.answer(416, {});
    headers["Content-Range"] =
        fmt::format("bytes {}-{}/{}", from, file.bytes.size() - 1, file.bytes.size());
    reply.answer(206, headers, std::string_view(file.bytes).substr(from));
  }

  std::string list() const {
    nlohmann::json json = {{"sha", kCommit}, {"siblings", nlohmann::json::array()}};
    for (const auto& [name, file] : files_) {
      nlohmann::json sibling = {
          {"rfilename", name}, {"size", file.bytes.size()}, {"blobId", std::string(40, 'b')}};
      if (file.lfs) {
        sibling["lfs"] = {{"sha256", file.sum}, {"size", file.bytes.size()}, {"pointerSize", 134}};
      } else {
        sibling["blobId"] = file.sum;
      }
      json["siblings"].push_back(sibling);
    }
    if (edit_list_) edit_list_(json);
    return json.dump();
  }

  std::map<std::string, File> files_;
  mutable std::mutex mutex_;
  SharedFault fault_, storage_fault_;
  std::function<void(nlohmann::json&)> edit_list_;
  TempFolder folder_;

 public:
  HttpServer storage{
      [this](const HttpCall& call, HttpReply& reply) { answer_storage(call, reply); }};
  HttpServer server{[this](const HttpCall& call, HttpReply& reply) { answer(call, reply); }};
};

/// As large as several reads and writes, and like no other.
inline std::string some_bytes(std::size_t size, unsigned seed) {
  std::string bytes(size, '\0');
  unsigned state = seed * 2654435761u + 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525u + 1013904223u) >> 24);
  return bytes;
}

}  // namespace palimpsest::test
