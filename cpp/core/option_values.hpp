// Values of options, from the form a user gives them in. All throw LoadError naming the option and what it can be.
#pragma once

#include "common.h"
#include "ggml-backend.h"

#include <string>
#include <utility>
#include <vector>

namespace llamaserve {

[[noreturn]] void refuse(const std::string& option, const std::string& value, const std::string& expected);

template <typename T>
T choice(const std::string& option, const std::string& value, const std::vector<std::pair<std::string, T>>& known) {
    std::string names;
    for (const auto& [name, result] : known) {
        if (name == value) {
            return result;
        }
        names += (names.empty() ? "" : ", ") + name;
    }
    refuse(option, value, "one of " + names);
}

int32_t integer(const std::string& option, const std::string& value);
void in_range(const std::string& option, int64_t value, int64_t low, int64_t high);
ggml_type cache_type(const std::string& option, const std::string& value);

// Comma-separated names, or "none"; the list ends with a null, unless it is empty.
std::vector<ggml_backend_dev_t> devices(const std::string& option, const std::string& value);

// Comma-separated pattern=buffer type.
void tensor_overrides(const std::string& option, const std::string& value,
                      std::vector<llama_model_tensor_buft_override>& out);

// A number, "auto" or "all".
int32_t gpu_layers(const std::string& option, const std::string& value);

} // namespace llamaserve
