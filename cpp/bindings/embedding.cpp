#include "bindings.hpp"

#include "embedding.hpp"

#include <cstring>

#include <nanobind/stl/string.h>

using namespace llamaserve;

void init_embedding(nb::module_& m) {
    nb::enum_<RequestKind>(m, "RequestKind")
        .value("completion", RequestKind::completion)
        .value("embedding", RequestKind::embedding)
        .value("rerank", RequestKind::rerank);

    nb::class_<EmbeddingParams>(m, "EmbeddingParams")
        .def(nb::init<>())
        .def_rw("normalize", &EmbeddingParams::normalize)
        .def_rw("n_dims", &EmbeddingParams::n_dims)
        .def_rw("query", &EmbeddingParams::query);

    m.def(
        "floats_json",
        [](nb::bytes data, size_t n_columns) {
            std::vector<float> values(data.size() / sizeof(float));
            std::memcpy(values.data(), data.data(), values.size() * sizeof(float));
            const std::string json = floats_json(values, n_columns);
            return nb::bytes(json.data(), json.size());
        },
        nb::arg("data"), nb::arg("n_columns"));
}
