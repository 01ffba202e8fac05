// What a prepared folder keeps of its tokenizer, as later commands use it: bytes of the text for `eval`, the token that documents
// begin with for `sample`.
#include <gtest/gtest.h>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

// Letters, in lower case and without the blanks between words.
std::string letters_tokenizer() {
    nlohmann::json vocabulary = {{"<unk>", 0}, {"</s>", 1}, {"<s>", 2}};
    for (char c = 'a'; c <= 'z'; ++c) vocabulary[std::string(1, c)] = 3 + (c - 'a');
    nlohmann::json added = nlohmann::json::array();
    for (const char* token : {"<unk>", "</s>", "<s>"})
        added.push_back({{"id", vocabulary[token]}, {"content", token}, {"special", true}, {"normalized", false}});
    return nlohmann::json{
        {"added_tokens", added},
        {"normalizer", {{"type", "Lowercase"}}},
        {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
        {"decoder", nullptr},
        {"model", {{"type", "BPE"}, {"unk_token", "<unk>"}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}}
        .dump();
}

// A run on the texts, of one step.
void train(const Scratch& s, const std::string& flags) {
    s.write("t.json", letters_tokenizer());
    std::string texts;
    for (int i = 0; i < 12; ++i) texts += "{\"text\": \"The Lamp  on the pier \\u00e9 went out at nine\"}\n";
    s.write("c.jsonl", texts);
    Finished f = s.lockstep("data prepare c.jsonl --out d --tokenizer t.json --heldout 0" + flags);
    ASSERT_EQ(f.code, 0) << f.err;
    s.write("r.toml", prepared_recipe("local_batch_size = 1\nseq_len = 8\nsteps = 1\n[checkpoint]\nenable = true\n"));
    f = s.lockstep("train r.toml");
    ASSERT_EQ(f.code, 0) << f.err;
}

TEST(CliDocumentTokens, BitsAByteAreThoseOfTheText) {
    Scratch s;
    train(s, "");
    const nlohmann::json j = s.lockstep("eval out --split train --json").json();
    // 41 bytes a text, of which tokens stand for 29. The first token of all is no target, nor are some at the end.
    EXPECT_LE(j["bytes"].get<double>(), 12 * 41);
    EXPECT_GT(j["bytes"].get<double>(), 12 * 41 - 15);
    // A token file alone does not say what its text was.
    const nlohmann::json file = s.lockstep("eval out --tokens d/train.tokens --json").json();
    EXPECT_LE(file["bytes"].get<double>(), 12 * 29);
    EXPECT_EQ(file["loss"], j["loss"]);
}

TEST(CliDocumentTokens, APromptBeginsAsDocumentsDo) {
    Scratch s;
    train(s, " --begin-token '<s>'");
    for (const auto& [prompt, tokens] : {std::pair{"", 1}, {"ab", 3}}) {
        const Finished f = s.lockstep(std::string("sample out --json --max-tokens 2 --prompt '") + prompt + "'");
        ASSERT_EQ(f.code, 0) << f.err;
        EXPECT_EQ(f.json()["sequences"][0]["prompt_tokens"], tokens);
    }
}

}  // namespace
}  // namespace lockstep::testing
