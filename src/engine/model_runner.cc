#include "engine/pass_runner.h"
#include "model/final_norm.h"
#include "model/forward.h"

namespace palimpsest {
namespace {

/// Keeps what the last norm makes of the hidden states.
class HiddenKeeper final : public Observer {
 public:
  HiddenKeeper(ExecContext& context, const Model& model)
      : context_(context),
        model_(model),
        last_(model.config().num_layers() + (model.config().attn_res_block_size > 0 ? 1 : 0)) {}

  void on_hidden(std::int64_t index, const Tensor& hidden) override {
    if (index != last_) return;
    if (buffer_.bytes() < hidden.bytes()) {
      buffer_ = Buffer(hidden.bytes(), context_.device);
      if (context_.on_device()) host_ = Buffer(hidden.bytes());
    }
    kept_ = buffer_.view(DType::kF32, {hidden.size(0), hidden.size(1)});
    final_norm(context_, model_, hidden, kept_);
    if (!context_.on_device()) return;
    context_.device.copy(host_.data(), kept_.data, kept_.bytes());
    kept_ = host_.view(DType::kF32, {hidden.size(0), hidden.size(1)});
  }
  bool on_host() const override { return false; }
  const Tensor& kept() const { return kept_; }

 private:
  ExecContext& context_;
  const Model& model_;
  std::int64_t last_;
  Buffer buffer_, host_;  // on the context's device; and a copy of what lies there
  Tensor kept_;
};

/// Keeps hidden states while another looks at the rest.
class Both final : public Observer {
 public:
  HiddenKeeper* keeper = nullptr;
  Observer* other = nullptr;

  void on_hidden(std::int64_t index, const Tensor& hidden) override {
    keeper->on_hidden(index, hidden);
    other->on_hidden(index, hidden);
  }
  Tensor before_pages(std::int64_t layer, const PageMemoryArgs& args) override {
    return other->before_pages(layer, args);
  }
  void after_pages(std::int64_t layer, const PageMemoryArgs& args, const Tensor& written) override {
    other->after_pages(layer, args, written);
  }
  Tensor before_mix(std::int64_t read, const AttentionResidualArgs& args) override {
    return other->before_mix(read, args);
  }
  void after_mix(std::int64_t read, const AttentionResidualArgs& args) override {
    other->after_mix(read, args);
  }
  void on_experts(std::int64_t layer, const Tensor& ids, const Tensor& weights) override {
    other->on_experts(layer, ids, weights);
  }
};

class ModelRunner final : public PassRunner {
 public:
  ModelRunner(std::shared_ptr<const Model> model, int threads, std::int64_t workspace_bytes,
              Activations activations, std::shared_ptr<const VisionTower> tower)
      : model_(std::move(model)), context_(threads, model_->device()), keeper_(context_, *model_) {
    context_.workspace.reserve(workspace_bytes);
    context_.activations = activations;
    if (!tower) return;
    check_tower(*tower, model_->config());
    if (context_.on_device() && tower->device() == DeviceKind::kCpu) host_ = std::make_unique<ExecContext>(threads);
    pictures_.emplace(std::move(tower));
  }
  std::int64_t vocab_size() const override { return model_->config().vocab_size; }
  Rows run(const Batch& batch, StatePool& states, bool with_hidden) override {
    const Tensor logits = forward(context_, *model_, batch, states, observer(with_hidden));
    return {logits, {}, with_hidden ? keeper_.kept() : Tensor{}};
  }
  Rows run_to_slots(const Batch& batch, StatePool& states, bool with_hidden, std::span<const double> inverse) override {
    if (!context_.on_device()) return run(batch, states, with_hidden);
    forward_to_slots(context_, *model_, batch, states, inverse, facts_, observer(with_hidden));
    return {{}, facts_, with_hidden ? keeper_.kept() : Tensor{}};
  }
  void observe(Observer* observer) override { watcher_ = observer; }
  base::ThreadPool& threads() override { return context_.pool; }
  PictureRows* pictures() override { return pictures_ ? &*pictures_ : nullptr; }
  bool work_on_pictures() override { return pictures_->work(host_ ? *host_ : context_); }

 private:
  Observer* observer(bool with_hidden) {
    both_.keeper = &keeper_;
    both_.other = watcher_;
    return !with_hidden ? watcher_ : watcher_ ? &both_ : static_cast<Observer*>(&keeper_);
  }

  std::shared_ptr<const Model> model_;
  ExecContext context_;
  HiddenKeeper keeper_;
  Observer* watcher_ = nullptr;
  Both both_;
  std::vector<LogitFacts> facts_;  ///< of the last pass
  std::optional<PictureRows> pictures_;
  std::unique_ptr<ExecContext> host_;  ///< where the vision tower computes, when it lies on the host and the text model on a device
};

}  // namespace

std::unique_ptr<PassRunner> make_model_runner(std::shared_ptr<const Model> model, int threads,
                                              std::int64_t workspace_bytes,
                                              Activations activations,
                                              std::shared_ptr<const VisionTower> tower) {
  return std::make_unique<ModelRunner>(std::move(model), threads, workspace_bytes, activations,
                                       std::move(tower));
}

}  // namespace palimpsest
