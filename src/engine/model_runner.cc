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

class ModelRunner final : public PassRunner {
 public:
  ModelRunner(std::shared_ptr<const Model> model, int threads, std::int64_t workspace_bytes,
              Activations activations)
      : model_(std::move(model)), context_(threads, model_->device()), keeper_(context_, *model_) {
    context_.workspace.reserve(workspace_bytes);
    context_.activations = context_.on_device() ? Activations::kF32 : activations;
  }
  std::int64_t vocab_size() const override { return model_->config().vocab_size; }
  Rows run(const Batch& batch, StatePool& states, bool with_hidden) override {
    const Tensor logits =
        forward(context_, *model_, batch, states, with_hidden ? &keeper_ : nullptr);
    return {logits, with_hidden ? keeper_.kept() : Tensor{}};
  }
  base::ThreadPool& threads() override { return context_.pool; }

 private:
  std::shared_ptr<const Model> model_;
  ExecContext context_;
  HiddenKeeper keeper_;
};

}  // namespace

std::unique_ptr<PassRunner> make_model_runner(std::shared_ptr<const Model> model, int threads,
                                              std::int64_t workspace_bytes,
                                              Activations activations) {
  return std::make_unique<ModelRunner>(std::move(model), threads, workspace_bytes, activations);
}

}  // namespace palimpsest
