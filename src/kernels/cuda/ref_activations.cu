#include "kernels/cuda/activation_kernels.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/ref/attention_residual.h"
#include "kernels/ref/gated_rms_norm.h"
#include "kernels/ref/short_conv.h"

namespace palimpsest::cuda {
namespace {

struct Norm {
  GatedRmsNormArgs args;
  __device__ void operator()(std::int64_t i) const { ref::gated_rms_norm_head<double>(args, i); }
};
/// Index i = (sequence, channel).
struct Convolution {
  ShortConvArgs args;
  __device__ void operator()(std::int64_t i) const { ref::short_conv_channel<double>(args, i / args.x.sizes[1], i % args.x.sizes[1]); }
};
struct Residual {
  AttentionResidualArgs args;
  __device__ void operator()(std::int64_t i) const { ref::attention_residual_row<double>(args, i); }
};

}  // namespace

void ref_gated_rms_norm(const GatedRmsNormArgs& args) { for_each_index(args.x.sizes[0] * args.x.sizes[1], Norm{args}, "ref_gated_rms_norm"); }
void ref_short_conv(const ShortConvArgs& args) { for_each_index(args.rows.slots.sizes[0] * args.x.sizes[1], Convolution{args}, "ref_short_conv"); }
void ref_attention_residual(const AttentionResidualArgs& args) { for_each_index(args.y.sizes[0], Residual{args}, "ref_attention_residual"); }

}  // namespace palimpsest::cuda
