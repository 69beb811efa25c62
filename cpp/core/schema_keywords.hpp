// The keywords of JSON schemas that say what is valid, and the types they belong to.
#pragma once

#include "json.h"

#include <string>
#include <string_view>
#include <vector>

namespace llamaserve {

using Keys = std::vector<std::string_view>;

extern const Keys object_keys;
extern const Keys array_keys;
extern const Keys string_keys;
extern const Keys number_keys;

// Those of `keys` that `node` has.
Keys present(const common_json& node, const Keys& keys);

// Everything in `node` that says what is valid, apart from annotations.
Keys assertions(const common_json& node);

// A schema that every value is valid by, or none.
bool is_true(const common_json& value);
bool is_false(const common_json& value);

// Whether `value` is of a schema's `type`.
bool is_of_type(const common_json& value, const std::string& type);

// A schema that says the type and nothing else.
common_json typed(const char* type);

} // namespace llamaserve
