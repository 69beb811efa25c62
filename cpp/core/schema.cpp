#include "schema.hpp"

#include "error.hpp"
#include "json-schema-to-grammar.h"
#include "schema_pattern.hpp"
#include "schema_unions.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

namespace llamaserve {

namespace {

using Keys = std::vector<std::string_view>;

const Keys object_keys = {"properties",       "required",      "additionalProperties", "patternProperties",
                          "propertyNames",    "minProperties", "maxProperties",        "dependentRequired",
                          "dependentSchemas", "dependencies",  "unevaluatedProperties"};
const Keys array_keys = {"items",       "prefixItems", "additionalItems", "minItems",    "maxItems",
                         "uniqueItems", "contains",    "minContains",     "maxContains", "unevaluatedItems"};
const Keys string_keys = {"pattern", "minLength", "maxLength", "format"};
const Keys number_keys = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
const Keys other_keys = {"type", "enum", "const", "allOf",       "anyOf",        "oneOf",
                         "not",  "if",   "$ref",  "$dynamicRef", "$recursiveRef"};

constexpr int max_depth = 200; // references and merged parts included
constexpr size_t max_parts = 50'000;
constexpr double max_integer = 1e15; // numbers beyond are no longer exact everywhere
constexpr double max_count = 1e6;

Keys present(const common_json& node, const Keys& keys) {
    Keys out;
    std::copy_if(keys.begin(), keys.end(), std::back_inserter(out),
                 [&](std::string_view key) { return node.contains(std::string(key)); });
    return out;
}

// Everything in `node` that says what is valid, apart from annotations.
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

class Rewriter {
public:
    Rewriter(const std::string& what, const common_json& root, Unenforceable policy)
        : what_(what), root_(root), drop_(policy == Unenforceable::drop) {}

    common_json run() {
        common_json out = rewrite(root_, "#");
        if (!definitions_.empty()) {
            common_json definitions = common_json::object();
            for (auto& [name, schema] : definitions_) {
                definitions[name] = schema;
            }
            out["$defs"] = definitions;
        }
        return out;
    }

private:
    [[noreturn]] void wrong(const std::string& path, const std::string& why) const {
        throw InvalidRequest(what_ + ": " + path + ": " + why);
    }

    void cannot(const std::string& path, std::string_view keyword, const std::string& why = "") const {
        if (!drop_) {
            throw InvalidRequest(what_ + ": " + path + "/" + std::string(keyword) + " can't be enforced" +
                                 (why.empty() ? "" : " (" + why + ")"));
        }
    }

    common_json rewrite(const common_json& node, const std::string& path) {
        if (++depth_ > max_depth || ++parts_ > max_parts) {
            throw InvalidRequest(what_ + ": too large once all its references are followed");
        }
        common_json out = rewrite_node(node, path);
        --depth_;
        return out;
    }

    common_json rewrite_node(const common_json& given, const std::string& path) {
        if (is_true(given)) {
            return common_json::object();
        }
        if (!given.is_object()) {
            if (is_false(given)) {
                cannot(path, "", "nothing is valid");
                return common_json::object();
            }
            wrong(path, "a schema must be an object");
        }
        common_json node = given;
        for (const char* keyword : {"not", "if", "$dynamicRef", "$recursiveRef"}) {
            if (node.contains(keyword)) {
                cannot(path, keyword);
                node.erase(keyword);
            }
        }
        if (node.contains("allOf")) {
            return all_of(node, path);
        }
        for (const char* keyword : {"oneOf", "anyOf"}) {
            if (node.contains(keyword)) {
                return any_of(node, keyword, path);
            }
        }
        if (node.contains("$ref")) {
            for (const std::string_view keyword : assertions(node)) {
                if (keyword != "$ref") {
                    cannot(path, keyword, "it is beside $ref");
                }
            }
            return reference(node.at("$ref"), path);
        }
        if (node.contains("const") || node.contains("enum")) {
            return values(node, path);
        }
        return by_type(node, path);
    }

    // -- references --

    common_json reference(const common_json& ref, const std::string& path) {
        common_json out = common_json::object();
        if (!ref.is_string()) {
            wrong(path, "$ref must be a string");
        }
        const std::string text = ref.get<std::string>();
        const common_json* target = find(text);
        if (target == nullptr) {
            if (text.empty() || text[0] != '#') {
                cannot(path, "$ref", "only references within the schema are supported");
                return out;
            }
            wrong(path, "there is nothing at $ref " + text);
        }
        auto known = names_.find(text);
        if (known == names_.end()) {
            known = names_.emplace(text, "d" + std::to_string(names_.size())).first;
            const std::string name = known->second;
            common_json rewritten = rewrite(*target, text);
            // A chain of references that leads nowhere is an endless rule.
            for (const common_json* next = &rewritten; next->contains("$ref");) {
                const std::string at = next->at("$ref").get<std::string>().substr(std::string("#/$defs/").size());
                if (at == name) {
                    wrong(path, "$ref " + text + " leads back to itself");
                }
                const auto found = definitions_.find(at);
                if (found == definitions_.end()) {
                    break;
                }
                next = &found->second;
            }
            definitions_.emplace(name, std::move(rewritten));
        }
        out["$ref"] = "#/$defs/" + known->second;
        return out;
    }

    // What a JSON pointer within the document means, or null.
    const common_json* find(const std::string& ref) const {
        if (ref == "#") {
            return &root_;
        }
        if (ref.compare(0, 2, "#/") != 0) {
            return nullptr;
        }
        const common_json* at = &root_;
        size_t start = 2;
        while (start <= ref.size()) {
            const size_t end = std::min(ref.find('/', start), ref.size());
            std::string part;
            for (size_t i = start; i < end; ++i) {
                const bool tilde = ref[i] == '~' && i + 1 < end && (ref[i + 1] == '0' || ref[i + 1] == '1');
                part += tilde ? (ref[++i] == '0' ? '~' : '/') : ref[i];
            }
            if (at->is_object() && at->contains(part)) {
                at = &at->at(part);
            } else if (at->is_array() && !part.empty() && part.size() < 6 &&
                       part.find_first_not_of("0123456789") == std::string::npos && std::stoul(part) < at->size()) {
                at = &at->at(static_cast<size_t>(std::stoul(part)));
            } else {
                return nullptr;
            }
            start = end + 1;
        }
        return at;
    }

    // -- combinations --

    common_json all_of(const common_json& node, const std::string& path) {
        const common_json& given = node.at("allOf");
        if (!given.is_array() || given.empty()) {
            wrong(path, "allOf must be a list of schemas");
        }
        common_json merged = node;
        merged.erase("allOf");
        for (size_t i = 0; i < given.size(); ++i) {
            std::optional<common_json> both = merge(merged, given.at(i));
            if (!both) {
                cannot(path, "allOf", "its parts can't be merged into one");
                return common_json::object();
            }
            merged = std::move(*both);
        }
        return rewrite(merged, path);
    }

    // One schema for what is valid by both; nothing where that isn't simple.
    std::optional<common_json> merge(const common_json& a, const common_json& b) {
        if (++depth_ > max_depth) {
            throw InvalidRequest(what_ + ": too large once all its references are followed");
        }
        std::optional<common_json> out;
        if (is_true(a) || is_true(b)) {
            out = is_true(a) ? b : a;
        } else if (a.is_object() && b.is_object()) {
            const Keys in_a = assertions(a);
            const Keys in_b = assertions(b);
            if (in_a == Keys{"$ref"} || in_b == Keys{"$ref"}) {
                const common_json& ref = in_b == Keys{"$ref"} ? b : a;
                const common_json* target =
                    ref.at("$ref").is_string() ? find(ref.at("$ref").get<std::string>()) : nullptr;
                if (target != nullptr) {
                    out = merge(in_b == Keys{"$ref"} ? a : b, *target);
                }
            } else if (b.contains("allOf") && b.at("allOf").is_array()) {
                common_json rest = b;
                rest.erase("allOf");
                out = merge(a, rest);
                for (size_t i = 0; out && i < b.at("allOf").size(); ++i) {
                    out = merge(*out, b.at("allOf").at(i));
                }
            } else {
                out = merge_schemas(a, b);
            }
        }
        --depth_;
        return out;
    }

    // -- values --

    common_json values(const common_json& node, const std::string& path) {
        const bool constant = node.contains("const");
        const char* keyword = constant ? "const" : "enum";
        common_json given = common_json::array();
        if (constant) {
            given.push_back(node.at("const"));
        } else {
            given = node.at("enum");
        }
        if (!given.is_array() || given.empty()) {
            wrong(path, "enum must be a list of values");
        }
        const std::vector<std::string> types = types_of(node, path);
        for (const std::string_view other : assertions(node)) {
            if (other != keyword && other != "type") {
                cannot(path, other, std::string("it is beside ") + keyword);
            }
        }
        common_json kept = common_json::array();
        for (const common_json& value : given) {
            if (types.empty() || std::any_of(types.begin(), types.end(),
                                             [&](const std::string& type) { return is_of_type(value, type); })) {
                kept.push_back(value);
            }
        }
        if (kept.empty()) {
            wrong(path, std::string("no value of ") + keyword + " is of the schema's type");
        }
        common_json out = common_json::object();
        out["enum"] = kept;
        return out;
    }

    // -- types --

    std::vector<std::string> types_of(const common_json& node, const std::string& path) const {
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

    common_json by_type(const common_json& node, const std::string& path) {
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

    // A count such as minLength; nothing if it isn't there.
    std::optional<int> count(const common_json& node, const char* keyword, const std::string& path) const {
        if (!node.contains(keyword)) {
            return std::nullopt;
        }
        const common_json& value = node.at(keyword);
        if (!value.is_number() || value.get<double>() < 0 || std::floor(value.get<double>()) != value.get<double>()) {
            wrong(path, std::string(keyword) + " must be a whole number, 0 or more");
        }
        return static_cast<int>(std::min(value.get<double>(), max_count));
    }

    // Copies a minimum and a maximum that are consistent.
    void copy_counts(common_json& out, const common_json& node, const char* low, const char* high,
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

    common_json string(const common_json& node, const std::string& path) const {
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

    common_json number(const common_json& node, const std::string& path) const {
        for (const std::string_view keyword : present(node, number_keys)) {
            cannot(path, keyword, "only on integers");
        }
        return typed("number");
    }

    common_json integer(const common_json& node, const std::string& path) const {
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

    common_json array(const common_json& node, const std::string& path) {
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

    void unique(const common_json& node, int n, const std::string& path) const {
        if (node.contains("uniqueItems") && is_true(node.at("uniqueItems")) && n > 1) {
            cannot(path, "uniqueItems");
        }
    }

    common_json object(const common_json& node, const std::string& path) {
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

    common_json required_of(const common_json& node, common_json& properties, const common_json& others, bool closed,
                            const std::string& path) const {
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

    void copy_property_counts(const common_json& node, size_t n_properties, size_t n_required, bool open,
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

    // llama-common writes the first letters of names into character classes as they are.
    static bool can_exclude(const common_json& properties) {
        for (const auto& entry : properties.items()) {
            for (const char c : entry.key()) {
                const auto byte = static_cast<unsigned char>(c);
                if (byte < 0x80 && !std::isalnum(byte) &&
                    std::string_view("_-./:@").find(c) == std::string_view::npos) {
                    return false;
                }
            }
            if (entry.key().empty()) {
                return false;
            }
        }
        return true;
    }

    common_json any_of(const common_json& node, const char* keyword, const std::string& path) {
        const common_json& given = node.at(keyword);
        if (!given.is_array() || given.empty()) {
            wrong(path, std::string(keyword) + " must be a list of schemas");
        }
        common_json rest = node;
        rest.erase(keyword);
        const bool alone = assertions(rest).empty();
        common_json alternatives = common_json::array();
        for (size_t i = 0; i < given.size(); ++i) {
            const common_json& one = given.at(i);
            const std::string at = path + "/" + keyword + "/" + std::to_string(i);
            if (is_false(one)) {
                continue;
            }
            if (alone) {
                alternatives.push_back(rewrite(one, at));
                continue;
            }
            std::optional<common_json> both = merge(rest, one);
            if (!both) {
                cannot(path, keyword, "together with " + std::string(assertions(rest).front()));
                both = one;
            }
            alternatives.push_back(rewrite(*both, at));
        }
        if (alternatives.empty()) {
            wrong(path, std::string(keyword) + ": nothing is valid");
        }
        if (std::string_view(keyword) == "oneOf" && !exclusive(alternatives, definitions_)) {
            cannot(path, keyword, "a value may be valid by several of its schemas; use anyOf");
        }
        common_json out = common_json::object();
        out["anyOf"] = alternatives;
        return out;
    }

    const std::string& what_;
    const common_json& root_;
    const bool drop_;
    std::map<std::string, std::string> names_; // of definitions, by $ref
    std::map<std::string, common_json> definitions_;
    int depth_ = 0;
    size_t parts_ = 0;
};

void replace_all(std::string& text, const std::string& from, const std::string& to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
        text.replace(at, from.size(), to);
    }
}

} // namespace

common_json enforceable_schema(const std::string& what, const common_json& schema, Unenforceable policy) {
    return Rewriter(what, schema, policy).run();
}

std::string schema_grammar(const std::string& what, const common_json& schema) {
    try {
        return corrected_schema_grammar(
            json_schema_to_grammar(enforceable_schema(what, schema, Unenforceable::refuse)));
    } catch (const InvalidRequest&) {
        throw;
    } catch (const std::exception& e) {
        throw InvalidRequest(what + ": " + e.what());
    }
}

std::string corrected_schema_grammar(std::string grammar) {
    // Half of a surrogate pair is no text, and a pair is one character.
    const std::string code_unit = R"("u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} | )"
                                  R"([dD] [89abAB] [0-9a-fA-F]{2} "\\u" [dD] [c-fC-F] [0-9a-fA-F]{2}))";
    replace_all(grammar, R"("u" [0-9a-fA-F]{4}))", code_unit + ")");
    // The same in the rules that allow any JSON; control characters are not for strings, nor is "\ " an escape.
    replace_all(grammar, R"([^"\\] | "\\" ( ["\\/ bfnrt] | "u" [0-9a-fA-F]{4} ))",
                R"([^"\\\x7F\x00-\x1F] | "\\" ( ["\\/bfnrt] | )" + code_unit + " )");
    // A key that isn't one of the known ones differs from them by a character that needs no escape.
    std::string out;
    for (size_t start = 0; start < grammar.size();) {
        const size_t end = std::min(grammar.find('\n', start), grammar.size() - 1) + 1;
        std::string rule = grammar.substr(start, end - start);
        if (rule.substr(0, rule.find(" ::=")).find("additional-k") != std::string::npos) {
            replace_all(rule, R"([^")", R"([^"\\\x7F\x00-\x1F)");
        }
        out += rule;
        start = end;
    }
    return out;
}

} // namespace llamaserve
