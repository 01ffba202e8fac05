// Preparing a folder: which files, the held-out split, what is written, what is refused.
#include "data/prepare.h"

#include <sys/stat.h>

#include <cmath>
#include <map>
#include <set>

#include "data/heldout_split.h"
#include "data/inputs.h"
#include "data_test_util.h"

namespace lockstep::data {
namespace {

using testing::expect_user_error;
using testing::flip_byte;
using testing::read_file;
using testing::sample_prose;
using testing::TempFolder;
namespace fs = testing::fs;

std::string text_of(const TokenStream& stream, int64_t document, const Tokenizer& tokenizer) {
    const TokenFile& file = stream.files().at(0);
    std::vector<int32_t> tokens(file.document_end(document) - file.document_begin(document) - 1);
    file.read(file.document_begin(document), tokens);
    return tokenizer.decode(tokens);
}

// A folder "in" of small documents, and options to prepare it into "out".
struct Workspace {
    TempFolder folder;
    PrepareOptions options;
    std::map<std::string, std::string> texts;

    explicit Workspace(int documents = 30) {
        for (int d = 0; d < documents; ++d) add("in/d" + std::to_string(d) + ".txt", sample_prose(d, 100));
        options.inputs = {folder / "in"};
        options.out = folder / "out";
        options.vocab = 300;
        options.heldout_fraction = 0.1;
    }
    void add(const std::string& name, const std::string& text) {
        folder.write(name, text);
        texts[name] = text;
    }
};

// Documents that are nothing but names.
class NamedCorpus : public Corpus {
public:
    explicit NamedCorpus(std::vector<std::string> names) : names_(std::move(names)) {}
    int64_t files() const override { return 1; }
    int64_t file_bytes(int64_t) const override { return 1; }
    void visit(int64_t, const Use& use) const override {
        for (const std::string& name : names_) {
            ++visited;
            Document document;
            document.name = name;
            document.text = "text";
            if (!use(document)) return;
        }
    }
    mutable int visited = 0;

private:
    std::vector<std::string> names_;
};

TEST(DataHeldoutSplit, DependsOnTheNamesOnly) {
    std::vector<std::string> names;
    for (int i = 0; i < 2000; ++i) names.push_back("in/" + std::to_string(i));
    const NamedCorpus corpus(names);
    const HeldoutSplit split = HeldoutSplit::of(corpus, 0.1);
    EXPECT_LT(corpus.visited, 200) << "it reads on after a document for each side";
    EXPECT_NEAR(static_cast<double>(std::count_if(names.begin(), names.end(), [&](auto& n) { return split.holds_out(n); })), 200,
                60);
    const HeldoutSplit reversed = HeldoutSplit::of(NamedCorpus({names.rbegin(), names.rend()}), 0.1);
    for (const std::string& name : names) EXPECT_EQ(split.holds_out(name), reversed.holds_out(name)) << name;
}

TEST(DataHeldoutSplit, OfAFewDocumentsOneIsHeldOutAndOneIsNot) {
    for (const double fraction : {0.000001, 0.999999}) {
        const HeldoutSplit split = HeldoutSplit::of(NamedCorpus({"a", "b"}), fraction);
        EXPECT_EQ(split.holds_out("a") + split.holds_out("b"), 1) << fraction;
        EXPECT_FALSE(split.is_tail_of_one_document());
    }
    EXPECT_TRUE(HeldoutSplit::of(NamedCorpus({"a"}), 0.01).is_tail_of_one_document());
}

TEST(DataHeldoutSplit, ZeroHoldsNothingOut) {
    for (const HeldoutSplit& split : {HeldoutSplit::of(NamedCorpus({"a", "b"}), 0), HeldoutSplit::of(NamedCorpus({"a"}), 0)}) {
        EXPECT_FALSE(split.holds_out("a"));
        EXPECT_FALSE(split.holds_out("b"));
        EXPECT_FALSE(split.is_tail_of_one_document());
    }
}

TEST(DataHeldoutSplit, TailOfOneDocument) {
    EXPECT_EQ(held_out_tail_begin("ab", 0.01), 1u);
    EXPECT_EQ(held_out_tail_begin("ab", 0.99), 1u);
    EXPECT_EQ(held_out_tail_begin("0123456789", 0.3), 7u);
    const std::string lines = sample_prose(1, 2000);
    const size_t begin = held_out_tail_begin(lines, 0.1);
    EXPECT_EQ(lines[begin - 1], '\n');
    EXPECT_NEAR(static_cast<double>(begin), 0.9 * static_cast<double>(lines.size()), 100);
    EXPECT_EQ(held_out_tail_begin("中中中中", 0.3), 6u);  // 12 bytes: 8 lies inside the third character
}

TEST(DataPrepare, WritesEveryDocumentOnce) {
    Workspace w;
    const PrepareSummary summary = prepare(w.options);
    EXPECT_FALSE(summary.was_prepared_already);
    const PreparedData data = PreparedData::open(w.options.out, Verify::full);
    EXPECT_EQ(data.manifest, summary.manifest);
    const Tokenizer tokenizer = data.tokenizer().value();
    EXPECT_EQ(tokenizer.vocab_size(), 300);
    EXPECT_EQ(data.manifest.token_type, "u16");
    EXPECT_EQ(data.manifest.sources.files, 30);
    EXPECT_EQ(data.manifest.train.documents + data.manifest.heldout.documents, 30);
    EXPECT_GE(data.manifest.heldout.documents, 1);
    std::multiset<std::string> expected, written;
    for (const auto& [name, text] : w.texts) expected.insert(text);
    for (const TokenStream* split : {&data.train, &data.heldout})
        for (int64_t d = 0; d < split->files()[0].documents(); ++d) written.insert(text_of(*split, d, tokenizer));
    EXPECT_EQ(written, expected);
    std::set<std::string> files;
    for (const auto& entry : fs::directory_iterator(w.options.out)) files.insert(entry.path().filename().string());
    EXPECT_EQ(files, (std::set<std::string>{".lock", "heldout.tokens", "manifest.json", "tokenizer.json", "train.tokens"}));
}

TEST(DataPrepare, IsDeterministicAndIndependentOfTheOutFolder) {
    Workspace w;
    prepare(w.options);
    w.options.out = w.folder / "again";
    w.options.threads = 1;
    prepare(w.options);
    for (const char* file : {kTrainFile, kHeldoutFile, kTokenizerFile, kManifestFile})
        EXPECT_EQ(read_file(w.folder / "out" / file), read_file(w.folder / "again" / file)) << file;
}

TEST(DataPrepare, UnigramEntropy) {
    Workspace w(0);
    w.add("in/a.txt", "aabb");  // two documents: whichever is trained on, its frequencies are a 2, b 2, separator 1
    w.add("in/b.txt", "bbaa");
    w.options.tokenizer = "bytes";
    w.options.vocab = 0;
    const Manifest manifest = prepare(w.options).manifest;
    EXPECT_EQ(manifest.train.tokens, 5);
    EXPECT_NEAR(manifest.unigram_entropy_nats.value(), -2 * 0.4 * std::log(0.4) - 0.2 * std::log(0.2), 1e-12);
}

TEST(DataPrepare, OneDocumentIsSplit) {
    Workspace w(0);
    const std::string text = sample_prose(3, 1000);
    w.add("in/only.txt", text);
    prepare(w.options);
    const PreparedData data = PreparedData::open(w.options.out);
    ASSERT_EQ(data.manifest.train.documents, 1);
    ASSERT_EQ(data.manifest.heldout.documents, 1);
    EXPECT_TRUE(data.manifest.sources.is_tail_of_one_document);
    const Tokenizer tokenizer = data.tokenizer().value();
    EXPECT_EQ(text_of(data.train, 0, tokenizer) + text_of(data.heldout, 0, tokenizer), text);
}

TEST(DataPrepare, TakesATokenizerFileAsItIs) {
    Workspace w;
    prepare(w.options);
    w.options.tokenizer = (w.folder / "out/tokenizer.json").string();
    w.options.vocab = 0;
    w.options.out = w.folder / "second";
    prepare(w.options);
    EXPECT_EQ(read_file(w.folder / "second/tokenizer.json"), read_file(w.folder / "out/tokenizer.json"));
    EXPECT_EQ(read_file(w.folder / "second/train.tokens"), read_file(w.folder / "out/train.tokens"));
}

TEST(DataPrepare, TheSameAgainIsKeptAnotherIsRefused) {
    Workspace w;
    const PrepareSummary first = prepare(w.options);
    const PrepareSummary again = prepare(w.options);
    EXPECT_TRUE(again.was_prepared_already);
    EXPECT_EQ(again.manifest, first.manifest);
    w.options.vocab = 290;
    expect_user_error([&] { prepare(w.options); }, "data.out_exists", "holds another dataset (vocabulary 300, ");
    w.options.existing = ExistingData::replace;
    EXPECT_FALSE(prepare(w.options).was_prepared_already);
    EXPECT_EQ(PreparedData::open(w.options.out).manifest.vocab_size, 290);
}

TEST(DataPrepare, Errors) {
    Workspace w;
    const auto refused = [&](auto change, const std::string& id, const std::string& text) {
        PrepareOptions options = w.options;
        change(options);
        expect_user_error([&] { prepare(options); }, id, text);
        EXPECT_FALSE(fs::exists(w.folder / "out")) << id;
    };
    refused([](PrepareOptions& o) { o.heldout_fraction = 1; }, "data.heldout_fraction",
            "the held-out fraction is 1; it must be at least 0 and below 1");
    refused([](PrepareOptions& o) { o.heldout_fraction = std::nan(""); }, "data.heldout_fraction",
            "the held-out fraction is nan");
    refused([](PrepareOptions& o) { o.tokenizer = "bytes"; }, "data.vocab_mismatch",
            "the tokenizer 'bytes' has a vocabulary of 257, 300 is asked for");
    refused([](PrepareOptions& o) { o.vocab = 100; }, "data.vocab_too_small", "a vocabulary of 100 is too small");
    refused([](PrepareOptions& o) { o.vocab = 100000; }, "data.vocab_too_large",
            "a vocabulary of 100000 is more than this text supports");
    refused([](PrepareOptions& o) { o.tokenizer = "/gone.json"; }, "data.no_tokenizer",
            "--tokenizer /gone.json: there is no such file, and no tokenizer is downloaded");
    refused([&](PrepareOptions& o) { o.out = w.folder / "in/d1.txt/out"; }, "data.out_unwritable",
            "d1.txt/out cannot be made: Not a directory");
    refused([&](PrepareOptions& o) { o.out = w.folder / "in"; }, "data.out_not_a_dataset",
            "exists and is not a prepared data folder (it has no manifest.json)");
    const fs::path tiny = w.folder.write("tiny.txt", "x");
    refused([&](PrepareOptions& o) { o.inputs = {tiny}, o.tokenizer = "bytes", o.vocab = 0; }, "data.too_little_text",
            "tiny.txt holds 1 byte: nothing would be left to train on");
}

TEST(DataPrepare, OpenFindsWhatDoesNotBelongTogether) {
    Workspace w;
    prepare(w.options);
    w.options.out = w.folder / "other";
    w.options.vocab = 290;
    prepare(w.options);
    const fs::path out = w.folder / "out", other = w.folder / "other";
    const auto refused = [&](const std::string& id, const std::string& text) {
        expect_user_error([&] { PreparedData::open(out); }, id, text);
        fs::remove_all(out);
        w.options.out = out;
        w.options.vocab = 300;
        prepare(w.options);
    };
    expect_user_error([&] { PreparedData::open(w.folder / "in"); }, "data.not_prepared",
                      "in is not a prepared data folder: it has no manifest.json");
    fs::copy_file(other / kTrainFile, out / kTrainFile, fs::copy_options::overwrite_existing);
    refused("data.files_disagree",
            "train.tokens is not the file that manifest.json next to it describes: the number of tokens is ");
    fs::copy_file(other / kTokenizerFile, out / kTokenizerFile, fs::copy_options::overwrite_existing);
    expect_user_error([&] { PreparedData::open(out).tokenizer(); }, "data.files_disagree",
                      "tokenizer.json is not the file that manifest.json next to it describes: the checksum is ");
    fs::remove(out / kHeldoutFile);
    refused("data.file_unreadable", "heldout.tokens: No such file");
    flip_byte(out / kTrainFile, 70);
    refused("data.file_damaged", "train.tokens is damaged");
    std::ofstream(out / kManifestFile) << "{\"format\": \"lockstep-tokens\", \"version\": 9}";
    refused("data.manifest_version", "manifest.json has version 9, this program reads versions 1 to 2. Run `data prepare` again");
    std::ofstream(out / kManifestFile) << "{\"format\": \"other\"}";
    refused("data.manifest_malformed", "is not a usable manifest: its format is not 'lockstep-tokens'");
    std::ofstream(out / kManifestFile) << "{";
    refused("data.manifest_malformed", "manifest.json is not a usable manifest: it is not JSON, or it was cut off.");
    std::ofstream(out / kManifestFile) << "{\"format\": \"lockstep-tokens\", \"version\": 2, \"vocab_size\": 9}";
    refused("data.manifest_malformed", "manifest.json is not a usable manifest: it has no 'separator'.");
    fs::remove(out / kManifestFile);
    ASSERT_EQ(mkfifo((out / kManifestFile).c_str(), 0600), 0);  // nobody writes to it: reading it would never end
    refused("data.file_unreadable", "manifest.json: it is not a regular file");
}

TEST(DataManifest, NamesNoFileOutsideTheFolder) {
    for (const char* name : {"../train.tokens", "/etc/passwd", "..", ""}) {
        const std::string json = R"({"format": "lockstep-tokens", "version": 2, "vocab_size": 9, "separator": 8,
                                     "train": {"shards": [{"file": ")" +
                                 std::string(name) + R"("}]}})";
        expect_user_error([&] { Manifest::parse(json, "m"); }, "data.manifest_malformed",
                          "is not the name of a file in the folder");
    }
}

TEST(DataManifest, VersionOneIsRead) {
    const char* const json = R"({"format": "lockstep-tokens", "version": 1, "vocab_size": 300, "separator": 299,
        "token_type": "u16", "train": {"tokens": 10, "documents": 2, "xxh3": "ab"}, "heldout": {"tokens": 5, "documents": 1,
        "xxh3": "cd"}, "tokenizer_xxh3": "ef", "unigram_entropy_nats": 1.5, "sources": {"inputs": ["in"], "files": 3, "bytes": 9,
        "skipped_binary": 1, "skipped_empty": 0, "skipped_hidden": 0, "skipped_repeated": 0, "skipped_other": 0,
        "fingerprint": "f"}})";
    const Manifest manifest = Manifest::parse(json, "m");
    EXPECT_EQ(manifest.train.shards, (std::vector<ShardInfo>{{"train.tokens", 10, 2, "ab"}}));
    EXPECT_EQ(manifest.heldout.shards, (std::vector<ShardInfo>{{"heldout.tokens", 5, 1, "cd"}}));
    EXPECT_EQ(manifest.sources.fingerprints, std::vector<std::string>{"f"});
    EXPECT_EQ(manifest.unigram_entropy_nats, 1.5);
    EXPECT_EQ(Manifest::parse(manifest.to_json(), "m"), manifest);
}

TEST(DataPrepare, NothingHeldOut) {
    for (const int documents : {1, 17}) {
        Workspace w(documents);
        w.options.heldout_fraction = 0;
        const Manifest manifest = prepare(w.options).manifest;
        EXPECT_EQ(manifest.train.documents, documents);
        EXPECT_EQ(manifest.heldout.documents, 0);
        const PreparedData data = PreparedData::open(w.options.out);
        EXPECT_TRUE(data.heldout.empty());
        EXPECT_FALSE(fs::exists(w.options.out / kHeldoutFile));
    }
}

TEST(DataPrepare, ShardsChangeNothingThatTrainingSees) {
    Workspace w;
    prepare(w.options);
    const PreparedData whole = PreparedData::open(w.options.out);
    w.options.out = w.folder / "shards";
    w.options.shard_tokens = 1000;
    const Manifest manifest = prepare(w.options).manifest;
    const PreparedData shards = PreparedData::open(w.options.out);
    ASSERT_GE(manifest.train.shards.size(), 3u);
    EXPECT_EQ(manifest.train.shards[0].file, "train.tokens");
    EXPECT_EQ(manifest.train.shards[1].file, "train-00001.tokens");
    EXPECT_EQ(manifest.unigram_entropy_nats, whole.manifest.unigram_entropy_nats);
    ASSERT_EQ(shards.train.tokens(), whole.train.tokens());
    std::vector<int32_t> expected(whole.train.tokens()), read(expected.size());
    whole.train.read(0, expected);
    shards.train.read(0, read);
    EXPECT_EQ(read, expected);
    for (int64_t first = 0; first + 700 < whole.train.tokens(); first += 333) {  // across the borders
        std::vector<int32_t> a(700), b(700);
        whole.train.read(first, a);
        shards.train.read(first, b);
        ASSERT_EQ(a, b) << first;
    }
    w.options.shard_tokens = 10;
    expect_user_error([&] { prepare(w.options); }, "data.shard_tokens", "a token file of fewer than 1000 tokens is refused");
}

TEST(DataPrepare, AppendAddsDocuments) {
    Workspace w;
    prepare(w.options);
    const PreparedData before = PreparedData::open(w.options.out);
    std::vector<int32_t> old_tokens(before.train.tokens());
    before.train.read(0, old_tokens);
    for (int d = 0; d < 20; ++d) w.folder.write("more/m" + std::to_string(d) + ".txt", sample_prose(100 + d, 80));
    PrepareOptions more;
    more.inputs = {w.folder / "more"};
    more.out = w.options.out;
    more.existing = ExistingData::append;
    const Manifest manifest = prepare(more).manifest;
    EXPECT_EQ(manifest.train.documents + manifest.heldout.documents, 50);
    EXPECT_EQ(manifest.sources.files, 50);
    const PreparedData after = PreparedData::open(w.options.out, Verify::full);
    ASSERT_EQ(after.train.files().size(), 2u);
    std::vector<int32_t> tokens(after.train.tokens()), counts(300);
    after.train.read(0, tokens);
    EXPECT_TRUE(std::equal(old_tokens.begin(), old_tokens.end(), tokens.begin()));
    double entropy = 0;
    for (const int32_t token : tokens) ++counts[token];
    for (const int32_t count : counts)
        if (count > 0)
            entropy -= count / static_cast<double>(tokens.size()) * std::log(count / static_cast<double>(tokens.size()));
    EXPECT_NEAR(manifest.unigram_entropy_nats.value(), entropy, 1e-9);
    EXPECT_TRUE(prepare(more).was_prepared_already);

    const auto refused = [&](auto change) {
        PrepareOptions options = more;
        change(options);
        expect_user_error([&] { prepare(options); }, "data.append_tokenizer", "was prepared with another tokenizer than ");
        EXPECT_EQ(PreparedData::open(w.options.out).manifest, after.manifest);
    };
    refused([](PrepareOptions& o) { o.tokenizer = "bytes"; });
    refused([](PrepareOptions& o) { o.tokenizer = "bpe"; });
    refused([](PrepareOptions& o) { o.ids_vocab_size = 300, o.ids_separator = 0; });
    more.out = w.folder / "none";
    expect_user_error([&] { prepare(more); }, "data.not_prepared", "none is not a prepared data folder");
}

TEST(DataPrepare, ReplacingLeavesNoShardBehind) {
    Workspace w;
    w.options.shard_tokens = 1000;
    prepare(w.options);
    ASSERT_TRUE(fs::exists(w.options.out / "train-00001.tokens"));
    w.options.shard_tokens = kDefaultShardTokens;
    w.options.existing = ExistingData::replace;
    prepare(w.options);
    EXPECT_FALSE(fs::exists(w.options.out / "train-00001.tokens"));
    EXPECT_EQ(PreparedData::open(w.options.out).manifest.train.shards.size(), 1u);
}

TEST(DataPrepare, ManyThreadsWriteTheSame) {
    Workspace w(200);
    w.add("in/long.txt", sample_prose(9, 900000));  // longer than what waits for other threads
    w.options.threads = 1;
    prepare(w.options);
    w.options.out = w.folder / "again";
    w.options.threads = 5;
    prepare(w.options);
    for (const char* file : {kTrainFile, kHeldoutFile, kTokenizerFile, kManifestFile})
        EXPECT_EQ(read_file(w.folder / "out" / file), read_file(w.folder / "again" / file)) << file;
}

TEST(DataPrepare, AnEmptyTokenizerFileIsRefused) {
    Workspace w;
    w.options.vocab = 0;
    w.options.tokenizer = w.folder.write("empty.json", "").string();
    expect_user_error([&] { prepare(w.options); }, "data.tokenizer_malformed", "empty.json");
}

}  // namespace
}  // namespace lockstep::data
