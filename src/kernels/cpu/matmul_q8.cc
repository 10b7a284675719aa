// Products with quantised weights and activations of 8 bits: integer_products-inl.h.

#include "kernels/cpu/matmul_integer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul_q8.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/integer_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

void MatmulQ8(const MatmulPart& p, std::byte* scratch, bool vnni) {
  integer::multiply<std::int8_t>(p, scratch, vnni);
}
std::int64_t MatmulQ8ScratchBytes(std::int64_t k) { return integer::scratch_bytes<std::int8_t>(k); }

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(MatmulQ8);
HWY_EXPORT(MatmulQ8ScratchBytes);

void matmul_q8_part(const MatmulPart& part, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(MatmulQ8)(part, scratch, uses_vnni());
}
std::int64_t matmul_q8_scratch_bytes(std::int64_t k) {
  return HWY_DYNAMIC_DISPATCH(MatmulQ8ScratchBytes)(k);
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
