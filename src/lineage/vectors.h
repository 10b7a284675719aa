#pragma once

#include <cstdint>
#include <vector>

// Random directions for keys and values.

namespace palimpsest::lineage {

using Vector = std::vector<float>;

double dot(const Vector& a, const Vector& b);
double norm(const Vector& a);

/// Directions named by a seed: the same on every machine, whatever is drawn from other sources.
class Directions {
 public:
  /// `stream` keeps sources with one seed apart.
  Directions(std::uint64_t seed, std::uint64_t stream) : seed_(seed), stream_(stream) {}

  /// Uniform on the unit sphere of R^size.
  Vector unit(std::int64_t size);
  /// `count` orthonormal vectors of R^size that live in channels [first, first + channels) only; count <= channels.
  std::vector<Vector> orthonormal(std::int64_t count, std::int64_t size, std::int64_t first, std::int64_t channels);

 private:
  double normal();

  std::uint64_t seed_, stream_, next_ = 0;
};

}  // namespace palimpsest::lineage
