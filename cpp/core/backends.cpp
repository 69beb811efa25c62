#include "backends.hpp"

#include "attention_backend.hpp"
#include "ggml-backend.h"
#include "llama.h"
#include "log.hpp"

#include <mutex>

namespace llamaserve {

void init_backends() {
    static std::once_flag once;
    std::call_once(once, [] {
        log_init();
        ggml_backend_load_all();
        register_attention_backend();
        llama_backend_init();
    });
}

bool on_cpu_alone(const common_params& params) {
    if (params.n_gpu_layers == 0) {
        return true;
    }
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        const auto type = ggml_backend_dev_type(ggml_backend_dev_get(i));
        if (type == GGML_BACKEND_DEVICE_TYPE_GPU || type == GGML_BACKEND_DEVICE_TYPE_IGPU) {
            return false;
        }
    }
    return true;
}

} // namespace llamaserve
