// Checked access to the fields of a tokenizer.json: what is missing or of the wrong type is a UserError that names it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::data {

class JsonFields {
public:
    using Json = nlohmann::json;

    // `origin` names the file in errors and outlives this.
    explicit JsonFields(const std::string& origin) : origin_(origin) {}
    const std::string& origin() const { return origin_; }

    [[noreturn]] void malformed(const std::string& what) const;    // UserError data.tokenizer_malformed
    [[noreturn]] void unsupported(const std::string& what) const;  // UserError data.tokenizer_unsupported

    // A field that must be there, of any type but null.
    const Json& at(const Json& object, const char* name) const;
    const Json& array(const Json& object, const char* name) const;
    const std::string& text(const Json& object, const char* name) const;
    int64_t integer(const Json& object, const char* name) const;

    // A field that may be absent or null. find(): nullptr then.
    const Json* find(const Json& object, const char* name) const;
    std::string text_or(const Json& object, const char* name, const std::string& otherwise) const;
    bool flag_or(const Json& object, const char* name, bool otherwise) const;

private:
    const std::string& origin_;
};

}  // namespace lockstep::data
