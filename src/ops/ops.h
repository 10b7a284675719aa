#pragma once

#include <span>

#include "kernels/add_norm_args.h"
#include "kernels/kda_step_args.h"
#include "tensor/exec_context.h"

/// One front door per op: checks shapes and dtypes (PALIMPSEST_CHECK: callers are our own code), counts the call in the
/// context, chooses the device, calls the kernel. Formulas and shapes: kernels/op_args.h. Each takes a whole ragged batch in one call.
namespace palimpsest::ops {

void embedding(ExecContext&, const EmbeddingArgs&);
void matmul(ExecContext&, const MatmulArgs&);
/// Products of which none reads what another writes: on a device one launch where their shapes and forms allow it.
void matmuls(ExecContext&, std::span<const MatmulArgs>);
/// Room in the workspace for what an op may leave besides its rows, for products that follow; nowhere on the host. Passes of any length have it: a plan is made
/// for the longest, and has room for shorter ones.
RowImage row_image_room(ExecContext&, std::int64_t rows, std::int64_t columns);
void rms_norm(ExecContext&, const RmsNormArgs&);
void add_rms_norm(ExecContext&, const AddRmsNormArgs&);
void gated_rms_norm(ExecContext&, const GatedRmsNormArgs&);
void l2_norm(ExecContext&, const L2NormArgs&);
void delta_prepare(ExecContext&, const DeltaPrepareArgs&);
/// False, and nothing was done: not on a device, not one row a sequence, or other shapes than the kernel's.
bool kda_step(ExecContext&, const KdaStepArgs&);
void short_conv(ExecContext&, const ShortConvArgs&);
void decay_gate(ExecContext&, const DecayGateArgs&);
void page_memory(ExecContext&, const PageMemoryArgs&);
void latent_append(ExecContext&, const LatentAppendArgs&);
void latent_attention(ExecContext&, const LatentAttentionArgs&);
void glu(ExecContext&, const GluArgs&);
void multiply_sigmoid(ExecContext&, const MultiplySigmoidArgs&);
void add(ExecContext&, const AddArgs&);
void multiply(ExecContext&, const MultiplyArgs&);
void add_bias(ExecContext&, const AddBiasArgs&);
void scale(ExecContext&, const ScaleArgs&);
void unary(ExecContext&, const UnaryArgs&);
void layer_norm(ExecContext&, const LayerNormArgs&);
void positions(ExecContext&, const PositionsArgs&);
void rotary_table(ExecContext&, const RotaryTableArgs&);
void rotary(ExecContext&, const RotaryArgs&);
void divide_rows(ExecContext&, const DivideRowsArgs&);
void append_one(ExecContext&, const AppendOneArgs&);
void features(ExecContext&, const FeaturesArgs&);
void softmax_attention(ExecContext&, const SoftmaxAttentionArgs&);
void attention_residual(ExecContext&, const AttentionResidualArgs&);
void router(ExecContext&, const RouterArgs&);
void experts(ExecContext&, const ExpertsArgs&);

}  // namespace palimpsest::ops
