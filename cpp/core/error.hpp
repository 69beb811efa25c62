// Exceptions of the core. Each message says what a user can do about it.
#pragma once

#include <stdexcept>
#include <string>

namespace llamaserve {

// The model file is missing, damaged, or not usable with these parameters.
struct LoadError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A request (or a part of one) that can't be served as it is; the caller may change it and try again.
struct InvalidRequest : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// The engine was closed.
struct EngineClosed : std::runtime_error {
    EngineClosed() : std::runtime_error("the engine is closed") {}
};

} // namespace llamaserve
