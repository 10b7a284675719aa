#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/session_file.h"
#include "selfcheck/engine.h"

namespace palimpsest::selfcheck {

/// A prompt, a continuation (greedy unless said otherwise), and the logits that a computation from
/// an empty state gives: alone, in whole passes, on the setting's number of threads.
struct Question {
  Tokens prompt, answer;
  Trace trace;
};

/// What the rows ask. `base` is the longest but for `turn`; all lengths follow from its own.
struct Material {
  Question base, other, brief;  ///< n, two thirds and one third of n tokens, nothing in common
  Question diverged;            ///< base's prompt with another continuation
  std::vector<Question> edits;  ///< beginnings of base's prompt, each with something else behind it
  Question turn;                ///< base's prompt and answer, and a next message
  std::int64_t length = 0;      ///< that every sequence of every row stays within
  std::int64_t snapshots = 0;   ///< of an engine with a cache
  SessionOrigin origin;
  std::filesystem::path folder;  ///< for files
  std::int64_t workspace = 0;    ///< bytes
};

/// One row at work: compares what it finds with the material.
class Checker {
 public:
  Checker(const Subject& subject_in, const Material& material_in, bool quick_in, bool exact,
          double bound)
      : subject(subject_in), material(material_in), quick(quick_in), exact_(exact), bound_(bound) {}

  /// `found` must be the question's logits from step `from` on: the same bits, or within the bound
  /// and with the same greedy ids (another id is let pass where the two lead by less than twice the
  /// bound: a tie). `what` names the case in a failure.
  void expect(const Trace& found, const Question& question, std::string_view what,
              std::int64_t from = 0);
  /// Reads the rest of the question's answer from `from` on and compares.
  void answer(Engine& engine, std::int32_t slot, const Question& question, std::string_view what,
              std::int64_t from = 0);
  /// Something else that must hold.
  void require(bool condition, std::string_view what);

  Room room(std::int64_t slots, bool cached = false) const {
    return {.slots = slots,
            .length = material.length,
            .tokens = 0,
            .snapshots = cached ? material.snapshots : 0};
  }

  std::int64_t comparisons() const { return comparisons_; }
  double worst() const { return worst_; }
  const std::string& problem() const { return problem_; }

  const Subject& subject;
  const Material& material;
  const bool quick;

 private:
  void fail(std::string text);

  bool exact_;
  double bound_;
  double worst_ = 0;
  std::int64_t comparisons_ = 0;
  std::string problem_;
};

struct Row {
  std::string_view name, compared;
  bool exact;
  void (*check)(Checker&);
};

/// All of them: those of passes and batches, then those of snapshots, files and full pools.
std::vector<Row> rows();
std::vector<Row> pass_rows();
std::vector<Row> memory_rows();

}  // namespace palimpsest::selfcheck
