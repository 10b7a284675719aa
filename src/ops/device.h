#pragma once

#include <memory>
#include <optional>
#include <span>

#include "kernels/op_args.h"
#include "tensor/buffer.h"
#include "tensor/copy_queue.h"
#include "tensor/random_fill.h"

namespace palimpsest::ops {

/// The device of this kind. Throws Error{kUnsupported} with the reason where this build or this machine has none.
Device& device(DeviceKind kind);

/// Copies beside what the device computes; on the host, where nothing is beside, at once.
std::unique_ptr<CopyQueue> copy_queue(Device& device);

/// Bytes that the first CUDA device has free; nothing where there is none.
std::optional<std::int64_t> free_cuda_memory();

/// Bytes of the table of a layer with so many experts.
std::int64_t expert_table_bytes(std::int64_t experts);
/// ExpertsArgs::device_experts of experts whose tensors lie on `device`: all of one layer, each with all three matrices, of the same shapes.
Buffer expert_table(Device& device, std::span<const ExpertMatrices> experts);

/// Numbers [first, first + count) of a pseudo-random tensor, into memory of `device`.
void random_fill(Device& device, const RandomFill& fill, std::int64_t first, std::int64_t count, void* to);

}  // namespace palimpsest::ops
