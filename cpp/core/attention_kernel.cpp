#include "attention_kernel.hpp"

#include "parallel.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <span>

namespace llamaserve {

namespace {

constexpr int64_t block_rows = 64;
constexpr int64_t tile = attention_tile;
constexpr int64_t least_split = 256; // cells that are worth a part of their own

struct Query {
    int64_t stream, index;
};

// A block of queries over cells of one stream; part `part` of what its rows see.
struct Task {
    size_t first_query, n_queries;
    int64_t stream, head_kv, first_cell, last_cell, part;
};

struct Plan {
    std::vector<Query> queries;
    std::vector<Task> tasks;
    int64_t n_parts = 1;
};

int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

class Planner {
public:
    Planner(const AttentionOperands& op, int n_threads)
        : op_(op), n_group_(op.n_heads / op.n_heads_kv), n_tasks_wanted_(int64_t{4} * n_threads) {}

    Plan plan() {
        std::vector<int64_t> begin(static_cast<size_t>(op_.n_streams), 0); // of the cells that are a stream's own
        const bool few = op_.n_queries <= attention_few_queries;
        for (const SharedCells& set : op_.shared) {
            if (few && set.streams.size() > 1 && set.n_cells >= tile) {
                for (const int32_t s : set.streams) {
                    begin[static_cast<size_t>(s)] = set.n_cells / tile * tile;
                }
            }
        }
        const int64_t n_blocks = divide_up(op_.n_queries, queries_in_block()) * op_.n_streams * op_.n_heads_kv;
        const int64_t n_own = parts(n_blocks, op_.n_cells);
        for (int64_t s = 0; s < op_.n_streams; ++s) {
            const size_t first = add_queries(s);
            add_blocks(first, s, begin[static_cast<size_t>(s)], op_.n_cells, n_own, 0);
        }
        out_.n_parts = n_own;
        for (const SharedCells& set : op_.shared) {
            if (set.streams.empty() || begin[static_cast<size_t>(set.streams.front())] == 0) {
                continue;
            }
            const size_t first = out_.queries.size();
            for (const int32_t s : set.streams) {
                add_queries(s);
            }
            const int64_t last = begin[static_cast<size_t>(set.streams.front())];
            const auto n = static_cast<int64_t>(out_.queries.size() - first);
            const int64_t n_shared = parts(divide_up(n, queries_in_block()) * op_.n_heads_kv, last);
            add_blocks(first, set.streams.front(), 0, last, n_shared, n_own);
            out_.n_parts = std::max(out_.n_parts, n_own + n_shared);
        }
        return std::move(out_);
    }

private:
    int64_t queries_in_block() const { return std::max<int64_t>(1, block_rows / n_group_); }

    // Into how many parts cells are split, so that all threads have something to do.
    int64_t parts(int64_t n_blocks, int64_t n_cells) const {
        return std::clamp<int64_t>(n_cells / least_split, 1, divide_up(n_tasks_wanted_, n_blocks));
    }

    size_t add_queries(int64_t stream) {
        const size_t first = out_.queries.size();
        for (int64_t i = 0; i < op_.n_queries; ++i) {
            out_.queries.push_back({stream, i});
        }
        return first;
    }

    // Tasks for all queries from `first` on.
    void add_blocks(size_t first, int64_t stream, int64_t begin, int64_t end, int64_t n_parts, int64_t part) {
        const auto n = static_cast<int64_t>(out_.queries.size() - first);
        const int64_t n_blocks = divide_up(n, queries_in_block());
        const int64_t step = divide_up(divide_up(end - begin, tile), n_parts) * tile;
        for (int64_t p = 0; p < n_parts && begin + p * step < end; ++p) {
            for (int64_t b = 0; b < n_blocks; ++b) {
                const int64_t from = n * b / n_blocks, to = n * (b + 1) / n_blocks;
                for (int64_t h = 0; h < op_.n_heads_kv; ++h) {
                    out_.tasks.push_back({first + static_cast<size_t>(from), static_cast<size_t>(to - from), stream, h,
                                          begin + p * step, std::min(end, begin + (p + 1) * step), part + p});
                }
            }
        }
    }

    const AttentionOperands& op_;
    const int64_t n_group_, n_tasks_wanted_;
    Plan out_;
};

const char* at(const AttentionOperands::Tensor& t, int64_t stream, int64_t head, int64_t row) {
    return t.data + static_cast<size_t>(stream) * t.stream + static_cast<size_t>(head) * t.head +
           static_cast<size_t>(row) * t.row;
}

// What one part of the cells gave for a row.
struct Part {
    float largest, total;
    const float* out;
};

// Puts a row's parts together; a sink is one more score, without a value.
void finish_row(std::span<const Part> parts, const float* sink, int64_t head_v, float* out) {
    float most = sink != nullptr ? *sink : -INFINITY;
    for (const Part& part : parts) {
        most = std::max(most, part.largest);
    }
    float total = sink != nullptr ? std::exp(*sink - most) : 0.0f;
    for (const Part& part : parts) {
        total += part.largest == -INFINITY ? 0.0f : part.total * std::exp(part.largest - most);
    }
    std::fill_n(out, head_v, 0.0f);
    for (const Part& part : parts) {
        if (part.largest == -INFINITY) {
            continue;
        }
        const float weight = std::exp(part.largest - most) / total;
        for (int64_t d = 0; d < head_v; ++d) {
            out[d] += part.out[d] * weight;
        }
    }
}

class Computation {
public:
    Computation(const AttentionOperands& op, Plan plan)
        : op_(op), plan_(std::move(plan)), n_group_(op.n_heads / op.n_heads_kv),
          n_rows_(op.n_streams * op.n_queries * op.n_heads) {
        if (plan_.n_parts > 1) {
            static thread_local std::vector<float> numbers; // every layer wants as many
            numbers.resize(std::max(numbers.size(), static_cast<size_t>(plan_.n_parts * n_rows_ * (op.head_v + 2))));
            parts_ = numbers.data();
            for (int64_t i = 0; i < plan_.n_parts * n_rows_; ++i) {
                parts_[i * (op.head_v + 2)] = -INFINITY;
            }
        }
    }

    void run(int n_threads) {
        std::atomic<bool> out_of_memory{false}; // nothing may be thrown on the other threads
        auto guarded = [&](auto&& body) {
            return [&](size_t i) {
                try {
                    body(i);
                } catch (const std::bad_alloc&) {
                    out_of_memory = true;
                }
            };
        };
        auto compute_task = [this](size_t i) { compute(plan_.tasks[i]); };
        parallel_for(plan_.tasks.size(), n_threads, guarded(compute_task));
        if (plan_.n_parts > 1 && !out_of_memory) {
            auto put_query_together = [this](size_t i) { put_together(static_cast<int64_t>(i)); };
            parallel_for(static_cast<size_t>(op_.n_streams * op_.n_queries), n_threads, guarded(put_query_together));
        }
        if (out_of_memory) {
            throw std::bad_alloc();
        }
    }

private:
    // By stream, query and head.
    int64_t row(const Query& query, int64_t head) const {
        return (query.stream * op_.n_queries + query.index) * op_.n_heads + head;
    }
    const float* sink(int64_t head) const { return op_.sinks != nullptr ? op_.sinks + head : nullptr; }
    float* part(int64_t index, int64_t of_row) { return parts_ + (index * n_rows_ + of_row) * (op_.head_v + 2); }

    void compute(const Task& task) {
        const auto n_rows = static_cast<size_t>(static_cast<int64_t>(task.n_queries) * n_group_);
        static thread_local std::vector<const float*> q;
        static thread_local std::vector<const uint16_t*> mask;
        static thread_local std::vector<float> numbers;
        q.clear();
        mask.clear();
        const auto queries = std::span(plan_.queries).subspan(task.first_query, task.n_queries);
        for (const Query& query : queries) {
            q.push_back(reinterpret_cast<const float*>(at(op_.q, query.stream, task.head_kv * n_group_, query.index)));
            mask.push_back(reinterpret_cast<const uint16_t*>(at(op_.mask, query.stream, 0, query.index)));
        }
        const auto head_v = static_cast<size_t>(op_.head_v);
        const size_t n_scratch = attention_scratch(static_cast<int64_t>(n_rows), op_.head_k, op_.head_v);
        numbers.resize(std::max(numbers.size(), n_scratch + n_rows * (head_v + 2)));

        AttentionBlock b;
        b.q = q.data();
        b.mask = op_.mask.data != nullptr ? mask.data() : nullptr;
        b.q_head = op_.q.head;
        b.n_queries = static_cast<int32_t>(task.n_queries);
        b.n_group = static_cast<int32_t>(n_group_);
        b.k = at(op_.k, task.stream, task.head_kv, 0);
        b.v = at(op_.v, task.stream, task.head_kv, 0);
        b.k_to_floats = op_.k.to_floats;
        b.v_to_floats = op_.v.to_floats;
        b.k_row = op_.k.row;
        b.v_row = op_.v.row;
        b.first = task.first_cell;
        b.last = task.last_cell;
        b.head_k = static_cast<int32_t>(op_.head_k);
        b.head_v = static_cast<int32_t>(op_.head_v);
        b.scale = op_.scale;
        b.softcap = op_.softcap;
        b.scratch = numbers.data();
        b.out = b.scratch + n_scratch;
        b.largest = b.out + n_rows * head_v;
        b.total = b.largest + n_rows;
        compute_attention_block(b);

        for (size_t r = 0; r < n_rows; ++r) {
            const Query& query = queries[r / static_cast<size_t>(n_group_)];
            const int64_t head = task.head_kv * n_group_ + static_cast<int64_t>(r) % n_group_;
            const float* out = b.out + r * head_v;
            if (plan_.n_parts == 1) {
                const Part only{b.largest[r], b.total[r], out};
                finish_row({&only, 1}, sink(head), op_.head_v, op_.out + row(query, head) * op_.head_v);
                continue;
            }
            float* to = part(task.part, row(query, head));
            to[0] = b.largest[r];
            to[1] = b.total[r];
            std::copy_n(out, head_v, to + 2);
        }
    }

    void put_together(int64_t query) {
        static thread_local std::vector<Part> parts;
        parts.resize(static_cast<size_t>(plan_.n_parts));
        for (int64_t head = 0; head < op_.n_heads; ++head) {
            const int64_t of_row = query * op_.n_heads + head;
            for (int64_t p = 0; p < plan_.n_parts; ++p) {
                const float* from = part(p, of_row);
                parts[static_cast<size_t>(p)] = {from[0], from[1], from + 2};
            }
            finish_row(parts, sink(head), op_.head_v, op_.out + of_row * op_.head_v);
        }
    }

    const AttentionOperands& op_;
    const Plan plan_;
    const int64_t n_group_, n_rows_;
    float* parts_ = nullptr; // [part][row]: the largest score, the sum, the values
};

} // namespace

bool attention_supports(int64_t head_k, int64_t head_v) {
    return attention_block_supports(head_k, head_v);
}

void compute_attention(const AttentionOperands& op, int n_threads) {
    Computation(op, Planner(op, n_threads).plan()).run(n_threads);
}

} // namespace llamaserve
