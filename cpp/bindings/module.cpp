#include "bindings.hpp"

#include "error.hpp"

NB_MODULE(_core, m) {
    nb::exception<llamaserve::LoadError>(m, "LoadError");
    nb::exception<llamaserve::EngineClosed>(m, "EngineClosed");
    init_system(m);
    init_params(m);
    init_prefix_tree(m);
    init_events(m);
    init_chat(m);
    init_engine(m);
}
