#include "text/template/template.h"

#include <utility>

#include "text/template/evaluator.h"
#include "text/template/parser.h"

namespace palimpsest::text {

Result<Template> Template::parse(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return fail(ErrorCode::kUnsupported,
                "chat template: the source has {} bytes, at most {} are read", source.size(),
                kMaxSourceBytes);
  }
  try {
    return Template(jinja::parse_program(source));
  } catch (const Error& error) {
    return fail(error.code(), "chat template, {}", error.text());
  }
}

Result<std::string> Template::render(const nlohmann::ordered_json& context,
                                     const TemplateOptions& options) const {
  return render_with_origins(context, options).map([](RenderedTemplate&& rendered) {
    return std::move(rendered.text);
  });
}

Result<RenderedTemplate> Template::render_with_origins(const nlohmann::ordered_json& context,
                                                       const TemplateOptions& options) const {
  if (!context.is_object())
    return fail(ErrorCode::kInvalidRequest, "the variables of a chat template are a JSON object");
  std::optional<jinja::Evaluator> evaluator;
  try {
    return evaluator.emplace(*program_, context, options).run();
  } catch (const Error& error) {
    if (!evaluator) return fail(error.code(), "chat template: {}", error.text());
    return fail(error.code(), "chat template, line {}: {}", evaluator->line(), error.text());
  }
}

}  // namespace palimpsest::text
