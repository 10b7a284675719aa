// What a constraint costs: milliseconds of processor time to make it and to make a mask, over random answers that the
// masks lead through. "first" is a fresh constraint, where masks of words are made when they are met
// for the first time; "again" the same answers once more. All is done --repeat times, and of each mask
// the shortest time counts, so that other work on the machine changes little. "beside others" is what
// an engine's thread does of it: masks that are not made soon are left to another thread. "ahead": the same
// when masks were made ahead, by that thread too.
//
//     bench_grammar [TOKENIZER] [--answers 20] [--tokens 200] [--repeat 5]
//
// Without a tokenizer: a made-up vocabulary of 163,840 tokens.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>
#include <random>

#include "grammar/constraint.h"
#include "text/vocabulary.h"

namespace {

using namespace palimpsest;
using namespace palimpsest::grammar;
/// Of this thread's processor time, so that other work on the machine changes little.
struct Clock {
  static double now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
  }
};

double ms_since(double start) {
  return Clock::now() - start;
}

/// Bytes, then words of letters with and without a space, signs, digits, texts beyond ASCII.
Tokenizer made_up(std::size_t size) {
  std::mt19937 random(1);
  text::Vocabulary v;
  v.file = "made up";
  std::vector<std::string> seen;
  for (int b = 0; b < 256; ++b) seen.emplace_back(1, static_cast<char>(b));
  const char* syllables[] = {"a", "e", "in", "th", "er", "on", "st", "re", "un", "ing", "al", "or", "is", "ment", "co", "de", "pro", "qu", "x", "ly"};
  const char* signs[] = {"\"", "\":", "\",", "{", "}", "[", "]", "},", "\\n", "\\", ": ", ", ", "\n", "\n  ", "    ", "(", ")", "();", "->", "\"}", "\"]", "1", "20", "007", ".", "-"};
  const char* others[] = {"\xc3\xa4", "\xc3\xa9", "\xd0\xb0", "\xd0\xbe", "\xe4\xb8\xad", "\xe6\x96\x87", "\xe3\x81\xae", "\xf0\x9f\x98\x80", "\xe4\xbd\xa0"};
  const auto word = [&] {
    std::string out = random() % 2 ? " " : "";
    const auto kind = random() % 10;
    for (std::size_t n = 1 + random() % 6; n > 0; --n)
      out += kind == 0 ? signs[random() % std::size(signs)] : kind < 4 ? others[random() % std::size(others)] : syllables[random() % std::size(syllables)];
    if (random() % 25 == 0) out += signs[random() % std::size(signs)];
    if (kind > 7 && out[0] >= 'a') out[0] = static_cast<char>(out[0] - 32);
    return out;
  };
  while (seen.size() < size + 40'000) {
    for (int i = 0; i < 40'000; ++i) seen.push_back(word());
    std::sort(seen.begin() + 256, seen.end());
    seen.erase(std::unique(seen.begin() + 256, seen.end()), seen.end());
  }
  std::shuffle(seen.begin() + 256, seen.end(), random);
  for (std::size_t i = 0; i + 1 < size; ++i) v.add(seen[i], text::TokenKind::kOrdinary);
  v.add("<|end|>", text::TokenKind::kSpecial);
  v.eos = static_cast<std::int32_t>(size - 1);
  v.stop_ids = {static_cast<std::int32_t>(size - 1)};
  return Tokenizer::from_vocabulary(std::move(v));
}

struct Times {
  std::vector<double> ms;
  void least(const Times& other) {
    if (ms.empty()) ms = other.ms;
    for (std::size_t i = 0; i < ms.size(); ++i) ms[i] = std::min(ms[i], other.ms[i]);
  }
  std::string text() {
    std::sort(ms.begin(), ms.end());
    double sum = 0;
    for (const double x : ms) sum += x;
    return fmt::format("mean {:.3f}, median {:.3f}, 99% {:.3f}, most {:.3f} ms", sum / static_cast<double>(ms.size()), ms[ms.size() / 2],
                       ms[ms.size() * 99 / 100], ms.back());
  }
};

/// With `left`, counts masks that allow_soon() leaves to others, and does not count their time.
Times walk(const Tokenizer& tokenizer, const std::shared_ptr<CompiledConstraint>& compiled, int answers, std::size_t tokens, int* left = nullptr) {
  Times times;
  std::vector<std::uint32_t> mask(static_cast<std::size_t>((tokenizer.vocab_size() + 31) / 32));
  for (int a = 0; a < answers; ++a) {
    std::mt19937 random(static_cast<unsigned>(a));
    const auto constraint = CompiledConstraint::start(compiled);
    std::vector<std::int32_t> written;
    while (written.size() < tokens) {
      std::fill(mask.begin(), mask.end(), 0);
      const auto start = Clock::now();
      const bool made = left ? constraint->allow_soon(written, mask).has_value() : constraint->allow(written, mask);
      times.ms.push_back(ms_since(start));
      if (!made) {
        ++*left;
        std::fill(mask.begin(), mask.end(), 0);
        constraint->allow(written, mask);
      }
      std::vector<std::int32_t> ids;
      for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
        if (mask[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1) ids.push_back(id);
      const std::int32_t id = ids[random() % ids.size()];
      if (tokenizer.is_stop(id)) break;
      written.push_back(id);
    }
  }
  return times;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Cost of constraints");
  std::string folder;
  int answers = 20;
  std::size_t tokens = 200;
  app.add_option("tokenizer", folder);
  app.add_option("--answers", answers);
  app.add_option("--tokens", tokens);
  int repeat = 5;
  app.add_option("--repeat", repeat);
  CLI11_PARSE(app, argc, argv);
  const Tokenizer tokenizer = folder.empty() ? made_up(163'840) : Tokenizer::load(folder);
  const std::pair<const char*, Language> languages[] = {
      {"any JSON object", {Notation::kJsonObject, {}}},
      {"schema, nested", {Notation::kJsonSchema, R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0},"mail":{"type":"string","format":"email"},
          "tags":{"type":"array","items":{"type":"string"}},"next":{"$ref":"#"},"kind":{"enum":["alpha","beta","gamma"]}},"required":["name","age","tags"]})"}},
      {"schema, limited strings", {Notation::kJsonSchema, R"({"type":"array","items":{"type":"string","minLength":3,"maxLength":80}})"}},
      {"regex [a-z ]{0,500}", {Notation::kRegex, "[a-z ]{0,500}"}},
      {"grammar of llama.cpp for JSON", {Notation::kEbnf, R"GBNF(
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)GBNF"}}};
  fmt::print("{} tokens\n", tokenizer.vocab_size());
  ConstraintMaker maker(tokenizer);
  auto start = Clock::now();
  maker.make({Notation::kRegex, "x"});
  fmt::print("tree of the vocabulary, once: {:.0f} ms\n", ms_since(start));
  for (const auto& [name, language] : languages) {
    double made = 1e9;
    Times first, again, beside, ahead;
    int left = 0, left_ahead = 0;
    double warming = 1e9;
    for (int r = 0; r < repeat; ++r) {
      start = Clock::now();
      const auto compiled = maker.make(fmt::format("{} {}", name, r), [&, &of = language](Grammar& g) { return add_language(g, of); });
      made = std::min(made, ms_since(start));
      first.least(walk(tokenizer, compiled, answers, tokens));
      again.least(walk(tokenizer, compiled, answers, tokens));
      const auto fresh = [&](const char* what) {
        return maker.make(fmt::format("{} {} {}", name, r, what), [&, &of = language](Grammar& g) { return add_language(g, of); });
      };
      left = left_ahead = 0;
      beside.least(walk(tokenizer, fresh("beside"), answers, tokens, &left));
      const auto warm = fresh("ahead");
      start = Clock::now();
      while (warm->warm()) {
      }
      warming = std::min(warming, ms_since(start));
      ahead.least(walk(tokenizer, warm, answers, tokens, &left_ahead));
    }
    fmt::print("{}: made in {:.2f} ms\n", name, made);
    fmt::print("  first: {} masks: {}\n", first.ms.size(), first.text());
    fmt::print("  again: {} masks: {}\n", again.ms.size(), again.text());
    fmt::print("  beside others: {} left to another thread, {}\n", left, beside.text());
    fmt::print("  ahead: {:.0f} ms, then {} left to another thread, {}\n", warming, left_ahead, ahead.text());
  }
}
