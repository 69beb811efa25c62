// Exceptions of the core. Each message says what a user can do about it.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace llamaserve {

// The model file is missing, damaged, or not usable with these parameters.
struct LoadError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A request (or a part of one) that can't be served as it is; the caller may change it and try again.
struct InvalidRequest : std::invalid_argument {
    using std::invalid_argument::invalid_argument;
};

// Something asked of the engine that it can't do. `kind` is one of those of Failure.
struct Refused : std::runtime_error {
    Refused(std::string k, const std::string& message) : std::runtime_error(message), kind(std::move(k)) {}
    std::string kind;
};

// The engine was closed.
struct EngineClosed : std::runtime_error {
    EngineClosed() : std::runtime_error("the engine is closed") {}
};

} // namespace llamaserve
