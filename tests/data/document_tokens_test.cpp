// Which tokens end and begin documents: what the files beside a tokenizer.json say, what the flags say, what a prepared folder
// keeps.
#include "data/document_tokens.h"

#include <nlohmann/json.hpp>

#include "data/data_sets.h"
#include "data/prepare.h"
#include "data_test_util.h"

namespace lockstep::data {
namespace {

using testing::expect_user_error;
using testing::sample_prose;
using testing::TempFolder;
namespace fs = testing::fs;
using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

// The tokenizer of bytes, whose special tokens are these, with ids from 256.
std::string tokenizer_with(const std::vector<std::string>& special) {
    Json json = Json::parse(Tokenizer::bytes().to_json());
    json["model"]["vocab"].erase(std::string(kSeparatorText));
    json["added_tokens"] = Json::array();
    for (const std::string& token : special)
        json["added_tokens"].push_back({{"id", 256 + static_cast<int>(json["added_tokens"].size())},
                                        {"content", token},
                                        {"special", true},
                                        {"normalized", false}});
    return json.dump();
}

struct Place {
    TempFolder folder;
    PrepareOptions options;

    explicit Place(const std::vector<std::string>& special) {
        options.tokenizer = folder.write("t/tokenizer.json", tokenizer_with(special)).string();
        options.inputs = {folder.write("in.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n")};
        options.out = folder / "out";
        options.heldout_fraction = 0;
    }
    Ids tokens() {
        options.existing = ExistingData::replace;
        summary = prepare(options);
        return read(options.out);
    }
    static Ids read(const fs::path& out) {
        const PreparedData data = PreparedData::open(out);
        Ids ids(static_cast<size_t>(data.train.tokens()));
        data.train.read(0, ids);
        return ids;
    }
    PrepareSummary summary;
};

TEST(DataDocumentTokens, TheFilesBesideSayWhatEndsADocument) {
    Place p({"<|im_start|>", "<|im_end|>"});
    expect_user_error([&] { p.tokens(); }, "data.tokenizer_no_separator", "Say with --end-token which token ends a document.");
    p.folder.write("t/config.json", R"({"eos_token_id": 256})");
    EXPECT_EQ(p.tokens(), (Ids{'a', 'b', 256, 'c', 256}));
    EXPECT_EQ(p.summary.documents->end_said_by, "config.json");
    p.folder.write("t/generation_config.json", R"({"eos_token_id": [257, 256]})");
    EXPECT_EQ(p.tokens(), (Ids{'a', 'b', 257, 'c', 257}));
    EXPECT_EQ(p.summary.documents->end_said_by, "generation_config.json");
    p.folder.write("t/special_tokens_map.json", R"({"eos_token": {"content": "<|im_start|>", "lstrip": false}})");
    EXPECT_EQ(p.tokens(), (Ids{'a', 'b', 256, 'c', 256}));
    p.folder.write("t/tokenizer_config.json",
                   R"({"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "add_bos_token": true})");
    EXPECT_EQ(p.tokens(),
              (Ids{'a', 'b', 256, 'c', 256}));  // as transformers: the map over a configuration without a list of tokens
    EXPECT_EQ(p.summary.documents->end_said_by, "special_tokens_map.json");
    EXPECT_EQ(p.summary.documents->other_names, std::vector<std::string>{"tokenizer_config.json says <|im_end|>"});
    p.folder.write(
        "t/tokenizer_config.json",
        R"({"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "add_bos_token": true, "added_tokens_decoder": {}})");
    EXPECT_EQ(p.tokens(), (Ids{'a', 'b', 257, 'c', 257}));
    EXPECT_EQ(p.summary.documents->end, "<|im_end|>");
    EXPECT_EQ(p.summary.documents->end_said_by, "tokenizer_config.json");
    EXPECT_EQ(p.summary.documents->configured_begin, "<|im_start|>");
    EXPECT_EQ(p.summary.documents->begin, "");
    p.folder.write("t/tokenizer_config.json", R"({"eos_token": "<unknown here>"})");  // the next that is known counts
    EXPECT_EQ(p.tokens().back(), 256);
    p.folder.write("t/tokenizer_config.json", R"({"eos_token": "<unknown here>", "added_tokens_decoder": {}})");
    EXPECT_EQ(p.tokens().back(), 256);
    EXPECT_EQ(p.summary.documents->unknown_ends.at(0).text, "<unknown here>");
    p.folder.write("t/tokenizer_config.json", "{ no JSON");
    EXPECT_EQ(p.tokens().back(), 256);
    EXPECT_EQ(p.summary.documents->broken, std::vector<std::string>{"tokenizer_config.json"});
}

TEST(DataDocumentTokens, AnEndThatIsNoTokenIsRefused) {
    Place p({"<|endoftext|>"});
    EXPECT_EQ(p.tokens().back(), 256);
    p.folder.write("t/tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
    expect_user_error([&] { p.tokens(); }, "data.end_unknown",
                      "tokenizer_config.json names <|im_end|> as eos_token, which is no token of " + p.options.tokenizer);
    p.options.end_token = "<|endoftext|>";
    EXPECT_EQ(p.tokens().back(), 256);
    Place none({"<x>"});
    none.folder.write("t/tokenizer_config.json", R"({"eos_token": "</s>"})");
    expect_user_error([&] { none.tokens(); }, "data.end_unknown", "tokenizer_config.json names </s> as eos_token");
    none.folder.write("t/tokenizer_config.json", R"({"eos_token": "<x>",})");
    expect_user_error([&] { none.tokens(); }, "data.end_unknown", "tokenizer_config.json next to ");
}

TEST(DataDocumentTokens, OfTwoKnownNamesTheFileBesideChooses) {
    Place p({"<|endoftext|>", "</s>"});
    EXPECT_EQ(p.tokens().back(), 256);
    EXPECT_EQ(p.summary.documents->end_said_by, "");
    EXPECT_EQ(p.summary.documents->other_ends, std::vector<std::string>{"</s>"});
    p.folder.write("t/tokenizer_config.json", R"({"eos_token": "</s>"})");
    EXPECT_EQ(p.tokens().back(), 257);
    EXPECT_EQ(Tokenizer::load(p.options.tokenizer).separator(), 257);
    // The prepared folder keeps it, though only its manifest says so.
    EXPECT_EQ(PreparedData::open(p.options.out).tokenizer()->separator(), 257);
    EXPECT_EQ(Tokenizer::load(p.options.out / kTokenizerFile).separator(), 257);
    p.options.tokenizer = (p.options.out / kTokenizerFile).string();
    p.options.out = p.folder / "second";
    EXPECT_EQ(p.tokens().back(), 257);
    EXPECT_EQ(p.summary.documents->end_said_by, "manifest.json");
}

TEST(DataDocumentTokens, TheFlagsSayIt) {
    Place p({"<s>", "</s>", "[EOS]"});
    p.options.end_token = "[EOS]";
    EXPECT_EQ(p.tokens(), (Ids{'a', 'b', 258, 'c', 258}));
    p.options.begin_token = "<s>";
    EXPECT_EQ(p.tokens(), (Ids{256, 'a', 'b', 258, 256, 'c', 258}));
    EXPECT_EQ(p.summary.manifest.begin, 256);
    EXPECT_EQ(PreparedData::open(p.options.out).manifest.begin, 256);
    EXPECT_EQ(Tokenizer::load(p.options.out / kTokenizerFile).begin(), 256);
    EXPECT_EQ(Tokenizer::load(p.options.tokenizer).begin(), -1);
    // A token of the vocabulary may end documents; text that spells it then does not become it.
    p.options.end_token = "q";
    p.options.begin_token = "";
    p.options.inputs = {p.folder.write("q.txt", "aq")};
    expect_user_error([&] { p.tokens(); }, "data.tokenizer_byte_missing", "has no token for byte 0x71");
    p.options.end_token = "<eos>";
    expect_user_error(
        [&] { p.tokens(); }, "data.no_such_token",
        "--end-token <eos>: " + p.options.tokenizer + " has no such token. Its special tokens are: <s>, </s>, [EOS].");
    p.options.end_token = "";
    p.options.begin_token = "<bos>";
    expect_user_error([&] { p.tokens(); }, "data.no_such_token", "--begin-token <bos>: ");
    p.options.tokenizer = "bytes";
    expect_user_error([&] { p.tokens(); }, "data.document_tokens",
                      "--begin-token names a token of a tokenizer.json: give --tokenizer");
}

TEST(DataDocumentTokens, EveryDocumentBeginsWithIt) {
    Place p({"<s>", "</s>"});
    p.options.begin_token = "<s>";
    const std::string longer(5 << 20, 'x');
    p.options.inputs = {p.folder.write("in/a.txt", longer), p.folder.write("in/b.txt", "b"),
                        p.folder.write("in/c.bin", std::string("\0\1\7\0\1\1\7\0\1\1", 10))};  // ids 256 7 257 7 257
    const Ids ids = p.tokens();
    EXPECT_EQ(ids.size(), longer.size() + 2 + 3 + 6);
    const PreparedData data = PreparedData::open(p.options.out);
    const TokenFile& file = data.train.files()[0];
    ASSERT_EQ(file.documents(), 4);
    for (int64_t d = 0; d < 4; ++d) {
        EXPECT_EQ(ids[static_cast<size_t>(file.document_begin(d))], 256) << d;
        EXPECT_EQ(ids[static_cast<size_t>(file.document_end(d)) - 1], 257) << d;
    }
    EXPECT_EQ(Ids(ids.end() - 6, ids.end()), (Ids{256, 7, 257, 256, 7, 257}));
}

TEST(DataDocumentTokens, AnAppendedFolderKeepsItsOwn) {
    Place p({"<s>", "</s>", "<|endoftext|>"});
    EXPECT_EQ(p.tokens().back(), 258);  // <|endoftext|> is looked for first
    p.folder.write("t/tokenizer_config.json", R"({"eos_token": "</s>"})");
    PrepareOptions more = p.options;
    more.existing = ExistingData::append;
    more.inputs = {p.folder.write("more.jsonl", "{\"text\": \"d\"}\n")};
    prepare(more);
    EXPECT_EQ(Place::read(p.options.out).size(), 7u);
    more.end_token = "</s>";
    expect_user_error([&] { prepare(more); }, "data.append_tokenizer",
                      "another tokenizer than one whose documents end with </s>");
    more.end_token = "<|endoftext|>";
    more.begin_token = "<s>";
    expect_user_error([&] { prepare(more); }, "data.append_tokenizer", "one whose documents begin with <s>");

    p.options.begin_token = "<s>";
    p.options.out = p.folder / "begun";
    p.tokens();
    PrepareOptions begun;
    begun.existing = ExistingData::append;
    begun.out = p.options.out;
    begun.heldout_fraction = 0;
    begun.inputs = {p.folder.write("e.jsonl", "{\"text\": \"e\"}\n")};
    prepare(begun);
    const Ids ids = Place::read(begun.out);
    EXPECT_EQ(Ids(ids.end() - 3, ids.end()), (Ids{256, 'e', 257}));
    expect_user_error([&] { open_data_sets({p.folder / "out", p.folder / "begun"}); }, "data.other_tokenizer", "two tokenizers");
}

TEST(DataDocumentTokens, AnotherEndIsAnotherDataset) {
    Place p({"<s>", "</s>", "<|endoftext|>"});
    p.tokens();
    p.options.existing = ExistingData::refuse;
    EXPECT_TRUE(prepare(p.options).was_prepared_already);
    p.options.end_token = "</s>";
    expect_user_error([&] { prepare(p.options); }, "data.out_exists", "holds another dataset");
    p.options.end_token = "";
    p.options.begin_token = "<s>";
    expect_user_error([&] { prepare(p.options); }, "data.out_exists", "holds another dataset");
}

// A tokenizer that lowers letters and drops blanks: its tokens stand for fewer bytes than the text has.
TEST(DataDocumentTokens, BytesOfTheTextAreCounted) {
    Json json = Json::parse(tokenizer_with({"<unk>", "</s>"}));
    json["model"]["vocab"] = {{"a", 0}, {"b", 1}, {"<unk>", 256}};
    json["model"]["merges"] = Json::array();
    json["model"]["unk_token"] = "<unk>";
    json["normalizer"] = {{"type", "Lowercase"}};
    json["pre_tokenizer"] = {{"type", "WhitespaceSplit"}};
    json["decoder"] = nullptr;
    Place p({"</s>"});
    p.folder.write("t/tokenizer.json", json.dump());
    p.options.inputs = {p.folder.write("in.jsonl", "{\"text\": \"A b  é\"}\n{\"text\": \"ab\"}\n")};
    EXPECT_EQ(p.tokens(), (Ids{0, 1, 256, 3, 0, 1, 3}));
    EXPECT_EQ(p.summary.manifest.train.text_bytes, 9);
    EXPECT_EQ(p.summary.manifest.train.decoded_bytes, 4);
    EXPECT_EQ(PreparedData::open(p.options.out).manifest, p.summary.manifest);
    PrepareOptions more = p.options;
    more.existing = ExistingData::append;
    more.inputs = {p.folder.write("more.jsonl", "{\"text\": \"a a\"}\n")};
    EXPECT_EQ(prepare(more).manifest.train.text_bytes, 12);
    // A folder that another program wrote, or an older one: what is not known stays so.
    Json manifest = Json::parse(testing::read_file(p.options.out / kManifestFile));
    manifest["train"].erase("text_bytes");
    p.folder.write("out/manifest.json", manifest.dump());
    more.inputs = {p.folder.write("again.jsonl", "{\"text\": \"b a\"}\n")};
    EXPECT_EQ(prepare(more).manifest.train.text_bytes, 0);
}

}  // namespace
}  // namespace lockstep::data
