#include "bindings.hpp"

#include "prefix_tree.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

using namespace llamaserve;

// The scheduler's index, open to tests of its rules.
void init_prefix_tree(nb::module_& m) {
    nb::class_<PrefixTree>(m, "PrefixTree")
        .def(nb::init<>())
        .def(
            "insert",
            [](PrefixTree& t, int64_t holder, const std::vector<int32_t>& tokens) { t.insert(holder, tokens); },
            nb::arg("holder"), nb::arg("tokens"))
        .def("erase", &PrefixTree::erase, nb::arg("holder"))
        .def(
            "matches",
            [](const PrefixTree& t, const std::vector<int32_t>& tokens, size_t min_length) {
                std::vector<std::pair<int64_t, size_t>> out;
                for (const auto& match : t.matches(tokens, min_length)) {
                    out.emplace_back(match.holder, match.length);
                }
                return out;
            },
            nb::arg("tokens"), nb::arg("min_length") = 1)
        .def("covered", &PrefixTree::covered, nb::arg("holder"))
        .def("tokens", &PrefixTree::tokens, nb::arg("holder"))
        .def("check", &PrefixTree::check)
        .def_prop_ro("n_holders", &PrefixTree::n_holders)
        .def_prop_ro("n_nodes", &PrefixTree::n_nodes)
        .def_prop_ro("n_tokens", &PrefixTree::n_tokens);
}
