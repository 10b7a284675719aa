#include "palimpsest/kernels_c.h"

#include "gpu/delta_step_case.h"
#include "gpu/device_test.h"

extern "C" {
int refusals_in_c(void);
int step_in_c(void* q, void* k, void* v, void* b, void* pages, void* slots, void* o, float q_scale);
}

namespace palimpsest::test {
namespace {

TEST(KernelsC, BadArgumentsAreACodeAndAText) { EXPECT_EQ(refusals_in_c(), 0) << palimpsest_last_error(); }

class KernelsCOnDevice : public DeviceTest {};

TEST_F(KernelsCOnDevice, AStepFromC) {
  const DeltaCase problem({.heads = 2, .value_heads = 2, .width = 64, .values = 32, .gate = DeltaGate::kNone, .conv = false, .norm = false});
  const DeltaStepArgs& a = problem.args;
  const Tensor q = to_device(a.in.q), k = to_device(a.in.k), v = to_device(a.in.v), b = to_device(a.in.b), pages = to_device(a.pages), slots = to_device(a.slots), o = to_device(a.o);
  ASSERT_EQ(step_in_c(q.data, k.data, v.data, b.data, pages.data, slots.data, o.data, a.in.q_scale), PALIMPSEST_OK) << palimpsest_last_error();
  std::vector<float> got(static_cast<std::size_t>(o.numel()));
  from_device(o, got.data());
  const DeltaTruth truth = delta_truth(problem);
  EXPECT_TRUE(within({got.begin(), got.end()}, truth.o, truth.o_bound));
}

}  // namespace
}  // namespace palimpsest::test
