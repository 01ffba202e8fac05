// Hugging Face's tokenizer.json: what we write, what we read, what we refuse.
#include <nlohmann/json.hpp>

#include "data/bpe_trainer.h"
#include "data/tokenizer.h"
#include "data_test_util.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::json;
using testing::expect_user_error;
using testing::sample_prose;
using testing::TempFolder;
using testing::TextCorpus;

Tokenizer small() { return train_bpe(TextCorpus({sample_prose(2, 2000)}), 300); }

Json bytes_json() { return Json::parse(Tokenizer::bytes().to_json()); }

Tokenizer read(const Json& json) { return Tokenizer::from_json(json.dump(), "t.json"); }

void expect_refused(const Json& json, const std::string& id, const std::string& text) {
    expect_user_error([&] { read(json); }, id, text);
}

TEST(DataTokenizerJson, HasTheStructureOfHuggingFace) {
    const Json json = Json::parse(small().to_json());
    EXPECT_EQ(json.at("version"), "1.0");
    const Json& steps = json.at("pre_tokenizer").at("pretokenizers");
    EXPECT_EQ(json.at("pre_tokenizer").at("type"), "Sequence");
    EXPECT_EQ(steps.at(0).at("type"), "Split");
    EXPECT_EQ(steps.at(0).at("behavior"), "Isolated");
    EXPECT_EQ(steps.at(0).at("pattern").at("Regex"), std::string(kLlama3SplitPattern));
    EXPECT_EQ(steps.at(1).at("type"), "ByteLevel");
    EXPECT_EQ(steps.at(1).at("use_regex"), false);
    EXPECT_EQ(json.at("decoder").at("type"), "ByteLevel");
    EXPECT_EQ(json.at("added_tokens").size(), 1u);
    EXPECT_EQ(json.at("added_tokens").at(0).at("content"), "<|end_of_text|>");
    EXPECT_EQ(json.at("added_tokens").at(0).at("id"), 299);
    EXPECT_EQ(json.at("added_tokens").at(0).at("special"), true);
    const Json& model = json.at("model");
    EXPECT_EQ(model.at("type"), "BPE");
    EXPECT_EQ(model.at("vocab").size(), 300u);
    EXPECT_EQ(model.at("vocab").at("Ġ"), 32);
    EXPECT_EQ(model.at("vocab").at("<|end_of_text|>"), 299);
    for (const Json& merge : model.at("merges")) {
        const std::string text = merge;
        const size_t space = text.find(' ');
        EXPECT_TRUE(model.at("vocab").contains(text.substr(0, space) + text.substr(space + 1))) << text;
    }
}

TEST(DataTokenizerJson, RoundTrips) {
    const TempFolder folder;
    const Tokenizer before = small();
    before.save(folder / "tokenizer.json");
    const Tokenizer after = Tokenizer::load(folder / "tokenizer.json");
    EXPECT_EQ(after.to_json(), before.to_json());
    EXPECT_EQ(after.parts().merges, before.parts().merges);
    EXPECT_EQ(after.separator(), 299);
    EXPECT_EQ(after.encode(sample_prose(3, 500)), before.encode(sample_prose(3, 500)));
    EXPECT_EQ(std::distance(testing::fs::directory_iterator(folder.path()), {}), 1) << "a temporary file remains";
}

TEST(DataTokenizerJson, ReadsMergesAsPairsAndOtherIds) {
    Json json = bytes_json();
    json["model"]["vocab"]["th"] = 300;  // ids 257 to 299 are not used
    json["model"]["merges"] = Json::array({Json::array({"t", "h"})});
    const Tokenizer tokenizer = read(json);
    EXPECT_EQ(tokenizer.vocab_size(), 301);
    EXPECT_EQ(tokenizer.encode("th"), (std::vector<int32_t>{300}));
}

TEST(DataTokenizerJson, ReadsGpt2s) {
    Json json = bytes_json();
    json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
    json["model"].erase("type");
    json["added_tokens"][0]["content"] = "<|endoftext|>";
    json["model"]["vocab"].erase("<|end_of_text|>");
    const Tokenizer tokenizer = read(json);
    ASSERT_EQ(tokenizer.parts().pre_tokenizer.size(), 1u);
    EXPECT_EQ(std::get<SplitStep>(tokenizer.parts().pre_tokenizer[0]).pattern.expression(), kGpt2SplitPattern);
    EXPECT_EQ(tokenizer.separator(), 256);
}

TEST(DataTokenizerJson, RefusesMalformedFiles) {
    const std::string id = "data.tokenizer_malformed";
    const auto text_refused = [&](const char* json, const char* text) {
        expect_user_error([&] { Tokenizer::from_json(json, "t.json"); }, id,
                          std::string("t.json is not a usable tokenizer.json: ") + text);
    };
    text_refused("", "it is empty");
    text_refused("{\"model\":", "its JSON ends in the middle, after 9 bytes");
    text_refused("[]",
                 "it is not a JSON object. A SentencePiece model (tokenizer.model) becomes a tokenizer.json by transformers");
    text_refused("\n\x0e\n", "it is not a JSON object");
    text_refused("{}", "it has no 'model' where one is needed");
    text_refused("{\"model\": 5}", "what holds 'type' is not an object");
    text_refused("{\"model\": {\"type\": 5}}", "'type' is not a text");
    Json json = bytes_json();
    json["model"]["merges"] = {"t hh"};
    expect_refused(json, id, "a merge names 'hh', which is not in the vocabulary");
    json["model"]["merges"] = {"th"};
    expect_refused(json, id, "the merge 'th' is not a pair");
    json["model"]["merges"] = Json::array({Json::array({"t"})});
    expect_refused(json, id, "merge number 0 is not a pair of tokens");
    json["model"]["merges"] = {5};
    expect_refused(json, id, "merge number 0 is not a pair of tokens");
    json["model"]["merges"] = "t h";
    expect_refused(json, id, "'merges' is not a list");
    json = bytes_json();
    json["model"]["vocab"]["th"] = 7;
    expect_refused(json, id, "two tokens have id 7");
    json["model"]["vocab"]["th"] = 256;
    expect_refused(json, id, "two tokens have id 256");
    json["model"]["vocab"]["th"] = -4;
    expect_refused(json, id, "the id of the token 'th' is not a whole number from 0 to 4194304");
    json["model"]["vocab"]["th"] = 1e12;
    expect_refused(json, id, "the id of the token 'th' is not a whole number");
    json["model"]["vocab"] = Json::array();
    expect_refused(json, id, "'vocab' is not an object");
    const auto refused = [&](const std::string& pointer, const Json& value, const std::string& text) {
        Json changed = bytes_json();
        changed[Json::json_pointer(pointer)] = value;
        expect_refused(changed, id, text);
    };
    refused("/added_tokens/0/content", "", "an added token is empty");
    refused("/added_tokens/0/special", "yes", "'special' is neither true nor false");
    refused("/model/unk_token", "<unk>", "the unk_token '<unk>' is not in the vocabulary");
    refused("/pre_tokenizer/pretokenizers/0/behavior", "Cut", "'Cut' is no behavior of a Split");
    refused("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "ab"}}, "'replacement' is not one character");
    refused("/pre_tokenizer", {{"type", "Metaspace"}, {"prepend_scheme", "last"}}, "'last' is no prepend_scheme");
    Json nested = {{"type", "ByteLevel"}};
    for (int depth = 0; depth < 40; ++depth) nested = {{"type", "Sequence"}, {"pretokenizers", Json::array({nested})}};
    refused("/pre_tokenizer", nested, "its 'pretokenizers' are nested too deeply");
}

TEST(DataTokenizerJson, RefusesWhatItCannotDoAsHuggingFaceDoes) {
    const std::string id = "data.tokenizer_unsupported";
    const auto refused = [&](const std::string& pointer, const Json& value, const std::string& text) {
        Json json = bytes_json();
        json[Json::json_pointer(pointer)] = value;
        expect_refused(json, id, "t.json needs " + text + ", which is not built in");
    };
    const auto split = [](const char* expression, const char* behavior) {
        return Json{{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", behavior}};
    };
    for (const char* type : {"Unigram", "WordPiece", "WordLevel"})
        refused("/model/type", type, std::string("a model of type '") + type + "'");
    refused("/model/dropout", 0.1, "the model option 'dropout'");
    refused("/model/continuing_subword_prefix", "##", "the model option 'continuing_subword_prefix'");
    refused("/model/end_of_word_suffix", "</w>", "the model option 'end_of_word_suffix'");
    refused("/normalizer", {{"type", "Precompiled"}}, "the normalizer 'Precompiled'");
    refused("/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", "x*"}}}, {"content", ""}},
            "a Replace of 'x*', which may match nothing");
    refused("/pre_tokenizer", {{"type", "UnicodeScripts"}}, "the pre-tokenizer 'UnicodeScripts'");
    refused("/pre_tokenizer/pretokenizers/0", split("x*", "Removed"),
            "a Split by 'x*', which may match nothing, that is not 'Isolated'");
    refused("/pre_tokenizer/pretokenizers/2", {{"type", "Digits"}}, "the pre-tokenizer 'Digits' behind ByteLevel");
    refused("/pre_tokenizer", {{"type", "WhitespaceSplit"}}, "the decoder 'ByteLevel' without ByteLevel as its pre-tokenizer");
    refused("/decoder", {{"type", "Metaspace"}}, "the decoder 'Metaspace' with ByteLevel as its pre-tokenizer");
    Json json = bytes_json();
    json["pre_tokenizer"] = nullptr;
    json["decoder"] = {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}};  // of every token, as nothing fuses them
    expect_refused(json, id, "t.json needs such a decoder 'Strip'");
}

TEST(DataTokenizerJson, AddedTokensThatAreNotSpecialAreFoundInText) {
    Json json = bytes_json();
    const auto add = [&](int id, const char* text, std::vector<std::string> flags) {
        Json token = {{"id", id}, {"content", text}, {"special", false}, {"normalized", false}};
        for (const std::string& flag : flags) token[flag] = true;
        json["added_tokens"].push_back(token);
    };
    add(257, "<tool>", {});
    add(258, "<to", {});
    add(259, "<word>", {"single_word"});
    add(260, "<left>", {"lstrip"});
    add(261, "<right>", {"rstrip"});
    add(262, "<|end", {});  // hidden by the separator's name, which stays text
    const Tokenizer tokenizer = read(json);
    EXPECT_EQ(tokenizer.vocab_size(), 263);
    EXPECT_EQ(tokenizer.encode("a<tool>b<tox"), (std::vector<int32_t>{'a', 257, 'b', 258, 'x'}));
    EXPECT_EQ(tokenizer.encode("<word> <word>"), (std::vector<int32_t>{259, ' ', 259}));
    EXPECT_EQ(tokenizer.encode("a<word>").size(), 7u);
    EXPECT_EQ(tokenizer.encode("a \n<left>"), (std::vector<int32_t>{'a', 260}));
    EXPECT_EQ(tokenizer.encode("<right> \nb"), (std::vector<int32_t>{261, 'b'}));
    EXPECT_EQ(tokenizer.encode("<|end_of_text|>").size(), 15u);
    EXPECT_EQ(tokenizer.encode("<|ends").front(), 262);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("a<tool>b<tox")), "a<tool>b<tox");
}

// As tokenizers 0.23.3 numbers them: behind the vocabulary, in the order of the file.
TEST(DataTokenizerJson, AddedTokensAreNumberedBehindTheVocabulary) {
    const auto added = [](int id, const char* text) {
        return Json{{"id", id}, {"content", text}, {"special", false}, {"normalized", false}};
    };
    Json json = bytes_json();
    json["added_tokens"].push_back(added(5000, "<x>"));
    json["added_tokens"].push_back(added(9, "<y>"));
    json["added_tokens"].push_back(added(258, "<x>"));  // once more
    json["added_tokens"].push_back(added(257, "<z>"));
    const Tokenizer tokenizer = read(json);
    EXPECT_EQ(tokenizer.vocab_size(), 260);
    EXPECT_EQ(tokenizer.encode("<z><x><y>"), (std::vector<int32_t>{259, 257, 258}));
    EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{257, 258, 259}), "<x><y><z>");
}

TEST(DataTokenizerJson, AnAddedTokenIsNoByteAsWell) {
    Json json = bytes_json();
    json["added_tokens"].push_back({{"id", 257}, {"content", "é"}, {"special", false}});
    expect_refused(json, "data.tokenizer_unsupported",
                   "an added token 'é' that is also the vocabulary's token of byte 0xE9 (id 233), which is not built in");
    json["added_tokens"][1] = {{"id", 257}, {"content", "a"}, {"special", true}};
    expect_refused(json, "data.tokenizer_unsupported", "an added token 'a' that is also the vocabulary's token of byte 0x61");
    json["added_tokens"][1]["special"] = false;
    EXPECT_EQ(read(json).encode("a"), (std::vector<int32_t>{'a'}));
}

TEST(DataTokenizerJson, TheVersionOfAMergesFileIsNoMerge) {
    Json json = bytes_json();
    json["model"]["vocab"]["th"] = 257;
    json["model"]["merges"] = {"#version: 0.2", "t h"};
    EXPECT_EQ(read(json).encode("th"), (std::vector<int32_t>{257}));
}

TEST(DataTokenizerJson, RefusesMissingParts) {
    Json json = bytes_json();
    json["added_tokens"][0]["content"] = "<s>";
    json["model"]["vocab"].erase("<|end_of_text|>");
    expect_refused(json, "data.tokenizer_no_separator",
                   "t.json has none of the special added tokens that end a document ('<|end_of_text|>', ");
    json = bytes_json();
    json["model"]["vocab"].erase("a");
    expect_refused(json, "data.tokenizer_byte_missing", "has no token for byte 0x61, and no unknown token");
    expect_user_error([] { Tokenizer::load("/nonexistent/tokenizer.json"); }, "data.file_unreadable",
                      "cannot read /nonexistent/tokenizer.json: No such file or directory");
    expect_user_error([] { Tokenizer::bytes().save("/nonexistent/tokenizer.json"); }, "file.cannot_write",
                      "cannot write /nonexistent/tokenizer.json.partial: open failed: No such file or directory");
}

// `tokenizers` trains tokens of bytes only as special added tokens; its byte fallback uses them all the same.
TEST(DataTokenizerJson, SpecialTokensOfBytesStandForBytes) {
    Json json = bytes_json();
    json["model"]["vocab"] = {{"a", 0}, {"<unk>", 1}, {"</s>", 2}, {"<0xC3>", 3}, {"<0xA9>", 4}, {"<0x41>", 5}};
    json["model"]["merges"] = Json::array();
    json["model"]["unk_token"] = "<unk>";
    json["model"]["byte_fallback"] = true;
    json["pre_tokenizer"] = nullptr;
    json["decoder"] = {{"type", "Sequence"}, {"decoders", Json::array({{{"type", "ByteFallback"}}, {{"type", "Fuse"}}})}};
    json["added_tokens"] = Json::array();
    for (const auto& [text, id] : json["model"]["vocab"].items())
        if (text != "a")
            json["added_tokens"].push_back({{"id", id}, {"content", text}, {"special", true}, {"normalized", false}});
    const Tokenizer tokenizer = read(json);
    EXPECT_EQ(tokenizer.encode("aéa§aA"), (std::vector<int32_t>{0, 3, 4, 0, 1, 0, 5}));
    EXPECT_EQ(tokenizer.encode("<0x41>"), (std::vector<int32_t>{1, 1, 1, 1, 1, 1}));  // text that spells one stays text
    EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{0, 3, 4}), "aé");
    EXPECT_EQ(tokenizer.text_bytes(), (std::vector<int64_t>{1, 0, 0, 1, 1, 1}));
    // Only the vocabulary of the model counts.
    json["model"]["vocab"].erase("<0xA9>");
    EXPECT_EQ(read(json).encode("é"), (std::vector<int32_t>{1}));
}

TEST(DataTokenizerJson, WhatHasNoTokenIsUnknown) {
    Json json = bytes_json();
    json["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"<unk>", 2}, {"<|end_of_text|>", 256}};
    json["model"]["unk_token"] = "<unk>";
    EXPECT_EQ(read(json).encode("acdb"), (std::vector<int32_t>{0, 2, 2, 1}));
    json["model"]["fuse_unk"] = true;
    EXPECT_EQ(read(json).encode("acdb"), (std::vector<int32_t>{0, 2, 1}));
    json["model"]["unk_token"] = "<|end_of_text|>";  // never: it would end a document
    expect_refused(json, "data.tokenizer_byte_missing", "has no token for byte 0x00");
}

}  // namespace
}  // namespace lockstep::data
