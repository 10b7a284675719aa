#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/io.h"
#include "cli/setup.h"
#include "formats/safetensors.h"
#include "model/observer.h"
#include "report/progress.h"

namespace palimpsest::cli {
namespace {

/// Hidden states of one sequence, [states][T, width], filled pass by pass.
class HiddenStates : public Observer {
 public:
  HiddenStates(std::int64_t states, std::int64_t width)
      : width_(static_cast<std::size_t>(width)), rows_(static_cast<std::size_t>(states)) {}

  void on_hidden(std::int64_t index, const Tensor& hidden) override {
    std::vector<float>& rows = rows_.at(static_cast<std::size_t>(index));
    for (std::int64_t t = 0; t < hidden.size(0); ++t) {
      const float* row = hidden.at<const float>(t);
      rows.insert(rows.end(), row, row + width_);
    }
  }
  const std::vector<std::vector<float>>& rows() const { return rows_; }
  void clear() {
    for (auto& rows : rows_) rows.clear();
  }

 private:
  std::size_t width_;
  std::vector<std::vector<float>> rows_;
};

/// After the embedding, after every layer, and the output mix of models with Attention Residuals
/// (model/observer.h).
std::int64_t hidden_states_of(const ModelConfig& config) {
  const bool mixes = std::any_of(
      config.layers.begin(), config.layers.end(),
      [](const LayerSpec& layer) { return layer.residual == Residual::kBlockAttention; });
  return config.num_layers() + (mixes ? 2 : 1);
}

using IdLists = std::vector<std::vector<std::int32_t>>;

IdLists read_lists(const Options& options) {
  if (options.ids.has_value() == options.ids_file.has_value()) {
    throw make_error(ErrorCode::kUsage,
                     "give token ids either by --ids LIST or by --ids-file FILE");
  }
  return options.ids ? IdLists{parse_id_list(*options.ids)} : read_id_lists(*options.ids_file);
}

/// Found before anything is computed, however long the first lists are.
void check_lists(const IdLists& lists, const Session& session) {
  const std::int64_t vocab = session.model().config().vocab_size;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    if (static_cast<std::int64_t>(lists[i].size()) > session.context()) {
      throw make_error(ErrorCode::kInvalidRequest, "list {} has {} ids, but the context holds {}",
                       i, lists[i].size(), session.context());
    }
    for (const std::int32_t id : lists[i]) {
      if (id >= vocab) {
        throw make_error(ErrorCode::kInvalidRequest,
                         "list {}: token id {} is outside the vocabulary of {}", i, id, vocab);
      }
    }
  }
}

std::vector<formats::SafetensorsWriter::Item> layout(const IdLists& lists,
                                                     const ModelConfig& config, bool hidden) {
  std::vector<formats::SafetensorsWriter::Item> items;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const auto length = static_cast<std::int64_t>(lists[i].size());
    items.push_back({fmt::format("logits.{}", i), DType::kF32, {length, config.vocab_size}});
    if (hidden) {
      items.push_back({fmt::format("hidden.{}", i),
                       DType::kF32,
                       {hidden_states_of(config), length, config.hidden_size}});
    }
  }
  return items;
}

}  // namespace

int logits(const Options& options) {
  const IdLists lists = read_lists(options);
  require_writable(*options.output);
  const std::shared_ptr<const Model> model = load_model(options);
  const ModelConfig& config = model->config();
  std::size_t longest = 0, total = 0, done = 0;
  for (const auto& ids : lists) longest = std::max(longest, ids.size()), total += ids.size();
  SessionOptions session_choice = session_options(options);
  session_choice.context =
      std::min(static_cast<std::int64_t>(longest), config.max_position_embeddings);
  Session session(model, session_choice);
  check_lists(lists, session);

  HiddenStates hidden(hidden_states_of(config), config.hidden_size);
  if (options.hidden) session.set_observer(&hidden);
  Interruptible interrupt;
  report::ProgressBar bar({.title = "computing"}, stderr, report::inspect_terminal(stderr));
  formats::SafetensorsWriter writer(*options.output, layout(lists, config, options.hidden));
  const auto append = [&](const float* values, std::size_t count) {
    writer.append(std::as_bytes(std::span(values, count)));
  };
  for (const auto& ids : lists) {
    session.reset();
    hidden.clear();
    session.score(ids, [&](std::int64_t first, std::int64_t rows, const float* values) {
      if (interrupt.cancelled())
        throw Error(ErrorCode::kCancelled, "interrupted; nothing was written");
      append(values, static_cast<std::size_t>(rows * config.vocab_size));
      bar.update(static_cast<std::int64_t>(done) + first + rows, static_cast<std::int64_t>(total));
    });
    done += ids.size();
    if (!options.hidden) continue;
    for (const auto& rows : hidden.rows()) append(rows.data(), rows.size());
  }
  writer.commit();
  bar.finish();
  return 0;
}

}  // namespace palimpsest::cli
