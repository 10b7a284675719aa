#include "model/forward.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "kernels/prompt_rows.h"
#include "model/ffn.h"
#include "model/final_norm.h"
#include "model/forward_workspace.h"
#include "model/mixers/mixers.h"
#include "model/project.h"
#include "model/residual_stream.h"
#include "model/state_spec.h"
#include "ops/keep_logits.h"
#include "ops/ragged.h"
#include "ops/recordings.h"
#include "tensor/measuring_device.h"

namespace palimpsest {
namespace {

template <class T>
Tensor as_tensor(std::span<T> values, DType dtype) {
  return Tensor::contiguous(const_cast<std::remove_const_t<T>*>(values.data()), dtype,
                            {static_cast<std::int64_t>(values.size())});
}

void run_mixer(MixerContext& mix, const ModelConfig& config, const LayerWeights& w, std::int64_t layer, const Tensor& x, const Tensor& y) {
  const float eps = static_cast<float>(config.rms_norm_eps);
  switch (config.layers[static_cast<std::size_t>(layer)].mixer) {
    case Mixer::kKimiDeltaAttention: return kimi_delta_attention(mix, config.kda, eps, std::get<KdaWeights>(w.mixer), layer, x, y);
    case Mixer::kLatentAttention: return latent_attention(mix, config.mla, std::get<MlaWeights>(w.mixer), layer, x, y);
    case Mixer::kSoftmaxAttention: return softmax_attention(mix, config.attention, eps, std::get<SoftmaxAttentionWeights>(w.mixer), layer, x, y);
    case Mixer::kLinearAttention: return linear_attention(mix, config.page, eps, std::get<PageMixerWeights>(w.mixer), layer, x, y);
    case Mixer::kDeltaNet: return delta_net(mix, config.page, eps, std::get<PageMixerWeights>(w.mixer), layer, x, y);
    case Mixer::kGatedDeltaNet: return gated_delta_net(mix, config.page, eps, std::get<PageMixerWeights>(w.mixer), layer, x, y);
  }
}

void run_ffn(ExecContext& ctx, const ModelConfig& config, const Weights& weights, std::int64_t layer, const Tensor& x, const Tensor& y,
             Observer* observer) {
  const auto& ffn = weights.layers[static_cast<std::size_t>(layer)].ffn;
  if (const auto* dense = std::get_if<MlpWeights>(&ffn)) {
    mlp(ctx, glu_params(config.activation), *dense, x, y);
  } else {
    moe(ctx, config, std::get<MoeWeights>(ffn), *weights.experts, layer, x, y, observer);
  }
}

/// RMSNorm, or LayerNorm where there is a bias.
void normalize(ExecContext& ctx, const ModelConfig& config, const NormWeights& w, const Tensor& x, const Tensor& y) {
  const float eps = static_cast<float>(config.rms_norm_eps);
  if (w.bias.defined()) ops::layer_norm(ctx, {.x = x, .weight = w.weight, .bias = w.bias, .eps = eps, .y = y});
  else ops::rms_norm(ctx, {.x = x, .weight = w.weight, .eps = eps, .y = y});
}

/// What a sublayer reads of the stream, normalised.
void read_normalized(ExecContext& ctx, const ModelConfig& config, ResidualStream& stream, const Tensor& mix, const NormWeights& w, const Tensor& y) {
  if (w.bias.defined()) normalize(ctx, config, w, stream.read(mix), y);
  else stream.read_normalized(mix, w.weight, y);
}

/// Token embeddings, plus those of the positions where they are learned.
void embed(MixerContext& mix, const Weights& weights, const Tensor& tokens, const Tensor& out) {
  ExecContext& ctx = mix.exec;
  ops::embedding(ctx, {.table = weights.embed_tokens, .ids = tokens, .out = out});
  if (!weights.positions.defined()) return;
  const ArenaScope scope(ctx.workspace);
  const Tensor positions = ctx.workspace.allocate(DType::kI32, {out.size(0)}), added = ctx.workspace.allocate(DType::kF32, {out.size(0), out.size(1)});
  ops::positions(ctx, {.rows = mix.rows, .past = mix.past, .out = positions});
  ops::embedding(ctx, {.table = weights.positions, .ids = positions, .out = added});
  ops::add(ctx, {.x = added, .y = out});
}

/// Rows that are steps, where somebody asks and not all are; sets `all` where all are.
std::vector<std::int32_t> step_rows(const ExecContext& ctx, const Weights& weights, const Batch& batch, const Tensor& past, bool& all) {
  std::vector<std::int32_t> rows;
  if (ctx.planning() || !weights.stream || !weights.stream->computes_steps()) return rows;
  const PromptRule rule = ctx.activations == Activations::kF32 ? PromptRule::nothing() : PromptRule();
  for (std::size_t n = 0; n + 1 < batch.cu_seqlens.size(); ++n) {
    const std::int64_t begin = batch.cu_seqlens[n], end = batch.cu_seqlens[n + 1], before = past.on_host<std::int64_t>()[n];
    for (std::int64_t row = begin + rule(before, end - begin); row < end; ++row) rows.push_back(static_cast<std::int32_t>(row));
  }
  all = static_cast<std::int64_t>(rows.size()) == batch.rows();
  if (all) rows.clear();
  return rows;
}

/// What a pass reads of the batch, on the device that computes.
struct Inputs {
  Inputs(ExecContext& ctx, const ModelConfig& config, const Weights& weights, const Batch& batch, const Tensor& past_lengths, std::span<const double> inverse_temperatures)
      : tokens(as_tensor(batch.tokens, DType::kI32)),
        logit_rows(as_tensor(batch.logit_rows, DType::kI32)),
        rows{as_tensor(batch.cu_seqlens, DType::kI64), as_tensor(batch.slots, DType::kI32)},
        past(past_lengths),
        inv_freq(as_tensor(std::span(config.attention.rope_inv_freq), DType::kF64)),
        inverse(as_tensor(inverse_temperatures, DType::kF64)),
        step_list(step_rows(ctx, weights, batch, past_lengths, steps.all)) {
    if (!step_list.empty()) steps.rows = as_tensor(std::span<const std::int32_t>(step_list), DType::kI32);
    ctx.stage({&tokens, &logit_rows, &rows.cu_seqlens, &rows.slots, &past, &inv_freq, &steps.rows, &inverse});
  }
  Tensor tokens, logit_rows;
  RaggedRows rows;
  Tensor past, inv_freq, inverse;
  StepRows steps;
  std::vector<std::int32_t> step_list;  ///< steps.rows on the host
};

void show(ExecContext& ctx, Observer* observer, std::int64_t index, const Tensor& hidden) {
  if (!observer) return;
  if (!ctx.on_device() || !observer->on_host()) return observer->on_hidden(index, hidden);
  const Tensor copy = ctx.to_host(hidden);
  observer->on_hidden(index, copy);
  ctx.device.copy(hidden.data, copy.data, hidden.bytes());
}

/// The embeddings of pictures, which come computed, in the place of their tokens'.
void lay_over(ExecContext& ctx, const Batch& batch, const Tensor& stream) {
  if (ctx.planning()) return;
  const std::int64_t width = stream.size(1);
  for (std::size_t i = 0; i < batch.overlay_rows.size(); ++i) {
    ctx.device.copy(stream.at<float>(batch.overlay_rows[i]), batch.overlay + static_cast<std::int64_t>(i) * width,
                    width * static_cast<std::int64_t>(sizeof(float)));
  }
}

/// The angles that all layers rotate by, where the model rotates.
void prepare_rotation(MixerContext& mix, const SoftmaxAttentionConfig& config, const Tensor& inv_freq, std::int64_t rows) {
  const std::int64_t n = inv_freq.size(0);
  if (n == 0) return;
  mix.rope_cos = mix.exec.workspace.allocate(DType::kF32, {rows, n});
  mix.rope_sin = mix.exec.workspace.allocate(DType::kF32, {rows, n});
  ops::rotary_table(mix.exec, {.inv_freq = inv_freq, .rows = mix.rows, .past = mix.past,
                               .attention_factor = config.rope_attention_factor, .cos = mix.rope_cos, .sin = mix.rope_sin});
}

/// Norm and head over the rows whose logits are wanted.
Tensor project_logits(ExecContext& ctx, const ModelConfig& config, const Weights& weights, const Tensor& stream, const Tensor& rows) {
  const std::int64_t R = rows.size(0);
  const Tensor logits = ctx.workspace.allocate(DType::kF32, {R, config.vocab_size});
  if (R == 0) return logits;
  const ArenaScope scope(ctx.workspace);
  const Tensor wanted = ctx.workspace.allocate(DType::kF32, {R, config.hidden_size});
  ops::embedding(ctx, {.table = {.dense = stream}, .ids = rows, .out = wanted});
  normalize(ctx, config, weights.norm, wanted, wanted);
  ops::matmul(ctx, {.x = wanted, .w = weights.lm_head, .y = logits});
  return logits;
}

/// From tokens to the logits of the wanted rows, where the model computes.
Tensor run_layers(ExecContext& ctx, const Model& model, const Batch& batch, const Inputs& in, StatePool& states, Observer* observer) {
  const ModelConfig& config = model.config();
  const Weights& weights = model.weights();
  // What lies inside layers can be watched on the host only.
  Observer* const inner = ctx.on_device() ? nullptr : observer;
  MixerContext mix{ctx, states, in.rows, in.past, batch.fixed_forms, inner, {}, {}};
  prepare_rotation(mix, config.attention, in.inv_freq, batch.rows());

  ResidualStream stream(ctx, config, batch.rows(), inner);
  const Tensor x = ctx.workspace.allocate(DType::kF32, {batch.rows(), config.hidden_size});
  embed(mix, weights, in.tokens, stream.running());
  lay_over(ctx, batch, stream.running());
  show(ctx, observer, 0, stream.running());

  WeightStream* const visiting = ctx.planning() ? nullptr : weights.stream.get();
  if (visiting) visiting->begin(batch.rows(), in.steps);
  for (std::int64_t l = 0; l < config.num_layers(); ++l) {
    if (visiting) visiting->enter(l);
    const LayerWeights& w = weights.layers[static_cast<std::size_t>(l)];

    read_normalized(ctx, config, stream, w.self_attention_res, w.input_layernorm, x);
    if (config.attn_res_block_size > 0 && l % config.attn_res_block_size == 0) stream.bank();
    run_mixer(mix, config, w, l, x, stream.output());
    stream.add_output();

    read_normalized(ctx, config, stream, w.mlp_res, w.post_attention_layernorm, x);
    run_ffn(ctx, config, weights, l, x, stream.output(), inner);
    stream.add_output();

    if (observer) show(ctx, observer, l + 1, stream.running());
  }

  const Tensor last = stream.read(weights.output_attn_res);
  if (config.attn_res_block_size > 0) show(ctx, observer, config.num_layers() + 1, last);
  return project_logits(ctx, config, weights, last, in.logit_rows);
}

ops::Recordings& recordings_of(StatePool& states) {
  if (!states.companion()) states.companion() = std::make_shared<ops::Recordings>();
  return *static_cast<ops::Recordings*>(states.companion().get());
}

/// What the launches of such a step depend on. Lists are known to ops by a power of two that holds the longest.
ops::Recordings::Key pass_key(ExecContext& ctx, const Model& model, const Batch& batch, const Inputs& in) {
  std::uint64_t longest = 0;
  for (std::int64_t n = 0; n < in.past.size(0); ++n) longest = std::max(longest, std::bit_ceil(static_cast<std::uint64_t>(in.past.on_host<std::int64_t>()[n] + 1)));
  const auto address = [](const void* p) { return reinterpret_cast<std::uint64_t>(p); };
  return {address(&model), address(model.weights().lm_head.dense.data), address(ctx.workspace.allocate(DType::kU8, {0}).data), address(in.tokens.data),
          static_cast<std::uint64_t>(batch.rows()), batch.logit_rows.size(), longest, static_cast<std::uint64_t>(ctx.activations), batch.fixed_forms};
}

/// Logits where the model computes. Workspace that was taken before stays.
Tensor compute(ExecContext& ctx, const Model& model, const Batch& batch, const Inputs& in, StatePool& states, Observer* observer) {
  const auto turn = model.weights().stream && !ctx.planning() ? model.weights().stream->hold() : std::unique_lock<std::mutex>();
  const auto pass = [&] { return run_layers(ctx, model, batch, in, states, observer); };
  // What a step of decoding launches depends on the number of sequences, not on which they are.
  const bool can_repeat = ctx.on_device() && !observer && batch.overlay_rows.empty() && ops::one_row_each(batch.cu_seqlens);
  Tensor logits;
  try {
    logits = can_repeat ? recordings_of(states).play(ctx, pass_key(ctx, model, batch, in), pass) : pass();
  } catch (...) {
    if (turn.owns_lock()) model.weights().stream->settle();
    throw;
  }
  states.advance(batch.slots, batch.cu_seqlens);
  return logits;
}

/// KeepLogitsArgs::room. Taken before the pass, which may be played from a recording and then takes nothing itself.
Tensor room_for_facts(ExecContext& ctx, std::int64_t sequences) { return ctx.workspace.allocate(DType::kU8, {logit_room_bytes(sequences)}); }

}  // namespace

Tensor forward(ExecContext& ctx, const Model& model, const Batch& batch, StatePool& states, Observer* observer) {
  ctx.workspace.reset_to(0);
  const Inputs in(ctx, model.config(), model.weights(), batch, states.prepare(batch.slots, batch.cu_seqlens), {});
  if (ctx.planning() && ctx.on_device()) room_for_facts(ctx, in.rows.slots.size(0));
  return ctx.to_host(compute(ctx, model, batch, in, states, observer));
}

void forward_to_slots(ExecContext& ctx, const Model& model, const Batch& batch, StatePool& states, std::span<const double> inverse,
                      std::vector<LogitFacts>& facts, Observer* observer) {
  PALIMPSEST_CHECK(batch.logit_rows.size() == batch.slots.size() && inverse.size() == batch.slots.size(), "one row of logits a sequence");
  ctx.workspace.reset_to(0);
  const Inputs in(ctx, model.config(), model.weights(), batch, states.prepare(batch.slots, batch.cu_seqlens), inverse);
  const Tensor room = room_for_facts(ctx, in.rows.slots.size(0));
  const Tensor logits = compute(ctx, model, batch, in, states, observer);
  ops::keep_logits(ctx, {.logits = logits, .slots = in.rows.slots, .kept = states.device_logits(), .inverse = in.inverse, .room = room}, facts);
  for (const std::int32_t slot : batch.slots) states.put_logits(slot);
}

void final_norm(ExecContext& ctx, const Model& model, const Tensor& x, const Tensor& y) {
  normalize(ctx, model.config(), model.weights().norm, x, y);
}

std::int64_t forward_workspace_bytes(const Model& model, std::int64_t rows, std::int64_t sequences, std::int64_t logit_rows) {
  return forward_workspace_bytes(model, rows, sequences, logit_rows, model.device().kind());
}

std::int64_t forward_workspace_bytes(const Model& model, std::int64_t rows, std::int64_t sequences, std::int64_t logit_rows, DeviceKind where) {
  sequences = std::min(sequences, rows);
  MeasuringDevice device(where);
  ExecContext ctx(1, device);
  ctx.workspace = Arena::measuring_only(device);
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
