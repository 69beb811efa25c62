#include "log.hpp"

#include "llama.h"
#include "log.h"

#include <mutex>
#include <vector>

namespace llamaserve {

namespace {

thread_local LogCapture* capture = nullptr;

ggml_log_level ggml_level(int level) {
    switch (level) {
    case LOG_LEVEL_OUTPUT:
        return GGML_LOG_LEVEL_NONE;
    case LOG_LEVEL_ERROR:
        return GGML_LOG_LEVEL_ERROR;
    case LOG_LEVEL_WARN:
        return GGML_LOG_LEVEL_WARN;
    case LOG_LEVEL_INFO:
        return GGML_LOG_LEVEL_INFO;
    default:
        return GGML_LOG_LEVEL_DEBUG;
    }
}

void on_llama_log(ggml_log_level level, const char* text, void* user_data) {
    if (capture != nullptr && level == GGML_LOG_LEVEL_ERROR && !log_capture_add(text)) {
        return;
    }
    common_log_default_callback(level, text, user_data);
}

} // namespace

bool log_capture_add(const char* text) {
    capture->text_ += text;
    return !capture->quiet_;
}

void log_init() {
    static std::once_flag once;
    std::call_once(once, [] {
        common_log_set_verbosity_thold(LOG_LEVEL_ERROR);
        llama_log_set(on_llama_log, nullptr);
    });
}

void log_configure(const LogConfig& config) {
    log_init();
    common_log* log = common_log_main();
    common_log_set_verbosity_thold(config.verbosity);
    common_log_set_jsonl(config.jsonl);
    if (!config.file.empty()) {
        common_log_set_file(log, config.file.c_str());
    }
    common_log_set_colors(log, static_cast<log_colors>(config.colors));
    common_log_set_prefix(log, config.prefix);
    common_log_set_timestamps(log, config.timestamps);
    if (config.disabled) {
        common_log_pause(log);
    } else {
        common_log_resume(log);
    }
}

void log_write(int level, const std::string& text) {
    if (level <= common_log_get_verbosity_thold()) {
        common_log_add(common_log_main(), ggml_level(level), "%s\n", text.c_str());
    }
}

void log_flush() {
    common_log_flush(common_log_main());
}

LogCapture::LogCapture(bool quiet) : outer_(capture), quiet_(quiet) {
    capture = this;
}

LogCapture::~LogCapture() {
    capture = outer_;
}

std::string LogCapture::errors() const {
    std::vector<std::string> lines;
    size_t start = 0;
    while (start < text_.size()) {
        size_t end = text_.find('\n', start);
        if (end == std::string::npos) {
            end = text_.size();
        }
        std::string line = text_.substr(start, end - start);
        // llama.cpp starts its messages with the name of the function, which tells a user nothing.
        if (const size_t colon = line.find(": "); colon != std::string::npos && line.find(' ') > colon) {
            line.erase(0, colon + 2);
        }
        bool known = line.empty();
        for (const std::string& other : lines) {
            known = known || other.find(line) != std::string::npos || line.find(other) != std::string::npos;
        }
        if (!known) {
            lines.push_back(line);
        }
        start = end + 1;
    }
    std::string out;
    for (const std::string& line : lines) {
        out += (out.empty() ? "" : "; ") + line;
    }
    return out;
}

} // namespace llamaserve
