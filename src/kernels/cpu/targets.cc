// Which instruction set the kernels run with: Highway's choice for this machine, a test's, or the
// user's (PALIMPSEST_TARGET).

#include <hwy/highway.h>

#include <array>
#include <cstdlib>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/matmul_integer.h"

// If Highway should ever generate another set, tests that force targets would silently test less.
static_assert((HWY_TARGETS & ~(HWY_SCALAR | HWY_AVX2 | HWY_AVX3)) == 0);
#if HWY_ARCH_X86
static_assert(HWY_TARGETS == (HWY_SCALAR | HWY_AVX2 | HWY_AVX3));
#endif

namespace palimpsest::cpu {
namespace {

struct Target {
  std::string_view name;
  std::int64_t bit;
};
#if HWY_ARCH_X86
constexpr std::array kTargets = {Target{"AVX3", HWY_AVX3}, Target{"AVX2", HWY_AVX2},
                                 Target{"SCALAR", HWY_SCALAR}};
#else
constexpr std::array kTargets = {Target{"SCALAR", HWY_SCALAR}};
#endif

bool is_supported(const Target& target) {
  return target.bit == HWY_SCALAR || (hwy::SupportedTargets() & target.bit) != 0;
}

const Target& best_target() {
  for (const Target& target : kTargets) {
    if (is_supported(target)) return target;
  }
  return kTargets.back();
}

bool machine_has_vnni() {
#if HWY_ARCH_X86
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

bool& vnni() {
  static bool use = machine_has_vnni();
  return use;
}

const Target*& chosen() {
  static const Target* target = &best_target();
  return target;
}

}  // namespace

std::string_view active_target() {
  return chosen()->name;
}

std::vector<std::string> supported_targets() {
  std::vector<std::string> names;
  for (const Target& target : kTargets) {
    if (is_supported(target)) names.emplace_back(target.name);
  }
  return names;
}

bool force_target(std::string_view name) {
  for (const Target& target : kTargets) {
    if (name.empty() ? &target != &best_target() : target.name != name) continue;
    if (!is_supported(target)) return false;
    chosen() = &target;
    // The dispatch tables take the best target of this mask; SCALAR is always in it.
    hwy::GetChosenTarget().Update(target.bit);
    return true;
  }
  return false;
}

bool uses_vnni() {
  return vnni();
}

bool allow_vnni(bool allowed) {
  vnni() = allowed && machine_has_vnni();
  return vnni();
}

}  // namespace palimpsest::cpu

extern "C" {
/// Not zero if PALIMPSEST_TARGET named a target that was then forced. The name is C so that the
/// build can make the linker keep this file.
extern const int palimpsest_cpu_targets;
const int palimpsest_cpu_targets = [] {
  const char* name = std::getenv("PALIMPSEST_TARGET");
  return name != nullptr && palimpsest::cpu::force_target(name) ? 1 : 0;
}();
}
