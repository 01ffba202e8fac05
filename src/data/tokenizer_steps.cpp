#include "data/tokenizer_steps.h"

#include <fmt/format.h>

#include <array>

#include "base/function_ref.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::json;
using Behavior = SplitStep::Behavior;

constexpr int kDeepest = 16;  // sequences in sequences

// Calls f(step) for the steps of a Sequence, in order, or for the one step that is there. `list`: the Sequence's field.
void for_each_step(const JsonFields& fields, const Json& step, const char* list, FunctionRef<void(const Json&)> f,
                   int depth = 0) {
    if (depth > kDeepest) fields.malformed(fmt::format("its '{}' are nested too deeply", list));
    if (fields.text(step, "type") != "Sequence") return f(step);
    for (const Json& inner : fields.array(step, list)) for_each_step(fields, inner, list, f, depth + 1);
}

// An expression that matches `text` and nothing else.
std::string literally(const std::string& text) {
    std::string expression;
    for (const char c : text) {
        if (std::string_view(R"(\^$.|?*+()[]{}-#&)").find(c) != std::string_view::npos) expression += '\\';
        expression += c;
    }
    return expression;
}

// A pattern of Split or Replace: {"String": ..} or {"Regex": ..}.
PreSplitPattern pattern_of(const JsonFields& fields, const Json& step) {
    const Json& pattern = fields.at(step, "pattern");
    if (fields.find(pattern, "Regex") != nullptr) return PreSplitPattern(fields.text(pattern, "Regex"));
    return PreSplitPattern(literally(fields.text(pattern, "String")));
}

Behavior behavior_of(const JsonFields& fields, const std::string& name) {
    if (name == "Isolated") return Behavior::isolated;
    if (name == "Removed") return Behavior::removed;
    if (name == "Contiguous") return Behavior::contiguous;
    if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
    if (name == "MergedWithNext") return Behavior::merged_with_next;
    fields.malformed(fmt::format("'{}' is no behavior of a Split", name));
}

SplitStep split_by(const JsonFields& fields, PreSplitPattern pattern, Behavior behavior, bool invert) {
    if (pattern.can_match_nothing() && (behavior != Behavior::isolated || invert))
        fields.unsupported(fmt::format("a Split by '{}', which may match nothing, that is not 'Isolated'", pattern.expression()));
    return {std::move(pattern), behavior, invert};
}

// ---- normalizer

void add_normalizer(const JsonFields& fields, const Json& step, std::vector<NormalizerStep>& out) {
    using Kind = NormalizerStep::Kind;
    static constexpr std::array<std::pair<std::string_view, Kind>, 6> kPlain = {{{"NFC", Kind::nfc},
                                                                                 {"NFD", Kind::nfd},
                                                                                 {"NFKC", Kind::nfkc},
                                                                                 {"NFKD", Kind::nfkd},
                                                                                 {"Lowercase", Kind::lowercase},
                                                                                 {"StripAccents", Kind::strip_accents}}};
    const std::string& type = fields.text(step, "type");
    for (const auto& [name, kind] : kPlain)
        if (type == name) return out.push_back({kind});
    if (type == "Strip") {
        NormalizerStep strip{Kind::strip};
        strip.left = fields.flag_or(step, "strip_left", true);
        strip.right = fields.flag_or(step, "strip_right", true);
        out.push_back(strip);
    } else if (type == "Prepend") {
        out.push_back({Kind::prepend, fields.text(step, "prepend")});
    } else if (type == "Replace") {
        NormalizerStep replace{Kind::replace, "", fields.text_or(step, "content", "")};
        const Json& pattern = fields.at(step, "pattern");
        if (fields.find(pattern, "Regex") != nullptr) replace.pattern = pattern_of(fields, step);
        else replace.text = fields.text(pattern, "String");
        if (replace.pattern && replace.pattern->can_match_nothing())
            fields.unsupported(fmt::format("a Replace of '{}', which may match nothing", replace.pattern->expression()));
        out.push_back(std::move(replace));
    } else {
        fields.unsupported(fmt::format("the normalizer '{}'", type));
    }
}

// ---- pre-tokenizer

MetaspaceStep::Prepend prepend_of(const JsonFields& fields, const Json& step) {
    using Prepend = MetaspaceStep::Prepend;
    const bool adds = fields.flag_or(step, "add_prefix_space", true);  // the older key
    const std::string scheme = fields.text_or(step, "prepend_scheme", adds ? "always" : "never");
    if (scheme == "always") return Prepend::always;
    if (scheme == "first") return Prepend::first;
    if (scheme == "never") return Prepend::never;
    fields.malformed(fmt::format("'{}' is no prepend_scheme", scheme));
}

std::string mark_of(const JsonFields& fields, const Json& step) {
    const std::string mark = fields.text_or(step, "replacement", "\u2581");
    if (mark.empty() || first_character(mark).bytes != mark.size()) fields.malformed("'replacement' is not one character");
    return mark;
}

void add_pre_tokenizer(const JsonFields& fields, const Json& step, TokenizerParts& parts) {
    std::vector<PreTokenizerStep>& out = parts.pre_tokenizer;
    const std::string& type = fields.text(step, "type");
    const auto split = [&](std::string expression, Behavior behavior) {
        out.push_back(split_by(fields, PreSplitPattern(std::move(expression)), behavior, false));
    };
    if (parts.byte_level) fields.unsupported(fmt::format("the pre-tokenizer '{}' behind ByteLevel", type));
    if (type == "ByteLevel") {
        parts.byte_level = true;
        if (fields.flag_or(step, "add_prefix_space", true)) out.emplace_back(std::in_place_type<PrefixSpaceStep>);
        if (fields.flag_or(step, "use_regex", true)) split(std::string(kGpt2SplitPattern), Behavior::isolated);
    } else if (type == "Split") {
        out.push_back(split_by(fields, pattern_of(fields, step), behavior_of(fields, fields.text(step, "behavior")),
                               fields.flag_or(step, "invert", false)));
    } else if (type == "Digits") {
        split(R"(\p{N})", fields.flag_or(step, "individual_digits", false) ? Behavior::isolated : Behavior::contiguous);
    } else if (type == "Punctuation") {
        split(R"([\p{P}$+<=>^`|~])", behavior_of(fields, fields.text_or(step, "behavior", "Isolated")));
    } else if (type == "Whitespace") {
        // \w+|[^\w\s]+ of Rust's regular expressions, for which the joiners are word characters.
        out.push_back(
            split_by(fields, PreSplitPattern(R"([\w\x{200C}\x{200D}]+|[^\w\s\x{200C}\x{200D}]+)"), Behavior::removed, true));
    } else if (type == "WhitespaceSplit") {
        split(R"(\s)", Behavior::removed);
    } else if (type == "CharDelimiterSplit") {
        split(literally(fields.text(step, "delimiter")), Behavior::removed);
    } else if (type == "Metaspace") {
        out.push_back(MetaspaceStep{mark_of(fields, step), prepend_of(fields, step), fields.flag_or(step, "split", true)});
    } else {
        fields.unsupported(fmt::format("the pre-tokenizer '{}'", type));
    }
}

// ---- decoder

void read_decoder(const JsonFields& fields, const Json& root, TokenizerParts& parts) {
    using Start = DecoderParts::Start;
    const Json* decoder = fields.find(root, "decoder");
    if (decoder == nullptr) return;
    DecoderParts& out = parts.decoder;
    bool fused = false;
    for_each_step(fields, *decoder, "decoders", [&](const Json& step) {
        const std::string& type = fields.text(step, "type");
        const bool is_byte_level = type == "ByteLevel";
        if (is_byte_level != parts.byte_level && type != "Fuse")
            fields.unsupported(
                fmt::format("the decoder '{}' {} ByteLevel as its pre-tokenizer", type, parts.byte_level ? "with" : "without"));
        if (is_byte_level) return;
        if (type == "Fuse") {
            fused = true;
        } else if (type == "ByteFallback") {
            out.byte_fallback = true;
        } else if (type == "Replace" && fields.find(fields.at(step, "pattern"), "String") != nullptr) {
            const std::string& what = fields.text(fields.at(step, "pattern"), "String");
            if (!what.empty()) out.replace.emplace_back(what, fields.text_or(step, "content", ""));
        } else if (type == "Metaspace") {
            out.mark = mark_of(fields, step);
            out.replace.emplace_back(out.mark, " ");
            if (prepend_of(fields, step) != MetaspaceStep::Prepend::never) out.start = Start::without_marks;
        } else if (type == "Strip" && fused && fields.text(step, "content") == " " && fields.integer(step, "start") <= 1 &&
                   fields.integer(step, "stop") == 0) {
            if (fields.integer(step, "start") == 1) out.start = Start::without_space;
        } else {
            fields.unsupported(fmt::format("such a decoder '{}'", type));
        }
    });
}

}  // namespace

void read_steps(const JsonFields& fields, const Json& root, TokenizerParts& parts) {
    parts.normalizer.clear();
    parts.pre_tokenizer.clear();
    parts.byte_level = false;
    if (const Json* step = fields.find(root, "normalizer"))
        for_each_step(fields, *step, "normalizers", [&](const Json& s) { add_normalizer(fields, s, parts.normalizer); });
    if (const Json* step = fields.find(root, "pre_tokenizer"))
        for_each_step(fields, *step, "pretokenizers", [&](const Json& s) { add_pre_tokenizer(fields, s, parts); });
    read_decoder(fields, root, parts);
}

}  // namespace lockstep::data
