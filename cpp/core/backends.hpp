// What ggml can compute with.
#pragma once

namespace llamaserve {

// Loads ggml's backends and adds our own, once in a process. To be called before anything asks ggml for its devices:
// the list may not change while someone reads it.
void init_backends();

} // namespace llamaserve
