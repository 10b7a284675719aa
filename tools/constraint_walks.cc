// Random texts that constraints lead to, for comparison with other programs (check_constraints.py).
//
//     palimpsest_constraint_walks MODEL [WALKS [TOKENS]] < CASES
//
// CASES: a list of {"source": a JSON schema, "samples": [text, ...]}. Writes a list of
// {"error": text} or {"texts": those walks that came to an end, "cut": how many did not,
// "accepted": [whether each sample is in the language]}.

#include <cstdio>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "grammar/constraint.h"
#include "text/utf8.h"

namespace {

using namespace palimpsest;
using Json = nlohmann::ordered_json;

class Walker {
 public:
  explicit Walker(const std::string& model)
      : tokenizer_(Tokenizer::load(model)), maker_(tokenizer_) {}

  Json run(const Json& one, int walks, std::size_t tokens) {
    const auto compiled =
        maker_.make({grammar::Notation::kJsonSchema, one["source"].get<std::string>()});
    Json texts = Json::array(), accepted = Json::array();
    int cut = 0;
    for (int i = 0; i < walks; ++i) {
      std::string text;
      walk(*grammar::CompiledConstraint::start(compiled), tokens, text)
          ? texts.push_back(text::repair_utf8(text))
          : void(++cut);
    }
    for (const Json& sample : one["samples"])
      accepted.push_back(
          accepts(*grammar::CompiledConstraint::start(compiled), sample.get<std::string>()));
    return {{"texts", texts}, {"cut", cut}, {"accepted", accepted}};
  }

 private:
  bool allowed(TokenId id) const {
    return mask_[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1;
  }
  void ask(TokenConstraint& constraint, const std::vector<TokenId>& written) {
    mask_.assign(static_cast<std::size_t>((tokenizer_.vocab_size() + 31) / 32), 0);
    constraint.allow(written, mask_);
  }

  bool walk(TokenConstraint& constraint, std::size_t most, std::string& text) {
    std::vector<TokenId> written;
    while (written.size() < most) {
      ask(constraint, written);
      std::vector<TokenId> ids;
      for (TokenId id = 0; id < tokenizer_.vocab_size(); ++id)
        if (allowed(id)) ids.push_back(id);
      if (ids.empty()) throw Error(ErrorCode::kInternal, "nothing may follow \"" + text + "\"");
      // An end is taken more often than by its share of so many tokens.
      TokenId id = ids[random_() % ids.size()];
      const TokenId stop = tokenizer_.stop_ids().front();
      if (allowed(stop) && random_() % 2) id = stop;
      if (tokenizer_.is_stop(id)) return true;
      text += tokenizer_.bytes(id);
      written.push_back(id);
    }
    return false;
  }

  bool accepts(TokenConstraint& constraint, const std::string& text) {
    std::vector<TokenId> written;
    for (const TokenId id : tokenizer_.encode(text)) {
      ask(constraint, written);
      if (!allowed(id)) return false;
      written.push_back(id);
    }
    ask(constraint, written);
    return allowed(tokenizer_.stop_ids().front());
  }

  Tokenizer tokenizer_;
  grammar::ConstraintMaker maker_;
  std::vector<std::uint32_t> mask_;
  std::mt19937 random_{1};
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string input((std::istreambuf_iterator<char>(std::cin)), {});
  Json out = Json::array();
  try {
    Walker walker(argv[1]);
    for (const Json& one : Json::parse(input)) {
      try {
        out.push_back(walker.run(one, argc > 2 ? std::stoi(argv[2]) : 20,
                                 argc > 3 ? std::stoul(argv[3]) : 400));
      } catch (const Error& error) {
        out.push_back({{"error", error.text()}});
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::puts(out.dump().c_str());
}
