// Regular expressions of JSON schemas, in the form that llama-common makes exact grammars of.
#pragma once

#include <stdexcept>
#include <string>

namespace llamaserve {

// The message says what there is no grammar for.
struct UnsupportedPattern : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Rewrites an ECMA 262 regular expression. What matches the result, between quotes, is the JSON text of a string that
// `pattern` matches; strings that would need escapes are left out where the pattern doesn't ask for them. Throws
// UnsupportedPattern.
std::string enforceable_pattern(const std::string& pattern);

} // namespace llamaserve
