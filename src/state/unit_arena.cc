#include "state/unit_arena.h"

#include <numeric>

#include "base/check.h"

namespace palimpsest {

UnitArena::UnitArena(Device& device, std::byte* memory, std::int64_t units, std::int64_t unit_bytes)
    : device_(device),
      memory_(memory),
      unit_bytes_(unit_bytes),
      references_(static_cast<std::size_t>(units), 0),
      free_(static_cast<std::size_t>(units)) {
  std::iota(free_.rbegin(), free_.rend(), 0);  // the lowest is handed out first
}

bool UnitArena::allocate(std::int64_t count, std::vector<std::int32_t>& out) {
  if (count > free_units()) return false;
  out.reserve(out.size() + static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int32_t unit = free_.back();
    free_.pop_back();
    references_[static_cast<std::size_t>(unit)] = 1;
    out.push_back(unit);
  }
  return true;
}

void UnitArena::retain(std::int32_t unit) {
  PALIMPSEST_CHECK(references(unit) > 0, "only a unit in use can be shared");
  ++references_[static_cast<std::size_t>(unit)];
}

void UnitArena::release(std::int32_t unit) {
  PALIMPSEST_CHECK(references(unit) > 0, "a unit is released as often as it was taken");
  if (--references_[static_cast<std::size_t>(unit)] > 0) return;
  if (poison_freed_) device_.fill(data(unit), 0xFF, unit_bytes_);
  free_.push_back(unit);
}

void UnitArena::release(std::span<const std::int32_t> units) {
  for (auto unit = units.rbegin(); unit != units.rend(); ++unit) release(*unit);
}

}  // namespace palimpsest
