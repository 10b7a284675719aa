#include "kernels/ref/latent_append.h"

#include "kernels/cpu/cpu_kernels.h"
#include "latent_case.h"
#include "ops/ops.h"

namespace palimpsest::test {
namespace {

struct Appended {
  std::vector<float> latent, k_pe;
};

/// Appends rows with a stride between k_pe rows, as columns of a wider product have.
LatentAppendArgs append_args(LatentCase& c, const LatentSizes& sizes, Appended& data) {
  const LatentAttentionArgs a = c.args();
  data.latent = random_normal(c.rows() * sizes.r, 100);
  data.k_pe = random_normal(c.rows() * (sizes.p + 3) + 1, 101);
  LatentAppendArgs args;
  args.latent = Tensor::contiguous(data.latent.data(), DType::kF32, {c.rows(), sizes.r});
  if (sizes.p > 0) {
    args.k_pe = Tensor::contiguous(data.k_pe.data(), DType::kF32, {c.rows(), sizes.p});
    args.k_pe.strides[0] = sizes.p + 3;
  }
  args.list = a.list;
  args.rows = a.rows;
  args.past = a.past;
  return args;
}

std::vector<std::uint8_t> bytes_of(const Tensor& t) {
  return {t.as<std::uint8_t>(), t.as<std::uint8_t>() + t.bytes()};
}

TEST(LatentAppend, WritesTheReferencesBytesAndNoOthers) {
  const std::vector<LatentRows> batch = {{0, 5}, {3, 0}, {61, 7}, {128, 1}, {0, 130}};
  for (const DType list : {DType::kF32, DType::kBF16, DType::kI8}) {
    for (const std::int64_t p : {0, 5}) {
      for (const std::int64_t block_tokens : {1, 7, 64}) {
        if (list == DType::kI8 && block_tokens * (19 + p) % 2 != 0) continue;  // scales need an even address
        LatentSizes sizes{.p = p, .r = 19, .block_tokens = block_tokens, .list = list};
        LatentCase expected(sizes, batch), got(sizes, batch);
        Appended data;
        ref::latent_append<double>(append_args(expected, sizes, data));
        ExecContext ctx(3);
        ops::latent_append(ctx, append_args(got, sizes, data));
        EXPECT_EQ(bytes_of(got.list().blocks), bytes_of(expected.list().blocks)) << "p " << p << ", block " << block_tokens;
        EXPECT_TRUE(got.intact());
        EXPECT_EQ(ctx.calls(Op::kLatentAppend), 1);
      }
    }
  }
}

TEST(LatentAppend, RoundsToTheNearestEvenBf16) {
  LatentSizes sizes{.p = 0, .r = 4, .block_tokens = 2, .list = DType::kBF16};
  LatentCase c(sizes, {{0, 1}});
  Appended data;
  const LatentAppendArgs args = append_args(c, sizes, data);
  data.latent = {1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1p-8f + 0x1p-20f, -1 - 0x1p-8f};
  LatentAppendArgs with_ties = args;
  with_ties.latent.data = data.latent.data();
  ExecContext ctx(1);
  ops::latent_append(ctx, with_ties);
  const std::int64_t row = ref::list_row_offset(args.list, 0, 0);
  const std::vector<float> want = {1, 1 + 0x1p-6f, 1 + 0x1p-7f, -1};
  for (std::int64_t i = 0; i < 4; ++i) EXPECT_EQ(ref::load<float>(args.list.blocks, row + i), want[static_cast<std::size_t>(i)]) << i;
}

}  // namespace
}  // namespace palimpsest::test
