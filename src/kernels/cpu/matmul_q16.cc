// Products with quantised weights and activations of 16 bits: integer_products-inl.h.

#include "kernels/cpu/matmul_integer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul_q16.cc"
#include <hwy/foreach_target.h>
//
#include "kernels/cpu/integer_products-inl.h"

HWY_BEFORE_NAMESPACE();
namespace palimpsest::cpu {
namespace HWY_NAMESPACE {

void MatmulQ16(const MatmulPart& p, std::byte* scratch, bool vnni) {
  integer::multiply<std::int16_t>(p, scratch, vnni);
}
std::int64_t MatmulQ16ScratchBytes(std::int64_t k) { return integer::scratch_bytes<std::int16_t>(k); }

}  // namespace HWY_NAMESPACE
}  // namespace palimpsest::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::cpu {

HWY_EXPORT(MatmulQ16);
HWY_EXPORT(MatmulQ16ScratchBytes);

void matmul_q16_part(const MatmulPart& part, std::byte* scratch) {
  HWY_DYNAMIC_DISPATCH(MatmulQ16)(part, scratch, uses_vnni());
}
std::int64_t matmul_q16_scratch_bytes(std::int64_t k) {
  return HWY_DYNAMIC_DISPATCH(MatmulQ16ScratchBytes)(k);
}

}  // namespace palimpsest::cpu
#endif  // HWY_ONCE
