#pragma once

#include "kernels/harness.h"

/// One file of cases a kernel; each adds its rows to the report.
namespace palimpsest::bench {

void delta_step_cases(Report& report);
void delta_prefill_cases(Report& report);

}  // namespace palimpsest::bench
