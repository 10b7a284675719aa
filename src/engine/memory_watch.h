#pragma once

#include <list>
#include <span>
#include <vector>

#include "model/observer.h"
#include "palimpsest/engine.h"

namespace palimpsest {

/// Who watches which request, and what they see: an observer of those passes that hold a watched
/// request, and of no others. It looks and copies; what is computed stays the same, bit for bit. Of
/// the engine's thread.
class MemoryWatch final : public Observer {
 public:
  using Clock = std::chrono::steady_clock;

  void add(RequestId request, const WatchOptions& options, WatchHandler handler);
  bool empty() const { return watchers_.empty(); }

  /// Rows of a pass that belong to the first choice of a request.
  struct Rows {
    RequestId request = 0;
    std::int32_t slot = 0;
    std::int64_t first = 0;                ///< row of the pass
    std::int64_t position = 0;             ///< of its token
    std::span<const std::int32_t> tokens;  ///< valid until the pass has ended
  };
  void begin_pass();
  void add_rows(const Rows& rows);
  /// Null when nobody watches this pass.
  Observer* observer() { return in_pass_ ? this : nullptr; }
  /// The pass is computed: tells what was seen.
  void end_pass();
  /// It failed.
  void drop_pass();
  void ended(RequestId request);

  Tensor before_pages(std::int64_t layer, const PageMemoryArgs& args) override;
  void after_pages(std::int64_t layer, const PageMemoryArgs& args, const Tensor& written) override;
  Tensor before_mix(std::int64_t read, const AttentionResidualArgs& args) override;
  void after_mix(std::int64_t read, const AttentionResidualArgs& args) override;
  void on_experts(std::int64_t layer, const Tensor& ids, const Tensor& weights) override;

 private:
  struct Watcher {
    RequestId request = 0;
    WatchOptions options;
    WatchHandler handler;
    Clock::time_point next_look{};
    double next_work = 0;  ///< of working_seconds(), before which there is no look either
    // of the pass
    bool in_pass = false, looks = false;
    std::int32_t slot = 0;
    std::int64_t length = 0;         ///< behind the pass
    std::vector<std::int64_t> rows;  ///< of the tokens that are shown
    std::vector<TokenView> tokens;   ///< as many, and older ones behind, whose memory is used again
    std::vector<PageView> pages;
    std::size_t looked = 0;   ///< pages that are of this pass
    double look_seconds = 0;  ///< what looking at pages took
  };
  void look(Watcher& watcher, std::int64_t layer, const PageMemoryArgs& args);
  static void take_writes(Watcher& watcher, std::int64_t layer, const PageMemoryArgs& args,
                          const Tensor& written);
  static bool tell(Watcher& watcher, const MemoryView& view);

  std::list<Watcher> watchers_;
  bool in_pass_ = false;
  std::vector<float> written_, mix_;  ///< outputs that ops give on demand
};

}  // namespace palimpsest
