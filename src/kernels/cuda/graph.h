#pragma once

namespace palimpsest::cuda {

// Recordings of kernels (CUDA graphs). Errors: kInternal with the runtime's text.

/// From here on what is asked of the stream is recorded and not run.
void begin_recording(void* stream);
/// Ends that. Null: nothing can be played, since `keep` is false.
void* end_recording(void* stream, bool keep);
void play_recording(void* recording, void* stream);
void forget_recording(void* recording) noexcept;

}  // namespace palimpsest::cuda
