#include "text/pre_tokenizer.h"

#include <utility>

#include "text/unicode_additions.h"
#include "text/utf8.h"

namespace palimpsest::text {
namespace {

using formats::PreTokenizerStep;
using Behavior = PreTokenizerStep::Behavior;

/// Python's str.isspace for one character: White_Space and the four information separators.
bool is_python_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20);
  return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
         c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/// `text` with each newer character replaced by its stand-in (same length); empty when there are
/// none.
std::string with_stand_ins(std::string_view text) {
  std::string changed;
  for (std::size_t at = 0; at < text.size();) {
    const auto lead = static_cast<unsigned char>(text[at]);
    if (lead < 0xe0) {  // all additions have three or four bytes
      ++at;
      continue;
    }
    const Utf8Unit unit = next_utf8(text.substr(at));
    const char32_t other = stand_in(unit.code_point);
    if (other != unit.code_point) {
      if (changed.empty()) changed = text;
      std::string bytes;
      append_utf8(other, bytes);
      changed.replace(at, unit.size, bytes);
    }
    at += unit.size;
  }
  return changed;
}

/// Turns the matches of a cut and the text between them into pieces.
class Cutter {
 public:
  Cutter(Behavior behavior, const PreTokenizer::Sink& sink) : behavior_(behavior), sink_(sink) {}

  void add(std::string_view span, bool is_match) {
    if (span.empty()) return;
    switch (behavior_) {
      case Behavior::kIsolated:
        sink_(span);
        return;
      case Behavior::kRemoved:
        if (!is_match) sink_(span);
        return;
      case Behavior::kMergedWithPrevious:
        return hold(span, is_match, is_match && !held_match_);
      case Behavior::kMergedWithNext:
        return hold(span, is_match, held_match_ && !is_match);
      case Behavior::kContiguous:
        return hold(span, is_match, is_match == held_match_);
    }
  }

  void finish() {
    if (!held_.empty()) sink_(std::exchange(held_, {}));
  }

 private:
  void hold(std::string_view span, bool is_match, bool join) {
    if (join && !held_.empty()) {
      held_ = {held_.data(), held_.size() + span.size()};
    } else {
      finish();
      held_ = span;
    }
    held_match_ = is_match;
  }

  Behavior behavior_;
  const PreTokenizer::Sink& sink_;
  std::string_view held_;
  bool held_match_ = false;
};

}  // namespace

struct PreTokenizer::Call {
  Regex::Search& search;
  const Sink& sink;
  bool has_newer_characters;
};

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps) {
  for (const PreTokenizerStep& what : steps) {
    Step step{what, {}};
    if (what.kind == PreTokenizerStep::Kind::kSplit) {
      step.regex.emplace_back(what.pattern);
    } else if (what.kind == PreTokenizerStep::Kind::kMetaspace && what.split) {
      step.what.behavior = Behavior::kMergedWithNext;
      step.regex.emplace_back(formats::quote_pattern(what.replacement));
    }
    steps_.push_back(std::move(step));
  }
}

void PreTokenizer::split(std::string_view text, bool is_start, Regex::Search& search,
                         const Sink& sink) const {
  if (text.empty()) return;
  apply(0, text, is_start, {search, sink, !with_stand_ins(text).empty()});
}

void PreTokenizer::apply(std::size_t index, std::string_view piece, bool is_start,
                         const Call& call) const {
  if (index == steps_.size()) return call.sink(piece);
  const Step& step = steps_[index];
  std::string changed;
  if (step.what.kind == PreTokenizerStep::Kind::kPrefix && !piece.starts_with(' ')) {
    piece = changed.append(" ").append(piece);
  } else if (step.what.kind == PreTokenizerStep::Kind::kMetaspace) {
    for (const char c : piece) {
      c == ' ' ? changed += step.what.replacement : changed += c;
    }
    const bool wanted = step.what.prepend == PreTokenizerStep::Prepend::kAlways ||
                        (step.what.prepend == PreTokenizerStep::Prepend::kFirst && is_start);
    if (wanted && !changed.starts_with(step.what.replacement)) {
      changed.insert(0, step.what.replacement);
    }
    piece = changed;
  }
  if (step.regex.empty()) return apply(index + 1, piece, is_start, call);

  const std::string stand_ins = call.has_newer_characters ? with_stand_ins(piece) : "";
  const std::string_view subject = stand_ins.empty() ? piece : stand_ins;
  const Sink next = [&](std::string_view part) {
    apply(index + 1, part, is_start && part.data() == piece.data(), call);
  };
  Cutter cutter(step.what.behavior, index + 1 == steps_.size() ? call.sink : next);
  std::size_t at = 0;
  while (at < piece.size()) {
    const auto match = step.regex.front().find(subject, at, call.search);
    if (!match) break;
    cutter.add(piece.substr(at, match->begin - at), step.what.invert);
    cutter.add(piece.substr(match->begin, match->end - match->begin), !step.what.invert);
    at = match->end;
  }
  cutter.add(piece.substr(at), step.what.invert);
  cutter.finish();
}

std::string_view KimiSlicer::next() {
  // A slice shorter than both limits in bytes cannot exceed them in characters.
  if (rest_.size() <= kMaxRun && rest_.size() <= characters_left_) return std::exchange(rest_, {});
  std::size_t at = 0, run = 0;
  bool run_is_space = false;
  while (at < rest_.size()) {
    if (characters_left_ == 0) {
      characters_left_ = kMaxCharacters;
      break;
    }
    const Utf8Unit unit = next_utf8(rest_.substr(at));
    const bool is_space = is_python_space(unit.code_point);
    if (run != 0 && is_space == run_is_space) {
      if (run == kMaxRun) break;
      ++run;
    } else {
      run = 1;
      run_is_space = is_space;
    }
    at += unit.size;
    --characters_left_;
  }
  const std::string_view slice = rest_.substr(0, at);
  rest_.remove_prefix(at);
  return slice;
}

}  // namespace palimpsest::text
