// Preparing a folder: which files, the held-out split, what is written, what is refused.
#include "data/prepare.h"

#include <cmath>
#include <map>
#include <set>

#include "data/heldout_split.h"
#include "data/text_files.h"
#include "data_test_util.h"

namespace lockstep::data {
namespace {

using testing::expect_user_error;
using testing::flip_byte;
using testing::read_file;
using testing::sample_prose;
using testing::TempFolder;
namespace fs = testing::fs;

std::vector<std::string> names_of(const TextFiles& found) {
    std::vector<std::string> names;
    for (const TextFile& file : found.files) names.push_back(file.name);
    return names;
}

std::string text_of(const TokenFile& file, int64_t document, const Tokenizer& tokenizer) {
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

TEST(DataTextFiles, FindsTextSortedAndCountsTheRest) {
    const TempFolder folder;
    folder.write("in/b/2.txt", "two");
    folder.write("in/a.txt", "one");
    folder.write("in/c.bin", std::string("x\0y", 3));
    folder.write("in/late.txt", std::string(9000, 'x') + std::string(1, '\0'));  // a NUL behind the first 8 KiB
    folder.write("in/empty.txt", "");
    folder.write("in/.git/config", "hidden");
    fs::create_directory_symlink(folder / "in", folder / "in/b/cycle");
    fs::create_symlink(folder / "in/a.txt", folder / "in/z_same.txt");
    fs::create_symlink(folder / "gone", folder / "in/broken");
    folder.write("elsewhere/e.txt", "linked");
    fs::create_directory_symlink(folder / "elsewhere", folder / "in/linked");
    const TextFiles found = find_text_files({folder / "in", folder / "in/a.txt"});
    EXPECT_EQ(names_of(found), (std::vector<std::string>{"in/a.txt", "in/b/2.txt", "in/late.txt", "in/linked/e.txt"}));
    EXPECT_EQ(found.skipped_binary, 1);
    EXPECT_EQ(found.skipped_empty, 1);
    EXPECT_EQ(found.skipped_hidden, 1);
    EXPECT_EQ(found.skipped_repeated, 3);
    EXPECT_EQ(found.skipped_other, 1);
}

TEST(DataTextFiles, Errors) {
    const TempFolder folder;
    folder.write("in/c.bin", std::string("x\0y", 3));
    expect_user_error([] { find_text_files({}); }, "data.no_input", "no input is named. Name the text files or folders");
    expect_user_error([&] { find_text_files({folder / "gone"}); }, "data.input_missing",
                      "gone cannot be found: No such file or directory. Name an existing");
    expect_user_error([&] { find_text_files({folder / "in"}); }, "data.no_text",
                      "(1 input): 1 binary, 0 empty, 0 hidden and 0 other");
    const FileCorpus corpus({{folder.write("a.txt", "abc"), "a.txt", 5}});
    expect_user_error([&] { corpus.visit(0, [](std::string_view) {}); }, "data.file_changed",
                      "held 5 bytes when it was found and holds 3 now");
}

TEST(DataHeldoutSplit, DependsOnTheNamesOnly) {
    std::vector<std::string> names;
    for (int i = 0; i < 2000; ++i) names.push_back("in/" + std::to_string(i));
    const std::vector<bool> held_out = held_out_documents(names, 0.1);
    EXPECT_NEAR(static_cast<double>(std::count(held_out.begin(), held_out.end(), true)), 200, 60);
    std::vector<std::string> reversed(names.rbegin(), names.rend());
    std::vector<bool> again = held_out_documents(reversed, 0.1);
    std::reverse(again.begin(), again.end());
    EXPECT_EQ(again, held_out);
    for (const double fraction : {0.0, 0.999999}) {
        const std::vector<bool> two = held_out_documents({"a", "b"}, fraction);
        EXPECT_EQ(std::count(two.begin(), two.end(), true), 1);
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
    EXPECT_EQ(data.tokenizer.vocab_size(), 300);
    EXPECT_EQ(data.manifest.token_type, "u16");
    EXPECT_EQ(data.manifest.sources.files, 30);
    EXPECT_EQ(data.train.documents() + data.heldout.documents(), 30);
    EXPECT_GE(data.heldout.documents(), 1);
    std::multiset<std::string> expected, written;
    for (const auto& [name, text] : w.texts) expected.insert(text);
    for (const TokenFile* file : {&data.train, &data.heldout})
        for (int64_t d = 0; d < file->documents(); ++d) written.insert(text_of(*file, d, data.tokenizer));
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
    EXPECT_NEAR(manifest.unigram_entropy_nats, -2 * 0.4 * std::log(0.4) - 0.2 * std::log(0.2), 1e-12);
}

TEST(DataPrepare, OneDocumentIsSplit) {
    Workspace w(0);
    const std::string text = sample_prose(3, 1000);
    w.add("in/only.txt", text);
    prepare(w.options);
    const PreparedData data = PreparedData::open(w.options.out);
    ASSERT_EQ(data.train.documents(), 1);
    ASSERT_EQ(data.heldout.documents(), 1);
    EXPECT_EQ(text_of(data.train, 0, data.tokenizer) + text_of(data.heldout, 0, data.tokenizer), text);
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
    refused([](PrepareOptions& o) { o.tokenizer = "/gone.json"; }, "data.file_unreadable", "cannot read /gone.json");
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
            "train.tokens is not the file that manifest.json beside it describes: the number of tokens is ");
    fs::copy_file(other / kTokenizerFile, out / kTokenizerFile, fs::copy_options::overwrite_existing);
    refused("data.files_disagree", "tokenizer.json is not the file that manifest.json beside it describes: the checksum is ");
    fs::remove(out / kHeldoutFile);
    refused("data.file_unreadable", "heldout.tokens: No such file");
    flip_byte(out / kTrainFile, 70);
    refused("data.file_damaged", "train.tokens is damaged");
    std::ofstream(out / kManifestFile) << "{\"format\": \"lockstep-tokens\", \"version\": 9}";
    refused("data.manifest_version", "manifest.json has version 9, this program reads version 1. Run `data prepare` again");
    std::ofstream(out / kManifestFile) << "{\"format\": \"other\"}";
    refused("data.manifest_malformed", "is not a usable manifest: its format is not 'lockstep-tokens'");
    std::ofstream(out / kManifestFile) << "{";
    refused("data.manifest_malformed", "manifest.json is not a usable manifest: ");
}

}  // namespace
}  // namespace lockstep::data
