// Chats of models that are known by their template only.

#include <algorithm>
#include <ctime>

#include "base/error.h"
#include "text/answer_parser.h"
#include "text/chat_formats.h"
#include "text/chat_template.h"
#include "text/prompt_builder.h"
#include "text/tool_call_text.h"

namespace palimpsest::text {
namespace {

std::tm local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return local;
}

RenderedTemplate run(const Template& chat_template, const Conversation& conversation,
                     const Tokenizer& tokenizer, const std::string& file) {
  const auto context = template_context(conversation, tokenizer);
  TemplateOptions options;
  options.now = local_time();
  options.own = own_strings(context);
  return value_or_throw(chat_template.render_with_origins(context, options), file);
}

Template parse(const std::string& source, const std::string& file) {
  auto parsed = Template::parse(source);
  if (!parsed) throw Error(parsed.error()).add_context(file);
  return *std::move(parsed);
}

class TemplateFormat final : public ChatFormat {
 public:
  TemplateFormat(Tokenizer tokenizer, const ChatTemplateSource& source)
      : tokenizer_(std::move(tokenizer)),
        file_(std::filesystem::path(source.file).filename().string()),
        control_(tokenizer_),
        template_(parse(source.text, source.file)),
        with_tools_(source.with_tools.empty() ? template_ : parse(source.with_tools, source.file)) {
    const std::string sources = source.text + source.with_tools;
    const auto mentions = [&](std::string_view word) {
      return sources.find(word) != std::string::npos;
    };
    style_.thinks = mentions("</think>") || tokenizer_.control("</think>").has_value();
    if (mentions("<tool_call>")) {
      style_.calls = AnswerStyle::Calls::kTags;
      calls_ = mentions("<function=") ? CallForm::kFunctions : CallForm::kHermes;
    } else if (mentions("\"parameters\": ") && tokenizer_.control("<|python_tag|>")) {
      style_.calls = AnswerStyle::Calls::kJson;
      calls_ = CallForm::kLlama;
    }
  }

  std::string_view name() const noexcept override { return "template"; }
  bool has_thinking() const noexcept override { return style_.thinks; }

  RenderedTemplate render_text(const Conversation& conversation) const {
    require_plain_chat(conversation, name());
    return run(declares_tools(conversation) ? with_tools_ : template_, conversation, tokenizer_, file_);
  }
  std::vector<ChatSegment> render(const Conversation& conversation) const override {
    const RenderedTemplate rendered = render_text(conversation);
    return control_.split(rendered.text, rendered.own);
  }
  std::unique_ptr<ChatParser> make_parser(const Conversation& conversation) const override {
    AnswerStyle style = style_;
    if (style.thinks) {
      const std::string prompt = render_text(conversation).text;
      style.begins_thinking = trimmed(prompt).ends_with("<think>");
    }
    return std::make_unique<AnswerParser>(tokenizer_, all_tools(conversation), style);
  }

  AnswerShape answer_shape(const Conversation& conversation) const override {
    const auto own = [this](std::string words) {
      return PromptBuilder().own(words).segments(control_);
    };
    AnswerShape shape;
    shape_calls(calls_, control_, shape);
    if (!style_.thinks || !conversation.options.thinking) return shape;
    shape.begins_thinking = trimmed(render_text(conversation).text).ends_with("<think>");
    if (!shape.begins_thinking) shape.think_begin = own("<think>");
    shape.think_end = own("</think>");
    return shape;
  }

  /// Refuses templates that would lose control tokens: those whose names come out of operations
  /// that origins are not followed through.
  void require_known_origins(const std::string& file) const {
    Conversation chat;
    for (const Role role : {Role::kUser, Role::kAssistant, Role::kUser})
      chat.messages.push_back(ChatMessage::of(role, "x"));
    RenderedTemplate rendered;
    try {
      rendered = render_text(chat);
    } catch (const Error&) {
      return;  // a template may want other chats than this one
    }
    const TextRange all[] = {{0, rendered.text.size()}};
    if (control_.split(rendered.text, all) == control_.split(rendered.text, rendered.own)) return;
    throw make_error(ErrorCode::kUnsupported,
                     "{}: the chat template makes the names of control tokens in a way in which a "
                     "user's text could make them too",
                     file);
  }

 private:
  Tokenizer tokenizer_;
  std::string file_;  ///< name of the file that the template comes from: a client may read it, the path is the server's
  ControlTokens control_;
  Template template_, with_tools_;
  AnswerStyle style_;
  CallForm calls_ = CallForm::kNone;
};

/// Chats that tell the known formats apart.
std::vector<Conversation> probes() {
  Conversation plain;
  plain.messages = {ChatMessage::of(Role::kUser, " a\n"), ChatMessage::of(Role::kAssistant, "b "),
                    ChatMessage::of(Role::kUser, "c")};
  Conversation history = plain;
  history.messages.insert(history.messages.begin(), ChatMessage::of(Role::kSystem, "s "));
  history.messages[2].reasoning_content = "r";
  Conversation whole = plain;
  whole.options.add_generation_prompt = false;
  Conversation quiet = plain;
  quiet.options.set_reasoning_effort("off");
  Conversation tools = history;
  tools.tools = {
      {"f", R"({"type":"function","function":{"name":"f","parameters":{"a":[1,2.5]}}})"}};
  ChatMessage call = ChatMessage::of(Role::kAssistant, "");
  call.tool_calls = {{"", "f", {ToolArguments::Form::kObject, R"({"a":"x","b":[true,null]})"}}};
  tools.messages.push_back(call);
  tools.messages.push_back(ChatMessage::of(Role::kTool, "t"));
  Conversation two_calls = tools;
  two_calls.messages[4].content[0].text = "why";
  two_calls.messages[4].reasoning_content = "q";
  two_calls.messages[4].tool_calls.push_back(call.tool_calls[0]);
  two_calls.messages.push_back(ChatMessage::of(Role::kTool, "u"));
  return {plain, history, whole, quiet, tools, two_calls};
}

/// Whether `native` writes every probe that it can express as the template does. A template that
/// refuses one of them is another one, except where the format has no words for it either.
bool is_same(const ChatFormat& native, const TemplateFormat& format) {
  int same = 0;
  for (const Conversation& probe : probes()) {
    std::string expected;
    try {
      expected = join(native.render(probe));
    } catch (const Error&) {
      continue;
    }
    try {
      if (format.render_text(probe).text != expected) return false;
    } catch (const Error&) {
      return false;
    }
    ++same;
  }
  return same >= 3;
}

std::vector<std::unique_ptr<const ChatFormat>> native_formats(const Tokenizer& tokenizer) {
  std::vector<std::unique_ptr<const ChatFormat>> formats;
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(),
                       [&](const char* name) { return tokenizer.control(name).has_value(); });
  };
  if (has({"<|im_start|>", "<|im_end|>"})) {
    for (const auto dialect :
         {QwenDialect::kQwen35, QwenDialect::kQwen3, QwenDialect::kQwen25, QwenDialect::kChatMl}) {
      formats.push_back(make_qwen_format(tokenizer, dialect));
    }
  }
  if (!tokenizer.bos() || !tokenizer.eos()) return formats;
  if (has({"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"})) {
    for (const auto dialect : {LlamaDialect::kLlama31, LlamaDialect::kLlama3})
      formats.push_back(make_llama_format(tokenizer, dialect));
  }
  formats.push_back(make_llama_format(tokenizer, LlamaDialect::kLlama2));
  return formats;
}

}  // namespace

std::unique_ptr<const ChatFormat> make_template_format(Tokenizer tokenizer,
                                                       const std::filesystem::path& model) {
  const auto source = read_chat_template(model);
  if (!source) return nullptr;
  auto format = std::make_unique<TemplateFormat>(tokenizer, *source);
  if (source->with_tools.empty()) {
    for (auto& native : native_formats(tokenizer)) {
      if (is_same(*native, *format)) return std::move(native);
    }
  }
  format->require_known_origins(source->file);
  return format;
}

}  // namespace palimpsest::text
