// Constraints out of arbitrary bytes: byte 0 chooses the notation, the rest up to the first zero
// byte is the source; what follows chooses tokens. Refused with an Error, or masks that have
// exactly the tokens that can be followed, and that always leave one or an end.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "fuzz_tokenizer.h"
#include "grammar/automaton.h"
#include "grammar/constraint.h"
#include "grammar/machine.h"

namespace {

using namespace palimpsest;
using namespace palimpsest::grammar;

void require(bool holds) {
  if (!holds) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Tokenizer tokenizer = fuzz::k3_byte_tokenizer();
  static const auto tries = std::make_shared<const TokenTries>(tokenizer);
  if (size == 0) return 0;
  const auto notation = static_cast<Notation>(1 + data[0] % 3);
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string_view source = rest.substr(0, rest.find('\0'));
  rest.remove_prefix(std::min(source.size() + 1, rest.size()));
  try {
    Grammar grammar;
    grammar.set_root(add_language(grammar, {notation, std::string(source)}));
    Machine machine(compile(grammar, 1), tries, tokenizer);
    machine.begin();
    Machine::StateId state = machine.start();
    for (std::size_t step = 0; step < rest.size() && step < 64; ++step) {
      machine.begin();
      std::vector<std::uint32_t> mask(tries->common.words());
      machine.mask(state, mask);
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < 256; ++id) {
        machine.begin_token();
        const bool set = mask[static_cast<std::size_t>(id) / 32] >> (id % 32) & 1;
        require(set == (machine.advance(state, id) != Machine::kDead));
        if (set) allowed.push_back(id);
      }
      require(!allowed.empty() || machine.may_end(state));
      if (allowed.empty()) break;
      machine.begin_token();
      state =
          machine.advance(state, allowed[static_cast<unsigned char>(rest[step]) % allowed.size()]);
      if (machine.states() > 5'000) break;
    }
  } catch (const Error& error) {
    require(!error.text().empty() && error.code() == ErrorCode::kInvalidRequest);
  }
  return 0;
}
