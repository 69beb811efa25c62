#include "bindings.hpp"

#include "log.hpp"
#include "system_info.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

using namespace llamaserve;

void init_system(nb::module_& m) {
    m.def(
        "system_info",
        [] {
            const SystemInfo info = system_info();
            nb::list devices;
            for (const DeviceInfo& d : info.devices) {
                nb::dict device;
                device["name"] = d.name;
                device["description"] = d.description;
                device["backend"] = d.backend;
                device["type"] = d.type;
                device["memory_total"] = d.memory_total;
                device["memory_free"] = d.memory_free;
                devices.append(device);
            }
            nb::dict out;
            out["llama_commit"] = info.llama_commit;
            out["llama_build"] = info.llama_build;
            out["compiler"] = info.compiler;
            out["target"] = info.target;
            out["backends"] = info.backends;
            out["devices"] = devices;
            out["cpu_features"] = info.cpu_features;
            return out;
        },
        nb::sig("def system_info() -> dict[str, typing.Any]"));
    m.def(
        "log_configure",
        [](int verbosity, const std::string& file, int colors, bool prefix, bool timestamps, bool jsonl,
           bool disabled) { log_configure({verbosity, file, colors, prefix, timestamps, jsonl, disabled}); },
        nb::arg("verbosity"), nb::arg("file") = "", nb::arg("colors") = -1, nb::arg("prefix") = false,
        nb::arg("timestamps") = false, nb::arg("jsonl") = false, nb::arg("disabled") = false);
    m.def("log_write", &log_write, nb::arg("level"), nb::arg("text"), nb::call_guard<nb::gil_scoped_release>());
    m.def("log_flush", &log_flush, nb::call_guard<nb::gil_scoped_release>());
}
