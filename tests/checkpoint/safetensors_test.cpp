// Files written are read back, whole and in parts, by one writer and by several; every kind of damage is named.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>
#include <thread>

#include "base/error.h"

namespace lockstep::checkpoint {
namespace {

class SafetensorsFile : public ::testing::Test {
protected:
    void SetUp() override {
        std::string pattern = std::filesystem::temp_directory_path() / "safetensors_test_XXXXXX";
        ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
        folder_ = pattern;
        path_ = folder_ / "model.safetensors";
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::string bytes() const {
        std::ifstream file(path_, std::ios::binary);
        std::ostringstream text;
        text << file.rdbuf();
        return text.str();
    }
    void put(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
    void put(const std::string& header, size_t data_bytes) const {
        const uint64_t length = header.size();
        put(std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data_bytes, '\0'));
    }

    // What opening the file says: "id: message", with the path shortened to its name.
    std::string refusal() const {
        try {
            SafetensorsReader reader(path_);
        } catch (const UserError& error) {
            EXPECT_EQ(error.key(), path_);
            std::string text = error.what();
            for (size_t at; (at = text.find(path_.string())) != std::string::npos;)
                text.replace(at, path_.string().size(), "FILE");
            return error.id() + ": " + text;
        }
        return "accepted";
    }
    std::string refusal(const std::string& header, size_t data_bytes) const {
        put(header, data_bytes);
        return refusal();
    }

    std::filesystem::path folder_, path_;
};

const std::string kAnother = " Take another copy or an earlier checkpoint.";

std::string not_valid(const std::string& what) {
    return "checkpoint.bad_header: FILE is not a valid safetensors file: " + what + "." + kAnother;
}

SafetensorsLayout example() {
    return SafetensorsLayout({{"half", "BF16", {3}}, {"weight", "F32", {4, 5}}, {"scalar", "I64", {}}, {"none", "F32", {0, 7}}},
                             {{"step", "12"}, {"text", "quote \" and \xc3\xa9"}});
}

TEST_F(SafetensorsFile, ReadsBackWhatWasWritten) {
    std::vector<float> weight(20);
    std::iota(weight.begin(), weight.end(), 0.5f);
    const int64_t scalar = -7;
    const uint16_t half[] = {1, 2, 3};
    SafetensorsWriter writer(path_, example());
    writer.write("weight", weight.data());
    writer.write("scalar", &scalar);
    writer.write("half", half);
    writer.write("none", nullptr);
    EXPECT_FALSE(std::filesystem::exists(path_));
    writer.finish();
    EXPECT_FALSE(std::filesystem::exists(path_.string() + ".partial"));
    EXPECT_THROW(writer.finish(), InternalError);

    const SafetensorsReader reader(path_);
    EXPECT_EQ(reader.metadata(), (Metadata{{"step", "12"}, {"text", "quote \" and \xc3\xa9"}}));
    std::vector<std::string> names;
    for (const TensorEntry& tensor : reader.tensors()) names.push_back(tensor.spec.name);
    std::sort(names.begin(), names.end());
    EXPECT_EQ(names, (std::vector<std::string>{"half", "none", "scalar", "weight"}));
    EXPECT_EQ(reader.tensors()[0].spec.name, "scalar");  // the largest dtype lies first
    EXPECT_EQ(reader.find("weight").spec.shape, (std::vector<int64_t>{4, 5}));
    EXPECT_EQ(reader.find("weight").spec.dtype, "F32");
    EXPECT_TRUE(reader.contains("none"));
    EXPECT_FALSE(reader.contains("some"));

    float part[6] = {};
    reader.read("weight", 7, 6, part);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(part[i], weight[static_cast<size_t>(7 + i)]);
    int64_t number = 0;
    reader.read("scalar", 0, 1, &number);
    EXPECT_EQ(number, scalar);
    uint16_t last = 0;
    reader.read("half", 2, 1, &last);
    EXPECT_EQ(last, 3);
    reader.read("none", 0, 0, nullptr);
    EXPECT_THROW(reader.read("weight", 19, 2, part), InternalError);
}

TEST_F(SafetensorsFile, ThreadsShareAFileByParts) {
    const SafetensorsLayout layout({{"a", "F64", {6, 100}}, {"b", "I32", {30}}}, {});
    SafetensorsWriter writer(path_, layout);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
        threads.emplace_back([&, rank] {
            const std::vector<double> rows(200, rank);
            const std::vector<int32_t> piece(10, rank);
            writer.write("a", rank * 200, 200, rows.data());
            writer.write("b", rank * 10, 10, piece.data());
        });
    }
    for (std::thread& thread : threads) thread.join();
    writer.finish();

    const SafetensorsReader reader(path_);
    std::vector<double> a(600);
    std::vector<int32_t> b(30);
    reader.read("a", 0, 600, a.data());
    reader.read("b", 0, 30, b.data());
    for (size_t i = 0; i < 600; ++i) ASSERT_EQ(a[i], static_cast<double>(i / 200));
    for (size_t i = 0; i < 30; ++i) ASSERT_EQ(b[i], static_cast<int32_t>(i / 10));
}

TEST_F(SafetensorsFile, AnUnfinishedFileLeavesTheOldOneAlone) {
    put("old");
    {
        SafetensorsWriter writer(path_, example());
        EXPECT_TRUE(std::filesystem::exists(path_.string() + ".partial"));
    }
    EXPECT_FALSE(std::filesystem::exists(path_.string() + ".partial"));
    EXPECT_EQ(bytes(), "old");
}

TEST_F(SafetensorsFile, DataBeginsAtAMultipleOfEightBytes) {
    EXPECT_EQ(example().header().size() % 8, 0u);
    EXPECT_EQ(example().file_bytes(), static_cast<int64_t>(example().header().size()) + 8 + 80 + 6);
}

TEST(Safetensors, ALayoutRefusesWhatTheFormatCannotHold) {
    EXPECT_THROW(SafetensorsLayout({{"a", "F31", {1}}}, {}), InternalError);
    EXPECT_THROW(SafetensorsLayout({{"a", "F32", {-1}}}, {}), InternalError);
    EXPECT_THROW(SafetensorsLayout({{"a", "F32", {INT64_MAX, 2}}}, {}), InternalError);
    EXPECT_THROW(SafetensorsLayout({{"a", "F32", {1}}, {"a", "F32", {1}}}, {}), InternalError);
    EXPECT_THROW(SafetensorsLayout({{"__metadata__", "F32", {1}}}, {}), InternalError);
    EXPECT_THROW(SafetensorsLayout({{"\xff", "F32", {1}}}, {}), InternalError);
    EXPECT_THROW(example().find("other"), InternalError);
}

TEST_F(SafetensorsFile, CannotWrite) {
    const std::string path = folder_ / "absent" / "x";
    try {
        SafetensorsWriter(path, example());
        FAIL();
    } catch (const UserError& error) {
        EXPECT_EQ(error.id(), "file.cannot_write");
        EXPECT_EQ(error.what(),
                  "cannot write " + path +
                      ".partial: open failed: No such file or directory. Choose a folder that exists, is writable and "
                      "has room.");
    }
}

TEST_F(SafetensorsFile, CannotRead) {
    EXPECT_EQ(refusal(), "checkpoint.cannot_read: cannot read FILE: No such file or directory.");
}

TEST_F(SafetensorsFile, NoSuchTensor) {
    put(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2);
    const SafetensorsReader reader(path_);
    try {
        reader.find("b");
        FAIL();
    } catch (const UserError& error) {
        EXPECT_EQ(error.id(), "checkpoint.no_such_tensor");
        EXPECT_EQ(error.what(), path_.string() + " has no tensor \"b\" among its 1. Is it the checkpoint of another model?");
    }
}

TEST_F(SafetensorsFile, Truncated) {
    put("abc");
    EXPECT_EQ(refusal(), "checkpoint.truncated: FILE ends in its header: 8 bytes were expected, the file has 3." + kAnother);
    const std::string header = R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})";
    EXPECT_EQ(refusal(header, 9), "accepted");
    EXPECT_EQ(refusal(header, 8),
              "checkpoint.truncated: FILE ends too early: its header describes 9 bytes of data, the file has 8." + kAnother);
    put(bytes().substr(0, 40));
    EXPECT_EQ(refusal(), "checkpoint.truncated: FILE ends in its header: 61 bytes were expected, the file has 40." + kAnother);
}

TEST_F(SafetensorsFile, TruncatedWhileItIsRead) {
    put(R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", 9);
    const SafetensorsReader reader(path_);
    std::filesystem::resize_file(path_, 8 + 53 + 4);
    char data[9];
    try {
        reader.read("a", 0, 9, data);
        FAIL();
    } catch (const UserError& error) {
        EXPECT_EQ(error.id(), "checkpoint.truncated");
        EXPECT_EQ(error.what(),
                  path_.string() + " became shorter while it was read: 4 of 9 bytes from byte 61 on. Is another job writing it?");
    }
}

TEST_F(SafetensorsFile, TrailingBytes) {
    EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", 10),
              "checkpoint.trailing_bytes: FILE is longer than its header says: 9 bytes of data are described, the file has 10." +
                  kAnother);
}

TEST_F(SafetensorsFile, BadHeader) {
    put("\xff\xff\xff\xff\xff\xff\xff\xff" + std::string(20, ' '));
    EXPECT_EQ(refusal(), not_valid("its header would be 18446744073709551615 bytes long, over the limit of 100000000"));
    EXPECT_EQ(refusal("", 0), not_valid("its header does not begin with {"));
    EXPECT_EQ(refusal("[]", 0), not_valid("its header does not begin with {"));
    EXPECT_EQ(refusal("{} x", 0).find(not_valid("its header is no JSON (").substr(0, 80)), 0u);
    EXPECT_EQ(refusal("{\"\xff\":1}", 0).find(not_valid("its header is no JSON (").substr(0, 80)), 0u);
    EXPECT_EQ(refusal("{}  ", 0), "accepted");
    const std::string a = R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
    EXPECT_EQ(refusal("{" + a + "," + a + "}", 1), not_valid("\"a\" is twice in its header"));
    EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1),
              not_valid("\"dtype\" is twice in its header"));
    const std::string lacks = "tensor \"a\" is not described by dtype, shape and data_offsets";
    EXPECT_EQ(refusal(R"({"a":3})", 0), not_valid(lacks));
    EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[1]}})", 1), not_valid(lacks));
    EXPECT_EQ(refusal(R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1), not_valid(lacks));
    EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"more":1}})", 1), not_valid(lacks));
    EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1), not_valid("tensor \"a\": shape is no list"));
    EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1),
              not_valid("tensor \"a\": shape holds -1, no size"));
    EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1.5]}})", 1),
              not_valid("tensor \"a\": data_offsets holds 1.5, no size"));
    const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
    EXPECT_NE(refusal(R"({"a":{"dtype":"U8","shape":)" + deep + R"(,"data_offsets":[0,1]}})", 1).find("no size"),
              std::string::npos);
    const std::string offsets = "tensor \"a\": data_offsets are no begin and end";
    EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1), not_valid(offsets));
    EXPECT_EQ(refusal(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1]}})", 1), not_valid(offsets));
    EXPECT_EQ(refusal(R"({"__metadata__":[]})", 0), not_valid("__metadata__ is no object"));
    EXPECT_EQ(refusal(R"({"__metadata__":{"k":1}})", 0), not_valid("__metadata__ \"k\" is no string"));
}

// A tree of ordered objects would look at each name for every other one: hours.
TEST_F(SafetensorsFile, AMillionTensorsAreAsManyAsAHeaderMayName) {
    std::string header = "{";
    for (int i = 0; i < 1'000'000; ++i)
        header += (i > 0 ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
    put(header + "}", 0);
    const SafetensorsReader reader(path_.string());
    EXPECT_EQ(reader.tensors().size(), 1'000'000u);
    EXPECT_EQ(reader.find("999999").elements, 0);
    EXPECT_EQ(refusal(header + R"(,"7":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", 0),
              not_valid("\"7\" is twice in its header"));
}

TEST_F(SafetensorsFile, UnknownDtype) {
    EXPECT_EQ(
        refusal(R"({"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}})", 1),
        "checkpoint.unknown_dtype: FILE: tensor \"a\" has dtype \"F4\", which is not supported. Convert it to one of BOOL, U8 "
        "to U64, I8 to I64, F8_E4M3, F8_E5M2, F8_E8M0, F16, BF16, F32, F64.");
}

TEST_F(SafetensorsFile, BadShape) {
    EXPECT_EQ(refusal(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,20]}})", 20),
              "checkpoint.bad_shape: FILE: tensor \"a\" is F32 [2, 3] but has 20 bytes in the file." + kAnother);
    EXPECT_EQ(refusal(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
              "checkpoint.bad_shape: FILE: tensor \"a\" is F32 [4294967296, 4294967296] but has 0 bytes in the file." + kAnother);
}

TEST_F(SafetensorsFile, BadOffsets) {
    const auto two = [](int begin, int end) {
        return R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[2],"data_offsets":[)" +
               std::to_string(begin) + "," + std::to_string(end) + "]}}";
    };
    EXPECT_EQ(refusal(two(4, 6), 6), "accepted");
    EXPECT_EQ(refusal(two(5, 7), 7),
              "checkpoint.bad_offsets: FILE: tensor \"b\" begins at byte 5 of the data where 4 was expected: tensors overlap or "
              "leave a gap." +
                  kAnother);
    EXPECT_EQ(refusal(two(3, 5), 5),
              "checkpoint.bad_offsets: FILE: tensor \"b\" begins at byte 3 of the data where 4 was expected: tensors overlap or "
              "leave a gap." +
                  kAnother);
}

// Whatever bytes a file holds, it is accepted or refused with a UserError.
TEST_F(SafetensorsFile, AnyDamagedByteOfTheHeaderIsSurvived) {
    SafetensorsWriter(path_, example()).finish();
    const std::string good = bytes();
    for (size_t at = 0; at < good.size(); ++at) {
        for (char flip : {'\x01', '\x10', '\x7f'}) {
            std::string bad = good;
            bad[at] = static_cast<char>(bad[at] ^ flip);
            put(bad);
            EXPECT_NO_THROW(refusal());
        }
    }
}

}  // namespace
}  // namespace lockstep::checkpoint
