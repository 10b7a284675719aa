#include "text/known_pre_tokenizers.h"

#include <algorithm>

namespace palimpsest::text {
namespace {

#define PALIMPSEST_SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define PALIMPSEST_SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

constexpr const char* kGpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)";
constexpr const char* kLlama3 = PALIMPSEST_SUFFIX
    "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" PALIMPSEST_SPACES;
constexpr const char* kQwen2 = PALIMPSEST_SUFFIX
    "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" PALIMPSEST_SPACES;
constexpr const char* kQwen35 = PALIMPSEST_SUFFIX
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*" PALIMPSEST_SPACES;

#define PALIMPSEST_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define PALIMPSEST_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
constexpr const char* kO200k =
    "[^\\r\\n\\p{L}\\p{N}]?" PALIMPSEST_UPPER "*" PALIMPSEST_LOWER "+" PALIMPSEST_SUFFIX
    "?"
    "|[^\\r\\n\\p{L}\\p{N}]?" PALIMPSEST_UPPER "+" PALIMPSEST_LOWER "*" PALIMPSEST_SUFFIX
    "?"
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" PALIMPSEST_SPACES;
constexpr const char* kTekken = "[^\\r\\n\\p{L}\\p{N}]?" PALIMPSEST_UPPER "*" PALIMPSEST_LOWER
                                "+"
                                "|[^\\r\\n\\p{L}\\p{N}]?" PALIMPSEST_UPPER "+" PALIMPSEST_LOWER
                                "*"
                                "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" PALIMPSEST_SPACES;

constexpr const char* kCjk = "[一-龥ࠀ-一가-\\x{d7ff}]+";
constexpr const char* kDeepSeekV3 =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*" PALIMPSEST_SPACES;
// Letters of the cased scripts.
constexpr const char* kDeepSeekLetters =
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-"
    "ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-"
    "Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\\x{2126}ℨ\\x{212a}-"
    "ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-"
    "𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

const std::vector<KnownPreTokenizer>& table() {
  static const std::vector<KnownPreTokenizer> kTable = {
      {{"default"}, {"[\\p{P}$+<=>^~|]+", kGpt2, "\\p{N}+", "[0-9][0-9][0-9]"}},
      {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion"}, {kGpt2}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"}, {kLlama3}, true, true},
      {{"dbrx", "smaug-bpe", "chatglm-bpe"}, {kLlama3}},
      {{"qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"}, {kQwen2}},
      {{"qwen35"}, {kQwen35}},
      {{"kimi-k2"}, {kKimiPattern}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
       {"\\p{N}", kGpt2}},
      {{"gpt-4o", "llama4"}, {kO200k}, true},
      {{"tekken"}, {kTekken}, true, true},
      {{"falcon"}, {"[\\p{P}$+<=>^~|`]+", kGpt2, "[0-9][0-9][0-9]"}},
      {{"deepseek-llm"},
       {"[\\r\\n]", kDeepSeekLetters, "\\s?[!-/:-~！-／：-～‘-‟\\x{3000}-。]+", "\\s+$", kCjk,
        "\\p{N}+"}},
      {{"deepseek-coder"}, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", kCjk, "\\p{N}"}},
      {{"deepseek-v3", "hunyuan-dense"}, {"\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", kDeepSeekV3}},
  };
  return kTable;
}

}  // namespace

const char* const kKimiPattern =
    "[\\p{Han}]+"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+" PALIMPSEST_SUFFIX
    "?"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*" PALIMPSEST_SUFFIX
    "?"
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" PALIMPSEST_SPACES;

const KnownPreTokenizer* find_pre_tokenizer(std::string_view name) {
  for (const KnownPreTokenizer& known : table()) {
    if (std::find(known.names.begin(), known.names.end(), name) != known.names.end()) return &known;
  }
  return nullptr;
}

std::string known_pre_tokenizer_names() {
  std::string names;
  for (const KnownPreTokenizer& known : table()) {
    for (const char* name : known.names) names.append(names.empty() ? "" : ", ").append(name);
  }
  return names;
}

}  // namespace palimpsest::text
