#pragma once

#include <span>

#include "text/template/registry.h"

namespace palimpsest::text::jinja {

/// The filters of filters_sequence.cc.
std::span<const FilterFunction> sequence_filters();

}  // namespace palimpsest::text::jinja
