#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/options.h"

// What inspect and plan say about a model's eyes.

namespace palimpsest::cli {

struct PictureFacts {
  std::string refused;  ///< why the tower that config.json describes cannot be run; then nothing else is known
  std::int64_t tensors = 0, parameters = 0;
  std::int64_t weights = 0;    ///< bytes
  std::int64_t limit = 0;      ///< tokens that the limit on patches is, without padding
  std::int64_t patches = 0;    ///< that a picture has at most, padding included
  std::int64_t tokens = 0;     ///< that these are
  std::int64_t workspace = 0;  ///< bytes of scratch while the tower reads it
  std::int64_t rows = 0;       ///< bytes of what it becomes, until the text model has read it
};

/// From config.json and --image-tokens alone; nothing for a model without a vision tower of the published kind.
std::optional<PictureFacts> picture_facts(const Options& options);

std::string to_text(const PictureFacts& facts);
nlohmann::ordered_json to_json(const PictureFacts& facts);

}  // namespace palimpsest::cli
