// Kimi K3's chat format (XTML): elements whose brackets are control tokens.
//
//   element := <|open|> tag { " key" '="' value '"' } <|sep|> body <|close|> tag <|sep|>
//   message := element "message" <|end_of_msg|>
//
// The wire texts below are what the models were trained on, byte for byte.

#include <algorithm>

#include "base/error.h"
#include "text/chat_formats.h"
#include "text/json_text.h"
#include "text/k3_parser.h"

namespace palimpsest::text {
namespace {

constexpr std::string_view kImagePlaceholder = "<|kimi_image_placeholder|>";

constexpr std::string_view kToolsIntroduction =
    "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n";
constexpr std::string_view kMoreToolsIntroduction =
    "## New Tools Available\nThe system dynamically extends the toolset via lazy-loading.\n"
    "You have access to all existing and extended tools.\nHere are the specs for the extended "
    "tools.\n\n```json\n";
constexpr std::string_view kEffortText =
    "`thinking_effort` guides on how much to think in your thinking channel (not including the "
    "response channel), "
    "supported values include `low`, `medium`, `high`, and `max`.\nNow the system is invoked with "
    "`thinking_effort={}`.";
constexpr std::string_view kToolChoiceText =
    "The system is invoked with `tool_choice={}`.\nYou {} tools in the next message.";
constexpr std::string_view kResponseFormatText =
    "The system is invoked with `response_format={}`.\nYour response must be raw JSON data without "
    "markdown code blocks "
    "(```json) or any additional formatting.";
constexpr std::string_view kSchemaText =
    "\nThe JSON data must match the following schema:\n```json\n{}\n```";

std::string escape_attribute(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += c;
    }
  }
  return out;
}

class K3Renderer {
 public:
  explicit K3Renderer(const Conversation& conversation)
      : conversation_(conversation), options_(conversation.options) {
    // Where images came as parts, a placeholder that somebody typed must not take the slot of one.
    for (const ChatMessage& message : conversation.messages) {
      first_image_.push_back(images_);
      for (const ContentPart& part : message.content) images_ += part.kind == ContentPart::Kind::kImage;
    }
  }

  std::vector<ChatSegment> render() {
    if (!conversation_.tools.empty()) declare_tools(kToolsIntroduction, conversation_.tools);
    if (options_.thinking && options_.thinking_effort != ThinkingEffort::kUnset) {
      internal("thinking-effort", fmt::format(kEffortText, effort_name(options_.thinking_effort)));
    }
    const auto& messages = conversation_.messages;
    for (std::size_t i = 0; i < messages.size();) {
      if (messages[i].role == Role::kTool) {
        std::size_t end = i;
        while (end < messages.size() && messages[end].role == Role::kTool) ++end;
        tool_results(i, end);
        i = end;
      } else {
        message(messages[i++]);
      }
    }
    closing_instructions();
    if (options_.add_generation_prompt) {
      open("message", {{"role", "assistant"}});
      open(options_.thinking ? "think" : "response");
    }
    if (!options_.image_prompts.empty() && placed_ != options_.image_prompts.size()) {
      throw make_error(ErrorCode::kInvalidRequest, "{} images prepared, but the chat has {}",
                       options_.image_prompts.size(), placed_);
    }
    return std::move(segments_);
  }

 private:
  using Attributes = std::vector<std::pair<std::string_view, std::string>>;

  void text(std::string_view piece) {
    if (!piece.empty()) segments_.push_back({std::string(piece), false});
  }
  void control(std::string_view piece) { segments_.push_back({std::string(piece), true}); }

  void open(std::string_view tag, const Attributes& attributes = {}) {
    control("<|open|>");
    text(tag);
    for (const auto& [key, value] : attributes) {
      text(" " + std::string(key));
      text("=\"");
      text(escape_attribute(value));
      text("\"");
    }
    control("<|sep|>");
  }
  void close(std::string_view tag) {
    control("<|close|>");
    text(tag);
    control("<|sep|>");
  }
  void close_message() {
    close("message");
    control("<|end_of_msg|>");
  }

  /// A system message of the format's own.
  void internal(const char* type, std::string_view body) {
    open("message", {{"role", "system"}, {"type", type}});
    text(body);
    close_message();
  }

  void declare_tools(std::string_view introduction, const std::vector<ToolDefinition>& tools) {
    internal("tool-declare", std::string(introduction) +
                                 rewrite_json(tools_array(tools), JsonStyle::kSorted) + "\n```");
  }

  void image(std::size_t number) {
    if (options_.image_prompts.empty()) {
      control(kImagePlaceholder);
    } else if (number < options_.image_prompts.size()) {
      control(options_.image_prompts[number]);
    } else {
      throw make_error(ErrorCode::kInvalidRequest, "the chat has more images than the {} prepared",
                       options_.image_prompts.size());
    }
    segments_.back().image = static_cast<std::int64_t>(number);
    ++placed_;
  }

  /// Text that a caller gave. Where images are marked by placeholders in the text, these become the
  /// images.
  void body_text(std::string_view body) {
    if (!options_.image_prompts.empty() && images_ == 0) {
      for (std::size_t at; (at = body.find(kImagePlaceholder)) != std::string_view::npos;) {
        text(body.substr(0, at));
        image(placed_);
        body.remove_prefix(at + kImagePlaceholder.size());
      }
    }
    text(body);
  }

  void content(const ChatMessage& message) {
    // Results of tools may stand in another order than they came in; their images stay with them.
    std::size_t number = first_image_[static_cast<std::size_t>(&message - conversation_.messages.data())];
    for (const ContentPart& part : message.content) {
      if (part.kind == ContentPart::Kind::kImage) {
        image(number++);
      } else {
        body_text(part.text);
      }
    }
  }

  void message(const ChatMessage& message) {
    if (!message.tools.empty()) {
      declare_tools(kMoreToolsIntroduction, message.tools);
      return;
    }
    Attributes attributes = {{"role", std::string(role_name(message.role))}};
    if (!message.name.empty()) attributes.emplace_back("name", message.name);
    open("message", attributes);
    if (message.role == Role::kAssistant) {
      assistant(message);
    } else {
      content(message);
    }
    close_message();
  }

  void assistant(const ChatMessage& message) {
    calls_ = &message.tool_calls;
    results_ = 0;
    if (options_.thinking) {
      open("think");
      body_text(message.reasoning_content);
      close("think");
    }
    open("response");
    content(message);
    close("response");
    if (message.tool_calls.empty()) return;
    open("tools");
    for (std::size_t i = 0; i < message.tool_calls.size(); ++i) {
      open("call", {{"tool", message.tool_calls[i].name}, {"index", std::to_string(i + 1)}});
      arguments(message.tool_calls[i].arguments);
      close("call");
    }
    close("tools");
  }

  void arguments(const ToolArguments& arguments) {
    const bool from_string = arguments.form == ToolArguments::Form::kString;
    if (arguments.form == ToolArguments::Form::kAbsent || (from_string && arguments.json.empty()))
      return;
    const auto members = read_object_members(arguments.json);
    if (!members) {
      open("json", {{"type", "object"}});
      body_text(arguments.json);
      close("json");
      return;
    }
    for (const JsonMember& member : *members) {
      open("argument", {{"key", member.key}, {"type", std::string(json_type_name(member.type))}});
      const bool rewrite = !from_string && member.type != JsonMember::Type::kString;
      body_text(rewrite ? rewrite_json(member.value, JsonStyle::kSpaced) : member.value);
      close("argument");
    }
  }

  /// The call that a result answers by its id; nullptr if none does.
  const ToolCall* call_of(const ChatMessage& result) const {
    if (!calls_ || result.tool_call_id.empty()) return nullptr;
    const auto it = std::find_if(calls_->begin(), calls_->end(), [&](const ToolCall& call) {
      return call.id == result.tool_call_id;
    });
    return it == calls_->end() ? nullptr : &*it;
  }

  /// Messages [begin, end) are all results. If each answers a call by id, they take the order and
  /// the names of the calls.
  void tool_results(std::size_t begin, std::size_t end) {
    std::vector<std::pair<const ToolCall*, std::size_t>> results;
    for (std::size_t i = begin; i < end; ++i)
      results.emplace_back(call_of(conversation_.messages[i]), i);
    const bool resolved = std::all_of(results.begin(), results.end(),
                                      [](const auto& result) { return result.first != nullptr; });
    if (resolved)
      std::stable_sort(results.begin(), results.end(),
                       [](auto& a, auto& b) { return a.first < b.first; });
    for (const auto& [call, i] : results) tool_result(i, resolved ? call : nullptr);
  }

  void tool_result(std::size_t i, const ToolCall* call) {
    const ChatMessage& message = conversation_.messages[i];
    ++results_;
    std::string name = call ? call->name : message.name;
    if (name.empty() && calls_ && results_ <= calls_->size()) name = (*calls_)[results_ - 1].name;
    if (name.empty()) {
      throw make_error(ErrorCode::kInvalidRequest,
                       "messages[{}]: a tool message without a name that answers no call of an "
                       "assistant message",
                       i);
    }
    open("message", {{"role", "tool"}, {"tool", name}, {"index", std::to_string(results_)}});
    content(message);
    close_message();
  }

  void closing_instructions() {
    if (options_.tool_choice == ToolChoice::kRequired) {
      internal("tool-choice", fmt::format(kToolChoiceText, "required", "MUST call"));
    } else if (options_.tool_choice == ToolChoice::kNone) {
      internal("tool-choice", fmt::format(kToolChoiceText, "none", "MUST NOT call any"));
    }
    if (options_.response_format == ResponseFormat::kJsonObject) {
      internal("response-format", fmt::format(kResponseFormatText, "json_object"));
    } else if (options_.response_format == ResponseFormat::kJsonSchema) {
      internal(
          "response-format",
          fmt::format(kResponseFormatText, "json_schema") +
              fmt::format(kSchemaText, rewrite_json(options_.response_schema, JsonStyle::kSorted)));
    }
  }

  const Conversation& conversation_;
  const ChatOptions& options_;
  std::vector<std::size_t> first_image_;  ///< of each message, counted over the chat
  std::size_t images_ = 0, placed_ = 0;   ///< that are parts of messages; that stand in segments_
  std::vector<ChatSegment> segments_;
  const std::vector<ToolCall>* calls_ = nullptr;  ///< of the last assistant message
  std::size_t results_ = 0;                       ///< tool messages since then
};

class K3Format final : public ChatFormat {
 public:
  explicit K3Format(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}

  std::string_view name() const noexcept override { return "kimi-k3"; }
  bool has_thinking() const noexcept override { return true; }
  std::vector<ChatSegment> render(const Conversation& conversation) const override {
    return K3Renderer(conversation).render();
  }
  std::unique_ptr<ChatParser> make_parser(const Conversation& conversation) const override {
    return std::make_unique<K3Parser>(tokenizer_, declared_tools(conversation),
                                      conversation.options.thinking);
  }

  AnswerShape answer_shape(const Conversation& conversation) const override {
    using Segments = AnswerShape::Segments;
    const auto tag = [](const char* marker, std::string text) {
      return Segments{{marker, true}, {std::move(text), false}, {"<|sep|>", true}};
    };
    const auto joined = [](std::initializer_list<Segments> parts) {
      Segments out;
      for (const Segments& part : parts) out.insert(out.end(), part.begin(), part.end());
      return out;
    };
    const Segments end = tag("<|close|>", "message");
    AnswerShape shape;
    shape.asks = true;
    shape.begins_thinking = conversation.options.thinking;
    shape.think_end = joined({tag("<|close|>", "think"), tag("<|open|>", "response")});
    shape.content_end = joined({tag("<|close|>", "response"), end});
    shape.arguments = AnswerShape::Arguments::kElements;
    shape.calls_begin = joined({tag("<|close|>", "response"), tag("<|open|>", "tools")});
    shape.calls_end = joined({tag("<|close|>", "tools"), end});
    shape.call_end = tag("<|close|>", "call");
    shape.argument_end = tag("<|close|>", "argument");
    shape.call_begin = [tag](std::string_view tool, std::int64_t index) {
      return tag("<|open|>", fmt::format("call tool=\"{}\" index=\"{}\"", escape_attribute(tool), index + 1));
    };
    shape.argument_begin = [tag](std::string_view key, std::string_view type) {
      return tag("<|open|>", fmt::format("argument key=\"{}\" type=\"{}\"", escape_attribute(key), type));
    };
    return shape;
  }

 private:
  Tokenizer tokenizer_;
};

}  // namespace

std::unique_ptr<const ChatFormat> make_k3_format(Tokenizer tokenizer) {
  return std::make_unique<K3Format>(std::move(tokenizer));
}

}  // namespace palimpsest::text
