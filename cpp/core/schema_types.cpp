// What a schema says of values of one type, apart from objects.
#include "schema_rewriter.hpp"

#include "schema_keywords.hpp"
#include "schema_pattern.hpp"

#include <algorithm>
#include <cmath>
#include <set>

namespace llamaserve {

namespace {

constexpr double max_integer = 1e15; // numbers beyond are no longer exact everywhere
constexpr double max_count = 1e6;

} // namespace

std::vector<std::string> SchemaRewriter::types_of(const common_json& node, const std::string& path) const {
    std::vector<std::string> out;
    if (!node.contains("type")) {
        return out;
    }
    const common_json& type = node.at("type");
    common_json list = common_json::array();
    if (type.is_array() && !type.empty()) {
        list = type;
    } else {
        list.push_back(type);
    }
    for (const common_json& one : list) {
        static const std::set<std::string> known = {"null",   "boolean", "integer", "number",
                                                    "string", "array",   "object"};
        if (!one.is_string() || known.count(one.get<std::string>()) == 0) {
            wrong(path, "unknown type " + one.dump_safe());
        }
        out.push_back(one.get<std::string>());
    }
    return out;
}

common_json SchemaRewriter::by_type(const common_json& node, const std::string& path) {
    std::vector<std::string> types = types_of(node, path);
    if (types.size() > 1) {
        common_json alternatives = common_json::array();
        for (const std::string& type : types) {
            common_json one = node;
            one["type"] = type;
            alternatives.push_back(rewrite(one, path));
        }
        common_json out = common_json::object();
        out["anyOf"] = alternatives;
        return out;
    }
    if (types.empty()) {
        for (const auto& [keys, type] : {std::pair(&object_keys, "object"),
                                         {&array_keys, "array"},
                                         {&string_keys, "string"},
                                         {&number_keys, "number"}}) {
            if (!present(node, *keys).empty()) {
                types.emplace_back(type);
            }
        }
        if (types.empty()) {
            return common_json::object();
        }
        if (types.size() > 1) {
            cannot(path, "type", "it is missing, and the other keywords belong to several types");
            return common_json::object();
        }
    }
    const std::string& type = types.front();
    return type == "object"    ? object(node, path)
           : type == "array"   ? array(node, path)
           : type == "string"  ? string(node, path)
           : type == "integer" ? integer(node, path)
           : type == "number"  ? number(node, path)
                               : typed(type.c_str());
}

std::optional<int> SchemaRewriter::count(const common_json& node, const char* keyword, const std::string& path) const {
    if (!node.contains(keyword)) {
        return std::nullopt;
    }
    const common_json& value = node.at(keyword);
    if (!value.is_number() || value.get<double>() < 0 || std::floor(value.get<double>()) != value.get<double>()) {
        wrong(path, std::string(keyword) + " must be a whole number, 0 or more");
    }
    return static_cast<int>(std::min(value.get<double>(), max_count));
}

void SchemaRewriter::copy_counts(common_json& out, const common_json& node, const char* low, const char* high,
                                 const std::string& path) const {
    const std::optional<int> least = count(node, low, path);
    const std::optional<int> most = count(node, high, path);
    if (least && most && *least > *most) {
        wrong(path, std::string(low) + " is above " + high);
    }
    if (least && *least > 0) {
        out[low] = *least;
    }
    if (most && *most < max_count) {
        out[high] = *most;
    }
}

common_json SchemaRewriter::string(const common_json& node, const std::string& path) const {
    common_json out = typed("string");
    const bool lengths = count(node, "minLength", path).value_or(0) > 0 || node.contains("maxLength");
    if (node.contains("pattern")) {
        if (!node.at("pattern").is_string()) {
            wrong(path, "pattern must be a string");
        }
        if (lengths || node.contains("format")) {
            cannot(path, "pattern", "together with a length or a format");
        }
        try {
            out["pattern"] = enforceable_pattern(node.at("pattern").get<std::string>());
            return out;
        } catch (const UnsupportedPattern& e) {
            cannot(path, "pattern", e.what());
        }
    }
    if (node.contains("format")) {
        static const std::set<std::string> known = {"date",  "time",  "date-time", "uuid", "uuid1",
                                                    "uuid2", "uuid3", "uuid4",     "uuid5"};
        const common_json& format = node.at("format");
        if (format.is_string() && known.count(format.get<std::string>()) > 0) {
            if (lengths) {
                cannot(path, "format", "together with a length");
            }
            out["format"] = format;
            return out;
        }
        cannot(path, "format", format.dump_safe());
    }
    copy_counts(out, node, "minLength", "maxLength", path);
    return out;
}

common_json SchemaRewriter::number(const common_json& node, const std::string& path) const {
    for (const std::string_view keyword : present(node, number_keys)) {
        cannot(path, keyword, "only on integers");
    }
    return typed("number");
}

common_json SchemaRewriter::integer(const common_json& node, const std::string& path) const {
    common_json out = typed("integer");
    std::optional<double> least;
    std::optional<double> most;
    for (const std::string_view keyword : present(node, number_keys)) {
        const common_json& value = node.at(std::string(keyword));
        if (value.is_boolean() && keyword.starts_with("exclusive")) {
            cannot(path, keyword, "the form of an old draft; give the number itself");
            continue;
        }
        if (!value.is_number()) {
            wrong(path, std::string(keyword) + " must be a number");
        }
        const double d = value.get<double>();
        if (keyword == "multipleOf") {
            if (d != 1) {
                cannot(path, keyword);
            }
        } else if (std::abs(d) > max_integer) {
            cannot(path, keyword, "too large");
        } else if (keyword == "minimum" || keyword == "exclusiveMinimum") {
            const double bound = keyword == "minimum" ? std::ceil(d) : std::floor(d) + 1;
            least = std::max(least.value_or(bound), bound);
        } else {
            const double bound = keyword == "maximum" ? std::floor(d) : std::ceil(d) - 1;
            most = std::min(most.value_or(bound), bound);
        }
    }
    if (least && most && *least > *most) {
        wrong(path, "minimum is above maximum");
    }
    if (least) {
        out["minimum"] = static_cast<int64_t>(*least);
    }
    if (most) {
        out["maximum"] = static_cast<int64_t>(*most);
    }
    return out;
}

common_json SchemaRewriter::array(const common_json& node, const std::string& path) {
    for (const char* keyword : {"contains", "minContains", "maxContains"}) {
        if (node.contains(keyword)) {
            cannot(path, keyword);
        }
    }
    common_json out = typed("array");
    copy_counts(out, node, "minItems", "maxItems", path);
    const bool old_tuple = node.contains("items") && node.at("items").is_array();
    if (node.contains("prefixItems") || old_tuple) {
        const common_json& given = node.at(node.contains("prefixItems") ? "prefixItems" : "items");
        if (!given.is_array()) {
            wrong(path, "prefixItems must be a list of schemas");
        }
        const auto n = static_cast<int>(given.size());
        if (count(node, "minItems", path).value_or(0) > n || count(node, "maxItems", path).value_or(n) < n) {
            cannot(path, "prefixItems", "with another number of items");
        }
        common_json items = common_json::array();
        for (size_t i = 0; i < given.size(); ++i) {
            items.push_back(rewrite(given.at(i), path + "/prefixItems/" + std::to_string(i)));
        }
        out = typed("array");
        out["prefixItems"] = items;
        unique(node, n, path);
        return out;
    }
    unique(node, count(node, "maxItems", path).value_or(2), path);
    if (node.contains("items") && is_false(node.at("items"))) {
        out["maxItems"] = 0;
    } else if (node.contains("items")) {
        out["items"] = rewrite(node.at("items"), path + "/items");
    } else if (node.contains("unevaluatedItems") && !is_true(node.at("unevaluatedItems"))) {
        cannot(path, "unevaluatedItems");
    }
    return out;
}

void SchemaRewriter::unique(const common_json& node, int n, const std::string& path) const {
    if (node.contains("uniqueItems") && is_true(node.at("uniqueItems")) && n > 1) {
        cannot(path, "uniqueItems");
    }
}

} // namespace llamaserve
