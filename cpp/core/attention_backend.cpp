#include "attention_backend.hpp"

#include "ggml-backend-impl.h" // what a backend is made of
#include "ggml.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

namespace llamaserve {

namespace {

thread_local bool active = false;
thread_local SharedPrefixes* shared_prefixes = nullptr;

// Up to here ggml's kernel is about as fast, and an answer to a short prompt is the same as llama-server's, bit by bit.
constexpr int64_t few_cells = 256;
// Small heads of several streams are another matter: ggml's has a cost for each cell that their size hardly changes.
constexpr int64_t small_head = 32, several_streams = 4;

template <class T>
T parameter(const ggml_tensor* op, size_t index) {
    T out;
    std::memcpy(&out, reinterpret_cast<const char*>(op->op_params) + index * sizeof(T), sizeof out);
    return out;
}

void copy_floats(const void* from, float* to, int64_t n) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}

// How to read keys or values of a type; null for 16-bit floats.
ToFloats to_floats(ggml_type type) {
    switch (type) {
    case GGML_TYPE_F16:
        return nullptr;
    case GGML_TYPE_F32:
        return copy_floats;
    default:
        return ggml_get_type_traits(type)->to_float;
    }
}

// One operand of ggml_flash_attn_ext: [number, query or cell, head, stream].
AttentionOperands::Tensor operand(const ggml_tensor* t) {
    return {static_cast<const char*>(t->data), t->nb[1],          t->nb[2], t->nb[3],
            ggml_row_size(t->type, t->ne[0]),  to_floats(t->type)};
}

// Keys or values whose type pays: those of other types than 16-bit floats are turned into floats for `n_rows`, and ggml
// does without that for keys.
bool is_readable(const ggml_tensor* t, int64_t n_rows) {
    const bool floats = t->type == GGML_TYPE_F16 || to_floats(t->type) != nullptr;
    return floats && t->nb[0] == ggml_type_size(t->type) && t->ne[0] % ggml_blck_size(t->type) == 0 &&
           (t->type == GGML_TYPE_F16 || n_rows >= 3);
}

bool supports_attention(const ggml_tensor* op) {
    const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3], *sinks = op->src[4];
    if (k->ne[3] != q->ne[3] || v->ne[3] != q->ne[3] || k->ne[2] != v->ne[2] || q->ne[2] % k->ne[2] != 0) {
        return false;
    }
    const bool plain_mask =
        mask == nullptr || (mask->type == GGML_TYPE_F16 && mask->nb[0] == sizeof(ggml_fp16_t) && mask->ne[2] == 1 &&
                            mask->ne[0] >= k->ne[1] && mask->ne[1] >= q->ne[1] && mask->ne[3] == q->ne[3]);
    const bool plain_sinks = sinks == nullptr || (sinks->type == GGML_TYPE_F32 && ggml_is_contiguous(sinks));
    const int64_t n_rows = q->ne[1] * (q->ne[2] / k->ne[2]);
    const float max_bias = parameter<float>(op, 1);
    const bool pays = k->ne[1] > few_cells || (k->ne[0] < small_head && k->ne[3] >= several_streams);
    return pays && op->type == GGML_TYPE_F32 && q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) &&
           is_readable(k, n_rows) && is_readable(v, n_rows) && plain_mask && plain_sinks && max_bias == 0.0f &&
           attention_supports(k->ne[0], v->ne[0]);
}

void attend(ggml_tensor* dst, int n_threads) {
    const ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2];
    AttentionOperands op;
    op.q = operand(q);
    op.k = operand(k);
    op.v = operand(v);
    if (dst->src[3] != nullptr) {
        op.mask = operand(dst->src[3]);
        op.mask.head = 0;
    }
    if (dst->src[4] != nullptr) {
        op.sinks = static_cast<const float*>(dst->src[4]->data);
    }
    op.out = static_cast<float*>(dst->data);
    op.head_k = k->ne[0];
    op.head_v = v->ne[0];
    op.n_queries = q->ne[1];
    op.n_cells = k->ne[1];
    op.n_heads = q->ne[2];
    op.n_heads_kv = k->ne[2];
    op.n_streams = q->ne[3];
    op.scale = parameter<float>(dst, 0);
    op.softcap = parameter<float>(dst, 2);
    // The cache's own tensor, which nothing computes, has a layer's cells of all streams, one stream after the other.
    const ggml_tensor* layer = k->view_src;
    if (shared_prefixes != nullptr && op.n_streams > 1 && op.n_queries <= attention_few_queries && layer != nullptr &&
        layer->op == GGML_OP_NONE && layer->ne[2] > 1 && k->nb[3] == layer->nb[2]) {
        op.shared = shared_prefixes->find(layer, static_cast<int64_t>(k->view_offs / k->nb[3]), op);
    }
    compute_attention(op, n_threads);
}

struct BackendState {
    int n_threads = 1;
};

const char* name(ggml_backend_t) {
    return attention_backend_name;
}

void release(ggml_backend_t backend) {
    const std::unique_ptr<BackendState> state(static_cast<BackendState*>(backend->context));
    const std::unique_ptr<ggml_backend> owner(backend);
}

ggml_status compute(ggml_backend_t backend, ggml_cgraph* graph) {
    try {
        for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
            ggml_tensor* node = ggml_graph_node(graph, i);
            if (node->op == GGML_OP_FLASH_ATTN_EXT) {
                attend(node, static_cast<const BackendState*>(backend->context)->n_threads);
            }
        }
    } catch (const std::bad_alloc&) {
        return GGML_STATUS_ALLOC_FAILED;
    } catch (const std::exception&) {
        return GGML_STATUS_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

void set_n_threads(ggml_backend_t backend, int n_threads) {
    static_cast<BackendState*>(backend->context)->n_threads = n_threads;
}

const char* device_name(ggml_backend_dev_t) {
    return attention_backend_name;
}

const char* device_description(ggml_backend_dev_t) {
    return "attention on the CPU";
}

void device_memory(ggml_backend_dev_t, size_t* free, size_t* total) {
    *free = *total = 0;
}

enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

void device_props(ggml_backend_dev_t dev, ggml_backend_dev_props* props) {
    *props = {};
    props->name = device_name(dev);
    props->description = device_description(dev);
    props->type = device_type(dev);
}

ggml_guid_t guid() {
    static ggml_guid id = {0x6c, 0x1d, 0x5e, 0x0b, 0x8a, 0x37, 0x4f, 0x92,
                           0xb3, 0x60, 0x2e, 0x75, 0xd4, 0x19, 0xc8, 0x4a};
    return &id;
}

ggml_backend_t make_backend(ggml_backend_dev_t dev, const char*) {
    ggml_backend_i iface{};
    iface.get_name = name;
    iface.free = release;
    iface.graph_compute = compute;
    auto state = std::make_unique<BackendState>();
    auto backend = std::make_unique<ggml_backend>();
    *backend = {guid(), iface, dev, state.get()};
    static_cast<void>(state.release()); // `release` frees both
    return backend.release();
}

ggml_backend_buffer_type_t buffer_type(ggml_backend_dev_t) {
    return ggml_backend_cpu_buffer_type();
}

bool supports_op(ggml_backend_dev_t, const ggml_tensor* op) {
    switch (op->op) {
    case GGML_OP_NONE:
    case GGML_OP_RESHAPE:
    case GGML_OP_VIEW:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
        return true;
    case GGML_OP_FLASH_ATTN_EXT:
        return active && supports_attention(op);
    default:
        return false;
    }
}

bool supports_buffer(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
    return ggml_backend_buft_is_host(type);
}

ggml_backend_dev_t the_device();

const char* registry_name(ggml_backend_reg_t) {
    return attention_backend_name;
}

size_t registry_count(ggml_backend_reg_t) {
    return 1;
}

ggml_backend_dev_t registry_device(ggml_backend_reg_t, size_t) {
    return the_device();
}

void* registry_function(ggml_backend_reg_t, const char* function) {
    if (std::strcmp(function, "ggml_backend_set_n_threads") == 0) {
        return reinterpret_cast<void*>(&set_n_threads);
    }
    return nullptr;
}

ggml_backend_reg_t the_registry() {
    static ggml_backend_reg registry = {
        GGML_BACKEND_API_VERSION, {registry_name, registry_count, registry_device, registry_function}, nullptr};
    return &registry;
}

ggml_backend_dev_t the_device() {
    static ggml_backend_device device = [] {
        ggml_backend_device_i iface{};
        iface.get_name = device_name;
        iface.get_description = device_description;
        iface.get_memory = device_memory;
        iface.get_type = device_type;
        iface.get_props = device_props;
        iface.init_backend = make_backend;
        iface.get_buffer_type = buffer_type;
        iface.supports_op = supports_op;
        iface.supports_buft = supports_buffer;
        return ggml_backend_device{iface, the_registry(), nullptr};
    }();
    return &device;
}

} // namespace

void SharedPrefixes::set(std::vector<Group> groups) {
    groups_ = std::move(groups);
}

SharedPrefixes::Record& SharedPrefixes::Layer::at(int32_t stream) {
    const auto index = static_cast<size_t>(stream);
    if (index >= records.size()) {
        records.resize(index + 1);
    }
    return records[index];
}

// The member that others are compared with: the one that most is known of.
const SharedPrefixes::Member& SharedPrefixes::choose_model(Layer& layer, const Group& group) {
    const Member* best = nullptr;
    for (const Member& member : group.members) {
        const Record& record = layer.at(member.stream);
        if (record.version == member.version && (best == nullptr || record.n_same > layer.at(best->stream).n_same)) {
            best = &member;
        }
    }
    if (best == nullptr) {
        best = &group.members.front();
        layer.at(best->stream) = {best->version, layer.n_classes++, 0, false};
    }
    Record& model = layer.at(best->stream);
    if (model.n_same != INT64_MAX) {
        // A new class, after this one: those that were the same up to where it was still are; what follows is open.
        const int64_t before = std::exchange(model.of_class, layer.n_classes++);
        for (const Member& member : group.members) {
            Record& record = layer.at(member.stream);
            if (record.version == member.version && record.of_class == before) {
                record.of_class = model.of_class;
                record.differs = record.differs && record.n_same < model.n_same;
            }
        }
        model.n_same = INT64_MAX;
    }
    return *best;
}

std::vector<SharedCells> SharedPrefixes::find(const void* layer_name, int64_t first_stream,
                                              const AttentionOperands& op) {
    auto equal = [&](const AttentionOperands::Tensor& t, int32_t one, int32_t other, int64_t first_cell) {
        const char* a = t.data + (one - first_stream) * static_cast<int64_t>(t.stream);
        const char* b = t.data + (other - first_stream) * static_cast<int64_t>(t.stream);
        for (int64_t c = first_cell; c < first_cell + attention_tile; ++c) {
            for (int64_t h = 0; h < op.n_heads_kv; ++h) {
                const size_t at = static_cast<size_t>(c) * t.row + static_cast<size_t>(h) * t.head;
                if (std::memcmp(a + at, b + at, t.size) != 0) {
                    return false;
                }
            }
        }
        return true;
    };
    Layer& layer = layers_[layer_name];
    std::vector<SharedCells> out;
    for (const Group& group : groups_) {
        const int64_t wanted = std::min<int64_t>(group.n_tokens, op.n_cells) / attention_tile * attention_tile;
        if (wanted == 0 || group.members.size() < 2) {
            continue;
        }
        const Member& model = choose_model(layer, group);
        const int64_t of_class = layer.at(model.stream).of_class;
        SharedCells set;
        set.n_cells = wanted;
        for (const Member& member : group.members) {
            Record& record = layer.at(member.stream);
            if (record.version != member.version || record.of_class != of_class) {
                record = {member.version, of_class, 0, false};
            }
            for (; !record.differs && record.n_same < wanted; record.n_same += record.differs ? 0 : attention_tile) {
                record.differs = !equal(op.k, model.stream, member.stream, record.n_same) ||
                                 !equal(op.v, model.stream, member.stream, record.n_same);
            }
            const int64_t index = member.stream - first_stream;
            // One that begins alike for less would leave the others with as little.
            if (index >= 0 && index < op.n_streams && record.n_same >= wanted / 4 * 3) {
                set.streams.push_back(static_cast<int32_t>(index));
                set.n_cells = std::min(set.n_cells, record.n_same);
            }
        }
        if (set.streams.size() > 1) {
            out.push_back(std::move(set));
        }
    }
    return out;
}

void register_attention_backend() {
    ggml_backend_register(the_registry());
}

AttentionScope::AttentionScope(SharedPrefixes* prefixes) {
    active = true;
    shared_prefixes = prefixes;
}

AttentionScope::~AttentionScope() {
    active = false;
    shared_prefixes = nullptr;
}

} // namespace llamaserve
