#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/op_args.h"
#include "tensor/exec_context.h"

/// The CPU kernels: same names and arguments as the front doors of ops/ops.h, which check them. Vectorised with Highway and
/// dispatched at run time to SCALAR, AVX2 or AVX3 (AVX-512). All tensors lie in host memory. Threads come from the context, and no
/// bit of a result depends on their number.
namespace palimpsest::cpu {

void embedding(ExecContext&, const EmbeddingArgs&);
void matmul(ExecContext&, const MatmulArgs&);
void rms_norm(ExecContext&, const RmsNormArgs&);
void gated_rms_norm(ExecContext&, const GatedRmsNormArgs&);
void l2_norm(ExecContext&, const L2NormArgs&);
void short_conv(ExecContext&, const ShortConvArgs&);
void decay_gate(ExecContext&, const DecayGateArgs&);
void page_memory(ExecContext&, const PageMemoryArgs&);
void latent_append(ExecContext&, const LatentAppendArgs&);
void latent_attention(ExecContext&, const LatentAttentionArgs&);
void glu(ExecContext&, const GluArgs&);
void multiply_sigmoid(ExecContext&, const MultiplySigmoidArgs&);
void add(ExecContext&, const AddArgs&);
void multiply(ExecContext&, const MultiplyArgs&);
void divide_rows(ExecContext&, const DivideRowsArgs&);
void append_one(ExecContext&, const AppendOneArgs&);
void features(ExecContext&, const FeaturesArgs&);
void add_bias(ExecContext&, const AddBiasArgs&);
void scale(ExecContext&, const ScaleArgs&);
void unary(ExecContext&, const UnaryArgs&);
void layer_norm(ExecContext&, const LayerNormArgs&);
void positions(ExecContext&, const PositionsArgs&);
void rotary_table(ExecContext&, const RotaryTableArgs&);
void rotary(ExecContext&, const RotaryArgs&);
void softmax_attention(ExecContext&, const SoftmaxAttentionArgs&);
void attention_residual(ExecContext&, const AttentionResidualArgs&);
void router(ExecContext&, const RouterArgs&);
void experts(ExecContext&, const ExpertsArgs&);

/// Name of the instruction set that kernels run with: "AVX3", "AVX2" or "SCALAR".
std::string_view active_target();
/// Those that this binary holds and this machine can run, best first.
std::vector<std::string> supported_targets();
/// Runs all kernels with this target from now on ("" = best); false if the machine or the binary lacks it. Not while kernels run.
bool force_target(std::string_view name);

}  // namespace palimpsest::cpu
