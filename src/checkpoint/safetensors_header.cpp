#include "checkpoint/safetensors_header.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace lockstep::checkpoint {

void refuse_header(const std::string& path, const std::string& what) {
    throw UserError(
        "checkpoint.bad_header", path,
        fmt::format("{} is not a valid safetensors file: {}. Take another copy or an earlier checkpoint.", path, what));
}

std::optional<int64_t> elements_of(const std::vector<int64_t>& shape, int64_t element_bytes) {
    int64_t elements = 1, bytes = 0;
    for (int64_t extent : shape) {
        if (extent < 0 || __builtin_mul_overflow(elements, extent, &elements)) return std::nullopt;
    }
    if (__builtin_mul_overflow(elements, element_bytes, &bytes)) return std::nullopt;
    return elements;
}

namespace {

using HeaderJson = nlohmann::json;

// Takes the parser's events. Open brackets at an event: 1 in the header's object, 2 in a tensor's or that of __metadata__, 3 in
// a list of sizes. What does not belong there ends the parse at once, however much follows.
class HeaderEvents final : public nlohmann::json_sax<HeaderJson> {
public:
    HeaderEvents(const std::string& path, SafetensorsHeader& header) : path_(path), header_(header) {}

    bool null() override { return other("null"); }
    bool boolean(bool value) override { return other(value ? "true" : "false"); }
    bool number_integer(int64_t value) override { return other(std::to_string(value)); }  // a negative one
    bool number_unsigned(uint64_t value) override {
        if (open_ != 3 || value > static_cast<uint64_t>(INT64_MAX)) return other(std::to_string(value));
        list().push_back(static_cast<int64_t>(value));
        return true;
    }
    bool number_float(double, const std::string& text) override { return other(text); }
    bool binary(HeaderJson::binary_t&) override { return other("bytes"); }
    bool string(std::string& text) override {
        if (open_ != 2 || !(of_metadata_ || field_ == kDtype)) return other(json_text(HeaderJson(text)));
        if (of_metadata_) header_.metadata[metadata_key_] = text;
        else entry_.spec.dtype = text;
        return true;
    }
    bool start_object(size_t) override {
        if (open_ >= 2) return open_ == 3 ? other("{..}") : other("an object");
        ++open_;
        return true;
    }
    bool start_array(size_t) override {
        if (open_ != 2 || of_metadata_ || field_ == kDtype) return other("a list");
        ++open_;
        return true;
    }
    bool end_array() override { return close(); }
    bool end_object() override {
        if (open_ == 2 && !of_metadata_) finish_tensor();
        return close();
    }
    bool key(std::string& text) override {
        if (open_ == 1) {
            of_metadata_ = text == "__metadata__";
            if (of_metadata_ && std::exchange(has_metadata_, true)) twice(text);
            entry_ = {};
            entry_.spec.name = of_metadata_ ? "" : text;
            seen_ = {}, offsets_.clear();
        } else if (of_metadata_) {
            if (header_.metadata.contains(text)) twice(text);
            metadata_key_ = text;
        } else {
            field_ = 0;
            while (field_ < kFields.size() && kFields[field_] != text) ++field_;
            if (field_ == kFields.size()) incomplete();
            if (std::exchange(seen_[field_], true)) twice(text);
        }
        return true;
    }
    bool parse_error(size_t, const std::string&, const HeaderJson::exception& error) override {
        refuse_header(path_, fmt::format("its header is no JSON ({})", json_reason(error)));
    }

private:
    enum : size_t { kDtype, kShape, kOffsets };
    static constexpr std::array<std::string_view, 3> kFields = {"dtype", "shape", "data_offsets"};

    bool close() {
        --open_;
        return true;
    }
    std::vector<int64_t>& list() { return field_ == kShape ? entry_.spec.shape : offsets_; }

    // A value where another kind belongs.
    bool other(const std::string& value) const {
        const std::string& name = entry_.spec.name;
        if (open_ == 1 && of_metadata_) refuse_header(path_, "__metadata__ is no object");
        if (open_ == 2 && of_metadata_) refuse_header(path_, fmt::format("__metadata__ \"{}\" is no string", metadata_key_));
        if (open_ == 1 || field_ == kDtype) incomplete();
        if (open_ == 2) refuse_header(path_, fmt::format("tensor \"{}\": {} is no list", name, kFields[field_]));
        refuse_header(path_, fmt::format("tensor \"{}\": {} holds {}, no size", name, kFields[field_], value));
    }
    [[noreturn]] void twice(const std::string& key) const {
        refuse_header(path_, fmt::format("\"{}\" is twice in its header", key));
    }
    [[noreturn]] void incomplete() const {
        refuse_header(path_, fmt::format("tensor \"{}\" is not described by dtype, shape and data_offsets", entry_.spec.name));
    }

    void finish_tensor() {
        for (const bool seen : seen_) {
            if (!seen) incomplete();
        }
        const TensorSpec& spec = entry_.spec;
        const int64_t element_bytes = dtype_bytes(spec.dtype);
        if (element_bytes == 0) {
            throw UserError("checkpoint.unknown_dtype", path_,
                            fmt::format("{}: tensor \"{}\" has dtype \"{}\", which is not supported. Convert it to one of BOOL, "
                                        "U8 to U64, I8 to I64, F8_E4M3, F8_E5M2, F8_E8M0, F16, BF16, F32, F64.",
                                        path_, spec.name, spec.dtype));
        }
        if (offsets_.size() != 2 || offsets_[0] > offsets_[1])
            refuse_header(path_, fmt::format("tensor \"{}\": data_offsets are no begin and end", spec.name));
        entry_.begin_bytes = offsets_[0];
        entry_.bytes = offsets_[1] - offsets_[0];
        const auto elements = elements_of(spec.shape, element_bytes);
        if (!elements || *elements * element_bytes != entry_.bytes) {
            throw UserError(
                "checkpoint.bad_shape", path_,
                fmt::format("{}: tensor \"{}\" is {} [{}] but has {} bytes in the file. Take another copy or an earlier "
                            "checkpoint.",
                            path_, spec.name, spec.dtype, fmt::join(spec.shape, ", "), entry_.bytes));
        }
        entry_.elements = *elements;
        header_.tensors.push_back(std::move(entry_));
    }

    const std::string& path_;
    SafetensorsHeader& header_;
    int open_ = 0;  // brackets
    bool of_metadata_ = false, has_metadata_ = false;
    std::string metadata_key_;
    TensorEntry entry_;  // of the tensor at hand
    size_t field_ = 0;   // of it
    std::array<bool, 3> seen_{};
    std::vector<int64_t> offsets_;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view text) {
    SafetensorsHeader header;
    HeaderEvents events(path, header);
    HeaderJson::sax_parse(text, &events);
    return header;
}

}  // namespace lockstep::checkpoint
