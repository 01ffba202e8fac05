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
    EXPECT_EQ(tokenizer.parts().split_pattern, kGpt2SplitPattern);
    EXPECT_EQ(tokenizer.separator(), 256);
}

TEST(DataTokenizerJson, RefusesMalformedFiles) {
    const std::string id = "data.tokenizer_malformed";
    expect_user_error([] { Tokenizer::from_json("{\"model\":", "t.json"); }, id, "t.json is not a usable tokenizer.json: ");
    expect_user_error([] { Tokenizer::from_json("[]", "t.json"); }, id, "t.json is not a usable tokenizer.json: ");
    Json json = bytes_json();
    json["model"]["merges"] = {"t hh"};
    expect_refused(json, id, "a merge names 'hh', which is not in the vocabulary");
    json["model"]["merges"] = {"th"};
    expect_refused(json, id, "the merge 'th' is not a pair");
    json["model"]["merges"] = Json::array({Json::array({"t"})});
    expect_refused(json, id, "the merge [\"t\"] is not a pair");
    json["model"]["merges"] = {5};
    expect_refused(json, id, "the merge 5 is not a pair");
    json = bytes_json();
    json["model"]["vocab"]["th"] = 7;
    expect_refused(json, id, "two tokens have id 7");
    json["model"]["vocab"]["th"] = 256;
    expect_refused(json, id, "two tokens have id 256");
    json["model"]["vocab"]["th"] = -4;
    expect_refused(json, id, "'-4' is not a token id");
    json["model"]["vocab"]["th"] = 1e12;
    expect_refused(json, id, "is not a token id");
    json["model"]["vocab"].erase("th");
    json["model"]["vocab"]["t h"] = 300;
    expect_refused(json, id, "the token 't h' is not written in the byte-level alphabet");
    json = bytes_json();
    json["added_tokens"][0]["content"] = "";
    expect_refused(json, id, "an added token is empty");
    json = bytes_json();
    json.erase("model");
    expect_refused(json, id, "key 'model' not found");
}

TEST(DataTokenizerJson, RefusesWhatItCannotDoAsHuggingFaceDoes) {
    const std::string id = "data.tokenizer_unsupported";
    const auto refused = [&](const std::string& pointer, const Json& value, const std::string& text) {
        Json json = bytes_json();
        json[Json::json_pointer(pointer)] = value;
        expect_refused(json, id, "t.json needs " + text);
    };
    refused("/normalizer", {{"type", "NFC"}}, "a normalizer");
    refused("/model/type", "Unigram", "a model of type \"Unigram\"");
    refused("/model/dropout", 0.1, "the model option 'dropout'");
    refused("/model/byte_fallback", true, "the model option 'byte_fallback'");
    refused("/model/continuing_subword_prefix", "##", "the model option 'continuing_subword_prefix'");
    refused("/model/end_of_word_suffix", "</w>", "the model option 'end_of_word_suffix'");
    refused("/pre_tokenizer", nullptr, "text that is not split byte-level (no pre_tokenizer)");
    refused("/pre_tokenizer", {{"type", "Whitespace"}}, "a pre-tokenizer without ByteLevel");
    refused("/pre_tokenizer", {{"type", "ByteLevel"}, {"use_regex", false}}, "ByteLevel without a split pattern");
    refused("/pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", true}}, "ByteLevel with add_prefix_space");
    refused("/pre_tokenizer/pretokenizers", Json::array(), "a pre-tokenizer sequence other than one Split and ByteLevel");
    refused("/pre_tokenizer/pretokenizers/1/use_regex", true, "a pre-tokenizer sequence other than one Split and ByteLevel");
    refused("/pre_tokenizer/pretokenizers/0/behavior", "Removed", "a Split that is not 'Isolated'");
    refused("/pre_tokenizer/pretokenizers/0/pattern", {{"String", " "}}, "a Split on a fixed string");
    refused("/added_tokens/0/special", false, "the added token '<|end_of_text|>' that is not special");
}

TEST(DataTokenizerJson, RefusesMissingParts) {
    Json json = bytes_json();
    json["added_tokens"][0]["content"] = "<s>";
    json["model"]["vocab"].erase("<|end_of_text|>");
    expect_refused(json, "data.tokenizer_no_separator", "t.json has neither '<|end_of_text|>' nor '<|endoftext|>'");
    json = bytes_json();
    json["model"]["vocab"].erase("a");
    expect_refused(json, "data.tokenizer_byte_missing", "has no token for byte 0x61");
    expect_user_error([] { Tokenizer::load("/nonexistent/tokenizer.json"); }, "data.file_unreadable",
                      "cannot read /nonexistent/tokenizer.json: No such file or directory");
    expect_user_error([] { Tokenizer::bytes().save("/nonexistent/tokenizer.json"); }, "file.cannot_write",
                      "cannot write /nonexistent/tokenizer.json.partial: open failed: No such file or directory");
}

}  // namespace
}  // namespace lockstep::data
