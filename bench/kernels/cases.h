#pragma once

#include "kernels/harness.h"

/// One file of cases a kernel; each adds its rows to the report.
namespace palimpsest::bench {

void delta_step_cases(Report& report);
void delta_prefill_cases(Report& report);
void scalar_prefill_cases(Report& report);
void activation_cases(Report& report);
void product_cases(Report& report);
void latent_decode_cases(Report& report);
void latent_prefill_cases(Report& report);

}  // namespace palimpsest::bench
