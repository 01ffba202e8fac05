// A tokenizer.json, with a vocabulary of all bytes where it has none: mutations then reach its steps. One that is accepted
// encodes bytes and decodes its tokens.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "data/byte_alphabet.h"
#include "data/tokenizer.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

void read(std::string_view json) {
    fuzz::accepts_or_refuses([&] {
        const data::Tokenizer tokenizer = data::Tokenizer::from_json(json, "input");
        const std::string_view text = "The 12 caf\xc3\xa9s\n\xff  aaaa \xe2\x96\x81 <s>b</s> <unk> DON'T 3.14!!  \r\n\n x";
        const std::vector<int32_t> tokens = tokenizer.encode(text);
        for (const int32_t t : tokens) ensure(t >= 0 && t < tokenizer.vocab_size(), "an id outside the vocabulary");
        tokenizer.decode(tokens);
        tokenizer.part_end(text, 0, 4);
    });
}

nlohmann::json all_bytes(bool as_fallback) {
    nlohmann::json vocab;
    for (int byte = 0; byte < 256; ++byte)
        vocab[as_fallback ? fmt::format("<0x{:02X}>", byte) : data::to_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
    for (const char* token : {"<unk>", "</s>", "\xe2\x96\x81", "aa", "a", "b", "ab", "ba"}) {
        if (vocab.size() < 262) vocab.emplace(token, vocab.size());
    }
    return vocab;
}

const fuzz::Declare declare_tokenizer("tokenizer", [](std::string_view bytes) {
    read(bytes);
    static const nlohmann::json kAlphabet = all_bytes(false), kFallback = all_bytes(true);
    nlohmann::json json = nlohmann::json::parse(bytes, nullptr, false);
    if (!json.is_object() || !json.contains("model") || !json["model"].is_object() || json["model"].contains("vocab")) return;
    for (const nlohmann::json* vocab : {&kAlphabet, &kFallback}) {
        json["model"]["vocab"] = *vocab;
        read(json.dump());
    }
});

}  // namespace
