// What a schema says of objects.
#include "schema_rewriter.hpp"

#include "schema_keywords.hpp"

#include <cctype>

namespace llamaserve {

namespace {

// llama-common writes the first letters of names into character classes as they are.
bool can_exclude(const common_json& properties) {
    for (const auto& entry : properties.items()) {
        for (const char c : entry.key()) {
            const auto byte = static_cast<unsigned char>(c);
            if (byte < 0x80 && !std::isalnum(byte) && std::string_view("_-./:@").find(c) == std::string_view::npos) {
                return false;
            }
        }
        if (entry.key().empty()) {
            return false;
        }
    }
    return true;
}

} // namespace

common_json SchemaRewriter::object(const common_json& node, const std::string& path) {
    for (const char* keyword :
         {"patternProperties", "propertyNames", "dependentRequired", "dependentSchemas", "dependencies"}) {
        if (node.contains(keyword) && !node.at(keyword).empty()) {
            cannot(path, keyword);
        }
    }
    common_json out = typed("object");
    common_json properties = common_json::object();
    if (node.contains("properties")) {
        if (!node.at("properties").is_object()) {
            wrong(path, "properties must be an object");
        }
        for (const auto& [name, property] : node.at("properties").items()) {
            if (is_false(property)) {
                cannot(path + "/properties", name, "nothing is valid");
                continue;
            }
            properties[name] = rewrite(property, path + "/properties/" + name);
        }
    }
    const bool closed = node.contains("additionalProperties") && is_false(node.at("additionalProperties"));
    common_json others = common_json::object(); // what properties of other names must be
    bool open = !node.contains("properties");
    if (node.contains("additionalProperties") && !closed) {
        others = rewrite(node.at("additionalProperties"), path + "/additionalProperties");
        open = true;
    }
    open = open && !closed;
    if (node.contains("unevaluatedProperties") && !is_true(node.at("unevaluatedProperties"))) {
        if (!is_false(node.at("unevaluatedProperties"))) {
            cannot(path, "unevaluatedProperties");
        }
        open = open && node.contains("additionalProperties");
    }
    const common_json required = required_of(node, properties, others, closed, path);
    copy_property_counts(node, properties.size(), required.size(), open, path);
    if (open && !properties.empty() && !can_exclude(properties)) {
        cannot(path, "additionalProperties", "beside properties with such names");
        open = false;
    }
    out["properties"] = properties;
    if (!required.empty()) {
        out["required"] = required;
    }
    if (open) {
        out["additionalProperties"] = is_true(others) ? common_json(true) : others;
        if (properties.empty()) {
            out.erase("properties");
        }
    } else if (closed) {
        out["additionalProperties"] = false;
    }
    return out;
}

common_json SchemaRewriter::required_of(const common_json& node, common_json& properties, const common_json& others,
                                        bool closed, const std::string& path) const {
    common_json out = common_json::array();
    if (!node.contains("required")) {
        return out;
    }
    const common_json& given = node.at("required");
    if (!given.is_array()) {
        wrong(path, "required must be a list of names");
    }
    for (const common_json& name : given) {
        if (!name.is_string()) {
            wrong(path, "required must be a list of names");
        }
        const std::string text = name.get<std::string>();
        if (!properties.contains(text)) {
            if (closed) {
                cannot(path, "required", "'" + text + "' is none of the properties");
                continue;
            }
            properties[text] = others;
        }
        out.push_back(name);
    }
    return out;
}

void SchemaRewriter::copy_property_counts(const common_json& node, size_t n_properties, size_t n_required, bool open,
                                          const std::string& path) const {
    const std::optional<int> least = count(node, "minProperties", path);
    const std::optional<int> most = count(node, "maxProperties", path);
    if (least && *least > static_cast<int>(n_required)) {
        cannot(path, "minProperties");
    }
    if (most && (open || *most < static_cast<int>(n_properties))) {
        cannot(path, "maxProperties");
    }
}

} // namespace llamaserve
