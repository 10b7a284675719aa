#include "model/residual_stream.h"

#include "ops/ops.h"

namespace palimpsest {
namespace {

std::int64_t blocks(const ModelConfig& config) {
  const std::int64_t size = config.attn_res_block_size;
  return size > 0 ? (config.num_layers() + size - 1) / size : 0;
}

}  // namespace

ResidualStream::ResidualStream(ExecContext& ctx, const ModelConfig& config, std::int64_t rows, Observer* observer)
    : ctx_(ctx),
      observer_(observer),
      eps_(static_cast<float>(config.rms_norm_eps)),
      sources_(ctx.workspace.allocate(DType::kF32, {blocks(config) + 1, rows, config.hidden_size})),
      mixed_(ctx.workspace.allocate(DType::kF32, {rows, config.hidden_size})),
      output_(ctx.workspace.allocate(DType::kF32, {rows, config.hidden_size})),
      image_(ops::row_image_room(ctx, rows, config.hidden_size)) {}

Tensor ResidualStream::source(std::int64_t index) const {
  Tensor t = sources_.rows(index, 1);
  return t.reshape({sources_.size(1), sources_.size(2)});
}

Tensor ResidualStream::running() {
  add_pending();
  return source(banked_);
}

void ResidualStream::add_pending() {
  if (pending_) ops::add(ctx_, {.x = output_, .y = source(banked_)});
  pending_ = false;
}

Tensor ResidualStream::read(const Tensor& w) {
  add_pending();
  const std::int64_t read = reads_++;
  if (banked_ == 0) return running();
  AttentionResidualArgs args = {.sources = sources_.rows(0, banked_ + 1), .w = w, .eps = eps_, .y = mixed_, .p = {}};
  if (observer_) args.p = observer_->before_mix(read, args);
  ops::attention_residual(ctx_, args);
  if (observer_) observer_->after_mix(read, args);
  return mixed_;
}

void ResidualStream::read_normalized(const Tensor& w, const Tensor& norm, const Tensor& y) {
  if (!pending_ || banked_ > 0) return ops::rms_norm(ctx_, {.x = read(w), .weight = norm, .eps = eps_, .y = y});
  pending_ = false;
  // On a device what follows may begin beside the last op of the sublayer before (early_launch.cuh), which reads neither the stream nor y.
  ops::add_rms_norm(ctx_, {.add = output_, .x = read(w), .weight = norm, .eps = eps_, .y = y, .image = image_});
}

void ResidualStream::bank() {
  ++banked_;
  empty_ = true;
}

Tensor ResidualStream::output() const { return empty_ ? source(banked_) : output_; }

void ResidualStream::add_output() {
  pending_ = !empty_;
  empty_ = false;
}

}  // namespace palimpsest
