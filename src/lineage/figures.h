#pragma once

#include <string>

#include "lineage/experiments.h"

// The experiments for people: text for a terminal, and one SVG picture.

namespace palimpsest::lineage {

/// What each memory returns for each key; then errors by act; then errors as pairs grow; then bytes.
std::string to_text(const Choices& choices, const Story& story, const Capacity& capacity);

/// The last three as plots, one below the other.
std::string to_svg(const Choices& choices, const Story& story, const Capacity& capacity);

}  // namespace palimpsest::lineage
