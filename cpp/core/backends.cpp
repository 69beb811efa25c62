#include "backends.hpp"

#include "attention_backend.hpp"
#include "ggml-backend.h"
#include "llama.h"
#include "log.hpp"

#include <mutex>

namespace llamaserve {

namespace {

bool has_gpu() {
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        const auto type = ggml_backend_dev_type(ggml_backend_dev_get(i));
        if (type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU) {
            return true;
        }
    }
    return false;
}

} // namespace

void init_backends() {
    static std::once_flag once;
    std::call_once(once, [] {
        log_init();
        ggml_backend_load_all();
        // Beside a GPU, llama.cpp gives the CPU's part of the work buffers of the GPU, which our backend can't take.
        if (!has_gpu()) {
            register_attention_backend();
        }
        llama_backend_init();
    });
}

bool on_cpu_alone(const common_params& params) {
    return params.n_gpu_layers == 0 || !has_gpu();
}

} // namespace llamaserve
