// Tokenizers with the stages of model families, against the ids that Hugging Face tokenizers gives to tricky texts in many
// languages. tests/data/tokenizers.json is made by make_tokenizers.py.
#include <nlohmann/json.hpp>

#include "data/batch_encoder.h"
#include "data/encoder.h"
#include "data_test_util.h"
#include "tests/paths.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

const Json& cases() {
    static const Json kCases = Json::parse(testing::read_file(LOCKSTEP_SOURCE_DIR "/tests/data/tokenizers.json"));
    return kCases;
}

class DataTokenizerFamilies : public ::testing::TestWithParam<const char*> {
protected:
    const Json& about() const { return cases().at("tokenizers").at(GetParam()); }
    Tokenizer tokenizer() const { return Tokenizer::from_json(about().at("tokenizer").dump(), GetParam()); }
    const Json& texts() const { return cases().at("texts"); }
};

TEST_P(DataTokenizerFamilies, IdsAreThoseOfHuggingFace) {
    const Tokenizer tokenizer = this->tokenizer();
    for (size_t i = 0; i < texts().size(); ++i) {
        const std::string& text = texts()[i].get_ref<const std::string&>();
        ASSERT_EQ(tokenizer.encode(text), about().at("ids")[i].get<Ids>()) << text;
    }
}

TEST_P(DataTokenizerFamilies, DecodesAsHuggingFaceDoes) {
    const Tokenizer tokenizer = this->tokenizer();
    const Json& otherwise = about().at("decoded_otherwise");
    for (size_t i = 0; i < texts().size(); ++i) {
        const std::string expected = otherwise.value(std::to_string(i), texts()[i].get<std::string>());
        ASSERT_EQ(tokenizer.decode(about().at("ids")[i].get<Ids>()), expected);
    }
}

TEST_P(DataTokenizerFamilies, OneTokenAfterAnotherDecodesToTheWhole) {
    const Tokenizer tokenizer = this->tokenizer();
    for (const Json& text : texts()) {
        const Ids ids = tokenizer.encode(text.get<std::string>());
        std::string joined;
        for (size_t i = 0; i < ids.size(); ++i) joined += tokenizer.decode_one(ids[i], i == 0);
        ASSERT_EQ(joined, tokenizer.decode(ids));
    }
}

// What threads and parts do with long texts: the same.
TEST_P(DataTokenizerFamilies, PartsAndThreadsChangeNothing) {
    const Tokenizer tokenizer = this->tokenizer();
    std::mt19937_64 random(1);
    std::vector<std::string> texts(3);
    for (std::string& text : texts)
        while (text.size() < 400'000) text += this->texts()[random() % this->texts().size()].get<std::string>() + "\n";
    texts.insert(texts.begin() + 1, "");
    std::vector<Ids> whole;
    for (const std::string& text : texts) {
        whole.emplace_back();
        Encoder(tokenizer).encode_part(text, true, whole.back());
        Ids in_parts;
        Encoder(tokenizer).encode(text, in_parts);
        ASSERT_EQ(in_parts, whole.back());
    }
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    for (const int threads : {1, 3}) {
        std::vector<Ids> batch(texts.size());
        std::vector<int> parts(texts.size());
        BatchEncoder(tokenizer, threads).encode(views, [&](size_t text, std::span<const int32_t> tokens) {
            batch[text].insert(batch[text].end(), tokens.begin(), tokens.end());
            ++parts[text];
        });
        EXPECT_EQ(batch, whole);
        for (size_t t = 0; t < texts.size(); ++t)
            EXPECT_EQ(parts[t] > 1, tokenizer.part_end(texts[t], 0, 1000) < texts[t].size()) << "text " << t;
    }
}

TEST_P(DataTokenizerFamilies, IsWrittenByteForByteAsItWasRead) {
    const std::string json = about().at("tokenizer").dump(1);
    EXPECT_EQ(Tokenizer::from_json(json, "t.json").to_json(), json);
}

INSTANTIATE_TEST_SUITE_P(Families, DataTokenizerFamilies,
                         ::testing::Values("gpt2", "gpt2_prefix_space", "llama2", "mistral", "llama3", "qwen", "deepseek",
                                           "other_steps"),
                         [](const auto& family) { return std::string(family.param); });

TEST(DataTokenizerCuts, LongTextsOfKnownFamiliesAreCut) {
    std::string lines, words;
    for (int i = 0; i < 20'000; ++i) lines += "a line.\n", words += "some words ";
    for (const char* family : {"gpt2", "llama3", "qwen", "deepseek"}) {
        const Json& about = cases().at("tokenizers").at(family);
        EXPECT_LT(Tokenizer::from_json(about.at("tokenizer").dump(), family).part_end(lines, 0, 1000), 1100u) << family;
    }
    for (const char* family : {"llama2", "mistral"}) {
        const Json& about = cases().at("tokenizers").at(family);
        EXPECT_LT(Tokenizer::from_json(about.at("tokenizer").dump(), family).part_end(words, 0, 1000), 1100u) << family;
    }
}

}  // namespace
}  // namespace lockstep::data
