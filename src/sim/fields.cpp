#include "sim/fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace lockstep::sim {
namespace {

struct ReadField {
    Reader& r;
    const Key& key;
    void operator()(bool* v) const { r.take(key.name, *v); }
    void operator()(auto* v) const { r.take(key.name, *v, key.allowed); }
};

struct PrintField {
    const Key& key;
    std::string operator()(const bool* v) const { return *v ? "true" : "false"; }
    std::string operator()(const auto* v) const { return fmt::format("{}", *v); }
    std::string operator()(const double* v) const { return fmt::format(fmt::runtime(key.format), *v); }
    std::string operator()(const std::string* v) const { return fmt::format("\"{}\"", *v); }
    std::string operator()(const std::vector<double>* v) const { return fmt::format("[{:.10g}]", fmt::join(*v, ", ")); }
    std::string operator()(const std::vector<std::string>* v) const { return fmt::format("[\"{}\"]", fmt::join(*v, "\", \"")); }
};

struct DescribeField {
    const Allowed& allowed;
    // A bound that only keeps what is computed finite is not said.
    std::string numbers() const {
        Allowed said = allowed;
        if (said.most >= 1e6) said.most = std::numeric_limits<double>::infinity();
        return said.text_of_numbers();
    }
    std::string words(const char* any) const { return allowed.literal_count > 0 ? allowed.text_of_words() : any; }
    std::string operator()(const bool*) const { return "true or false"; }
    std::string operator()(const auto*) const { return "an integer " + numbers(); }
    std::string operator()(const double*) const { return "a number " + numbers(); }
    std::string operator()(const std::string*) const { return words("text"); }
    std::string operator()(const std::vector<double>*) const { return "a list of numbers " + numbers(); }
    std::string operator()(const std::vector<std::string>*) const { return "a list of " + words("words"); }
};

}  // namespace

void read_field(Reader& r, const Key& key, FieldPtr value) { std::visit(ReadField{r, key}, value); }

std::vector<std::string> printed_fields(std::span<const Valued> fields) {
    const auto is_printed = [&](size_t i) {
        while (fields[i].key->printed == Printed::WithNext) ++i;
        const Valued& f = fields[i];
        const auto differs = [&](auto* v) { return *v != *std::get<decltype(v)>(f.by_default); };
        return f.key->printed == Printed::Always || (f.key->printed == Printed::UnlessDefault && std::visit(differs, f.value));
    };
    std::vector<std::string> out;
    for (size_t i = 0; i < fields.size(); ++i) {
        const Key& key = *fields[i].key;
        if (is_printed(i)) out.push_back(fmt::format("{} = {}", key.name, std::visit(PrintField{key}, fields[i].value)));
    }
    return out;
}

std::string lines_of(std::span<const Valued> fields) {
    std::string out;
    for (const std::string& line : printed_fields(fields)) out += line + "\n";
    return out;
}

std::string values_text(const Key& key, FieldPtr type) { return std::visit(DescribeField{key.allowed}, type); }

}  // namespace lockstep::sim
