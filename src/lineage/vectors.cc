#include "lineage/vectors.h"

#include <cmath>
#include <numbers>

#include "base/rng.h"

namespace palimpsest::lineage {

double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

double norm(const Vector& a) { return std::sqrt(dot(a, a)); }

/// Box and Muller, one of the two.
double Directions::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - base::uniform(seed_, stream_, next_)));
  const double angle = 2 * std::numbers::pi * base::uniform(seed_, stream_, next_ + 1);
  next_ += 2;
  return radius * std::cos(angle);
}

Vector Directions::unit(std::int64_t size) { return orthonormal(1, size, 0, size).front(); }

std::vector<Vector> Directions::orthonormal(std::int64_t count, std::int64_t size, std::int64_t first, std::int64_t channels) {
  std::vector<std::vector<double>> basis;
  std::vector<Vector> vectors;
  while (static_cast<std::int64_t>(basis.size()) < count) {
    std::vector<double> v(static_cast<std::size_t>(channels));
    for (double& x : v) x = normal();
    double left = 0;
    for (int pass = 0; pass < 2; ++pass) {  // Gram and Schmidt, twice for orthogonality to the last bit
      for (const auto& b : basis) {
        double along = 0;
        for (std::size_t i = 0; i < v.size(); ++i) along += v[i] * b[i];
        for (std::size_t i = 0; i < v.size(); ++i) v[i] -= along * b[i];
      }
      left = 0;
      for (const double x : v) left += x * x;
    }
    if (left < 1e-6) continue;  // nearly inside what is there already
    for (double& x : v) x /= std::sqrt(left);
    Vector placed(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < v.size(); ++i) placed[static_cast<std::size_t>(first) + i] = static_cast<float>(v[i]);
    basis.push_back(std::move(v));
    vectors.push_back(std::move(placed));
  }
  return vectors;
}

}  // namespace palimpsest::lineage
