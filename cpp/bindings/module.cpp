#include "bindings.hpp"

#include "error.hpp"

#include <nanobind/stl/string.h>

NB_MODULE(_core, m) {
    // Objects that are alive when the interpreter ends are nobody's mistake: a program may end at any time.
    nb::set_leak_warnings(false);
    nb::exception<llamaserve::LoadError>(m, "LoadError");
    nb::exception<llamaserve::EngineClosed>(m, "EngineClosed");
    // Its arguments are the kind and the message. It is never freed: the interpreter may be gone before this module.
    static PyObject* const refused = PyErr_NewException("llamaserve._core.Refused", nullptr, nullptr);
    m.attr("Refused") = nb::borrow(refused);
    nb::register_exception_translator([](const std::exception_ptr& error, void*) {
        try {
            std::rethrow_exception(error);
        } catch (const llamaserve::Refused& e) {
            PyErr_SetObject(refused, nb::make_tuple(e.kind, e.what()).ptr());
        }
    });
    init_system(m);
    init_params(m);
    init_attention(m);
    init_prefix_tree(m);
    init_events(m);
    init_chat(m);
    init_embedding(m);
    init_engine(m);
}
