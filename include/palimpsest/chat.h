#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "palimpsest/tokenizer.h"

namespace palimpsest {

// -- what is said ------------------------------------------------------------------------------

enum class Role : std::uint8_t { kSystem, kUser, kAssistant, kTool };

std::string_view role_name(Role role) noexcept;

/// A part of a message's content: some text, or the place of an image.
struct ContentPart {
  enum class Kind : std::uint8_t { kText, kImage };
  Kind kind = Kind::kText;
  std::string text;  ///< of an image: its URL as it came (data:...), empty where none was given
};

/// The arguments of a tool call, as JSON source text. The form matters: some formats keep the
/// source of arguments that came as a string (the OpenAI form) and re-write those that came as an
/// object.
struct ToolArguments {
  enum class Form : std::uint8_t { kAbsent, kString, kObject };
  Form form = Form::kAbsent;
  std::string json;  ///< kString: whatever the caller wrote, valid or not; kObject: a JSON object
};

struct ToolCall {
  std::string id;  ///< empty if none
  std::string name;
  ToolArguments arguments;
};

/// A tool that the model may call.
struct ToolDefinition {
  std::string name;
  std::string json;  ///< the whole declaration: {"type": "function", "function": {...}}
};

struct ChatMessage {
  Role role = Role::kUser;
  std::string name;  ///< of the speaker, or of the tool of a kTool message; empty if none
  std::vector<ContentPart> content;   ///< empty: no content
  std::string reasoning_content;      ///< kAssistant
  std::vector<ToolCall> tool_calls;   ///< kAssistant
  std::string tool_call_id;           ///< kTool: the call that this answers; empty if not said
  std::vector<ToolDefinition> tools;  ///< kSystem: tools that become available here

  static ChatMessage of(Role role, std::string text) {
    ChatMessage message;
    message.role = role;
    message.content.push_back({ContentPart::Kind::kText, std::move(text)});
    return message;
  }
};

/// How much to think. kUnset leaves it to the model: nothing is said about it in the prompt.
enum class ThinkingEffort : std::uint8_t { kUnset, kLow, kHigh, kMax };
/// "low", "high", "max"; nothing for kUnset.
std::string_view effort_name(ThinkingEffort effort) noexcept;

enum class ToolChoice : std::uint8_t { kAuto, kNone, kRequired };
enum class ResponseFormat : std::uint8_t { kText, kJsonObject, kJsonSchema };

struct ChatOptions {
  bool thinking = true;
  ThinkingEffort thinking_effort = ThinkingEffort::kUnset;  ///< ignored without thinking
  ToolChoice tool_choice = ToolChoice::kAuto;
  ResponseFormat response_format = ResponseFormat::kText;
  std::string response_schema;        ///< JSON, for kJsonSchema
  bool add_generation_prompt = true;  ///< end with the opening of the assistant's message
  /// Control text that stands for each image, in the order of the messages. Set by the program that prepares the
  /// images, never read from a request. Empty: images are left as the placeholder that the format
  /// writes for them.
  std::vector<std::string> image_prompts;

  /// Sets thinking and thinking_effort from "off", "low", "high" or "max". Errors: kInvalidRequest.
  void set_reasoning_effort(std::string_view effort);
};

/// A prompt to be: everything that a chat format needs.
struct Conversation {
  std::vector<ChatMessage> messages;
  std::vector<ToolDefinition> tools;
  ChatOptions options;
};

/// Reads a chat in the form of OpenAI's chat completions: an object with `messages` and optionally
/// `tools`, `tool_choice`, `response_format`, `reasoning_effort`, or a bare array of messages. Our
/// own options (`thinking`, `thinking_effort`, `add_generation_prompt`) and the ones above may also
/// stand in an object `options`, where unknown keys are errors. Other keys at the top level (model,
/// temperature, ...) are not ours to read. Errors: kInvalidRequest with the path of the field
/// ("messages[2].tool_calls[0]: ...").
Conversation parse_chat(std::string_view json);

// -- rendering ---------------------------------------------------------------------------------

/// A piece of a rendered prompt. Each is encoded on its own: control pieces in
/// EncodeMode::kControl, all others in kText. So what a user wrote can neither become a control
/// token nor merge with the text of the format.
struct ChatSegment {
  std::string text;
  bool is_control = false;
  std::int64_t image = -1;  ///< of the place of an image: its number among those of the chat, in the order of the messages; -1: another piece
  bool operator==(const ChatSegment&) const = default;
};

std::string join(std::span<const ChatSegment> segments);
std::vector<TokenId> encode(const Tokenizer& tokenizer, std::span<const ChatSegment> segments);

/// Where messages begin in the ids of a chat, the first excepted: behind each id that ends one
/// (Tokenizer::stop_ids), ascending. These are control tokens, which no message can contain. What a
/// format leaves open (a question of Llama 2) has no border behind it. For Session::resume.
std::vector<std::int64_t> message_borders(const Tokenizer& tokenizer, std::span<const TokenId> ids);

// -- what the model says -----------------------------------------------------------------------

/// One step of a message that is being written.
struct ChatEvent {
  enum class Kind : std::uint8_t {
    kReasoning,          ///< text: more reasoning
    kContent,            ///< text: more of the answer
    kToolCallBegin,      ///< index, name and id of a call
    kToolCallArguments,  ///< index; text: more of the arguments
    kToolCallEnd,        ///< index
    kMessageEnd,         ///< the model ended its message; the last event
  };
  Kind kind;
  std::string text;
  std::int32_t index = 0;  ///< of the call, from 0
  std::string name, id;    ///< of the call
  bool operator==(const ChatEvent&) const = default;
};

struct ParsedToolCall {
  std::string id, name;
  std::string arguments;  ///< a JSON object
  bool operator==(const ParsedToolCall&) const = default;
};

/// The sum of a message's events. Equal for equal ids, however the events were spread.
struct ParsedMessage {
  std::string reasoning, content;
  std::vector<ParsedToolCall> tool_calls;
  bool ended = false;  ///< by the model, as against cut off

  void add(const ChatEvent& event);
  void add(std::span<const ChatEvent> events);
  /// The message as history for the next turn.
  ChatMessage to_message() const;
  bool operator==(const ParsedMessage&) const = default;
};

/// Takes the ids of an assistant's message one at a time and says what they mean. Never throws for
/// any ids, also not for ids outside the vocabulary (they count for nothing).
///
/// All texts of events are valid UTF-8. The text of control tokens never reaches an event. What
/// does not follow the format degrades to text of the channel it stands in; a missing end is
/// supplied. The argument pieces of one call join to a valid JSON object; what a model writes in
/// place of one becomes its member "json", a string. A call of a tool that was not declared becomes
/// content, as {"name": ..., "arguments": ...}. Not thread-safe; one per message.
class ChatParser {
 public:
  virtual ~ChatParser() = default;

  /// Appends the events that `id` gives rise to. Ids after kMessageEnd are ignored.
  virtual void push(TokenId id, std::vector<ChatEvent>& events) = 0;
  /// The message is cut off here: appends what was held back and closes an open call. No
  /// kMessageEnd is added.
  virtual void finish(std::vector<ChatEvent>& events) = 0;
};

/// All of `ids` at once, to the same end.
ParsedMessage parse_message(ChatParser& parser, std::span<const TokenId> ids);

// -- formats -----------------------------------------------------------------------------------

/// What a format has a model write around its words, for constraints on answers. All pieces are
/// segments as in a prompt; none of them: nothing is written there. An answer is
///
///   [thoughts] content [content_end]            or
///   [thoughts] content calls_begin call+ calls_end
///
/// and then a stop id; without thoughts, unless begins_thinking, think_begin is what they begin with.
struct AnswerShape {
  using Segments = std::vector<ChatSegment>;
  enum class Arguments : std::uint8_t {
    kNone,      ///< there are no calls
    kJson,      ///< one JSON object
    kElements,  ///< each between argument_begin and argument_end: strings as they are, others as JSON
    kTagged,    ///< the same with ends that are text: strings only where the tool's property says
                ///< "type": "string", all else as JSON; and no type in argument_begin
  };

  /// The prompt can ask for tool_choice required and for a response format in the format's words.
  bool asks = false;
  bool begins_thinking = false;  ///< the prompt ends inside of the thoughts
  Segments think_begin;          ///< empty: there are no thoughts but those that the prompt begins
  Segments think_end;            ///< from the thoughts to the content
  Segments content_end;
  Arguments arguments = Arguments::kNone;
  Segments calls_begin, calls_end, call_end, argument_end;
  Segments between_calls;
  bool single_call = false;   ///< there are never several
  bool spelled_tags = false;  ///< what ends a call is letters, as those of its arguments
  /// Of call number `index` (from 0) of the answer.
  std::function<Segments(std::string_view tool, std::int64_t index)> call_begin;
  /// `type`: "string", "number", "boolean", "null", "object", "array".
  std::function<Segments(std::string_view key, std::string_view type)> argument_begin;
};

/// How one family of models writes chats. Immutable; any thread may use it.
class ChatFormat {
 public:
  virtual ~ChatFormat() = default;

  /// "kimi-k3", "kimi-k2", "chatml", "qwen2.5", "qwen3", "qwen3.5", "llama-2", "llama-3",
  /// "llama-3.1"; "template" for any other model's own.
  virtual std::string_view name() const noexcept = 0;
  /// Whether the format has a channel for reasoning. What else than "off" can be asked of it is the
  /// format's matter: the Qwen formats know on and off only.
  virtual bool has_thinking() const noexcept = 0;

  /// Errors: kInvalidRequest for a conversation that the format cannot express, with the message's
  /// number.
  virtual std::vector<ChatSegment> render(const Conversation& conversation) const = 0;

  /// A parser of the answer to `conversation`, rendered with add_generation_prompt.
  virtual std::unique_ptr<ChatParser> make_parser(const Conversation& conversation) const = 0;

  /// How the answer to `conversation` is written, as far as constraints need to know; by default
  /// content alone. Errors: as render().
  virtual AnswerShape answer_shape(const Conversation& conversation) const;

  /// Chosen by the names of the control tokens: <|open|>, <|close|>, <|sep|>, <|end_of_msg|> (Kimi
  /// K3, XTML) or <|im_user|>, <|im_assistant|>, <|im_system|>, <|im_middle|>, <|im_end|> (Kimi K2
  /// and Kimi-Linear). Other models by the chat template at `model` (a folder, a file in it, or a
  /// GGUF file): natively where it is a known one, else through an interpreter of templates.
  ///
  /// Errors: kUnsupported when there is neither, and for templates beyond the interpreter;
  /// kInvalidFile for one that is broken.
  static std::unique_ptr<const ChatFormat> create(Tokenizer tokenizer,
                                                  const std::filesystem::path& model = {});
};

}  // namespace palimpsest
