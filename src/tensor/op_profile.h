#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

namespace palimpsest {

enum class Op : std::uint8_t;

/// What one call must at least do, where that is known; 0: not known.
struct OpWork {
  double flops = 0;            ///< F32 operations, a multiply-add counts two
  double bytes = 0;            ///< read and written, each operand once
  std::string_view form = {};  ///< how the weights are stored ("BF16"); text of static storage
};

/// Where the time of forward passes went, by op and form of the weights. Belongs to one ExecContext at a time; not thread-safe.
class OpProfile {
 public:
  struct Entry {
    Op op;
    std::string_view form;
    std::int64_t calls = 0;
    double seconds = 0, flops = 0, bytes = 0;
  };
  using Clock = std::chrono::steady_clock;

  void add(Op op, const OpWork& work, double seconds) {
    Entry& entry = entry_of(op, work.form);
    ++entry.calls;
    entry.seconds += seconds;
    entry.flops += work.flops;
    entry.bytes += work.bytes;
  }
  /// In the order in which they were first called.
  const std::vector<Entry>& entries() const { return entries_; }
  double seconds() const {
    double sum = 0;
    for (const Entry& entry : entries_) sum += entry.seconds;
    return sum;
  }

 private:
  Entry& entry_of(Op op, std::string_view form) {
    for (Entry& entry : entries_) {
      if (entry.op == op && entry.form == form) return entry;
    }
    return entries_.emplace_back(Entry{op, form});
  }
  std::vector<Entry> entries_;  // a few dozen
};

}  // namespace palimpsest
