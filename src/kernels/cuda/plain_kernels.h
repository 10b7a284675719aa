#pragma once

#include "kernels/op_args.h"
#include "tensor/random_fill.h"

/// Every op of op_args.h on the device, for all shapes, types and stored forms that the CPU takes: correct and simple, the ground that faster
/// kernels are measured against and that takes whatever they refuse. Every tensor lies in device memory; activations are F32. Sums are F32 in an
/// order that depends on the row alone, never on other rows, on what was asked in one call, or on earlier rows' chunking: a row's bits are those of
/// the row alone. Products read quantised weights as the F32 numbers they stand for.
/// Kernels are put on `stream` (a cudaStream_t) and return at once; they allocate nothing and read no device memory on the host.
/// Errors: kInternal with the runtime's text for what the device refused.
namespace palimpsest::cuda::plain {

void embedding(const EmbeddingArgs&, void* stream);
/// mxfp8: with weights in MXFP4, x is rounded to MXFP8.
void matmul(const MatmulArgs&, void* stream, bool mxfp8 = false);
void rms_norm(const RmsNormArgs&, void* stream);
void gated_rms_norm(const GatedRmsNormArgs&, void* stream);
void l2_norm(const L2NormArgs&, void* stream);
void short_conv(const ShortConvArgs&, void* stream);
void decay_gate(const DecayGateArgs&, void* stream);
void page_memory(const PageMemoryArgs&, void* stream);
void latent_append(const LatentAppendArgs&, void* stream);
/// Absorbed, whatever args.form says.
void latent_attention(const LatentAttentionArgs&, void* stream);
void glu(const GluArgs&, void* stream);
void multiply_sigmoid(const MultiplySigmoidArgs&, void* stream);
void add(const AddArgs&, void* stream);
void multiply(const MultiplyArgs&, void* stream);
void add_bias(const AddBiasArgs&, void* stream);
void scale(const ScaleArgs&, void* stream);
void unary(const UnaryArgs&, void* stream);
void layer_norm(const LayerNormArgs&, void* stream);
void positions(const PositionsArgs&, void* stream);
void rotary_table(const RotaryTableArgs&, void* stream);
void rotary(const RotaryArgs&, void* stream);
void divide_rows(const DivideRowsArgs&, void* stream);
void append_one(const AppendOneArgs&, void* stream);
void features(const FeaturesArgs&, void* stream);
void softmax_attention(const SoftmaxAttentionArgs&, void* stream);
void attention_residual(const AttentionResidualArgs&, void* stream);
void router(const RouterArgs&, void* stream);

/// What experts() reads of a layer's experts: bytes, and the table itself, made on the host of experts whose tensors lie on the device.
/// All experts of a layer have the same shapes; forms may differ.
std::int64_t expert_table_bytes(std::int64_t num_experts);
void make_expert_table(const ExpertMatrices* experts, std::int64_t num_experts, void* table);
/// args.device_experts is such a table, in device memory. `workspace`: device memory of this many bytes. `parts`: 0, or as in tile_kernels.h, where
/// all experts are of a form that tiles take (`args.experts` says where matrices lie and is read on the host).
std::int64_t experts_workspace_bytes(std::int64_t rows, std::int64_t top_k, std::int64_t width, std::int64_t inter, std::int64_t num_experts);
/// Kernels for tiles of at most `most_tile_rows` rows of an expert: fewer than there are only in tests and measurements (0: eight,
/// and weights not streamed), with the same bits.
void experts(const ExpertsArgs& args, std::int64_t inter, int parts, void* workspace, void* stream, int most_tile_rows = 1 << 20);

/// ops::random_fill.
void random_fill(const RandomFill& fill, std::int64_t first, std::int64_t count, void* to, void* stream);

/// Device::shorten and widen.
void shorten(std::uint16_t* bf16, const std::uint32_t* f32, std::int64_t numbers, void* stream);
void widen(std::uint32_t* f32, const std::uint16_t* bf16, std::int64_t numbers, void* stream);

}  // namespace palimpsest::cuda::plain
