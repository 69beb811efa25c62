// Which way to compute attention suits a model.
#pragma once

#include "common.h"
#include "llama.h"

#include <string>

namespace llamaserve {

// Whether the plain product beats flash attention for this model, where the user leaves the choice to us.
//
// ggml's flash attention on the CPU has a cost for each cell that the size of a head hardly changes. With heads of
// fewer than 32 numbers and a hundred tokens or more it takes up to twice as long as the plain product (measured with
// llama-batched-bench: docs/benchmarks.md). The plain product computes masked cells, too, so it is no good for a cache
// that all sequences share, and needs memory for every score, so it is no good for a long context.
bool plain_attention_is_faster(const std::string& path, const common_params& params);

// Whether no GPU takes part in computing the model.
bool on_cpu_alone(const common_params& params);

} // namespace llamaserve
