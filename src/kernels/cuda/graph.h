#pragma once

namespace palimpsest::cuda {

// Recordings of kernels (CUDA graphs). Errors: kInternal with the runtime's text.

/// From here on what this thread asks of the device's stream is recorded and not run: it goes to a stream of the thread's own, so that what
/// other threads ask meanwhile runs as ever and is no part of the recording.
void begin_recording();
/// Where it goes; null while the thread does not record.
void* recording_stream();
/// Ends that. Null: nothing can be played, since `keep` is false.
void* end_recording(bool keep);
void play_recording(void* recording, void* stream);
void forget_recording(void* recording) noexcept;

}  // namespace palimpsest::cuda
