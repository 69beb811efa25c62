#include "schema_keywords.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace llamaserve {

const Keys object_keys = {"properties",       "required",      "additionalProperties", "patternProperties",
                          "propertyNames",    "minProperties", "maxProperties",        "dependentRequired",
                          "dependentSchemas", "dependencies",  "unevaluatedProperties"};
const Keys array_keys = {"items",       "prefixItems", "additionalItems", "minItems",    "maxItems",
                         "uniqueItems", "contains",    "minContains",     "maxContains", "unevaluatedItems"};
const Keys string_keys = {"pattern", "minLength", "maxLength", "format"};
const Keys number_keys = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};

namespace {

const Keys other_keys = {"type", "enum", "const", "allOf",       "anyOf",        "oneOf",
                         "not",  "if",   "$ref",  "$dynamicRef", "$recursiveRef"};

} // namespace

Keys present(const common_json& node, const Keys& keys) {
    Keys out;
    std::copy_if(keys.begin(), keys.end(), std::back_inserter(out),
                 [&](std::string_view key) { return node.contains(std::string(key)); });
    return out;
}

Keys assertions(const common_json& node) {
    Keys out;
    for (const Keys* keys : {&object_keys, &array_keys, &string_keys, &number_keys, &other_keys}) {
        const Keys some = present(node, *keys);
        out.insert(out.end(), some.begin(), some.end());
    }
    return out;
}

bool is_true(const common_json& value) {
    return (value.is_boolean() && value.get<bool>()) || (value.is_object() && assertions(value).empty());
}

bool is_false(const common_json& value) {
    return value.is_boolean() && !value.get<bool>();
}

bool is_of_type(const common_json& value, const std::string& type) {
    if (type == "integer") {
        return value.is_number_integer() ||
               (value.is_number() && std::floor(value.get<double>()) == value.get<double>());
    }
    return (type == "null" && value.is_null()) || (type == "boolean" && value.is_boolean()) ||
           (type == "number" && value.is_number()) || (type == "string" && value.is_string()) ||
           (type == "array" && value.is_array()) || (type == "object" && value.is_object());
}

common_json typed(const char* type) {
    common_json out = common_json::object();
    out["type"] = std::string(type);
    return out;
}

} // namespace llamaserve
