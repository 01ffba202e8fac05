#include "data/data_sets.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/text_file.h"

namespace lockstep::data {

namespace fs = std::filesystem;

bool is_same_tokenizer(const fs::path& a, const fs::path& b) {
    const TextFile first = read_text_file(a, Pipes::Refused), second = read_text_file(b, Pipes::Refused);
    if (!first.is_readable() || !second.is_readable()) return false;
    const auto parsed = [](const std::string& text) { return json_or_discarded<nlohmann::json>(text); };
    const nlohmann::json json = parsed(first.text);
    return first.text == second.text || (!json.is_discarded() && json == parsed(second.text));
}

void require_same_tokenizer(const PreparedData& a, const PreparedData& b) {
    const auto refuse = [&](const std::string& what) {
        throw UserError("data.other_tokenizer", b.folder.string(),
                        fmt::format("{} and {} are tokens of two tokenizers: {}. Prepare both with one tokenizer (`lockstep data "
                                    "prepare --tokenizer`)",
                                    a.folder.string(), b.folder.string(), what));
    };
    const Manifest &x = a.manifest, &y = b.manifest;
    if (x.vocab_size != y.vocab_size) refuse(fmt::format("their vocabularies have {} and {} tokens", x.vocab_size, y.vocab_size));
    if (x.separator != y.separator)
        refuse(fmt::format("their documents end with token {} and token {}", x.separator, y.separator));
    if (x.begin != y.begin) {
        const auto named = [](int32_t begin) { return begin < 0 ? "none" : std::to_string(begin); };
        refuse(fmt::format("their documents begin with token {} and token {}", named(x.begin), named(y.begin)));
    }
    const bool known = !x.tokenizer_xxh3.empty() && !y.tokenizer_xxh3.empty();
    if (known && x.tokenizer_xxh3 != y.tokenizer_xxh3 && !is_same_tokenizer(a.folder / kTokenizerFile, b.folder / kTokenizerFile))
        refuse(fmt::format("the files {} differ", kTokenizerFile));
}

std::vector<DataSet> open_data_sets(const std::vector<std::string>& folders) {
    std::map<std::string, int> count;
    const auto name_of = [](const std::string& folder) {
        const fs::path path = fs::absolute(folder).lexically_normal();
        return (path.has_filename() ? path : path.parent_path()).filename().string();
    };
    for (const std::string& folder : folders) ++count[name_of(folder)];
    std::set<fs::path> seen;
    std::vector<DataSet> sets;
    for (const std::string& folder : folders) {
        PreparedData prepared = PreparedData::open(folder);
        if (!seen.insert(fs::canonical(folder)).second)
            throw UserError("data.repeated", folder,
                            fmt::format("{} is named twice: name it once, with the sum of its weights", folder));
        if (!sets.empty()) require_same_tokenizer(sets.front().prepared, prepared);
        const std::string name = name_of(folder);
        sets.push_back({count[name] == 1 ? name : folder, std::move(prepared)});
    }
    return sets;
}

}  // namespace lockstep::data
