// What ggml can compute with.
#pragma once

#include "common.h"

namespace llamaserve {

// Loads ggml's backends and adds our own, once in a process. To be called before anything asks ggml for its devices:
// the list may not change while someone reads it.
void init_backends();

// Whether no GPU takes part in computing a model with these parameters.
bool on_cpu_alone(const common_params& params);

} // namespace llamaserve
