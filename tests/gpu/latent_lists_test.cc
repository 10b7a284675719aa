// The op that models call, over lists in BF16 and in 8-bit codes, with rows of prompts and of steps in one batch.

#include <cmath>

#include "gpu/device_test.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/latent_case.h"
#include "ops/ops.h"
#include "tensor/measuring_device.h"

namespace palimpsest::test {
namespace {

class LatentLists : public DeviceTest {};

TEST_F(LatentLists, AgreeWithDoubleInEveryForm) {
  for (const DType list : {DType::kBF16, DType::kI8}) {
    LatentCase problem({.heads = 4, .dn = 128, .p = 64, .dv = 128, .r = 512, .list = list, .kv_b = WeightForm::kBF16, .q8_group = 192}, {{100, 130}, {70, 1}, {0, 0}, {320, 64}, {5, 3}});
    LatentAttentionArgs args = problem.args();
    if (list == DType::kI8) args.list.q8 = q8_latent_rows(512, 64);  // groups of 192 and one of 64: as many as of 192 alone
    std::vector<double> want(static_cast<std::size_t>(args.o.numel()));
    LatentAttentionArgs truth = args;
    truth.o = Tensor::contiguous(want.data(), DType::kF64, {args.o.size(0), args.o.size(1), args.o.size(2)});
    ref::latent_attention<double>(truth);
    for (const LatentForm form : {LatentForm::kAbsorbed, LatentForm::kByRows}) {
      const auto there = [&](const Tensor& t) {
        Tensor copy = to_device(t);
        copy.host = t.data;
        return copy;
      };
      LatentAttentionArgs a = args;
      a.form = form;
      a.q = to_device(args.q), a.kv_b = to_device(args.kv_b), a.list.blocks = to_device(args.list.blocks), a.list.table = to_device(args.list.table);
      a.rows = {there(args.rows.cu_seqlens), there(args.rows.slots)}, a.past = there(args.past), a.o = to_device(args.o);
      MeasuringDevice planned(DeviceKind::kCuda);
      ExecContext plan(1, planned), ctx(1, cuda::cuda_device());
      plan.workspace = Arena::measuring_only(planned);
      ops::latent_attention(plan, a);
      ctx.workspace.reserve(plan.workspace.peak());
      ops::latent_attention(ctx, a);
      ctx.device.wait();
      std::vector<float> got(want.size());
      from_device(a.o, got.data());
      double squares = 0, of = 0;
      for (std::size_t i = 0; i < want.size(); ++i) squares += std::pow(got[i] - want[i], 2), of += want[i] * want[i];
      // Queries, probabilities, keys and values in BF16: each errs by up to 2^-9 of itself.
      EXPECT_LE(std::sqrt(squares / of), 0.005) << (list == DType::kI8 ? "8-bit" : "BF16") << ", form " << static_cast<int>(form);
    }
    memory_.clear();
  }
}

}  // namespace
}  // namespace palimpsest::test
