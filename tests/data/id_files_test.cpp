// Token ids of other programs: each format read, each kind of damage refused, documents as they were.
#include "data/id_files.h"

#include <chrono>

#include "data/prepare.h"
#include "data_test_util.h"

namespace lockstep::data {
namespace {

using testing::expect_user_error;
using testing::TempFolder;
namespace fs = testing::fs;

template <class T>
std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string npy(const std::string& descr, const std::string& shape, const std::string& data) {
    std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
    while ((10 + header.size() + 1) % 64 != 0) header += ' ';
    header += '\n';
    const auto length = static_cast<uint16_t>(header.size());
    return "\x93NUMPY" + std::string("\1\0", 2) + bytes_of<uint16_t>({length}) + header + data;
}

std::string llm_c(int32_t magic, int32_t version, int32_t count, const std::string& data) {
    std::vector<int32_t> header(256);
    header[0] = magic, header[1] = version, header[2] = count;
    return bytes_of(header) + data;
}

// Documents of sequences, 16-bit.
struct Megatron {
    std::string index, bin;
    explicit Megatron(const std::vector<std::vector<std::vector<uint16_t>>>& documents) {
        std::vector<int32_t> lengths;
        std::vector<int64_t> offsets, borders{0};
        for (const auto& document : documents) {
            for (const std::vector<uint16_t>& sequence : document) {
                lengths.push_back(static_cast<int32_t>(sequence.size()));
                offsets.push_back(static_cast<int64_t>(bin.size()));
                bin += bytes_of(sequence);
            }
            borders.push_back(static_cast<int64_t>(lengths.size()));
        }
        index = std::string(kMegatronMagic) + bytes_of<uint64_t>({1}) + '\x08' +
                bytes_of<uint64_t>({lengths.size(), borders.size()}) + bytes_of(lengths) + bytes_of(offsets) + bytes_of(borders);
    }
};

// All train tokens of a preparation with vocabulary 100 and separator 99, nothing held out.
struct Prepared {
    std::vector<int32_t> tokens;
    std::vector<int64_t> begins;
    explicit Prepared(const std::vector<fs::path>& inputs, const TempFolder& folder) {
        PrepareOptions options;
        options.inputs = inputs;
        options.out = folder / ("out" + std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()));
        options.ids_vocab_size = 100;
        options.ids_separator = 99;
        options.heldout_fraction = 0;
        prepare(options);
        const PreparedData data = PreparedData::open(options.out, Verify::full);
        EXPECT_FALSE(data.tokenizer().has_value());
        tokens.resize(data.train.tokens());
        data.train.read(0, tokens);
        for (int64_t d = 0; d < data.train.files()[0].documents(); ++d) begins.push_back(data.train.files()[0].document_begin(d));
    }
};

using Ids = std::vector<int32_t>;

TEST(DataIdFiles, StreamsKeepTheirTokens) {
    const TempFolder folder;
    const Ids expected{1, 2, 99, 3, 99, 99, 4, 5, 99};  // the last document gets its separator
    const std::vector<int64_t> begins{0, 3, 5, 6};
    const std::vector<uint16_t> u16{1, 2, 99, 3, 99, 99, 4, 5};
    const std::vector<uint32_t> u32(u16.begin(), u16.end());
    const std::vector<int64_t> i64(u16.begin(), u16.end());
    const std::pair<const char*, std::string> files[] = {{"raw.bin", bytes_of(u16)},
                                                         {"gpt2.bin", llm_c(20240520, 1, 8, bytes_of(u16))},
                                                         {"llama3.bin", llm_c(20240801, 7, 8, bytes_of(u32))},
                                                         {"a16.npy", npy("<u2", "(8,)", bytes_of(u16))},
                                                         {"a32.npy", npy("<i4", "(8,)", bytes_of(u32))},
                                                         {"a64.npy", npy("<i8", "(8,)", bytes_of(i64))}};
    for (const auto& [name, bytes] : files) {
        const Prepared prepared({folder.write(name, bytes)}, folder);
        EXPECT_EQ(prepared.tokens, expected) << name;
        EXPECT_EQ(prepared.begins, begins) << name;
    }
}

TEST(DataIdFiles, MegatronDocumentsHaveSeveralSequences) {
    const TempFolder folder;
    const Megatron data({{{1, 2}, {3}}, {{4, 99}}, {}, {{5}}});
    const fs::path index = folder.write("in/m.idx", data.index), bin = folder.write("in/m.bin", data.bin);
    for (const std::vector<fs::path>& inputs : {std::vector{index}, {bin}, {index, bin}, {folder / "in"}}) {
        const Prepared prepared(inputs, folder);
        EXPECT_EQ(prepared.tokens, (Ids{1, 2, 3, 99, 4, 99, 5, 99}));
        EXPECT_EQ(prepared.begins, (std::vector<int64_t>{0, 4, 6}));
    }
    fs::remove(bin);
    expect_user_error([&] { Prepared({index}, folder); }, "data.input_unreadable", "m.bin next to it is missing");
}

TEST(DataIdFiles, RowsAreTakenAsTheyAre) {
    const TempFolder folder;
    const Prepared prepared({folder.write("w.npy", npy("<u2", "(2, 3)", bytes_of<uint16_t>({1, 99, 2, 3, 4, 5})))}, folder);
    EXPECT_EQ(prepared.tokens, (Ids{1, 99, 2, 3, 4, 5}));
    EXPECT_EQ(prepared.begins, (std::vector<int64_t>{0, 3}));
}

TEST(DataIdFiles, TheVocabularySaysTheWidthOfIdsWithoutAHeader) {
    const TempFolder folder;
    PrepareOptions options;
    options.ids_vocab_size = 128256;
    options.ids_separator = 128001;
    options.out = folder / "out";
    options.heldout_fraction = 0;
    options.existing = ExistingData::replace;
    const auto tokens = [&](const std::string& name, const std::string& bytes) {
        options.inputs = {folder.write(name, bytes)};
        prepare(options);
        const PreparedData data = PreparedData::open(options.out);
        Ids ids(static_cast<size_t>(data.train.tokens()));
        data.train.read(0, ids);
        return ids;
    };
    const Ids ids{70000, 5, 6, 100000, 128001, 7, 128001};
    const std::string wide = bytes_of<uint32_t>({70000, 5, 6, 100000, 128001, 7, 128001});
    EXPECT_EQ(tokens("a.bin", wide), ids);
    options.id_bytes = 4;
    EXPECT_EQ(tokens("a.bin", wide), ids);
    EXPECT_EQ(tokens("a.npy", wide), ids);
    EXPECT_EQ(tokens("in/a.npy", wide), ids);
    options.id_bytes = 2;
    expect_user_error([&] { tokens("a.bin", wide); }, "data.foreign_ids",
                      "ids of 2 bytes (--id-bytes) are those of at most 65536");
    options.ids_vocab_size = 100, options.ids_separator = 99;
    EXPECT_EQ(tokens("b.npy", bytes_of<uint16_t>({1, 99, 2})), (Ids{1, 99, 2, 99}));
    options.id_bytes = 0;
    expect_user_error(
        [&] {
            tokens("c.npy", bytes_of<uint16_t>({1, 99, 2}));
        },
        "data.input_unreadable",
        "an .npy whose header is missing, as those of OLMo. If it holds token ids and nothing else, say their width");
}

TEST(DataIdFiles, WhatCannotBeIdsIsRefused) {
    const auto refused = [](const std::string& bytes, int id_bytes, const std::string& text) {
        expect_user_error([&] { parse_raw_ids(bytes, "a.bin", id_bytes, 1000); }, "data.foreign_ids", "a.bin: " + text);
    };
    const std::string wide = bytes_of<uint32_t>({5, 6, 7, 0, 8, 9, 0});
    for (const int id_bytes : {0, 2})
        refused(wide, id_bytes, "read as 16-bit ids, every other id is 0: they seem to have 32 bits. Say --id-bytes 4");
    EXPECT_EQ(parse_raw_ids(wide, "a.bin", 4, 1000).count, 7);
    std::vector<int32_t> mostly_small(99, 7);
    mostly_small.back() = -100;
    refused(bytes_of<int32_t>(mostly_small), 2, "read as 16-bit ids, every other id is 0: they seem to have 32 bits");
    refused(bytes_of<int64_t>({5, 6, 7, 0, 8, 9, 0}), 4, "read as 32-bit ids, every other id is 0: they seem to have 64 bits");
    refused(bytes_of<uint32_t>({2, 16, 20, 24, 5, 6}), 4, "it is a chunk of litdata, with a header");
    refused(bytes_of<uint32_t>({1, 12, 5, 6, 7, 8}), 0, "it is a chunk of litdata, with a header");
    refused(wide.substr(0, 27), 4, "it holds 27 bytes, no multiple of 4, and is read as 32-bit ids");
    // Documents of a token each, ended by 0, are ids as long as they are few; zeros alone are padding.
    EXPECT_EQ(parse_raw_ids(bytes_of<uint16_t>({5, 0, 6, 0}), "a.bin", 0, 1000).count, 4);
    EXPECT_EQ(parse_raw_ids(std::string(100, '\0'), "a.bin", 0, 1000).count, 50);
}

TEST(DataIdFiles, IdsAreCheckedAgainstTheVocabulary) {
    const TempFolder folder;
    expect_user_error(
        [&] {
            Prepared({folder.write("s.bin", bytes_of<uint16_t>({99, 99, 99}))}, folder);
        },
        "data.foreign_ids", "s.bin: all of its 3 ids are 99, the separator, so that all documents are empty.");
    expect_user_error([&] { parse_npy(npy("|O", "(1,)", "12345678"), "o.npy"); }, "data.foreign_ids",
                      "Save the ids as one array of numbers");
    expect_user_error(
        [&] {
            Prepared({folder.write("a.bin", bytes_of<uint16_t>({1, 99, 7, 100}))}, folder);
        },
        "data.id_outside", "a.bin#2: token 1 of the document is 100, outside the vocabulary of 100.");
    expect_user_error([&] { Prepared({folder.write("a.npy", npy("<i8", "(1,)", bytes_of<int64_t>({-5})))}, folder); },
                      "data.id_outside", "is -5, outside");
}

TEST(DataIdFiles, DamageIsRefused) {
    const std::string two = bytes_of<uint16_t>({1, 2});
    const auto npy_refused = [](const std::string& bytes, const std::string& text) {
        expect_user_error([&] { parse_npy(bytes, "a.npy"); }, "data.foreign_ids", "a.npy: " + text);
    };
    npy_refused("", "it is not an .npy file, or it was cut off");
    npy_refused(npy("<u2", "(2,)", two).substr(0, 40), "it was cut off in its header");
    npy_refused(npy("<f4", "(1,)", two), "its elements are '<f4'; token ids are little-endian integers");
    npy_refused(npy(">u2", "(2,)", two), "its elements are '>u2'");
    npy_refused(npy("<u2", "(3,)", two), "its header promises 3 elements of 2 bytes, and 4 bytes follow");
    npy_refused(npy("<u2", "(9223372036854775807, 2)", two), "its header promises 9223372036854775807 x 2 elements");
    npy_refused(npy("<u2", "(1, 1, 2)", two), "its shape is of 3 dimensions");
    npy_refused(npy("<u2", "(-1,)", two), "its shape is unknown");
    npy_refused(npy("<u2", "()", two), "its shape is unknown");
    const auto llm_c_refused = [](const std::string& bytes, const std::string& text) {
        expect_user_error([&] { parse_llm_c(bytes, "a.bin"); }, "data.foreign_ids", "a.bin: " + text);
    };
    llm_c_refused(llm_c(20240520, 2, 2, two), "its version is 2");
    llm_c_refused(llm_c(20240520, 1, 3, two), "its header promises 3 ids of 2 bytes, and 4 bytes follow");
    llm_c_refused(llm_c(20240520, 1, -1, two), "its header promises -1 ids");
    llm_c_refused(two, "it does not begin with the header of llm.c's token files");
    expect_user_error([] { parse_raw_ids("abc", "a.bin", 0, 100); }, "data.foreign_ids", "it holds 3 bytes, an odd number");
    const Megatron good({{{1, 2}, {3}}, {{4}}});
    const auto megatron_refused = [&](size_t at, const std::string& bytes, const std::string& text) {
        std::string index = good.index;
        index.replace(at, bytes.size(), bytes);
        expect_user_error([&] { MegatronIndex::parse(index, good.bin, "a.idx"); }, "data.foreign_ids", "a.idx: " + text);
    };
    megatron_refused(9, bytes_of<uint64_t>({2}), "its version is 2");
    megatron_refused(17, "\x07", "its element type has the code 7");
    megatron_refused(18, bytes_of<uint64_t>({uint64_t{1} << 62}), "it promises 4611686018427387904 sequences");
    megatron_refused(26, bytes_of<uint64_t>({UINT64_MAX}), "it promises 3 sequences and 18446744073709551615 borders");
    megatron_refused(34, bytes_of<int32_t>({500}), "sequence 0 (500 ids from byte 0) lies outside the .bin, which has 8 bytes");
    megatron_refused(34, bytes_of<int32_t>({-1}), "sequence 0 (-1 ids");
    megatron_refused(34 + 12, bytes_of<int64_t>({INT64_MAX}), "sequence 0 (2 ids from byte 9223372036854775807)");
    megatron_refused(34 + 12 + 24 + 8, bytes_of<int64_t>({9}), "border 1 of its documents is 9, outside 0 to 3");
    for (size_t cut = 0; cut < good.index.size(); ++cut)
        EXPECT_THROW(MegatronIndex::parse(std::string_view(good.index).substr(0, cut), good.bin, "a.idx"), UserError) << cut;
}

TEST(DataShards, AThousandOpenInASecond) {
    const TempFolder folder;
    const std::vector<uint16_t> ids = [] {
        std::vector<uint16_t> all;
        for (int i = 0; i < 1'000'000; ++i) all.push_back(static_cast<uint16_t>(i % 50 == 49 ? 99 : i % 90));
        return all;
    }();
    PrepareOptions options;
    options.inputs = {folder.write("a.bin", bytes_of(ids))};
    options.out = folder / "out";
    options.ids_vocab_size = 100;
    options.ids_separator = 99;
    options.shard_tokens = 1000;
    prepare(options);
    const auto begun = std::chrono::steady_clock::now();
    const PreparedData data = PreparedData::open(options.out);
    const double time_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    EXPECT_GE(data.train.files().size() + data.heldout.files().size(), 990u);
    EXPECT_LT(time_s, 1.0);
}

}  // namespace
}  // namespace lockstep::data
