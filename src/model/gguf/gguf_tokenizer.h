#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf_writer.h"
#include "formats/tiktoken_vocab.h"
#include "palimpsest/model_config.h"

namespace palimpsest {

/// tokenizer.ggml.* and tokenizer.chat_template of the tokenizer in `folder`: tiktoken.model (Kimi) or a byte-level BPE tokenizer.json whose
/// pre-tokenizer llama.cpp has a name for (gpt-2, llama-bpe, qwen2, smollm). Ids that end an answer are those of the config: the first as eos,
/// further ones as eot and eom. Without a tokenizer only the ids are written. Errors: those of the readers; kUnsupported for other tokenizers.
void add_gguf_tokenizer(formats::GgufPairs& pairs, const ModelConfig& config, const std::filesystem::path& folder);

/// Bytes as GPT-2 prints them: each a character of its own, so that no token holds blanks or control characters.
std::string printable_bytes(std::string_view bytes);

/// The merges that build a rank file's tokens, by rank: each token's last merge, "left right" in printable bytes. Tokens that no two parts
/// of lower rank make up have none.
std::vector<std::string> merges_of_ranks(const formats::TiktokenVocab& vocabulary);

}  // namespace palimpsest
