// The table of recipe keys, from the rows of its sections.
#include <algorithm>

#include "compile/key_field.h"
#include "compile/recipe.h"

namespace lockstep::compile {
namespace {

Value default_value(const KeyRow& row, const Config& defaults) {
    struct Visitor {
        const Config& defaults;
        Value operator()(bool v) const { return v; }
        Value operator()(int64_t v) const { return v; }
        Value operator()(const char* v) const { return std::string(v); }
        Value operator()(Value (*of)(const Config&)) const { return of(defaults); }
    };
    return std::visit(Visitor{defaults}, row.default_value);
}

// The default of a key that acts is its field's.
Value (*field_of(const KeyRow& row))(const Config&) {
    const auto* field = std::get_if<Value (*)(const Config&)>(&row.default_value);
    return row.put && field ? *field : nullptr;
}

}  // namespace

bool is_count(const std::string& text) {
    return !text.empty() && text.size() < 10 && text.find_first_not_of("0123456789") == std::string::npos && std::stoll(text) > 0;
}

std::optional<double> seconds_of(const std::string& text) {
    double seconds = 0;
    int fields = 0;
    for (size_t begin = 0; begin <= text.size(); ++fields) {
        const size_t end = std::min(text.find(':', begin), text.size());
        const std::string field = text.substr(begin, end - begin);
        if (field.empty() || field.size() > 9 || field.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
        const double value = std::stod(field);
        if (fields > 0 && value >= 60) return std::nullopt;
        seconds = seconds * 60 + value;
        begin = end + 1;
    }
    return fields == 1 || fields == 3 ? std::optional(seconds) : std::nullopt;
}

const std::vector<RecipeKey>& recipe_keys() {
    static const std::vector<RecipeKey> keys = [] {
        const Config defaults;
        std::vector<RecipeKey> out;
        for (const std::span<const KeyRow> rows : {keys_of_training(), keys_of_layout(), keys_of_runs()}) {
            for (const KeyRow& row : rows)
                out.push_back({row.name, default_value(row, defaults), row.status, row.help, row.allowed, row.put, field_of(row),
                               row.tried});
        }
        return out;
    }();
    return keys;
}

std::vector<Value> tried_values(const RecipeKey& key, const Value& value) {
    if (key.tried.what == Tried::What::None) return {};
    if (key.tried.what == Tried::What::Others) {
        if (const bool* on = std::get_if<bool>(&value)) return {!*on};
        std::vector<Value> out;
        for (std::string& word : key.allowed.words()) {
            if (word != std::get<std::string>(value)) out.emplace_back(std::move(word));
        }
        return out;
    }
    const int64_t* integer = std::get_if<int64_t>(&value);
    const double now = integer ? static_cast<double>(*integer) : std::get<double>(value);
    const double other = key.tried.what == Tried::What::Twice ? 2 * now : key.tried.value;
    if (other == now || !key.allowed.objection(other).empty()) return {};
    if (integer) return {static_cast<int64_t>(other)};
    return {other};
}

std::string default_difference(std::string_view key) {
    constexpr std::pair<const char*, const char*> differences[] = {
        {"model.hf_assets_path", "\"./tests/assets/tokenizer\", a folder of torchtitan's own"},
        {"training.dataset", "\"c4_test\"; here text is prepared by `lockstep data prepare`, and nothing is downloaded"},
        {"validation.dataset", "\"c4_validation\"; here the held-out split of the training data"},
        {"validation.local_batch_size", "8; here a validation has the batches of training"},
        {"validation.seq_len", "2048; here a validation has the sequences of training"},
        {"checkpoint.last_save_model_only",
         "true; here a run can go on from its last checkpoint, unless its file is torchtitan's"},
        {"fault_tolerance.replica_id", "0; here all islands are in one job until `lockstep launch` numbers them"},
        {"debug.seed", "None, which draws a seed; here a run is the same each time"},
    };
    for (const auto& [name, why] : differences) {
        if (name == key) return why;
    }
    return "";
}

}  // namespace lockstep::compile
