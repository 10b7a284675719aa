#pragma once

#include <memory>

#include "tensor/copy_queue.h"
#include "tensor/device.h"

namespace palimpsest::cuda {

/// Copies on a stream of their own, ordered with the device's by events; the chosen are read over the bus by a kernel, since only the device knows
/// which they are. `device` is cuda_device(). Errors: kInternal with the runtime's text.
std::unique_ptr<CopyQueue> copy_queue(Device& device);

}  // namespace palimpsest::cuda
