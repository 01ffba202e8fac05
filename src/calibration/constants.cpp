#include "calibration/constants.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace lockstep::calibration {
namespace {

bool is_called(const toml::table& table, const std::string& name) {
    if (const auto ranks = table["ranks"].value<int64_t>()) return fmt::format("{}", *ranks) == name;
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

}  // namespace

toml::node* find_number(toml::table& tables, const std::string& key) {
    toml::table* table = table_of(tables, key);
    toml::node* node = table ? table->get(last_name(key)) : nullptr;
    return node && node->is_number() ? node : nullptr;
}

std::string Constants::key_of(const PreparedRun& run) {
    std::string key;
    for (const sim::Source& s : run.sources) key += s.path + "\n";
    return key;
}

Constants::Constants(const std::vector<PreparedRun>& runs) {
    std::map<std::pair<std::string, std::string>, int> number;
    for (const PreparedRun& run : runs) {
        const auto [at, is_new] = of_files_.try_emplace(key_of(run));
        if (!is_new) continue;
        std::map<std::string, int> last;  // of a key: a later file comes on top of an earlier one
        for (const sim::Source& source : run.sources) {
            toml::table tables = source.tables;
            for (const sim::Constant& known : sim::constants_of(source)) {
                const toml::node* node = find_number(tables, known.key);
                if (!node)
                    throw UserError(
                        "cluster.constant", known.key,
                        fmt::format("{}: [[constants]] names {}, which this file does not set", source.path, known.key));
                const auto [found, added] = number.try_emplace({source.path, known.key}, static_cast<int>(all_.size()));
                if (added) all_.push_back({source.path, known, node->value<double>().value()});
                last[known.key] = found->second;
            }
            // What a later file sets by itself hides an earlier file's constant.
            std::erase_if(last, [&](const auto& c) {
                return all_[static_cast<size_t>(c.second)].file != source.path && find_number(tables, c.first);
            });
        }
        for (const auto& [key, i] : last) at->second.push_back(i);
    }
}

sim::Cluster Constants::cluster(const PreparedRun& run, const std::vector<double>& values) const {
    std::vector<sim::Source> sources = run.sources;
    for (const int i : of(run)) {
        const FittedConstant& c = all_[static_cast<size_t>(i)];
        for (sim::Source& s : sources) {
            if (s.path != c.file) continue;
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

}  // namespace lockstep::calibration
