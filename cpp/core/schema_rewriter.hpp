// Turns one schema into the form of schema.hpp: what it says is kept as it can be enforced, or refused, or left out.
#pragma once

#include "schema.hpp"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llamaserve {

class SchemaRewriter {
public:
    // Keeps references to both.
    SchemaRewriter(const std::string& what, const common_json& root, Unenforceable policy)
        : what_(what), root_(root), drop_(policy == Unenforceable::drop) {}

    common_json run();

private:
    [[noreturn]] void wrong(const std::string& path, const std::string& why) const;
    void cannot(const std::string& path, std::string_view keyword, const std::string& why = "") const;
    common_json rewrite(const common_json& node, const std::string& path);
    common_json rewrite_node(const common_json& given, const std::string& path);

    // -- references --

    common_json reference(const common_json& ref, const std::string& path);
    // What a JSON pointer within the document means, or null.
    const common_json* find(const std::string& ref) const;

    // -- combinations --

    common_json all_of(const common_json& node, const std::string& path);
    // One schema for what is valid by both; nothing where that isn't simple.
    std::optional<common_json> merge(const common_json& a, const common_json& b);
    common_json any_of(const common_json& node, const char* keyword, const std::string& path);

    // -- values --

    common_json values(const common_json& node, const std::string& path);

    // -- types --

    std::vector<std::string> types_of(const common_json& node, const std::string& path) const;
    common_json by_type(const common_json& node, const std::string& path);
    // A count such as minLength; nothing if it isn't there.
    std::optional<int> count(const common_json& node, const char* keyword, const std::string& path) const;
    // Copies a minimum and a maximum that are consistent.
    void copy_counts(common_json& out, const common_json& node, const char* low, const char* high,
                     const std::string& path) const;
    common_json string(const common_json& node, const std::string& path) const;
    common_json number(const common_json& node, const std::string& path) const;
    common_json integer(const common_json& node, const std::string& path) const;
    common_json array(const common_json& node, const std::string& path);
    void unique(const common_json& node, int n, const std::string& path) const;

    // -- objects --

    common_json object(const common_json& node, const std::string& path);
    common_json required_of(const common_json& node, common_json& properties, const common_json& others, bool closed,
                            const std::string& path) const;
    void copy_property_counts(const common_json& node, size_t n_properties, size_t n_required, bool open,
                              const std::string& path) const;

    const std::string& what_;
    const common_json& root_;
    const bool drop_;
    std::map<std::string, std::string> names_; // of definitions, by $ref
    std::map<std::string, common_json> definitions_;
    int depth_ = 0;
    size_t parts_ = 0;
};

} // namespace llamaserve
