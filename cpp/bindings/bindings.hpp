// One init function for each subject; module.cpp calls them.
#pragma once

#include <memory>

#include <nanobind/nanobind.h>

namespace nb = nanobind;

void init_attention(nb::module_& m);
void init_chat(nb::module_& m);
void init_embedding(nb::module_& m);
void init_engine(nb::module_& m);
void init_events(nb::module_& m);
void init_params(nb::module_& m);
void init_prefix_tree(nb::module_& m);
void init_system(nb::module_& m);

namespace llamaserve {
class EventSink;
struct EngineParams;
struct RequestParams;
} // namespace llamaserve

// What Python holds of a sink. The engine shares the sink itself: a reference to the Python object would make the
// engine's thread take the GIL to drop it.
struct SinkHandle {
    std::shared_ptr<llamaserve::EventSink> sink;
};

// The part of EngineParams that is about drafting.
void bind_speculative(nb::class_<llamaserve::EngineParams>& engine);

// A request's parameters under the names of the HTTP API.
nb::dict params_dict(const llamaserve::RequestParams& params);
