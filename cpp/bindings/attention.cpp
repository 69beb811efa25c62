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
            nb::gil_scoped_release release;
            compute_attention(op, n_threads);
        },
        nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("mask"), nb::arg("sinks"), nb::arg("out"), nb::arg("scale"),
        nb::arg("softcap"), nb::arg("shared"), nb::arg("n_threads"));
}
