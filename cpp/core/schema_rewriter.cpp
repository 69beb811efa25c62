#include "schema_rewriter.hpp"

#include "error.hpp"
#include "schema_keywords.hpp"
#include "schema_unions.hpp"

#include <algorithm>

namespace llamaserve {

namespace {

constexpr int max_depth = 200; // references and merged parts included
constexpr size_t max_parts = 50'000;

} // namespace

common_json SchemaRewriter::run() {
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

void SchemaRewriter::wrong(const std::string& path, const std::string& why) const {
    throw InvalidRequest(what_ + ": " + path + ": " + why);
}

void SchemaRewriter::cannot(const std::string& path, std::string_view keyword, const std::string& why) const {
    if (!drop_) {
        throw InvalidRequest(what_ + ": " + path + "/" + std::string(keyword) + " can't be enforced" +
                             (why.empty() ? "" : " (" + why + ")"));
    }
}

common_json SchemaRewriter::rewrite(const common_json& node, const std::string& path) {
    if (++depth_ > max_depth || ++parts_ > max_parts) {
        throw InvalidRequest(what_ + ": too large once all its references are followed");
    }
    common_json out = rewrite_node(node, path);
    --depth_;
    return out;
}

common_json SchemaRewriter::rewrite_node(const common_json& given, const std::string& path) {
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

common_json SchemaRewriter::reference(const common_json& ref, const std::string& path) {
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

const common_json* SchemaRewriter::find(const std::string& ref) const {
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

common_json SchemaRewriter::all_of(const common_json& node, const std::string& path) {
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

std::optional<common_json> SchemaRewriter::merge(const common_json& a, const common_json& b) {
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
            const common_json* target = ref.at("$ref").is_string() ? find(ref.at("$ref").get<std::string>()) : nullptr;
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

common_json SchemaRewriter::any_of(const common_json& node, const char* keyword, const std::string& path) {
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

// -- values --

common_json SchemaRewriter::values(const common_json& node, const std::string& path) {
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
        if (types.empty() ||
            std::any_of(types.begin(), types.end(), [&](const std::string& type) { return is_of_type(value, type); })) {
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

} // namespace llamaserve
