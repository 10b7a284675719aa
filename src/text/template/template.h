#pragma once

// The part of Jinja2 that published chat templates use, with hard bounds on what a template may
// spend. The language is that of a Hugging Face chat template: jinja2's immutable sandbox with
// trim_blocks, lstrip_blocks and loop controls, the default Undefined, no auto-escaping,
// `raise_exception`, `strftime_now`, a `tojson` that is json.dumps without ASCII escapes, and `{%
// generation %}` blocks, which render as their content.

#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace palimpsest::text {

/// What one rendering may spend. Each limit that is exceeded is one error that names it.
struct TemplateLimits {
  std::uint64_t steps = 50'000'000;  ///< evaluated nodes, loop rounds, compared and copied elements
  std::uint32_t depth = 1200;  ///< nested expressions, statements and macro calls, counted together
  std::uint64_t output_bytes = 64 << 20;        ///< length of the rendered text
  std::uint64_t value_bytes = 512 << 20;        ///< all values made while rendering
  std::chrono::milliseconds wall_time{10'000};  ///< looked at every few thousand steps
};

struct TemplateOptions {
  TemplateLimits limits;
  std::tm now{};  ///< the local time that strftime_now(format) writes
  /// Strings of the context, where they lie in it, that are as trustworthy as the template: see
  /// RenderedTemplate::own.
  std::vector<std::string_view> own;
};

/// Bytes [begin, end) of a text.
struct TextRange {
  std::size_t begin, end;
};

struct RenderedTemplate {
  std::string text;
  /// The bytes that were written in the template, or came from TemplateOptions::own, in order and
  /// not touching one another. All others may be a user's. Followed through +, ~, join, slices,
  /// strip, split, macros and block assignments; what comes out of any other operation counts as a
  /// user's, even where the template made it all by itself.
  std::vector<TextRange> own;
};

namespace jinja {
struct Program;
}

/// A parsed template. Immutable and cheap to copy; threads may render the same one at the same
/// time.
class Template {
 public:
  /// Longest source that is read.
  static constexpr std::size_t kMaxSourceBytes = 1 << 20;

  /// Errors: kInvalidFile for a syntax error, kUnsupported for a construct outside the supported
  /// part (named in the text). Each names the line: "chat template, line 3: ...".
  static Result<Template> parse(std::string_view source);

  /// The text for `context`, a JSON object whose members are the template's variables; objects keep
  /// their order. Errors: kInvalidRequest for raise_exception, an undefined value or wrong type
  /// where Python raises, a limit; kUnsupported for a Python feature outside the supported part.
  /// Each names the line.
  Result<std::string> render(const nlohmann::ordered_json& context,
                             const TemplateOptions& options = {}) const;
  /// The same, and which bytes of the text a user cannot have written.
  Result<RenderedTemplate> render_with_origins(const nlohmann::ordered_json& context,
                                               const TemplateOptions& options) const;

 private:
  explicit Template(std::shared_ptr<const jinja::Program> program) : program_(std::move(program)) {}
  std::shared_ptr<const jinja::Program> program_;
};

}  // namespace palimpsest::text
