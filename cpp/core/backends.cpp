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

} // namespace llamaserve
