// The global functions of a chat template.

#include <algorithm>
#include <string>

#include "text/template/evaluator.h"
#include "text/template/printing.h"
#include "text/template/registry.h"

namespace palimpsest::text::jinja {
namespace {

/// The sandbox's bound on range().
constexpr std::int64_t kMaxRange = 100'000;

std::int64_t range_bound(const Value& value) {
  require_defined(value);
  if (!value.is_integral())
    raise("'{}' object cannot be interpreted as an integer", type_name(value));
  // Far beyond what kMaxRange lets pass, and safe to add and subtract.
  return std::clamp<std::int64_t>(value.as_integer(), -(std::int64_t{1} << 61),
                                  std::int64_t{1} << 61);
}

Value make_range(Evaluator& evaluator, const Value&, const Arguments& arguments) {
  const auto& given = arguments.positional;
  if (!arguments.named.empty()) raise("range() takes no keyword arguments");
  if (given.empty() || given.size() > 3)
    raise("range expected 1 to 3 arguments, got {}", given.size());
  RangeObject range{0, range_bound(given[0]), 1};
  if (given.size() > 1)
    range = {range_bound(given[0]), range_bound(given[1]),
             given.size() > 2 ? range_bound(given[2]) : 1};
  if (range.step == 0) raise("range() arg 3 must not be zero");
  if (range.size() > kMaxRange)
    raise("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({}).", kMaxRange);
  Value value = Value::of(Kind::kRange);
  value.range = evaluator.heap().make<RangeObject>(range);
  return value;
}

/// The entries that dict(...) and namespace(...) are made from: of a mapping or pairs, then the
/// named arguments.
std::vector<DictEntry> entries_of(std::string_view function, Evaluator& evaluator,
                                  const Arguments& arguments) {
  std::vector<DictEntry> entries;
  if (arguments.positional.size() > 1)
    raise("{} expected at most 1 argument, got {}", function, arguments.positional.size());
  if (!arguments.positional.empty()) {
    const Value& source = arguments.positional[0];
    if (source.is(Kind::kDict)) {
      entries.assign(source.dict->entries.begin(), source.dict->entries.end());
    } else {
      for (const Value& item : iterate(source, evaluator.heap())) {
        const auto pair = iterate(item, evaluator.heap());
        if (pair.size() != 2)
          raise("{} needs pairs, an element has length {}", function, pair.size());
        entries.push_back({pair[0], pair[1]});
      }
    }
  }
  for (const NamedValue& named : arguments.named)
    entries.push_back({evaluator.heap().text(named.name), named.value});
  return entries;
}

Value make_dict(Evaluator& evaluator, const Value&, const Arguments& arguments) {
  return evaluator.heap().dict(entries_of("dict", evaluator, arguments));
}

Value make_namespace(Evaluator& evaluator, const Value&, const Arguments& arguments) {
  const Value dict = evaluator.heap().dict(entries_of("namespace", evaluator, arguments));
  Value value = Value::of(Kind::kNamespace);
  value.name_space = evaluator.heap().make<NamespaceObject>();
  NamespaceEntry** end = &value.name_space->first;
  for (const DictEntry& entry : dict.dict->entries) {
    if (!entry.key.is_text())
      raise_unsupported("a namespace with keys that are not strings is not supported");
    *end = evaluator.heap().make<NamespaceEntry>(entry.key.text(), entry.value, nullptr);
    end = &(*end)->next;
  }
  return value;
}

Value raise_exception(Evaluator& evaluator, const Value&, const Arguments& arguments) {
  const auto [message] =
      read_arguments("raise_exception", arguments, std::array<std::string_view, 1>{"message"}, 1);
  raise("{}", to_str(message, evaluator.budget()));
}

Value strftime_now(Evaluator& evaluator, const Value&, const Arguments& arguments) {
  const auto [format] =
      read_arguments("strftime_now", arguments, std::array<std::string_view, 1>{"format"}, 1);
  if (!format.is_text()) raise("strftime() argument 1 must be str, not {}", type_name(format));
  constexpr std::size_t kMaxBytes = 4096;
  char buffer[kMaxBytes];
  // A sign in front tells an empty result from one that does not fit.
  const std::string pattern = "+" + std::string(format.text());
  const std::size_t size = pattern.size() < kMaxBytes
                               ? std::strftime(buffer, kMaxBytes, pattern.c_str(), &evaluator.now())
                               : 0;
  if (size == 0) raise("the format of strftime_now gives more than {} bytes", kMaxBytes);
  return evaluator.heap().text({buffer + 1, size - 1});
}

constexpr MethodEntry kGlobals[] = {
    {"range", make_range},
    {"namespace", make_namespace},
    {"dict", make_dict},
    {"raise_exception", raise_exception},
    {"strftime_now", strftime_now},
};

}  // namespace

const MethodEntry* find_global(std::string_view name) {
  const auto* at = std::find_if(std::begin(kGlobals), std::end(kGlobals),
                                [&](const MethodEntry& g) { return g.name == name; });
  if (at != std::end(kGlobals)) return at;
  for (const std::string_view unsupported : {"cycler", "joiner", "lipsum"}) {
    if (name == unsupported) raise_unsupported("the function '{}' is not supported", name);
  }
  return nullptr;
}

}  // namespace palimpsest::text::jinja
