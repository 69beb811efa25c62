// Which CPUs compute, and how urgently. Names are those of llama-server's flags.
#pragma once

#include "common.h"

#include <optional>
#include <string>

namespace llamaserve {

struct CpuParams {
    int32_t threads = -1;
    std::string cpu_mask;  // hexadecimal; empty: any CPU
    std::string cpu_range; // first-last; adds to the mask
    bool cpu_strict = false;
    int32_t prio = 0;
    int32_t poll = 50;

    // While prompts are computed; what isn't set is as above.
    int32_t threads_batch = -1;
    std::string cpu_mask_batch, cpu_range_batch;
    std::optional<bool> cpu_strict_batch;
    std::optional<int32_t> prio_batch, poll_batch;
};

// Throws LoadError naming the option that is out of range.
void set_cpus(const CpuParams& in, common_params& out);

} // namespace llamaserve
