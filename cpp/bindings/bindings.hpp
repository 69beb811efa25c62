// One init function for each subject; module.cpp calls them.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

void init_chat(nb::module_& m);
void init_engine(nb::module_& m);
void init_events(nb::module_& m);
void init_params(nb::module_& m);
void init_prefix_tree(nb::module_& m);
void init_system(nb::module_& m);

namespace llamaserve {
struct RequestParams;
}

// A request's parameters under the names of the HTTP API.
nb::dict params_dict(const llamaserve::RequestParams& params);
