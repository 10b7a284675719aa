#include "cli/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/io.h"

namespace palimpsest::cli {
namespace {

using Json = nlohmann::ordered_json;

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

bool is_key_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

/// One line of the part of TOML that settings need.
class TomlLine {
 public:
  TomlLine(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  /// False for a line that says nothing.
  bool read(Setting& setting) {
    skip_blanks();
    if (at_end()) return false;
    setting.where = where_;
    const std::size_t begin = at_;
    while (at_ < text_.size() && is_key_letter(text_[at_])) ++at_;
    setting.key = text_.substr(begin, at_ - begin);
    if (setting.key.empty()) throw wrong("no key is here (tables are not read)");
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != '=') throw wrong("'=' is missing behind the key");
    ++at_;
    skip_blanks();
    const bool has_quotes = at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\'');
    setting.value = has_quotes ? quoted() : plain();
    skip_blanks();
    if (!at_end()) throw wrong("something follows the value");
    return true;
  }

 private:
  Error wrong(std::string_view what) const {
    return make_error(ErrorCode::kInvalidFile, "{}: {}", where_, what);
  }
  void skip_blanks() {
    while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  }
  bool at_end() const { return at_ == text_.size() || text_[at_] == '#'; }

  std::string quoted() {
    const char quote = text_[at_++];
    std::string value;
    for (; at_ < text_.size(); ++at_) {
      char c = text_[at_];
      if (c == quote) {
        ++at_;
        return value;
      }
      if (quote == '"' && c == '\\') {
        constexpr std::string_view kEscapes = "\\\"tn", kMeanings = "\\\"\t\n";
        const std::size_t which = ++at_ < text_.size() ? kEscapes.find(text_[at_]) : kEscapes.npos;
        if (which == kEscapes.npos) throw wrong("of escapes, \\\\ \\\" \\t and \\n are read");
        c = kMeanings[which];
      }
      value += c;
    }
    throw wrong("the string does not end on its line");
  }

  std::string plain() {
    std::string value;
    for (; !at_end() && !is_blank(text_[at_]); ++at_) {
      const char c = text_[at_];
      if (!is_key_letter(c) && c != '.' && c != '+')
        throw wrong("the value is neither a string in quotes, a number, true nor false");
      if (c != '_') value += c;
    }
    const bool is_number = !value.empty() && ((value[0] >= '0' && value[0] <= '9') ||
                                              value[0] == '-' || value[0] == '+');
    if (!is_number && value != "true" && value != "false")
      throw wrong("the value is neither a string in quotes, a number, true nor false");
    if (value[0] == '+') value.erase(0, 1);
    return value;
  }

  std::string_view text_;
  const std::string& where_;
  std::size_t at_ = 0;
};

std::vector<Setting> read_toml(const std::string& path, std::string_view text) {
  std::vector<Setting> settings;
  for (std::size_t at = 0, line = 1; at < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    Setting setting;
    const std::string where = fmt::format("{}:{}", path, line);
    if (TomlLine(text.substr(at, end - at), where).read(setting))
      settings.push_back(std::move(setting));
    at = end + 1;
  }
  return settings;
}

/// The line of each key comes from the parser's place in the text when it meets the key.
std::vector<Setting> read_json(const std::string& path, const std::string& text) {
  const auto line_at = [&](std::size_t place) {
    const auto end = text.begin() + static_cast<std::ptrdiff_t>(std::min(place, text.size()));
    return std::count(text.begin(), end, '\n') + 1;
  };
  std::vector<std::string> keys;  // all of them, doubles included, which the object does not keep
  Json json;
  try {
    json = Json::parse(text, [&](int depth, Json::parse_event_t event, Json& value) {
      if (event == Json::parse_event_t::key && depth == 1) keys.push_back(value.get<std::string>());
      return true;
    });
  } catch (const Json::parse_error& error) {  // its own text would quote the file
    throw make_error(ErrorCode::kInvalidFile, "{}:{}: this is not JSON", path, line_at(error.byte));
  }
  if (!json.is_object())
    throw make_error(ErrorCode::kInvalidFile, "{}: neither TOML nor one JSON object", path);
  std::vector<Setting> settings;
  for (const std::string& key : keys) {
    const Json& value = json[key];
    if (!value.is_string() && !value.is_number() && !value.is_boolean()) {
      throw make_error(ErrorCode::kInvalidFile,
                       "{}: {}: the value is neither a string, a number, true nor false", path, key);
    }
    settings.push_back({.key = key,
                        .value = value.is_string() ? value.get<std::string>() : value.dump(),
                        .where = path});
  }
  return settings;
}

/// "ctx_size" and "--ctx-size" are "ctx-size".
std::string plain_name(std::string_view name) {
  std::string out(name.substr(std::min(name.find_first_not_of('-'), name.size())));
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

const Flag* find_flag(Command command, std::string_view key) {
  for (const Flag& flag : flag_table()) {
    if (!flag.belongs_to(command)) continue;
    for (const std::string_view name : flag.names) {
      if (name.starts_with("--") && plain_name(name) == key) return &flag;
    }
  }
  return nullptr;
}

void apply(const Flag& flag, const Setting& setting, Options& options) {
  try {
    if (!flag.is_switch()) return set_flag(flag, options, setting.value);
    const auto is = [&](std::initializer_list<const char*> words) {
      return std::find(words.begin(), words.end(), setting.value) != words.end();
    };
    if (is({"true", "1", "yes", "on"})) {
      set_flag(flag, options, {});
    } else if (!is({"false", "0", "no", "off"})) {
      throw make_error(ErrorCode::kUsage, "{}: neither true nor false", flag.name());
    }
  } catch (Error& error) {
    throw error.add_context(setting.where);
  }
}

}  // namespace

std::vector<Setting> read_config(const std::string& path) {
  const std::string text = read_text(path);
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  const bool is_json = begin != text.npos && text[begin] == '{';
  std::vector<Setting> settings = is_json ? read_json(path, text) : read_toml(path, text);
  for (Setting& setting : settings) setting.key = plain_name(setting.key);
  return settings;
}

std::string environment_name(std::string_view long_name) {
  std::string name = "PALIMPSEST_" + plain_name(long_name);
  for (char& c : name) c = c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
  return name;
}

void add_settings(Options& options, const std::set<const Flag*>& given) {
  std::set<const Flag*> said = given;
  for (const Flag& flag : flag_table()) {
    if (!flag.belongs_to(options.command)) continue;
    for (const std::string_view name : flag.names) {
      if (!name.starts_with("--") || said.contains(&flag)) continue;
      const std::string variable = environment_name(name);
      const char* value = std::getenv(variable.c_str());
      if (!value) continue;
      apply(flag, {.key = std::string(name), .value = value, .where = variable}, options);
      said.insert(&flag);
    }
  }
  if (!options.config) return;
  std::set<const Flag*> filed;
  for (const Setting& setting : read_config(*options.config)) {
    const Flag* flag = find_flag(options.command, setting.key);
    if (!flag || flag->name() == "--config") {
      throw make_error(ErrorCode::kInvalidFile, "{}: '{}' is no setting of 'palimpsest {}'",
                       setting.where, setting.key, info(options.command).name);
    }
    if (!filed.insert(flag).second) {
      throw make_error(ErrorCode::kInvalidFile, "{}: {} is set twice", setting.where, flag->name());
    }
    if (!said.contains(flag)) apply(*flag, setting, options);
  }
}

}  // namespace palimpsest::cli
