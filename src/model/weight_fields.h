#pragma once

#include "model/weight_spec.h"
#include "model/weights.h"

namespace palimpsest {

/// The field of a layer that holds a matrix role; null for roles that are not one matrix of a layer.
Matrix* matrix_field(LayerWeights& layer, WeightRole role);

/// The field of a layer that holds a vector role. Norm and projection of an Attention Residual share one: their product.
Tensor* vector_field(LayerWeights& layer, WeightRole role);

}  // namespace palimpsest
