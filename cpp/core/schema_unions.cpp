#include "schema_unions.hpp"

#include <algorithm>
#include <set>
#include <string_view>

namespace llamaserve {

namespace {

using Definitions = std::map<std::string, common_json>;

constexpr int max_depth = 8;

bool says_nothing(const std::string& key) {
    static const std::set<std::string> annotations = {
        "title",       "description", "default",         "examples",         "example",  "deprecated",
        "readOnly",    "writeOnly",   "$comment",        "$schema",          "$id",      "$defs",
        "definitions", "$anchor",     "contentEncoding", "contentMediaType", "nullable", "discriminator"};
    return annotations.count(key) > 0;
}

common_json union_of(const common_json& a, const common_json& b) {
    common_json out = a;
    for (const common_json& item : b) {
        bool known = false;
        for (const common_json& other : a) {
            known = known || other.dump() == item.dump();
        }
        if (!known) {
            out.push_back(item);
        }
    }
    return out;
}

// Types that both allow; nothing if there is none.
std::optional<common_json> common_types(const common_json& a, const common_json& b) {
    auto list = [](const common_json& type) {
        common_json out = common_json::array();
        if (type.is_array()) {
            return type;
        }
        out.push_back(type);
        return out;
    };
    common_json out = common_json::array();
    for (const common_json& x : list(a)) {
        for (const common_json& y : list(b)) {
            const std::string both = x.dump() + y.dump();
            if (x.dump() == y.dump() || both == "\"integer\"\"number\"") {
                out.push_back(x);
            } else if (both == "\"number\"\"integer\"") {
                out.push_back(y);
            }
        }
    }
    if (out.empty()) {
        return std::nullopt;
    }
    return out.size() == 1 ? out.at(size_t(0)) : out;
}

bool is_closed(const common_json& schema) {
    return schema.contains("additionalProperties") && schema.at("additionalProperties").is_boolean() &&
           !schema.at("additionalProperties").get<bool>();
}

bool knows_all_of(const common_json& schema, const common_json& other) {
    if (!other.contains("properties")) {
        return true;
    }
    for (const auto& entry : other.at("properties").items()) {
        if (!schema.contains("properties") || !schema.at("properties").contains(entry.key())) {
            return false;
        }
    }
    return true;
}

std::set<std::string> types_of(const common_json& schema, const Definitions& definitions, int depth);

const common_json* resolved(const common_json& schema, const Definitions& definitions) {
    const common_json* at = &schema;
    for (int i = 0; at->contains("$ref"); ++i) {
        const std::string ref = at->at("$ref").get<std::string>();
        const auto found = definitions.find(ref.substr(std::min(ref.size(), std::string_view("#/$defs/").size())));
        if (found == definitions.end() || i > max_depth) {
            return nullptr;
        }
        at = &found->second;
    }
    return at;
}

std::string type_of_value(const common_json& value) {
    return value.is_null()      ? "null"
           : value.is_boolean() ? "boolean"
           : value.is_number()  ? "number"
           : value.is_string()  ? "string"
           : value.is_array()   ? "array"
                                : "object";
}

std::set<std::string> types_of(const common_json& schema, const Definitions& definitions, int depth) {
    const std::set<std::string> all = {"null", "boolean", "number", "string", "array", "object"};
    const common_json* node = resolved(schema, definitions);
    if (node == nullptr || depth > max_depth) {
        return all;
    }
    std::set<std::string> out;
    if (node->contains("enum")) {
        for (const common_json& value : node->at("enum")) {
            out.insert(type_of_value(value));
        }
    } else if (node->contains("anyOf")) {
        for (const common_json& one : node->at("anyOf")) {
            out.merge(types_of(one, definitions, depth + 1));
        }
    } else if (node->contains("type")) {
        const std::string type = node->at("type").get<std::string>();
        out.insert(type == "integer" ? "number" : type);
    } else {
        return all;
    }
    return out;
}

bool has(const common_json& schema, const char* list, const std::string& name) {
    if (!schema.contains(list)) {
        return false;
    }
    const common_json& items = schema.at(list);
    if (items.is_object()) {
        return items.contains(name);
    }
    return std::any_of(items.begin(), items.end(), [&](const common_json& item) { return item == name; });
}

// No value that the grammar of `made` allows is valid by `other`.
bool excludes(const common_json& made, const common_json& other, const Definitions& definitions, int depth) {
    const common_json* a = resolved(made, definitions);
    const common_json* b = resolved(other, definitions);
    if (a == nullptr || b == nullptr || depth > max_depth) {
        return false;
    }
    const std::set<std::string> types_a = types_of(*a, definitions, 0);
    const std::set<std::string> types_b = types_of(*b, definitions, 0);
    std::set<std::string> both;
    std::set_intersection(types_a.begin(), types_a.end(), types_b.begin(), types_b.end(),
                          std::inserter(both, both.begin()));
    if (both.empty()) {
        return true;
    }
    if (a->contains("anyOf") || b->contains("anyOf")) {
        const bool first = a->contains("anyOf");
        const common_json& alternatives = (first ? a : b)->at("anyOf");
        return std::all_of(alternatives.begin(), alternatives.end(), [&](const common_json& one) {
            return first ? excludes(one, *b, definitions, depth + 1) : excludes(*a, one, definitions, depth + 1);
        });
    }
    if (a->contains("enum") && b->contains("enum")) {
        std::set<std::string> values;
        for (const common_json& value : a->at("enum")) {
            values.insert(value.dump());
        }
        const common_json& others = b->at("enum");
        return std::none_of(others.begin(), others.end(),
                            [&](const common_json& value) { return values.count(value.dump()) > 0; });
    }
    if (!a->contains("type") || !b->contains("type") || !(a->at("type") == "object") || !(b->at("type") == "object")) {
        return false;
    }
    if (a->contains("properties") && a->contains("required")) {
        for (const auto& [name, property] : a->at("properties").items()) {
            const bool certain = has(*a, "required", name);
            if (certain && is_closed(*b) && !has(*b, "properties", name)) {
                return true;
            }
            if (certain && b->contains("properties") && b->at("properties").contains(name) &&
                excludes(property, b->at("properties").at(name), definitions, depth + 1)) {
                return true;
            }
        }
    }
    const bool may_have_others = a->contains("additionalProperties") && !is_closed(*a);
    if (!may_have_others && b->contains("required")) {
        for (const common_json& name : b->at("required")) {
            if (!has(*a, "properties", name.get<std::string>())) {
                return true;
            }
        }
    }
    return false;
}

} // namespace

std::optional<common_json> merge_schemas(const common_json& a, const common_json& b) {
    common_json out = a;
    for (const auto& [key, value] : b.items()) {
        if (says_nothing(key)) {
            continue;
        }
        if (!out.contains(key)) {
            out[key] = value;
        } else if (key == "type") {
            const std::optional<common_json> types = common_types(out.at(key), value);
            if (!types) {
                return std::nullopt;
            }
            out[key] = *types;
        } else if (key == "required" && value.is_array() && out.at(key).is_array()) {
            out[key] = union_of(out.at(key), value);
        } else if (key == "properties" && value.is_object() && out.at(key).is_object()) {
            common_json& properties = out[key];
            for (const auto& [name, property] : value.items()) {
                if (properties.contains(name) && properties.at(name).dump() != property.dump()) {
                    const std::optional<common_json> both = properties.at(name).is_object() && property.is_object() &&
                                                                    !properties.at(name).contains("$ref") &&
                                                                    !property.contains("$ref")
                                                                ? merge_schemas(properties.at(name), property)
                                                                : std::nullopt;
                    if (!both) {
                        return std::nullopt;
                    }
                    properties[name] = *both;
                } else {
                    properties[name] = property;
                }
            }
        } else if (out.at(key).dump() != value.dump()) {
            return std::nullopt;
        }
    }
    // What one forbids beyond its own properties, the other must not bring.
    for (const auto& [one, other] : {std::pair(&a, &b), {&b, &a}}) {
        const bool limits = one->contains("additionalProperties") || one->contains("unevaluatedProperties");
        if (limits && !knows_all_of(*one, *other)) {
            return std::nullopt;
        }
    }
    // An array's items and an object's properties are those of one side only, or both say the same.
    return out;
}

bool exclusive(const common_json& alternatives, const Definitions& definitions) {
    for (size_t i = 0; i < alternatives.size(); ++i) {
        for (size_t j = 0; j < alternatives.size(); ++j) {
            if (i != j && !excludes(alternatives.at(i), alternatives.at(j), definitions, 0)) {
                return false;
            }
        }
    }
    return true;
}

} // namespace llamaserve
