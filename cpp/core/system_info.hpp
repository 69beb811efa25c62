// What is in this build, and what it found on this machine.
#pragma once

#include <string>
#include <vector>

namespace llamaserve {

struct DeviceInfo {
    std::string name, description, backend;
    std::string type; // "cpu", "gpu", "igpu", "accelerator"
    size_t memory_total = 0, memory_free = 0;
};

struct SystemInfo {
    std::string llama_commit, llama_build, compiler, target;
    std::vector<std::string> backends;
    std::vector<DeviceInfo> devices;
    std::string cpu_features;
};

SystemInfo system_info();

} // namespace llamaserve
