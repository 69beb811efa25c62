#include "system_info.hpp"

#include "attention_backend.hpp"
#include "backends.hpp"
#include "build-info.h"
#include "ggml-backend.h"
#include "llama.h"

#include <string_view>

namespace llamaserve {

namespace {

const char* type_name(enum ggml_backend_dev_type type) {
    switch (type) {
    case GGML_BACKEND_DEVICE_TYPE_CPU:
        return "cpu";
    case GGML_BACKEND_DEVICE_TYPE_GPU:
        return "gpu";
    case GGML_BACKEND_DEVICE_TYPE_IGPU:
        return "igpu";
    default:
        return "accelerator";
    }
}

} // namespace

SystemInfo system_info() {
    init_backends();
    SystemInfo out;
    out.llama_commit = llama_commit();
    out.llama_build = llama_build_info();
    out.compiler = llama_compiler();
    out.target = llama_build_target();
    for (size_t i = 0; i < ggml_backend_reg_count(); ++i) {
        const std::string_view name = ggml_backend_reg_name(ggml_backend_reg_get(i));
        if (name != attention_backend_name) {
            out.backends.emplace_back(name);
        }
    }
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        if (std::string_view(ggml_backend_dev_name(dev)) == attention_backend_name) {
            continue; // our own, and nothing to choose
        }
        DeviceInfo d;
        d.name = ggml_backend_dev_name(dev);
        d.description = ggml_backend_dev_description(dev);
        d.backend = ggml_backend_reg_name(ggml_backend_dev_backend_reg(dev));
        d.type = type_name(ggml_backend_dev_type(dev));
        ggml_backend_dev_memory(dev, &d.memory_free, &d.memory_total);
        out.devices.push_back(std::move(d));
    }
    out.cpu_features = llama_print_system_info();
    return out;
}

} // namespace llamaserve
