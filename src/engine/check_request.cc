#include <algorithm>

#include "base/error.h"
#include "engine/engine_core.h"
#include "runtime/picture.h"

namespace palimpsest {
namespace {

void require_range(const char* name, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value < least || value > most) {
    throw make_error(ErrorCode::kUsage, "{} is {}, but must be from {} to {}", name, value, least,
                     most);
  }
}

void check_ids(const char* name, std::span<const std::int32_t> ids, std::int64_t vocab_size,
               ErrorCode code, bool pictures = false) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if ((ids[i] < 0 && !pictures) || ids[i] >= vocab_size) {
      throw make_error(code, "{} {} at position {} is outside the vocabulary of {}", name, ids[i],
                       i, vocab_size);
    }
  }
}

void check_pictures(const EngineRequest& request, const EngineOptions& options) {
  if (request.pictures.empty()) return;
  if (!options.tower) throw make_error(ErrorCode::kUnsupported, "the model reads no pictures");
  if (request.prompt_logprobs >= 0)
    throw make_error(ErrorCode::kUsage, "tokens of pictures have no log-probabilities");
  for (const auto& picture : request.pictures) {
    if (const std::int64_t patches = picture->grid().patches(); patches > options.picture_patches) {
      throw make_error(ErrorCode::kInvalidRequest,
                       "a picture has {} patches, but at most {} are taken", patches,
                       options.picture_patches);
    }
  }
  if (const std::int64_t bytes = picture_bytes(request.pictures); bytes > options.picture_bytes) {
    throw make_error(ErrorCode::kInvalidRequest,
                     "the pictures have {} bytes of pixels, but at most {} are taken", bytes,
                     options.picture_bytes);
  }
  PictureIndex index;
  index.add(request.pictures);
  if (const auto known = index.check(request.prompt); !known) throw known.error();
}

}  // namespace

void check_request(const EngineRequest& request, std::int64_t vocab_size, std::int64_t context,
                   const EngineOptions& options) {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt == 0) throw make_error(ErrorCode::kInvalidRequest, "the prompt is empty");
  if (prompt > context) {
    throw make_error(ErrorCode::kInvalidRequest,
                     "the prompt has {} tokens, but the context holds {}", prompt, context);
  }
  if (prompt > options.queue_tokens) {
    throw make_error(ErrorCode::kInvalidRequest, "the prompt has {} tokens, but the queue holds {}",
                     prompt, options.queue_tokens);
  }
  check_ids("token id", request.prompt, vocab_size, ErrorCode::kInvalidRequest,
            !request.pictures.empty());
  check_pictures(request, options);
  check_ids("stop id", request.stop_ids, vocab_size, ErrorCode::kUsage);
  validate(request.sampling, vocab_size);
  for (std::size_t i = 0; i < request.borders.size(); ++i) {
    const std::int64_t at = request.borders[i], before = i > 0 ? request.borders[i - 1] : 0;
    if (at < before || at > prompt) {
      throw make_error(
          ErrorCode::kUsage,
          "border {} is {}, but must be from {} (the one before it) to the prompt's {}", i, at,
          before, prompt);
    }
  }
  if (request.max_tokens < -1) {
    throw make_error(ErrorCode::kUsage, "max_tokens is {}, but must be -1 (no limit) or more",
                     request.max_tokens);
  }
  require_range("choices", request.choices, 1, options.most_choices);
  require_range("logprobs", request.logprobs, -1, options.most_logprobs);
  require_range("prompt_logprobs", request.prompt_logprobs, -1, options.most_logprobs);
  if (request.pooling != Pooling::kNone && request.choices != 1)
    throw make_error(ErrorCode::kUsage, "an embedding has one choice, not {}", request.choices);
}

}  // namespace palimpsest
