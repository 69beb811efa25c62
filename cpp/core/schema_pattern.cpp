#include "schema_pattern.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

namespace llamaserve {

namespace {

using Range = std::pair<uint32_t, uint32_t>;

constexpr uint32_t last_code_point = 0x10FFFF;
constexpr int max_groups_deep = 50;
constexpr uint64_t max_repeats = 10'000;

// Sorted, not overlapping.
std::vector<Range> sorted(std::vector<Range> ranges) {
    std::sort(ranges.begin(), ranges.end());
    std::vector<Range> out;
    for (const Range& r : ranges) {
        if (!out.empty() && r.first <= out.back().second + 1) {
            out.back().second = std::max(out.back().second, r.second);
        } else {
            out.push_back(r);
        }
    }
    return out;
}

std::vector<Range> complement(std::vector<Range> ranges) {
    std::vector<Range> out;
    uint32_t next = 0;
    for (const Range& r : sorted(std::move(ranges))) {
        if (r.first > next) {
            out.emplace_back(next, r.first - 1);
        }
        next = r.second + 1;
    }
    if (next <= last_code_point) {
        out.emplace_back(next, last_code_point);
    }
    return out;
}

std::vector<Range> without(const std::vector<Range>& ranges, const std::vector<Range>& removed) {
    std::vector<Range> both = complement(ranges);
    both.insert(both.end(), removed.begin(), removed.end());
    return complement(std::move(both));
}

// What stands for itself in a JSON text: no quotes, backslashes or control characters (and no surrogates).
const std::vector<Range> needs_escape = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0x7F, 0x7F}, {0xD800, 0xDFFF}};
// Where engines differ (some take all of Unicode's digits and letters), what all of them agree on.
const std::vector<Range> not_ascii = {{0x80, last_code_point}};
const std::vector<Range> digits = {{'0', '9'}};
const std::vector<Range> word = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const std::vector<Range> space = {{'\t', '\r'},     {' ', ' '},       {0xA0, 0xA0},
                                  {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029},
                                  {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
const std::vector<Range> some_say_space = {{0x1C, 0x20}, {0x85, 0x85}, {0xFEFF, 0xFEFF}};

std::string escape(uint32_t c) {
    char out[16];
    std::snprintf(out, sizeof(out), c > 0xFFFF ? "\\U%08X" : c > 0xFF ? "\\u%04X" : "\\x%02X", c);
    return out;
}

std::string char_class(std::vector<Range> ranges) {
    ranges = without(ranges, needs_escape);
    if (ranges.empty()) {
        throw UnsupportedPattern("a character class of nothing but characters that JSON escapes");
    }
    std::string out = "[";
    for (const Range& r : ranges) {
        out += escape(r.first);
        if (r.second > r.first) {
            out += "-" + escape(r.second);
        }
    }
    return out + "]";
}

class Rewriter {
public:
    explicit Rewriter(const std::string& pattern) : text_(pattern) {}

    std::string run() {
        std::string out = alternatives(true);
        if (at_ < text_.size()) {
            throw UnsupportedPattern("a ')' too many");
        }
        return "^(" + out + ")$";
    }

private:
    static std::string anything() { return char_class({{0, last_code_point}}) + "*"; }

    bool more() const { return at_ < text_.size(); }
    bool next_is(char c) const { return more() && text_[at_] == c; }

    // `outermost`: where ^ and $ may be, and where a search may start and end anywhere.
    std::string alternatives(bool outermost) {
        if (++depth_ > max_groups_deep) {
            throw UnsupportedPattern("groups nested more than " + std::to_string(max_groups_deep) + " levels deep");
        }
        std::string out;
        for (bool first = true;; first = false) {
            std::string one = sequence(outermost);
            out += (first ? "" : "|") + one;
            if (!next_is('|')) {
                break;
            }
            ++at_;
        }
        --depth_;
        return out;
    }

    std::string sequence(bool outermost) {
        std::string out;
        bool ended = false;
        if (outermost) {
            if (next_is('^')) {
                ++at_;
            } else {
                out += anything();
            }
        }
        while (more() && !next_is('|') && !next_is(')')) {
            if (ended) {
                throw UnsupportedPattern("'$' before the end");
            }
            if (outermost && next_is('$')) {
                ++at_;
                ended = true;
                continue;
            }
            out += repeated(atom());
        }
        if (outermost && !ended) {
            out += anything();
        }
        // An alternative that is empty would vanish.
        return out.empty() ? "(x{0})" : out;
    }

    std::string atom() {
        const char c = text_[at_];
        switch (c) {
        case '(':
            return group();
        case '[':
            return bracket();
        case '.':
            ++at_;
            return char_class(complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
        case '\\': {
            std::vector<Range> set;
            uint32_t one = 0;
            return escaped(set, one) ? char_class(set) : literal(one);
        }
        case '^':
        case '$':
            throw UnsupportedPattern(std::string("'") + c + "' within the pattern");
        case '*':
        case '+':
        case '?':
        case '{':
            throw UnsupportedPattern("nothing to repeat");
        default:
            return literal(code_point());
        }
    }

    std::string group() {
        ++at_;
        if (next_is('?')) {
            if (text_.compare(at_, 2, "?:") != 0) {
                throw UnsupportedPattern("lookaround and other special groups");
            }
            at_ += 2;
        }
        std::string out = "(" + alternatives(false) + ")";
        if (!next_is(')')) {
            throw UnsupportedPattern("a group that isn't closed");
        }
        ++at_;
        return out;
    }

    std::string bracket() {
        ++at_;
        bool negated = false;
        if (next_is('^')) {
            negated = true;
            ++at_;
        }
        std::vector<Range> ranges;
        while (!next_is(']')) {
            if (!more()) {
                throw UnsupportedPattern("a character class that isn't closed");
            }
            std::vector<Range> set;
            uint32_t first = 0;
            if (class_atom(set, first)) {
                ranges.insert(ranges.end(), set.begin(), set.end());
                continue;
            }
            uint32_t last = first;
            if (next_is('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
                ++at_;
                if (class_atom(set, last) || last < first) {
                    throw UnsupportedPattern("a range out of order in a character class");
                }
            }
            ranges.emplace_back(first, last);
        }
        ++at_;
        return char_class(negated ? complement(std::move(ranges)) : sorted(std::move(ranges)));
    }

    // Returns true for a set (\d), false for one character.
    bool class_atom(std::vector<Range>& set, uint32_t& one) {
        if (next_is('\\')) {
            if (text_.compare(at_, 2, "\\b") == 0) {
                at_ += 2;
                one = '\b';
                return false;
            }
            return escaped(set, one);
        }
        if (!more()) {
            throw UnsupportedPattern("a character class that isn't closed");
        }
        one = code_point();
        return false;
    }

    bool escaped(std::vector<Range>& set, uint32_t& one) {
        ++at_;
        if (!more()) {
            throw UnsupportedPattern("a backslash at the end");
        }
        const char c = text_[at_++];
        switch (c) {
        case 'd':
        case 'D':
            set = c == 'd' ? digits : without(complement(digits), not_ascii);
            return true;
        case 'w':
        case 'W':
            set = c == 'w' ? word : without(complement(word), not_ascii);
            return true;
        case 's':
        case 'S':
            set = c == 's' ? space : without(complement(space), some_say_space);
            return true;
        case 't':
            one = '\t';
            return false;
        case 'n':
            one = '\n';
            return false;
        case 'r':
            one = '\r';
            return false;
        case 'f':
            one = '\f';
            return false;
        case 'x':
            one = hex(2);
            return false;
        case 'u':
            one = hex(4);
            return false;
        default:
            if (std::string("^$\\.*+?()[]{}|/-\"'@#%&:;<>=!~`, ").find(c) == std::string::npos) {
                throw UnsupportedPattern(std::string("'\\") + c + "'");
            }
            one = static_cast<unsigned char>(c);
            return false;
        }
    }

    uint32_t hex(size_t n) {
        const std::string part = text_.substr(at_, n);
        if (part.size() != n || part.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) {
            throw UnsupportedPattern("an escape without its " + std::to_string(n) + " digits");
        }
        at_ += n;
        return static_cast<uint32_t>(std::stoul(part, nullptr, 16));
    }

    // The next character; the text is valid UTF-8, as JSON is.
    uint32_t code_point() {
        const auto lead = static_cast<unsigned char>(text_[at_++]);
        if (lead < 0x80) {
            return lead;
        }
        const int n = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
        uint32_t c = lead & (0x3F >> n);
        for (int i = 0; i < n && more(); ++i) {
            c = (c << 6) | (static_cast<unsigned char>(text_[at_++]) & 0x3F);
        }
        return c;
    }

    // One character, as JSON writes it.
    std::string literal(uint32_t c) {
        switch (c) {
        case '"':
            return "(\\x5C\\x22)";
        case '\\':
            return "(\\x5C\\x5C)";
        case '\n':
            return "(\\x5Cn)";
        case '\r':
            return "(\\x5Cr)";
        case '\t':
            return "(\\x5Ct)";
        default:
            return char_class({{c, c}});
        }
    }

    std::string repeated(std::string what) {
        if (!more()) {
            return what;
        }
        const char c = text_[at_];
        if (c == '*' || c == '+' || c == '?') {
            ++at_;
            what += c;
        } else if (c == '{') {
            what += count();
        } else {
            return what;
        }
        if (next_is('?')) {
            ++at_; // lazy: the same strings match
        }
        if (more() && std::string("*+?{").find(text_[at_]) != std::string::npos) {
            throw UnsupportedPattern("nothing to repeat");
        }
        return "(" + what + ")";
    }

    std::string count() {
        const size_t end = text_.find('}', at_);
        const std::string inside = end == std::string::npos ? "" : text_.substr(at_ + 1, end - at_ - 1);
        const size_t comma = inside.find(',');
        const std::string low = inside.substr(0, comma);
        const std::string high = comma == std::string::npos ? low : inside.substr(comma + 1);
        if (!is_count(low) || (!high.empty() && !is_count(high)) ||
            (!high.empty() && std::stoull(high) < std::stoull(low))) {
            throw UnsupportedPattern("a '{' that isn't a count");
        }
        if (std::stoull(high.empty() ? low : high) > max_repeats) {
            throw UnsupportedPattern("more than " + std::to_string(max_repeats) + " repetitions");
        }
        at_ = end + 1;
        return "{" + low + "," + high + "}";
    }

    static bool is_count(const std::string& s) {
        return !s.empty() && s.size() < 7 && s.find_first_not_of("0123456789") == std::string::npos;
    }

    const std::string& text_;
    size_t at_ = 0;
    int depth_ = 0;
};

} // namespace

std::string enforceable_pattern(const std::string& pattern) {
    return Rewriter(pattern).run();
}

} // namespace llamaserve
