// One log for llama.cpp, this library and its callers: llama-common's logger, with our filter in front.
#pragma once

#include <string>

namespace llamaserve {

// Levels are llama.cpp's verbosities: 1 error, 2 warning, 3 info, 4 trace, 5 debug.
struct LogConfig {
    int verbosity = 1;
    std::string file;
    int colors = -1; // -1 automatic, 0 off, 1 on
    bool prefix = false;
    bool timestamps = false;
    bool jsonl = false;
    bool disabled = false;
};

// Routes llama.cpp's messages to the log. Done once per process; errors only until log_configure is called.
void log_init();
void log_configure(const LogConfig& config);
void log_write(int level, const std::string& text);
void log_flush();

// For the log's callback: adds to the innermost capture of this thread. Returns false if the message is to go nowhere
// else.
bool log_capture_add(const char* text);

// Collects the error messages that llama.cpp writes on this thread while the object lives, so that an exception can
// quote them.
class LogCapture {
public:
    // `quiet`: the messages go nowhere else.
    explicit LogCapture(bool quiet = false);
    ~LogCapture();
    LogCapture(const LogCapture&) = delete;
    LogCapture& operator=(const LogCapture&) = delete;

    // The messages joined with "; ", repeated ones once; empty if there was none.
    std::string errors() const;

private:
    std::string text_;
    LogCapture* outer_;
    bool quiet_;
    friend bool log_capture_add(const char* text);
};

} // namespace llamaserve
