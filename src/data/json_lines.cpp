#include "data/json_lines.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostFieldsNamed = 12;

// Follows the path through nested objects while the parser goes by; nothing but the field's text is kept.
class Finder : public nlohmann::json_sax<Json> {
public:
    explicit Finder(const FieldPath& field) : names_(field.names()) {}

    JsonLine take() && {
        if (found_.kind == JsonLine::Kind::absent) found_.detail = std::move(fields_);
        return std::move(found_);
    }

    bool null() override { return value(JsonLine::Kind::null, "null"); }
    bool boolean(bool) override { return value(JsonLine::Kind::wrong_type, "true or false"); }
    bool number_integer(number_integer_t) override { return value(JsonLine::Kind::wrong_type, "a number"); }
    bool number_unsigned(number_unsigned_t) override { return value(JsonLine::Kind::wrong_type, "a number"); }
    bool number_float(number_float_t, const string_t&) override { return value(JsonLine::Kind::wrong_type, "a number"); }
    bool binary(binary_t&) override { return value(JsonLine::Kind::wrong_type, "binary"); }
    bool string(string_t& text) override {
        if (is_field()) found_.text = std::move(text);
        return value(JsonLine::Kind::text, "a string");
    }
    bool start_object(size_t) override {
        if (open_.empty()) found_.kind = JsonLine::Kind::absent;
        if (is_field()) found_ = {JsonLine::Kind::wrong_type, "", "an object"};
        open_.push_back(next_is_on_path_ && !is_field());
        next_is_on_path_ = false;
        return true;
    }
    bool key(string_t& name) override {
        if (open_.back()) note(name);
        next_is_on_path_ = open_.back() && name == names_[open_.size() - 1];
        return true;
    }
    bool end_object() override { return end(); }
    bool start_array(size_t) override {
        value(JsonLine::Kind::wrong_type, "a list");
        open_.push_back(false);
        return true;
    }
    bool end_array() override { return end(); }
    bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception&) override {
        found_ = {JsonLine::Kind::not_json, "", fmt::format("byte {} is not JSON", at)};
        return false;
    }

private:
    bool is_field() const { return next_is_on_path_ && open_.size() == names_.size(); }
    bool value(JsonLine::Kind kind, const char* what) {
        if (open_.empty()) found_ = {JsonLine::Kind::no_object, "", what};
        if (is_field()) {
            found_.kind = kind;
            found_.detail = what;
        }
        next_is_on_path_ = false;
        return true;
    }
    bool end() {
        open_.pop_back();
        next_is_on_path_ = false;
        return true;
    }
    void note(const std::string& name) {
        if (++fields_seen_ > kMostFieldsNamed) {
            if (fields_seen_ == kMostFieldsNamed + 1) fields_ += ", ...";
            return;
        }
        if (!fields_.empty()) fields_ += ", ";
        for (size_t i = 0; i + 1 < open_.size(); ++i) fields_ += names_[i] + ".";
        fields_ += name;
    }

    const std::vector<std::string>& names_;
    JsonLine found_{JsonLine::Kind::no_object, "", "nothing"};
    std::string fields_;
    size_t fields_seen_ = 0;
    std::vector<bool> open_;       // the objects and lists that are open: is it one that the path leads through?
    bool next_is_on_path_ = true;  // the value that comes is the one that as many names lead to as containers are open
};

}  // namespace

FieldPath::FieldPath(const std::string& path) : text_(path) {
    for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
        end = path.find('.', begin);
        names_.push_back(path.substr(begin, end == std::string::npos ? end : end - begin));
        if (!names_.back().empty()) continue;
        throw UserError("data.field", "--field",
                        fmt::format("--field \"{}\" names no field: give the name of a field that holds text, such as text, or "
                                    "a.b for the field b of the object a.",
                                    path));
    }
}

JsonLine parse_json_line(std::string_view line, const FieldPath& field) {
    Finder finder(field);
    Json::sax_parse(line, &finder);
    return std::move(finder).take();
}

}  // namespace lockstep::data
