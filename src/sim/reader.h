// Reads the tables of a cluster file. What it does not know by name, what has another type and what is out of its range is
// refused with its line. UserError cluster.*.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "base/allowed.h"
#include "base/error.h"
#include "base/nearest.h"
#include "base/toml.h"

namespace lockstep::sim {

class Reader {
public:
    Reader(const toml::table& table, std::string where, std::string origin)
        : table_(table), where_(std::move(where)), origin_(std::move(origin)) {}

    template <class T>
    void take(const char* key, T& value) {
        const toml::node* node = find(key);
        if (!node) return;
        if (const auto got = node->value<T>()) value = *got;
        else wrong(key, *node);
    }
    template <class T>
    void take(const char* key, T& value, const Allowed& allowed) {
        const toml::node* node = find(key);
        if (!node) return;
        const auto got = node->value<std::conditional_t<std::is_integral_v<T>, int64_t, T>>();
        if (!got) wrong(key, *node);
        require(key, *node, static_cast<double>(*got), allowed);
        value = static_cast<T>(*got);
    }
    void take(const char* key, std::vector<double>& values, const Allowed& allowed) {
        const toml::node* node = find(key);
        if (!node) return;
        const toml::array* list = node->as_array();
        if (!list || list->empty())
            throw UserError("cluster.value", where_ + key,
                            fmt::format("{}, line {}: {}{} must be a list of numbers, as in {} = [1e12]", origin_,
                                        node->source().begin.line, where_, key, key));
        std::vector<double> read;
        for (const toml::node& item : *list) {
            const auto got = item.value<double>();
            if (!got) wrong(key, item);
            require(key, item, *got, allowed);
            read.push_back(*got);
        }
        values = std::move(read);
    }
    void take(const char* key, std::string& word, const Allowed& allowed) {
        take(key, word);
        if (table_.get(key)) require(key, word, allowed);
    }
    // Words of a list, or one word.
    void take(const char* key, std::vector<std::string>& words, const Allowed& allowed) {
        const toml::node* node = find(key);
        if (!node) return;
        words.clear();
        const auto add = [&](const toml::node& item) {
            const auto word = item.value<std::string>();
            if (!word) wrong(key, item);
            require(key, *word, allowed);
            words.push_back(*word);
        };
        if (const toml::array* list = node->as_array()) {
            for (const toml::node& item : *list) add(item);
        } else {
            add(*node);
        }
        if (words.empty()) wrong(key, *node);
    }
    const toml::table* table(const char* key) {
        const toml::node* node = find(key);
        if (node && !node->is_table()) wrong(key, *node);
        return node ? node->as_table() : nullptr;
    }
    const toml::array* array(const char* key) {
        const toml::node* node = find(key);
        if (node && !node->is_array()) wrong(key, *node);
        return node ? node->as_array() : nullptr;
    }
    void finish() const {
        for (const auto& [key, node] : table_) {
            const std::string name(key.str());
            if (!knows(name)) {
                throw UserError("cluster.unknown_key", where_ + name,
                                fmt::format("{}, line {}: a cluster file has no key {}{}; the nearest is {}{} (known here: {})",
                                            origin_, node.source().begin.line, where_, name, where_, nearest_key(name, known_),
                                            fmt::join(known_, ", ")));
            }
        }
    }
    // What precedes the names of its keys: "machine.".
    const std::string& where() const { return where_; }
    // The line of the table, or of one of its keys.
    int64_t line(const char* key = nullptr) const {
        const toml::node* node = key ? table_.get(key) : nullptr;
        return (node ? node->source() : table_.source()).begin.line;
    }
    // Of a value that is known to be wrong by more than its range.
    [[noreturn]] void refuse(const char* id, const char* key, const std::string& value, const std::string& objection) const {
        throw UserError(id, where_ + key,
                        fmt::format("{}, line {}: {}{} = {}: {}", origin_, line(key), where_, key, value, objection));
    }
    // Of a table without a key that it needs.
    [[noreturn]] void incomplete(const char* key, const std::string& what) const {
        throw UserError("cluster.incomplete", where_ + key, fmt::format("{}, line {}: {}", origin_, line(), what));
    }
    [[noreturn]] void wrong(const char* key, const toml::node& node) const {
        throw UserError(
            "cluster.value", where_ + key,
            fmt::format("{}, line {}: {}{} has a value of the wrong type", origin_, node.source().begin.line, where_, key));
    }

private:
    void require(const char* key, const std::string& word, const Allowed& allowed) const {
        if (const std::string objection = allowed.objection(word); !objection.empty())
            refuse("cluster.unknown_word", key, fmt::format("\"{}\"", word), objection);
    }
    void require(const char* key, const toml::node& node, double value, const Allowed& allowed) const {
        if (const std::string objection = allowed.objection(value); !objection.empty())
            throw UserError(
                "cluster.out_of_range", where_ + key,
                fmt::format("{}, line {}: {}{} = {}: {}", origin_, node.source().begin.line, where_, key, value, objection));
    }
    bool knows(std::string_view key) const { return std::find(known_.begin(), known_.end(), key) != known_.end(); }
    const toml::node* find(const char* key) {
        if (!knows(key)) known_.emplace_back(key);  // a table of several ops is read for each
        return table_.get(key);
    }
    const toml::table& table_;
    const std::string where_, origin_;
    std::vector<std::string> known_;
};

// Each table of an array.
inline void read_each(Reader& reader, const char* key, const std::string& origin, const auto& read) {
    const toml::array* list = reader.array(key);
    if (!list) return;
    for (const toml::node& item : *list) {
        if (!item.is_table()) reader.wrong(key, item);
        Reader row(*item.as_table(), reader.where() + key + ".", origin);
        read(row);
        row.finish();
    }
}

}  // namespace lockstep::sim
