#include "calibration/constants.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace lockstep::calibration {
namespace {

bool is_called(const toml::table& table, const std::string& name) {
    if (const auto ranks = table["ranks"].value<int64_t>()) return fmt::format("{}", *ranks) == name;
    if (const auto kernel = table["kernel"].value<std::string>(); kernel && table["op"])
        return *kernel + (table["op"].value_or(std::string()) == "attention_backward" ? "_backward" : "") == name;
    if (const toml::array* ops = table["ops"].as_array())
        return std::any_of(ops->begin(), ops->end(), [&](const toml::node& op) { return op.value_or(std::string()) == name; });
    return false;
}

toml::node* child(toml::node& of, const std::string& name) {
    if (toml::table* table = of.as_table()) return table->get(name);
    if (toml::array* array = of.as_array()) {
        for (toml::node& item : *array) {
            if (toml::table* table = item.as_table(); table && is_called(*table, name)) return table;
        }
    }
    return nullptr;
}

// The table that holds the number.
toml::table* table_of(toml::table& tables, const std::string& key) {
    toml::node* at = &tables;
    size_t begin = 0;
    for (size_t dot; at && (dot = key.find('.', begin)) != std::string::npos; begin = dot + 1)
        at = child(*at, key.substr(begin, dot - begin));
    return at ? at->as_table() : nullptr;
}

std::string last_name(const std::string& key) { return key.substr(key.rfind('.') + 1); }

// The number that `key` names in a file's tables: names with dots between. Of an array of tables the name is the table's
// `ranks`, one of its `ops`, or its `kernel`, with "_backward" behind it if its op is a backward. Null: there is none.
toml::node* find_number(toml::table& tables, const std::string& key) {
    toml::table* table = table_of(tables, key);
    toml::node* node = table ? table->get(last_name(key)) : nullptr;
    return node && node->is_number() ? node : nullptr;
}

}  // namespace

std::string Constants::key_of(const Sources& sources) {
    std::string key;
    for (const sim::Source& s : sources) key += s.path + "\n";
    return key;
}

void Constants::add(const Sources& sources) {
    const auto [at, is_new] = of_files_.try_emplace(key_of(sources));
    if (!is_new) return;
    std::map<std::string, int> last;  // by key: a later file comes on top of an earlier one
    for (const sim::Source& source : sources) {
        toml::table tables = source.tables;
        // What a file sets hides the constants of that name in those before.
        std::erase_if(last, [&](const auto& c) { return find_number(tables, c.first); });
        for (const sim::Constant& known : sim::constants_of(source)) {
            const toml::node* node = find_number(tables, known.key);
            if (!node)
                throw UserError("cluster.constant", known.key,
                                fmt::format("{}: [[constants]] names {}, which this file does not set", source.path, known.key));
            const auto same = [&](const FittedConstant& c) { return c.file == source.path && c.known.key == known.key; };
            const auto found = std::find_if(all_.begin(), all_.end(), same) - all_.begin();
            if (found == static_cast<std::ptrdiff_t>(all_.size()))
                all_.push_back({source.path, known, node->value<double>().value()});
            last[known.key] = static_cast<int>(found);
        }
    }
    for (const auto& [key, i] : last) at->second.push_back(i);
}

sim::Cluster Constants::cluster(const Sources& of_machine, const std::vector<double>& values) const {
    Sources sources = of_machine;
    for (const int i : of(of_machine)) {
        const FittedConstant& c = all_[static_cast<size_t>(i)];
        for (sim::Source& s : sources) {
            if (s.path == c.file)
                table_of(s.tables, c.known.key)->insert_or_assign(last_name(c.known.key), values[static_cast<size_t>(i)]);
        }
    }
    return sim::cluster_of(sources);
}

std::vector<double> Constants::values() const {
    std::vector<double> out;
    for (const FittedConstant& c : all_) out.push_back(c.value);
    return out;
}

std::vector<double> Constants::spreads() const {
    std::vector<double> out;
    for (const FittedConstant& c : all_) out.push_back(c.is_fitted() ? std::log(c.known.high / c.known.low) / 2 : c.known.spread);
    return out;
}

namespace {

// The lines of a text; each ends where the next begins.
std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> out;
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = std::min(text.find('\n', begin), text.size());
        out.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return out;
}

// Puts a number, as it is to be written, in the place of the one that begins at the node's source.
void replace_number(std::vector<std::string>& lines, const toml::node& node, const std::string& number) {
    const toml::source_region& at = node.source();
    std::string& line = lines[at.begin.line - 1];
    const size_t begin = at.begin.column - 1, end = std::min(line.find_first_not_of("0123456789.eE+-_", begin), line.size());
    line.replace(begin, end - begin, number);
}

std::string four_digits(double value) { return fmt::format("{:#.4g}", value); }

}  // namespace

std::string with_constants(const std::string& text, const std::string& path, const std::vector<FittedConstant>& constants) {
    toml::table tables = parse_toml(text);
    std::vector<std::string> lines = lines_of(text);
    std::map<int64_t, std::string> behind;  // the line behind which text comes
    for (const FittedConstant& c : constants) {
        if (c.file != path) continue;
        replace_number(lines, *find_number(tables, c.known.key), four_digits(c.value));
        for (toml::node& item : *tables["constants"].as_array()) {
            const toml::table& known = *item.as_table();
            if (known["key"].value_or(std::string()) != c.known.key) continue;
            for (const auto& [key, value] : {std::pair{"low", c.known.low}, {"high", c.known.high}}) {
                if (const toml::node* old = known.get(key)) replace_number(lines, *old, four_digits(value));
                else behind[known.get("spread")->source().begin.line] += fmt::format("\n{} = {}", key, four_digits(value));
            }
            const std::string runs = fmt::format("runs = {}", c.known.runs);
            if (const toml::node* old = known.get("runs")) lines[old->source().begin.line - 1] = runs;
            else behind[known.get("spread")->source().begin.line] += "\n" + runs;
        }
    }
    std::string out;
    for (size_t i = 0; i < lines.size(); ++i) out += lines[i] + behind[static_cast<int64_t>(i) + 1] + "\n";
    return out;
}

std::string with_runs(const std::string& text, const sim::Part& part) {
    const toml::table tables = parse_toml(text);
    std::vector<std::string> lines = lines_of(text);
    if (const toml::table* runs = tables["runs"].as_table()) {
        replace_number(lines, *runs->get("count"), fmt::to_string(part.runs));
        replace_number(lines, *runs->get("sources"), fmt::to_string(part.sources));
    } else if (part.runs > 0) {
        lines.push_back(
            fmt::format("\n# Of data/published_runs.csv, as `lockstep calibrate --write` counted them.\n[runs]\ncount = "
                        "{}\nsources = {}",
                        part.runs, part.sources));
    }
    return fmt::format("{}\n", fmt::join(lines, "\n"));
}

}  // namespace lockstep::calibration
