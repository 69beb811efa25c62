#include "bindings.hpp"

#include "attention_kernel.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

using namespace llamaserve;

namespace {

template <class T>
using Array = nb::ndarray<T, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

template <class T>
AttentionOperands::Tensor operand(const Array<const T>& a) {
    const auto stride = [&](size_t axis) { return static_cast<size_t>(a.stride(axis)) * sizeof(T); };
    return {reinterpret_cast<const char*>(a.data()), stride(2), stride(1), stride(0), 0, nullptr};
}

void require(bool holds, const char* what) {
    if (!holds) {
        throw nb::value_error(what);
    }
}

void check(const AttentionOperands& op, const Array<const uint16_t>& k, const Array<const uint16_t>& v,
           const Array<float>& out, const Array<const uint16_t>& mask, size_t n_sinks, int n_threads) {
    const auto n_streams = static_cast<size_t>(op.n_streams), n_heads = static_cast<size_t>(op.n_heads);
    const auto n_queries = static_cast<size_t>(op.n_queries), n_cells = static_cast<size_t>(op.n_cells);
    require(attention_supports(op.head_k, op.head_v), "heads of these sizes are not supported");
    require(op.n_heads_kv > 0 && op.n_heads % op.n_heads_kv == 0, "heads can't be shared evenly");
    require(k.shape(0) == n_streams && v.shape(0) == n_streams && v.shape(1) == k.shape(1) && v.shape(2) == n_cells &&
                k.shape(3) == static_cast<size_t>(op.head_k),
            "keys and values don't fit the queries");
    require(out.shape(0) == n_streams && out.shape(1) == n_queries && out.shape(2) == n_heads &&
                out.shape(3) == v.shape(3),
            "the output doesn't fit");
    require(mask.size() == 0 || (mask.shape(0) == n_streams && mask.shape(2) == n_queries && mask.shape(3) == n_cells),
            "the mask doesn't fit");
    require(n_sinks == 0 || n_sinks == n_heads, "there must be a sink for each head");
    require(n_threads > 0, "no threads");
    for (const SharedCells& set : op.shared) {
        require(set.n_cells <= op.n_cells, "more shared cells than there are");
        for (const int32_t s : set.streams) {
            require(s >= 0 && s < op.n_streams, "no such stream");
        }
    }
}

} // namespace

// The kernel, open to tests. Arrays are [stream, head, query or cell, number]; 16-bit floats come as uint16.
void init_attention(nb::module_& m) {
    m.def("attention_supports", &attention_supports, nb::arg("head_k"), nb::arg("head_v"));
    m.def(
        "attention",
        [](const Array<const float>& q, const Array<const uint16_t>& k, const Array<const uint16_t>& v,
           const Array<const uint16_t>& mask, const std::vector<float>& sinks, Array<float> out, float scale,
           float softcap, const std::vector<std::pair<std::vector<int32_t>, int64_t>>& shared, int n_threads) {
            AttentionOperands op;
            op.q = operand<float>(q);
            op.k = operand<uint16_t>(k);
            op.v = operand<uint16_t>(v);
            op.mask = mask.size() > 0 ? operand<uint16_t>(mask) : AttentionOperands::Tensor{};
            op.mask.head = 0;
            op.sinks = sinks.empty() ? nullptr : sinks.data();
            op.out = out.data();
            op.n_streams = static_cast<int64_t>(q.shape(0));
            op.n_heads = static_cast<int64_t>(q.shape(1));
            op.n_queries = static_cast<int64_t>(q.shape(2));
            op.head_k = static_cast<int64_t>(q.shape(3));
            op.n_heads_kv = static_cast<int64_t>(k.shape(1));
            op.n_cells = static_cast<int64_t>(k.shape(2));
            op.head_v = static_cast<int64_t>(v.shape(3));
            op.scale = scale;
            op.softcap = softcap;
            for (const auto& [streams, n_cells] : shared) {
                op.shared.push_back({streams, n_cells});
            }
            check(op, k, v, out, mask, sinks.size(), n_threads);
            nb::gil_scoped_release release;
            compute_attention(op, n_threads);
        },
        nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("mask"), nb::arg("sinks"), nb::arg("out"), nb::arg("scale"),
        nb::arg("softcap"), nb::arg("shared"), nb::arg("n_threads"));
}
