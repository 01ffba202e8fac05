// Which files are found, what each is taken for, and the words about those that are not read.
#include "data/inputs.h"

#include <sys/stat.h>

#include "data/file_corpus.h"
#include "data_test_util.h"

namespace lockstep::data {
namespace {

using testing::expect_user_error;
using testing::TempFolder;
namespace fs = testing::fs;

std::vector<std::string> names_of(const Inputs& found) {
    std::vector<std::string> names;
    for (const Input& file : found.files) names.push_back(file.name);
    return names;
}

TEST(DataInputs, FindsFilesSortedAndCountsTheRest) {
    const TempFolder folder;
    folder.write("in/b/2.txt", "two");
    folder.write("in/a.txt", "one");
    folder.write("in/c.dat", std::string("x\0y", 3));
    folder.write("in/late.txt", std::string(9000, 'x') + std::string(1, '\0'));  // a NUL behind the first 8 KiB
    folder.write("in/empty.txt", "");
    folder.write("in/.git/config", "hidden");
    fs::create_directory_symlink(folder / "in", folder / "in/b/cycle");
    fs::create_symlink(folder / "in/a.txt", folder / "in/z_same.txt");
    fs::create_symlink(folder / "gone", folder / "in/broken");
    ASSERT_EQ(mkfifo((folder / "in/pipe").c_str(), 0600), 0);
    folder.write("elsewhere/e.txt", "linked");
    fs::create_directory_symlink(folder / "elsewhere", folder / "in/linked");
    const Inputs found = find_inputs({folder / "in", folder / "in/a.txt"});
    EXPECT_EQ(names_of(found), (std::vector<std::string>{"in/a.txt", "in/b/2.txt", "in/late.txt", "in/linked/e.txt"}));
    EXPECT_EQ(found.skipped_binary, 1);
    EXPECT_EQ(found.skipped_empty, 1);
    EXPECT_EQ(found.skipped_hidden, 1);
    EXPECT_EQ(found.skipped_repeated, 3);
    EXPECT_EQ(found.skipped_other, 2);
}

TEST(DataInputs, Errors) {
    const TempFolder folder;
    folder.write("in/c.dat", std::string("x\0y", 3));
    expect_user_error([] { find_inputs({}); }, "data.no_input", "no input is named. Name the files or folders");
    expect_user_error([&] { find_inputs({folder / "gone"}); }, "data.input_missing",
                      "gone cannot be found: No such file or directory. Name an existing");
    expect_user_error([&] { find_inputs({folder / "in"}); }, "data.no_text",
                      "in: 1 unreadable, 0 empty, 0 hidden and 0 other files were left out. ");
    expect_user_error([&] { find_inputs({folder / "in"}); }, "data.no_text", "c.dat is binary. Name files of text");
    ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
    expect_user_error([&] { find_inputs({folder / "pipe"}); }, "data.input_unreadable",
                      "pipe is not read: it is not a regular file.");
    const FileCorpus corpus({{folder.write("a.txt", "abc"), "a.txt", 5, Format::text, Packing::none, {}}}, {});
    expect_user_error([&] { corpus.visit(0, [](const Document&) { return true; }); }, "data.file_changed",
                      "held 5 bytes when it was found and holds 3 now");
}

struct KindOfInput {
    const char* name;
    std::string head;
    Format format;
    const char* remedy;
};

TEST(DataFileFormat, IsKnownByNameAndFirstBytes) {
    using namespace std::string_literals;
    const std::string utf16 = "h\0e\0l\0l\0o\0 \0w\0o\0r\0l\0d\0!\0"s;
    const KindOfInput kinds[] = {
        {"a.txt", "plain", Format::text, ""},
        {"a.jsonl", "{\"text\": 1}\n", Format::text, ""},  // whether it is JSON is json_shape's matter
        {"a.parquet", "PAR1xxxx", Format::parquet, ""},
        {"a.npy", "\x93NUMPY\x01\x00", Format::npy, ""},
        {"a.idx", "MMIDIDX\0\0\1"s, Format::megatron_index, ""},
        {"a.bin", "\1\0\2\0\3\0\4\0\1\0\2\0\3\0\4\0\1\0"s, Format::raw_ids, ""},
        {"a.bin", "Some words in a file.\n", Format::unreadable, "Rename it to .txt"},
        {"a.npy", "\1\0\2\0\3\0\4\0"s, Format::unreadable, "--id-bytes 2 or --id-bytes 4"},
        {"a.npy", "Some words.\n", Format::unreadable, "rename it to what it is"},
        {"a.bin", std::string("\x88\xD8\x34\x01", 4) + std::string(1020, '\0'), Format::llm_c, ""},
        {"a.xz", "\xFD"s + "7zXZ\0"s, Format::unreadable, "xz -d"},
        {"a.bz2", "BZh91AY", Format::unreadable, "bzip2 -d"},
        {"a.zip", "PK\x03\x04", Format::unreadable, "unzip"},
        {"a.tar", "x", Format::unreadable, "tar -xf"},
        {"a", std::string(257, 'x').append("ustar"), Format::unreadable, "tar -xf"},
        {"a.arrow", "ARROW1", Format::unreadable, "pyarrow"},
        {"a.arrow", "\xFF\xFF\xFF\xFF", Format::unreadable, "pyarrow"},
        {"a.txt", "\xFF\xFEh", Format::unreadable, "iconv -f UTF-16"},
        {"a.txt", utf16, Format::unreadable, "iconv -f UTF-16"},
        {"a.tokens", "LSTOKENS", Format::unreadable, "training.dataset_path"},
        {"a.dat", "ab\0c"s, Format::binary, ""},
    };
    for (const KindOfInput& kind : kinds) {
        const FileFormat found = format_of(kind.name, Packing::none, kind.head);
        EXPECT_EQ(found.format, kind.format) << kind.name;
        EXPECT_NE(found.remedy.find(kind.remedy), std::string::npos) << kind.name << ": " << found.remedy;
        EXPECT_EQ(found.remedy.empty(), kind.format != Format::unreadable);
    }
    EXPECT_EQ(format_of("a.npy", Packing::none, "\1\0\2\0"s, 2).format, Format::raw_ids);
    EXPECT_EQ(promise_of("A.NDJSON", Packing::none), NamePromise::json_lines);
    EXPECT_EQ(promise_of("a.jsonl.gz", Packing::gzip), NamePromise::json_lines);
    EXPECT_EQ(promise_of("a.json.zst", Packing::zstd), NamePromise::json);
    EXPECT_EQ(promise_of("a.TXT", Packing::none), NamePromise::text);
    EXPECT_EQ(promise_of("wiki_00", Packing::none), NamePromise::none);
    EXPECT_EQ(format_of("a.txt.zst", Packing::zstd, "text").format, Format::text);
    EXPECT_EQ(format_of("a.tgz", Packing::gzip, "x").format, Format::unreadable);
    EXPECT_NE(format_of("a.npy.gz", Packing::gzip, "\x93NUMPY").remedy.find("gunzip"), std::string::npos);
    EXPECT_EQ(packing_of("\x1F\x8B\x08"), Packing::gzip);
    EXPECT_EQ(packing_of("\x28\xB5\x2F\xFD"), Packing::zstd);
    EXPECT_EQ(packing_of("text"), Packing::none);
}

TEST(DataInputs, AFileThatTheUserNamesIsReadOrRefused) {
    const TempFolder folder;
    folder.write("in/a.txt", "text");
    const fs::path zip = folder.write("in/z.zip", "PK\x03\x04");
    folder.write("in/y.zip", "PK\x03\x04");
    const fs::path bin = folder.write("in/ids.bin", std::string("\1\0\2\0", 4));
    const Inputs found = find_inputs({folder / "in"});
    ASSERT_EQ(found.left_out.size(), 2u);
    EXPECT_EQ(found.left_out[0].what, "a .bin without a header");
    EXPECT_EQ(found.left_out[1].what, "a zip archive");
    EXPECT_EQ(found.left_out[1].files, 2);
    EXPECT_NE(found.left_out[1].remedy.find("unzip "), std::string::npos);
    expect_user_error([&] { find_inputs({zip}); }, "data.input_unreadable",
                      "z.zip is not read: it is a zip archive. Unpack it first: unzip ");
    EXPECT_EQ(find_inputs({bin}).files.at(0).format, Format::raw_ids);
    EXPECT_EQ(find_inputs({folder / "in"}, {.raw_ids = RawIds::take}).files.size(), 2u);
}

TEST(DataInputs, ALinkKeepsItsNameAndNeighbours) {
    const TempFolder folder;
    using namespace std::string_literals;
    folder.write("blobs/aaa", "{\"text\": 1}\n");
    folder.write("blobs/bbb", "\1\0\2\0"s);
    folder.write("blobs/ccc", "MMIDIDX\0\0\1"s);
    fs::create_directories(folder / "snap");
    fs::create_symlink("../blobs/aaa", folder / "snap/a.jsonl");
    fs::create_symlink("../blobs/bbb", folder / "snap/x.bin");
    fs::create_symlink("../blobs/ccc", folder / "snap/x.idx");
    const Inputs found = find_inputs({folder / "snap/a.jsonl", folder / "snap/x.bin", folder / "blobs/aaa"});
    EXPECT_EQ(names_of(found), (std::vector<std::string>{"a.jsonl", "x.idx"}));
    EXPECT_EQ(found.files.at(0).format, Format::json_lines);
    EXPECT_EQ(found.files.at(1).bin.filename(), "x.bin");
    EXPECT_EQ(found.skipped_repeated, 1);
    expect_user_error([&] { find_inputs({folder / "snap/x"}); }, "data.input_missing",
                      "x.bin, name " + (folder / "snap/x.idx").string());
}

TEST(DataInputs, JsonLinesMayBeginWithADamagedLine) {
    const TempFolder folder;
    const std::string good = "{\"text\": \"b\"}\n{\"text\": \"c\"}\n";
    for (const std::string first :
         {"le\": \"T\", \"text\":\"a\"}\n", "x\n", "{\"text\":\"a\1\"}\n", "{\"text\": \"a\"}\nx\ny\nz\n"}) {
        const fs::path file = folder.write("xab", first + good);
        const Inputs text = find_inputs({file});
        EXPECT_EQ(text.files.at(0).format, Format::text) << first;
        EXPECT_EQ(text.taken_as_text.size(), 1u) << first;
        EXPECT_EQ(find_inputs({file}, {.skips_bad_lines = true}).files.at(0).format, Format::json_lines) << first;
        EXPECT_EQ(find_inputs({folder.write("a.json", first + good)}).files.at(0).format, Format::json_lines) << first;
    }
    EXPECT_TRUE(find_inputs({folder.write("prose", "x\ny\n")}, {.skips_bad_lines = true}).taken_as_text.empty());
}

TEST(DataInputs, ZerosInJsonLinesAreABadLine) {
    using namespace std::string_literals;
    const TempFolder folder;
    const std::string bytes = "{\"text\": \"a\"}\n"s + std::string(999, '\0');
    EXPECT_EQ(find_inputs({folder.write("a.jsonl", bytes)}).files.at(0).format, Format::json_lines);
    EXPECT_EQ(format_of("a.dat", Packing::none, bytes).format, Format::binary);
}

TEST(DataInputs, WithIdBytesANamedFileIsIds) {
    using namespace std::string_literals;
    const TempFolder folder;
    const fs::path ids = folder.write("ids.u16", "\1\0\2\0\3\0"s);
    expect_user_error([&] { find_inputs({ids}); }, "data.input_unreadable", "ids.u16 is not read: it is binary");
    EXPECT_EQ(find_inputs({ids}, {.id_bytes = 2}).files.at(0).format, Format::raw_ids);
    EXPECT_EQ(format_of("a.txt", Packing::none, "words", 2, true).format, Format::text);
    EXPECT_EQ(format_of("words", Packing::none, "words", 2, true).format, Format::text);
    EXPECT_EQ(format_of("t.bin", Packing::none, "PK\x03\x04..archive/data.pkl").what, "what PyTorch's torch.save wrote");
}

TEST(DataInputs, WhatDescribesADataSetIsNoText) {
    const TempFolder folder;
    folder.write("d/wds/sizes.json", R"({"a.tar": 100})");
    folder.write("d/tfds/dataset_info.json", R"({"name":"lm1b","splits":[]})");
    folder.write("d/tfds/features.json", R"({"type":"x","content":{}})");
    folder.write("d/mds/index.json", R"({"version": 2, "shards": []})");
    folder.write("d/delta/_delta_log/00000.json", R"({"commitInfo":{}})");
    folder.write("d/cache/dataset_info.json", R"({"builder_name": "json", "download_checksums": {}})");
    folder.write("d/a.txt", "text");
    EXPECT_EQ(names_of(find_inputs({folder / "d"})), std::vector<std::string>{"d/a.txt"});
}

TEST(DataInputs, DataSetsOfOtherProgramsAreNamed) {
    const TempFolder folder;
    using namespace std::string_literals;
    folder.write("mds/index.json", R"({"version":2,"shards":[{"format":"mds","raw_data":{"basename":"shard.00000.mds"}}]})");
    folder.write("mds/shard.00000.mds", "\1\0\0\0"s);
    folder.write("lit/index.json",
                 R"({"chunks":[{"chunk_bytes":9,"filename":"chunk-0-0.bin"}],"config":{"data_format":["int"]}})");
    folder.write("lit/chunk-0-0.bin", "\1\0\0\0"s);
    folder.write("saved/state.json", R"({"_data_files":[{"filename":"data-00000-of-00001.arrow"}]})");
    folder.write("saved/dataset_info.json", R"({"features":{"text":{"dtype":"string"}}})");
    folder.write("saved/data-00000-of-00001.arrow", "\xFF\xFF\xFF\xFF");
    folder.write("dict/dataset_dict.json", R"({"splits": ["train"]})");
    folder.write("dict/train/state.json", R"({"_data_files": []})");
    folder.write("trove/000.ds", "\1\0\2\0"s);
    folder.write("trove/000.ds.metadata", "gpt2|100\n");
    folder.write("tars/000.tar", "x");
    folder.write("hub/dataset_infos.json", R"({"default":{"features":{}}})");
    for (const auto& [name, text] : {std::pair{"mds", "mds is not read: it is a data set of mosaicml-streaming (MDS). Write its"},
                                     {"mds/index.json", "it is a data set of mosaicml-streaming (MDS)"},
                                     {"mds/shard.00000.mds", "it is a shard of mosaicml-streaming (MDS)"},
                                     {"lit", "lit is not read: it is a data set of litdata. Write its token ids as .npy"},
                                     {"saved", "with save_to_disk. Write it as Parquet: datasets.load_from_disk(\""},
                                     {"saved/state.json", "it is a data set that Hugging Face datasets wrote with save_to_disk"},
                                     {"saved/dataset_info.json", "it is what Hugging Face datasets says of a data set"},
                                     {"dict", "with save_to_disk"},
                                     {"trove/000.ds", "it is token ids of datatrove, without a header. Copy the .ds"},
                                     {"tars/000.tar", "Of WebDataset's shards, the .txt files in it are then documents"}})
        expect_user_error([&, input = folder / name] { find_inputs({input}); }, "data.input_unreadable", text);
    for (const char* name : {"trove", "tars", "hub"})
        expect_user_error([&] { find_inputs({folder / name}); }, "data.no_text", "nothing to read was found in");
    folder.write("a.txt", "text");
    folder.write("index.json", R"({"name": "an index of something else", "text": "a text"})");
    const Inputs found = find_inputs({folder.path()});
    EXPECT_EQ(found.files.size(), 2u);
    EXPECT_EQ(found.files.at(1).format, Format::json_lines);
    EXPECT_EQ(found.left_out.size(), 7u);
}

}  // namespace
}  // namespace lockstep::data
