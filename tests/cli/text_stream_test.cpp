// Generated tokens as text that grows: characters of several bytes, stop texts, tokenizers that begin a text with a space of
// their own.
#include "cli/text_stream.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/paths.h"

namespace lockstep::cli {
namespace {

data::Tokenizer llama2() {
    const auto all = nlohmann::json::parse(std::ifstream(LOCKSTEP_SOURCE_DIR "/tests/data/tokenizers.json"));
    return data::Tokenizer::from_json(all.at("tokenizers").at("llama2").at("tokenizer").dump(), "llama2");
}

std::vector<std::string> taken(const data::Tokenizer& tokenizer, const std::vector<int32_t>& tokens, bool begins) {
    TextStream stream(tokenizer, {}, begins);
    std::vector<std::string> out;
    for (const int32_t token : tokens) {
        stream.add(token);
        out.push_back(stream.take());
    }
    out.push_back(stream.take_rest());
    return out;
}

using Texts = std::vector<std::string>;

TEST(CliTextStream, CharactersOfSeveralBytesComeWhole) {
    EXPECT_EQ(taken(data::Tokenizer::bytes(), {'a', 0xe4, 0xb8, 0xad, 'b'}, true), (Texts{"a", "", "", "中", "b", ""}));
    const data::Tokenizer tokenizer = llama2();  // a character without a token is three tokens <0xE4>, ...
    const int32_t first = 3 + 0xe4;
    EXPECT_EQ(taken(tokenizer, {first, 3 + 0xb8, 3 + 0xad}, false), (Texts{"", "", "中", ""}));
    EXPECT_EQ(taken(tokenizer, {first}, false), (Texts{"", "\xe4"}));
}

TEST(CliTextStream, OnlyTheFirstTokenOfATextLosesItsSpace) {
    const data::Tokenizer tokenizer = llama2();
    const std::vector<int32_t> tokens = tokenizer.encode("the the");
    const auto text = [&](bool begins) {
        std::string all;
        for (const std::string& part : taken(tokenizer, tokens, begins)) all += part;
        return all;
    };
    EXPECT_EQ(text(true), "the the");
    EXPECT_EQ(text(false), " the the");
}

TEST(CliTextStream, AStopTextEndsIt) {
    const data::Tokenizer tokenizer = data::Tokenizer::bytes();
    TextStream stream(tokenizer, {"END"}, true);
    for (const char c : std::string("aEN")) EXPECT_FALSE(stream.add(c));
    EXPECT_EQ(stream.take(), "a");  // what may still become the stop text is held back
    EXPECT_TRUE(stream.add('D'));
    EXPECT_EQ(stream.text(), "a");
}

}  // namespace
}  // namespace lockstep::cli
