#include "option_values.hpp"

#include "error.hpp"

#include <charconv>
#include <list>
#include <regex>

namespace llamaserve {

void refuse(const std::string& option, const std::string& value, const std::string& expected) {
    throw LoadError(option + ": '" + value + "' can't be used; expected " + expected);
}

int32_t integer(const std::string& option, const std::string& value) {
    int32_t out = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), out);
    if (error != std::errc{} || end != value.data() + value.size()) {
        refuse(option, value, "a whole number");
    }
    return out;
}

void in_range(const std::string& option, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
        refuse(option, std::to_string(value), "a number from " + std::to_string(low) + " to " + std::to_string(high));
    }
}

ggml_type cache_type(const std::string& option, const std::string& value) {
    return choice<ggml_type>(option, value,
                             {{"f32", GGML_TYPE_F32},
                              {"f16", GGML_TYPE_F16},
                              {"bf16", GGML_TYPE_BF16},
                              {"q8_0", GGML_TYPE_Q8_0},
                              {"q4_0", GGML_TYPE_Q4_0},
                              {"q4_1", GGML_TYPE_Q4_1},
                              {"iq4_nl", GGML_TYPE_IQ4_NL},
                              {"q5_0", GGML_TYPE_Q5_0},
                              {"q5_1", GGML_TYPE_Q5_1}});
}

std::vector<ggml_backend_dev_t> devices(const std::string& option, const std::string& value) {
    std::vector<ggml_backend_dev_t> out;
    if (value.empty()) {
        return out;
    }
    if (value != "none") {
        for (const std::string& name : string_split<std::string>(value, ',')) {
            ggml_backend_dev_t dev = ggml_backend_dev_by_name(name.c_str());
            const auto type = dev != nullptr ? ggml_backend_dev_type(dev) : GGML_BACKEND_DEVICE_TYPE_CPU;
            if (type == GGML_BACKEND_DEVICE_TYPE_CPU || type == GGML_BACKEND_DEVICE_TYPE_ACCEL) {
                refuse(option, name, "the name of a device (--list-devices shows them)");
            }
            out.push_back(dev);
        }
    }
    out.push_back(nullptr);
    return out;
}

void tensor_overrides(const std::string& option, const std::string& value,
                      std::vector<llama_model_tensor_buft_override>& out) {
    // llama.cpp keeps the pattern's pointer for the life of the model.
    static std::list<std::string> patterns;
    for (const std::string& item : string_split<std::string>(value, ',')) {
        const size_t eq = item.find('=');
        if (eq == std::string::npos) {
            refuse(option, item, "<tensor name pattern>=<buffer type>");
        }
        const std::string type = item.substr(eq + 1);
        ggml_backend_buffer_type_t found = nullptr;
        std::string known;
        for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
            ggml_backend_dev_t dev = ggml_backend_dev_get(i);
            auto* buft = ggml_backend_dev_buffer_type(dev);
            // Accelerators use the CPU's.
            if (buft != nullptr && ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_ACCEL) {
                known += (known.empty() ? "" : ", ") + std::string(ggml_backend_buft_name(buft));
                if (type == ggml_backend_buft_name(buft)) {
                    found = buft;
                }
            }
        }
        if (found == nullptr) {
            refuse(option, type, "one of the buffer types " + known);
        }
        try {
            const std::regex pattern(item.substr(0, eq));
        } catch (const std::regex_error& e) {
            refuse(option, item.substr(0, eq), std::string("a regular expression (") + e.what() + ")");
        }
        out.push_back({patterns.emplace_back(item.substr(0, eq)).c_str(), found});
    }
}

int32_t gpu_layers(const std::string& option, const std::string& value) {
    return value == "auto" ? -1 : value == "all" ? -2 : integer(option, value);
}

} // namespace llamaserve
