#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace palimpsest::hub {

/// How long to wait for a slow or failing server, and how often.
struct Patience {
  std::chrono::seconds connect{20};
  std::chrono::seconds stall{
      30};           ///< a transfer that brings less than 1 KiB/s for this long is cut
  int attempts = 5;  ///< in a row without headway
  std::chrono::milliseconds first_wait{1000};  ///< between attempts; doubles
  std::chrono::seconds longest_wait{120};      ///< a server that asks for more ends the download
};

/// Where models come from and where they are kept: the variables that other programs of the Hugging
/// Face hub know.
struct Settings {
  std::string endpoint;         ///< without a slash at its end
  std::string token;            ///< may be empty; sent to the endpoint alone, never shown
  std::filesystem::path cache;  ///< the folder of models--OWNER--NAME folders
  bool offline = false;
  Patience patience;
};

/// HF_ENDPOINT, HF_TOKEN or the file HF_HOME/token, HF_HUB_CACHE or HF_HOME/hub, HF_HUB_OFFLINE.
/// HF_HOME is XDG_CACHE_HOME/huggingface or ~/.cache/huggingface where it is not set; an empty
/// variable counts as not set. Throws Error{kUsage} naming the variable when the endpoint is no
/// http(s) address or the token cannot be a header's value.
Settings settings_from_environment();

}  // namespace palimpsest::hub
