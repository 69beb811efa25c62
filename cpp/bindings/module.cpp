#include "bindings.hpp"

#include "error.hpp"

NB_MODULE(_core, m) {
    // Objects that are alive when the interpreter ends are nobody's mistake: a program may end at any time.
    nb::set_leak_warnings(false);
    nb::exception<llamaserve::LoadError>(m, "LoadError");
    nb::exception<llamaserve::EngineClosed>(m, "EngineClosed");
    init_system(m);
    init_params(m);
    init_prefix_tree(m);
    init_events(m);
    init_chat(m);
    init_embedding(m);
    init_engine(m);
}
