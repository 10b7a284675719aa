#include "model/forward.h"

#include <numeric>
#include <vector>

#include "model/ffn.h"
#include "model/mixers/mixers.h"
#include "model/project.h"
#include "model/residual_stream.h"
#include "model/state_spec.h"

namespace palimpsest {
namespace {

template <class T>
Tensor as_tensor(std::span<T> values, DType dtype) {
  return Tensor::contiguous(const_cast<std::remove_const_t<T>*>(values.data()), dtype,
                            {static_cast<std::int64_t>(values.size())});
}

void run_mixer(MixerContext& mix, const ModelConfig& config, const LayerWeights& w, std::int64_t layer, const Tensor& x, const Tensor& y) {
  if (const auto* kda = std::get_if<KdaWeights>(&w.mixer)) {
    kimi_delta_attention(mix, config.kda, static_cast<float>(config.rms_norm_eps), *kda, layer, x, y);
  } else {
    latent_attention(mix, config.mla, std::get<MlaWeights>(w.mixer), layer, x, y);
  }
}

void run_ffn(ExecContext& ctx, const ModelConfig& config, const Weights& weights, std::int64_t layer, const Tensor& x, const Tensor& y) {
  const auto& ffn = weights.layers[static_cast<std::size_t>(layer)].ffn;
  if (const auto* dense = std::get_if<MlpWeights>(&ffn)) {
    mlp(ctx, glu_params(config.activation), *dense, x, y);
  } else {
    moe(ctx, config, std::get<MoeWeights>(ffn), *weights.experts, layer, x, y);
  }
}

/// Norm and head over the rows whose logits are wanted.
Tensor project_logits(ExecContext& ctx, const ModelConfig& config, const Weights& weights, const Tensor& stream,
                      std::span<const std::int32_t> rows) {
  const std::int64_t R = static_cast<std::int64_t>(rows.size());
  const Tensor logits = ctx.workspace.allocate(DType::kF32, {R, config.vocab_size});
  if (R == 0) return logits;
  const ArenaScope scope(ctx.workspace);
  const Tensor wanted = ctx.workspace.allocate(DType::kF32, {R, config.hidden_size});
  ops::embedding(ctx, {.table = {.dense = stream}, .ids = as_tensor(rows, DType::kI32), .out = wanted});
  ops::rms_norm(ctx, {.x = wanted, .weight = weights.norm, .eps = static_cast<float>(config.rms_norm_eps), .y = wanted});
  ops::matmul(ctx, {.x = wanted, .w = weights.lm_head, .y = logits});
  return logits;
}

}  // namespace

Tensor forward(ExecContext& ctx, const Model& model, const Batch& batch, StatePool& states, Observer* observer) {
  const ModelConfig& config = model.config();
  const Weights& weights = model.weights();
  const float eps = static_cast<float>(config.rms_norm_eps);

  ctx.workspace.reset_to(0);
  const Tensor past = states.prepare(batch.slots, batch.cu_seqlens);
  MixerContext mix{ctx, states, {as_tensor(batch.cu_seqlens, DType::kI64), as_tensor(batch.slots, DType::kI32)}, past};

  ResidualStream stream(ctx, config, batch.rows());
  const Tensor x = ctx.workspace.allocate(DType::kF32, {batch.rows(), config.hidden_size});
  ops::embedding(ctx, {.table = weights.embed_tokens, .ids = as_tensor(batch.tokens, DType::kI32), .out = stream.running()});
  if (observer) observer->on_hidden(0, stream.running());

  for (std::int64_t l = 0; l < config.num_layers(); ++l) {
    const LayerWeights& w = weights.layers[static_cast<std::size_t>(l)];

    const Tensor h = stream.read(w.self_attention_res);
    if (config.attn_res_block_size > 0 && l % config.attn_res_block_size == 0) stream.bank();
    ops::rms_norm(ctx, {.x = h, .weight = w.input_layernorm, .eps = eps, .y = x});
    run_mixer(mix, config, w, l, x, stream.output());
    stream.add_output();

    ops::rms_norm(ctx, {.x = stream.read(w.mlp_res), .weight = w.post_attention_layernorm, .eps = eps, .y = x});
    run_ffn(ctx, config, weights, l, x, stream.output());
    stream.add_output();

    if (observer) observer->on_hidden(l + 1, stream.running());
  }

  const Tensor last = stream.read(weights.output_attn_res);
  if (observer && config.attn_res_block_size > 0) observer->on_hidden(config.num_layers() + 1, last);
  states.advance(batch.slots, batch.cu_seqlens);
  return project_logits(ctx, config, weights, last, batch.logit_rows);
}

std::int64_t forward_workspace_bytes(const Model& model, std::int64_t rows, std::int64_t sequences, std::int64_t logit_rows) {
  sequences = std::min(sequences, rows);
  ExecContext ctx(1);
  ctx.workspace = Arena::measuring_only();
  StatePool states(state_spec(model.config()), {.slots = sequences, .tokens = rows, .max_length = rows});
  std::vector<std::int32_t> slots(static_cast<std::size_t>(sequences));
  for (auto& slot : slots) slot = states.acquire();
  std::vector<std::int64_t> cu_seqlens(static_cast<std::size_t>(sequences) + 1);
  for (std::int64_t n = 0; n <= sequences; ++n) cu_seqlens[static_cast<std::size_t>(n)] = rows * n / sequences;

  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(rows)), wanted(static_cast<std::size_t>(logit_rows));
  forward(ctx, model, {.tokens = tokens, .cu_seqlens = cu_seqlens, .slots = slots, .logit_rows = wanted}, states);
  return ctx.workspace.peak();
}

}  // namespace palimpsest
