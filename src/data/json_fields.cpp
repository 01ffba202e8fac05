#include "data/json_fields.h"

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::data {

void JsonFields::malformed(const std::string& what) const {
    throw UserError("data.tokenizer_malformed", origin_,
                    fmt::format("{} is not a usable tokenizer.json: {}. Export it again with Hugging Face tokenizers or "
                                "train one with `data prepare`.",
                                origin_, what));
}

void JsonFields::unsupported(const std::string& what) const {
    throw UserError("data.tokenizer_unsupported", origin_,
                    fmt::format("{} needs {}, which is not built in: its tokens would not be those of Hugging Face tokenizers. "
                                "Use a BPE tokenizer without it.",
                                origin_, what));
}

const JsonFields::Json* JsonFields::find(const Json& object, const char* name) const {
    if (!object.is_object()) malformed(fmt::format("what holds '{}' is not an object", name));
    const auto found = object.find(name);
    return found == object.end() || found->is_null() ? nullptr : &*found;
}

const JsonFields::Json& JsonFields::at(const Json& object, const char* name) const {
    const Json* found = find(object, name);
    if (found == nullptr) malformed(fmt::format("it has no '{}' where one is needed", name));
    return *found;
}

const JsonFields::Json& JsonFields::array(const Json& object, const char* name) const {
    const Json& found = at(object, name);
    if (!found.is_array()) malformed(fmt::format("'{}' is not a list", name));
    return found;
}

const std::string& JsonFields::text(const Json& object, const char* name) const {
    const Json& found = at(object, name);
    if (!found.is_string()) malformed(fmt::format("'{}' is not a text", name));
    return found.get_ref<const std::string&>();
}

int64_t JsonFields::integer(const Json& object, const char* name) const {
    const Json& found = at(object, name);
    if (!found.is_number_integer()) malformed(fmt::format("'{}' is not a whole number", name));
    return found.get<int64_t>();
}

std::string JsonFields::text_or(const Json& object, const char* name, const std::string& otherwise) const {
    return find(object, name) == nullptr ? otherwise : text(object, name);
}

bool JsonFields::flag_or(const Json& object, const char* name, bool otherwise) const {
    const Json* found = find(object, name);
    if (found == nullptr) return otherwise;
    if (!found->is_boolean()) malformed(fmt::format("'{}' is neither true nor false", name));
    return found->get<bool>();
}

}  // namespace lockstep::data
