#include "cpu_params.hpp"

#include "option_values.hpp"

#include <algorithm>
#include <charconv>
#include <optional>

namespace llamaserve {

namespace {

std::optional<int32_t> cpu(const std::string& text) {
    int32_t n = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
    const bool whole = error == std::errc() && end == text.data() + text.size();
    return whole && n >= 0 && n < GGML_MAX_N_THREADS ? std::optional(n) : std::nullopt;
}

// The CPUs of a mask and of a range, together. Leaves `out` as it is if neither is given.
void set_mask(const std::string& suffix, const std::string& mask, const std::string& range, common_cpu_params& out) {
    if (mask.empty() && range.empty()) {
        return;
    }
    std::fill(std::begin(out.cpumask), std::end(out.cpumask), false);
    out.mask_valid = true;
    if (!mask.empty()) {
        const std::string digits = mask.rfind("0x", 0) == 0 ? mask.substr(2) : mask;
        const bool hex = digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
        if (!hex || digits.find_first_not_of('0') == std::string::npos || digits.size() > GGML_MAX_N_THREADS / 4 ||
            !parse_cpu_mask(digits, out.cpumask)) {
            refuse("cpu_mask" + suffix, "'" + mask + "'", "hexadecimal digits, with a bit for each CPU to use");
        }
    }
    if (!range.empty()) {
        const size_t dash = range.find('-');
        const std::string low = range.substr(0, dash);
        const std::string high = dash == std::string::npos ? low : range.substr(dash + 1);
        const auto from = low.empty() ? 0 : cpu(low);
        const auto to = high.empty() ? GGML_MAX_N_THREADS - 1 : cpu(high);
        if (dash == std::string::npos || !from || !to || *from > *to) {
            refuse("cpu_range" + suffix, "'" + range + "'", "the first and the last CPU to use, as 0-3");
        }
        std::fill(out.cpumask + *from, out.cpumask + *to + 1, true);
    }
}

} // namespace

void set_cpus(const CpuParams& in, common_params& out) {
    in_range("threads", in.threads, -1, GGML_MAX_N_THREADS);
    in_range("threads_batch", in.threads_batch, -1, GGML_MAX_N_THREADS);
    in_range("prio", in.prio, GGML_SCHED_PRIO_LOW, GGML_SCHED_PRIO_REALTIME);
    in_range("poll", in.poll, 0, 100);
    common_cpu_params& cpus = out.cpuparams;
    cpus.n_threads = in.threads == 0 ? -1 : in.threads;
    set_mask("", in.cpu_mask, in.cpu_range, cpus);
    cpus.strict_cpu = in.cpu_strict;
    cpus.priority = static_cast<ggml_sched_priority>(in.prio);
    cpus.poll = static_cast<uint32_t>(in.poll);
    postprocess_cpu_params(cpus, nullptr);

    common_cpu_params& batch = out.cpuparams_batch;
    batch = cpus;
    if (in.threads_batch > 0) {
        batch.n_threads = in.threads_batch;
    }
    set_mask("_batch", in.cpu_mask_batch, in.cpu_range_batch, batch);
    batch.strict_cpu = in.cpu_strict_batch.value_or(in.cpu_strict);
    if (in.prio_batch) {
        in_range("prio_batch", *in.prio_batch, GGML_SCHED_PRIO_LOW, GGML_SCHED_PRIO_REALTIME);
        batch.priority = static_cast<ggml_sched_priority>(*in.prio_batch);
    }
    if (in.poll_batch) {
        in_range("poll_batch", *in.poll_batch, 0, 100);
        batch.poll = static_cast<uint32_t>(*in.poll_batch);
    }
    postprocess_cpu_params(batch, nullptr);
}

} // namespace llamaserve
