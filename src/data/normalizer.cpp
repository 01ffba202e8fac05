#include "data/normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "data/unicode.h"

namespace lockstep::data {
namespace {

using StepKind = NormalizerStep::Kind;

constexpr bool is_surrogate(uint32_t code_point) { return code_point >= 0xD800 && code_point <= 0xDFFF; }

int options_of(StepKind form) {
    const int composes = form == StepKind::nfc || form == StepKind::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    const int compatible = form == StepKind::nfkc || form == StepKind::nfkd ? UTF8PROC_COMPAT : 0;
    return UTF8PROC_STABLE | composes | compatible;
}

// ---- the four forms of Unicode

// What a text must be for a form to leave it as it is: no character changes or may compose with one before it, and within a run
// of marks their combining classes do not fall ("quick check" of Unicode's annex 15).
class Form {
public:
    explicit Form(StepKind kind) : options_(options_of(kind)), marks_(kCodePoints) {
        const bool composes = (options_ & UTF8PROC_COMPOSE) != 0;
        std::vector<uint32_t> composing;
        for (uint32_t c = 0; c < kCodePoints; ++c) {
            if (is_surrogate(c)) continue;
            const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
            marks_[c] = static_cast<uint8_t>(property->combining_class);
            if (property->category == UTF8PROC_CATEGORY_CN) continue;
            if (normalized(c, options_) != CodePoints{static_cast<utf8proc_int32_t>(c)}) marks_[c] = kChanges;
            if (!composes) continue;
            const CodePoints parts = normalized(c, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE);
            composing.insert(composing.end(), parts.begin() + 1, parts.end());
        }
        for (const uint32_t c : composing) marks_[c] = kChanges;
    }

    // Does the form leave a character as it is, whatever comes before it?
    bool is_boundary(uint32_t code_point) const { return marks_[code_point] == 0; }

    // Where in text[from, size), valid UTF-8, the first character is that may change; text.size() if there is none.
    size_t first_doubt(std::string_view text, size_t from) const {
        uint8_t before = 0;
        for (size_t at = from; at < text.size();) {
            if (static_cast<uint8_t>(text[at]) < 0x80) {
                before = 0;
                ++at;
                continue;
            }
            const Character c = first_valid_character(text.data() + at);
            const uint8_t mark = marks_[c.code_point];
            if (mark == kChanges || (mark != 0 && mark < before)) return at;
            before = mark;
            at += c.bytes;
        }
        return text.size();
    }

    // Appends the form of `text`, which is valid UTF-8.
    void append(std::string_view text, std::string& out) const {
        utf8proc_uint8_t* result = nullptr;
        const utf8proc_ssize_t length =
            utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                         &result, static_cast<utf8proc_option_t>(options_));
        const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(result, std::free);
        ensure(length >= 0, "Normalizer: utf8proc failed");
        out.append(reinterpret_cast<const char*>(result), static_cast<size_t>(length));
    }

private:
    static constexpr uint8_t kChanges = 255;  // no combining class is so high

    using CodePoints = std::vector<utf8proc_int32_t>;

    static CodePoints normalized(uint32_t code_point, int options) {
        CodePoints out(32);
        const auto decompose = static_cast<utf8proc_option_t>((options & ~UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE);
        int boundary = 0;
        utf8proc_ssize_t length = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), out.data(),
                                                          static_cast<utf8proc_ssize_t>(out.size()), decompose, &boundary);
        ensure(length > 0 && length <= static_cast<utf8proc_ssize_t>(out.size()), "Normalizer: a decomposition is too long");
        if (length > 1) length = utf8proc_normalize_utf32(out.data(), length, static_cast<utf8proc_option_t>(options));
        out.resize(static_cast<size_t>(length));
        return out;
    }

    int options_;
    std::vector<uint8_t> marks_;  // of each code point: its combining class, or kChanges
};

const Form& form_of(StepKind kind) {
    static std::array<std::once_flag, 4> made;
    static std::array<std::unique_ptr<const Form>, 4> forms;
    const auto at = static_cast<size_t>(kind);  // the forms are the first kinds
    std::call_once(made[at], [&] { forms[at] = std::make_unique<const Form>(kind); });
    return *forms[at];
}

// Calls valid(run) and invalid(byte) for the runs of valid UTF-8 in `text` and the bytes between them.
template <class Valid, class Invalid>
void for_each_run(std::string_view text, const Valid& valid, const Invalid& invalid) {
    while (!text.empty()) {
        const size_t length = valid_utf8_prefix_bytes(text);
        if (length > 0) valid(text.substr(0, length));
        if (length < text.size()) invalid(text[length]);
        text.remove_prefix(std::min(text.size(), length + 1));
    }
}

// Only the stretches around doubtful characters go through utf8proc.
void append_form(const Form& form, std::string_view text, std::string& out) {
    size_t done = 0;
    while (done < text.size()) {
        size_t doubt = form.first_doubt(text, done);
        if (doubt == text.size()) break;
        size_t begin = doubt;  // back to the last character that nothing before it can change
        while (begin > done) {
            const Character c = last_character(text.substr(done, begin - done));
            begin -= c.bytes;
            if (form.is_boundary(c.code_point)) break;
        }
        size_t end = doubt;
        do {
            end += first_valid_character(text.data() + end).bytes;
        } while (end < text.size() && !form.is_boundary(first_valid_character(text.data() + end).code_point));
        out += text.substr(done, begin - done);
        form.append(text.substr(begin, end - begin), out);
        done = end;
    }
    out += text.substr(done);
}

bool changes_nothing(const Form& form, std::string_view text) {
    while (!text.empty()) {
        const size_t length = valid_utf8_prefix_bytes(text);
        if (form.first_doubt(text.substr(0, length), 0) < length) return false;
        text.remove_prefix(std::min(text.size(), length + 1));
    }
    return true;
}

// ---- the others

template <class OfCharacter>  // void(uint32_t code_point, std::string& out)
std::string map_characters(std::string_view text, const OfCharacter& f) {
    std::string out;
    for_each_run(
        text,
        [&](std::string_view run) {
            for (size_t at = 0; at < run.size();) {
                const Character c = first_valid_character(run.data() + at);
                f(c.code_point, out);
                at += c.bytes;
            }
        },
        [&](char byte) { out += byte; });
    return out;
}

void append_lowercase(uint32_t code_point, std::string& out) {
    if (code_point == 0x130) {  // the only letter whose lower case is two characters, whatever the language
        out += "i\u0307";
        return;
    }
    append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code_point))));
}

bool is_mark(uint32_t c) {
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ME;
}

std::string_view stripped(std::string_view text, bool left, bool right) {
    while (left) {
        const Character c = first_character(text);
        if (c.bytes == 0 || !is_white_space(c.code_point)) break;
        text.remove_prefix(c.bytes);
    }
    while (right) {
        const Character c = last_character(text);
        if (c.bytes == 0 || !is_white_space(c.code_point)) break;
        text.remove_suffix(c.bytes);
    }
    return text;
}

std::string replaced(std::string_view text, const std::string& what, const std::string& replacement) {
    std::string out;
    out.reserve(text.size() + text.size() / 4);
    size_t done = 0;
    for (size_t found = text.find(what); found != std::string_view::npos; found = text.find(what, done)) {
        out += text.substr(done, found - done);
        out += replacement;
        done = found + what.size();
    }
    out += text.substr(done);
    return out;
}

std::string replaced(std::string_view text, const PreSplitPattern& pattern, const std::string& replacement) {
    std::string out;
    PreSplitter splitter(pattern);
    splitter.start(text);
    for (std::string_view piece = splitter.next(); !piece.empty(); piece = splitter.next())
        out += splitter.is_match() ? std::string_view(replacement) : piece;
    return out;
}

// The text after one step; false where the step leaves it as it is.
bool apply_step(const NormalizerStep& step, std::string_view text, bool continues, std::string& out) {
    switch (step.kind) {
        case StepKind::nfc:
        case StepKind::nfd:
        case StepKind::nfkc:
        case StepKind::nfkd: {
            const Form& form = form_of(step.kind);
            if (changes_nothing(form, text)) return false;
            for_each_run(
                text, [&](std::string_view run) { append_form(form, run, out); }, [&](char byte) { out += byte; });
            return true;
        }
        case StepKind::lowercase: out = map_characters(text, append_lowercase); return true;
        case StepKind::strip_accents:
            out = map_characters(text, [](uint32_t c, std::string& to) {
                if (!is_mark(c)) append_utf8(to, c);
            });
            return true;
        case StepKind::strip: out = stripped(text, step.left, step.right); return true;
        case StepKind::prepend:
            if (text.empty() || continues) return false;
            out = step.text;
            out += text;
            return true;
        case StepKind::replace:
            if (step.pattern) {
                out = replaced(text, *step.pattern, step.replacement);
                return true;
            }
            if (step.text.empty() || text.find(step.text) == std::string_view::npos) return false;
            out = replaced(text, step.text, step.replacement);
            return true;
    }
    return false;
}

}  // namespace

std::string_view Normalizer::apply(std::string_view text, bool continues, std::string& buffer) const {
    for (const NormalizerStep& step : steps_) {
        std::string out;
        if (!apply_step(step, text, continues, out)) continue;
        buffer = std::move(out);
        text = buffer;
    }
    return text;
}

bool Normalizer::is_local() const {
    return std::all_of(steps_.begin(), steps_.end(), [](const NormalizerStep& step) {
        if (step.kind == StepKind::strip) return false;
        return step.kind != StepKind::replace || (!step.pattern && step.text == " ");
    });
}

}  // namespace lockstep::data
