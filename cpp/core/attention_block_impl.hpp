// The kernel for vectors of VECTOR_WIDTH floats: attention_block.cpp includes this once for each width.
#include "vector_float.hpp"

namespace llamaserve::VECTOR_NAMESPACE {

namespace {

constexpr int tile = attention_tile;
constexpr uint16_t hidden = 0xfc00; // -inf
constexpr int rows_at_once = 3;     // with four vectors each: twelve sums, of AVX2's sixteen registers
constexpr int few_rows = 6;         // up to here, turning a tile's numbers into 32-bit floats first doesn't pay

enum class Sight { none, some, all };

// What of the tile's cells a query sees.
Sight look(const uint16_t* mask, int n) {
    uint16_t any = 0, other = 0;
    for (int c = 0; c < n; ++c) {
        any |= mask[c];
        other |= mask[c] ^ hidden;
    }
    return other == 0 ? Sight::none : any == 0 ? Sight::all : Sight::some;
}

// Scores of R rows with the cells of a tile.
template <int R, class T>
APART void score(const float* const* q, const T* k, size_t stride, int head, float* const* s) {
    for (int c = 0; c < tile; c += 4) {
        Floats sums[R][4] = {};
        for (int d = 0; d < head; d += vector_width) {
            Floats x[R];
            for (int r = 0; r < R; ++r) {
                x[r] = load(q[r] + d);
            }
            for (int j = 0; j < 4; ++j) {
                const Floats y = load(k + static_cast<size_t>(c + j) * stride + d);
                for (int r = 0; r < R; ++r) {
                    sums[r][j] += x[r] * y;
                }
            }
        }
        for (int r = 0; r < R; ++r) {
            sum4(sums[r][0], sums[r][1], sums[r][2], sums[r][3], s[r] + c);
        }
    }
}

// Adds the values of `n` cells, weighted, to V vectors of R rows.
template <int R, int V, class T>
APART void add_values(const float* const* weight, const T* v, size_t stride, int n, float* const* out, int d) {
    Floats sums[R][V];
    for (int r = 0; r < R; ++r) {
        for (int j = 0; j < V; ++j) {
            sums[r][j] = load(out[r] + d + j * vector_width);
        }
    }
    for (int c = 0; c < n; ++c) {
        Floats w[R];
        for (int r = 0; r < R; ++r) {
            w[r] = fill(weight[r][c]);
        }
        for (int j = 0; j < V; ++j) {
            const Floats y = load(v + static_cast<size_t>(c) * stride + d + j * vector_width);
            for (int r = 0; r < R; ++r) {
                sums[r][j] += w[r] * y;
            }
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int j = 0; j < V; ++j) {
            store(out[r] + d + j * vector_width, sums[r][j]);
        }
    }
}

template <int R, class T>
void add_all_values(const float* const* weight, const T* v, size_t stride, int n, float* const* out, int head) {
    int d = 0;
    for (; d + 4 * vector_width <= head; d += 4 * vector_width) {
        add_values<R, 4>(weight, v, stride, n, out, d);
    }
    for (; d + 2 * vector_width <= head; d += 2 * vector_width) {
        add_values<R, 2>(weight, v, stride, n, out, d);
    }
    for (; d < head; d += vector_width) {
        add_values<R, 1>(weight, v, stride, n, out, d);
    }
}

// Calls `body(first, n)` for all rows, up to `rows_at_once` at a time; n is a constant.
template <int R>
struct Count {
    static constexpr int value = R;
};
template <class Body>
void by_rows(int n_rows, const Body& body) {
    int r = 0;
    for (; r + rows_at_once <= n_rows; r += rows_at_once) {
        body(r, Count<rows_at_once>());
    }
    if (n_rows - r == 2) {
        body(r, Count<2>());
    } else if (n_rows - r == 1) {
        body(r, Count<1>());
    }
}

// Turns a row of `head` numbers into 32-bit floats.
inline void widen_row(const char* row, int head, ToFloats to_floats, float* out) {
    if (to_floats != nullptr) {
        to_floats(row, out, head);
        return;
    }
    for (int d = 0; d < head; d += vector_width) {
        store(out + d, load(reinterpret_cast<const Half*>(row) + d));
    }
}

// The rows of a tile, one after the other; those that it lacks become zeros.
APART void widen(const char* rows, size_t stride, int n, int head, ToFloats to_floats, float* out) {
    for (int c = 0; c < n; ++c) {
        widen_row(rows + static_cast<size_t>(c) * stride, head, to_floats, out + static_cast<int64_t>(c) * head);
    }
    for (int64_t i = static_cast<int64_t>(n) * head; i < static_cast<int64_t>(tile) * head; ++i) {
        out[i] = 0.0f;
    }
}

// One row's scores become weights e^(score - largest). Returns what the row's earlier sums are to be scaled by.
APART float weigh(float* s, const float* mask, int n, const AttentionBlock& b, float& row_largest, float& row_total) {
    for (int c = n; c < tile; ++c) {
        s[c] = -INFINITY;
    }
    if (b.softcap != 0.0f) {
        for (int c = 0; c < n; ++c) {
            s[c] = b.softcap * tanhf(s[c] * (b.scale / b.softcap));
        }
    }
    const float scale = b.softcap != 0.0f ? 1.0f : b.scale;
    Floats most = fill(-INFINITY);
    for (int c = 0; c < tile; c += vector_width) {
        Floats x = load(s + c) * scale;
        if (mask != nullptr) {
            x += load(mask + c);
        }
        store(s + c, x);
        most = larger(x, most);
    }
    const float before = row_largest;
    const float now = largest(most) > before ? largest(most) : before;
    if (now == -INFINITY) { // nothing seen yet, so no weights; or all that is seen is not a number, which must show
        for (int c = 0; c < tile; ++c) {
            const bool broken = s[c] != s[c];
            row_largest = broken ? 0.0f : row_largest;
            row_total = broken ? s[c] : row_total;
            s[c] = broken ? s[c] : 0.0f;
        }
        return 1.0f;
    }
    Floats sums{};
    for (int c = 0; c < tile; c += vector_width) {
        const Floats w = exp_negative(load(s + c) - now);
        store(s + c, w);
        sums += w;
    }
    const float shrink = before == -INFINITY ? 0.0f : expf(before - now);
    row_largest = now;
    row_total = row_total * shrink + sum(sums);
    return shrink;
}

bool all_finite(const float* x, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) {
        sum += x[i] - x[i];
    }
    return sum == 0.0f;
}

const float* query_of(const AttentionBlock& b, int query, int group) {
    const char* q = reinterpret_cast<const char*>(b.q[query]) + static_cast<size_t>(group) * b.q_head;
    return reinterpret_cast<const float*>(q);
}

// Where the numbers of a block's work lie.
struct Scratch {
    const float** q;   // by row that sees something of the tile: its query,
    float** scores;    // its scores, then weights,
    float** out;       // and what it adds values to
    float* all_scores; // [row][tile]
    float* wide;       // a tile's keys or values
    float* mask;       // of one query for the tile
    uint8_t* sight;    // by query: a Sight
};

// The rows that see something of the tile come first in the lists. Returns how many there are.
int find_rows(const AttentionBlock& b, int64_t cell, int n, const Scratch& scratch) {
    int rows = 0;
    for (int i = 0; i < b.n_queries; ++i) {
        const Sight sight = b.mask == nullptr ? Sight::all : look(b.mask[i] + cell, n);
        scratch.sight[i] = static_cast<uint8_t>(sight);
        for (int g = 0; g < b.n_group && sight != Sight::none; ++g, ++rows) {
            const int row = i * b.n_group + g;
            scratch.q[rows] = query_of(b, i, g);
            scratch.scores[rows] = scratch.all_scores + static_cast<size_t>(row) * tile;
            scratch.out[rows] = b.out + static_cast<size_t>(row) * static_cast<size_t>(b.head_v);
        }
    }
    return rows;
}

void score_tile(const AttentionBlock& b, int64_t cell, int n, int rows, const Scratch& scratch) {
    const char* k = b.k + static_cast<size_t>(cell) * b.k_row;
    if (rows <= few_rows && n == tile && b.k_to_floats == nullptr) {
        by_rows(rows, [&](int r, auto count) {
            score<decltype(count)::value>(scratch.q + r, reinterpret_cast<const Half*>(k), b.k_row / sizeof(Half),
                                          b.head_k, scratch.scores + r);
        });
        return;
    }
    widen(k, b.k_row, n, b.head_k, b.k_to_floats, scratch.wide);
    by_rows(rows, [&](int r, auto count) {
        score<decltype(count)::value>(scratch.q + r, scratch.wide, static_cast<size_t>(b.head_k), b.head_k,
                                      scratch.scores + r);
    });
}

void weigh_tile(const AttentionBlock& b, int64_t cell, int n, const Scratch& scratch) {
    int at = 0;
    for (int i = 0; i < b.n_queries; ++i) {
        const auto sight = static_cast<Sight>(scratch.sight[i]);
        if (sight == Sight::some) {
            for (int c = 0; c < n; c += vector_width) {
                if (c + vector_width <= n) {
                    store(scratch.mask + c, load(b.mask[i] + cell + c));
                } else {
                    ggml_fp16_to_fp32_row(b.mask[i] + cell + c, scratch.mask + c, n - c);
                }
            }
            for (int c = n; c < tile; ++c) {
                scratch.mask[c] = 0.0f;
            }
        }
        for (int g = 0; g < b.n_group && sight != Sight::none; ++g, ++at) {
            const int row = i * b.n_group + g;
            const float* mask = sight == Sight::some ? scratch.mask : nullptr;
            const float shrink = weigh(scratch.scores[at], mask, n, b, b.largest[row], b.total[row]);
            for (int d = 0; d < b.head_v && shrink != 1.0f; d += vector_width) {
                store(scratch.out[at] + d, load(scratch.out[at] + d) * shrink);
            }
        }
    }
}

void add_tile(const AttentionBlock& b, int64_t cell, int n, int rows, const Scratch& scratch) {
    const char* v = b.v + static_cast<size_t>(cell) * b.v_row;
    if (rows <= few_rows && b.v_to_floats == nullptr) {
        by_rows(rows, [&](int r, auto count) {
            add_all_values<decltype(count)::value>(scratch.scores + r, reinterpret_cast<const Half*>(v),
                                                   b.v_row / sizeof(Half), n, scratch.out + r, b.head_v);
        });
        return;
    }
    widen(v, b.v_row, n, b.head_v, b.v_to_floats, scratch.wide);
    by_rows(rows, [&](int r, auto count) {
        add_all_values<decltype(count)::value>(scratch.scores + r, scratch.wide, static_cast<size_t>(b.head_v), n,
                                               scratch.out + r, b.head_v);
    });
}

// One row, a cell at a time, and only those that it sees: where the row's tiles have cells of others that are no
// numbers, these must not get into its sums by way of a weight of 0.
void compute_row(const AttentionBlock& b, int query, int group, const Scratch& scratch) {
    const int row = query * b.n_group + group;
    const float* q = query_of(b, query, group);
    float* out = b.out + static_cast<int64_t>(row) * b.head_v;
    float most = -INFINITY, total = 0.0f;
    for (int d = 0; d < b.head_v; ++d) {
        out[d] = 0.0f;
    }
    for (int64_t c = b.first; c < b.last; ++c) {
        const float mask = b.mask == nullptr ? 0.0f : ggml_fp16_to_fp32(b.mask[query][c]);
        if (mask == -INFINITY) {
            continue;
        }
        float* cell = scratch.wide;
        widen_row(b.k + static_cast<size_t>(c) * b.k_row, b.head_k, b.k_to_floats, cell);
        float s = 0.0f;
        for (int d = 0; d < b.head_k; ++d) {
            s += q[d] * cell[d];
        }
        s = (b.softcap == 0.0f ? s * b.scale : b.softcap * tanhf(s * (b.scale / b.softcap))) + mask;
        if (s != s) { // what it sees is broken, and no other cell can mend that
            for (int d = 0; d < b.head_v; ++d) {
                out[d] = s;
            }
            b.largest[row] = 0.0f;
            b.total[row] = s;
            return;
        }
        const float now = s <= most ? most : s;
        const float shrink = now == most ? 1.0f : expf(most - now), weight = expf(s - now);
        widen_row(b.v + static_cast<size_t>(c) * b.v_row, b.head_v, b.v_to_floats, cell);
        for (int d = 0; d < b.head_v; ++d) {
            out[d] = out[d] * shrink + weight * cell[d];
        }
        total = total * shrink + weight;
        most = now;
    }
    b.largest[row] = most;
    b.total[row] = total;
}

} // namespace

void compute_attention_block(const AttentionBlock& b) {
    const int n_rows = b.n_queries * b.n_group;
    for (int r = 0; r < n_rows; ++r) {
        b.largest[r] = -INFINITY;
        b.total[r] = 0.0f;
    }
    for (int64_t i = 0; i < static_cast<int64_t>(n_rows) * b.head_v; ++i) {
        b.out[i] = 0.0f;
    }
    Scratch scratch;
    scratch.q = reinterpret_cast<const float**>(b.scratch);
    scratch.scores = const_cast<float**>(scratch.q + n_rows);
    scratch.out = scratch.scores + n_rows;
    scratch.all_scores = reinterpret_cast<float*>(scratch.out + n_rows);
    scratch.wide = scratch.all_scores + static_cast<int64_t>(tile) * n_rows;
    scratch.mask = scratch.wide + static_cast<int64_t>(tile) * (b.head_k > b.head_v ? b.head_k : b.head_v);
    scratch.sight = reinterpret_cast<uint8_t*>(scratch.mask + tile);
    for (int64_t c = b.first; c < b.last; c += tile) {
        const int n = b.last - c < tile ? static_cast<int>(b.last - c) : tile;
        const int rows = find_rows(b, c, n, scratch);
        if (rows > 0) {
            score_tile(b, c, n, rows, scratch);
            weigh_tile(b, c, n, scratch);
            add_tile(b, c, n, rows, scratch);
        }
    }
    for (int row = 0; row < n_rows; ++row) {
        const float* out = b.out + static_cast<int64_t>(row) * b.head_v;
        if (all_finite(b.total + row, 1) && all_finite(out, b.head_v)) {
            continue;
        }
        // A query that is broken itself stays so; to look at its cells one by one would only hold up the others.
        if (all_finite(query_of(b, row / b.n_group, row % b.n_group), b.head_k)) {
            compute_row(b, row / b.n_group, row % b.n_group, scratch);
        }
    }
}

} // namespace llamaserve::VECTOR_NAMESPACE
