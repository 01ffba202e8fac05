// Event files, read by a small reader of their framing and messages that shares nothing with what wrote them.
#include "telemetry/tensorboard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "tests/base/scratch_folder.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;

// Bit by bit, from the definition: polynomial 0x1EDC6F41, reflected.
uint32_t plain_crc32c(const std::string& bytes) {
    uint32_t crc = ~0U;
    for (unsigned char byte : bytes) {
        for (int bit = 0; bit < 8; ++bit, byte = static_cast<unsigned char>(byte >> 1)) {
            const bool flips = ((crc ^ byte) & 1) != 0;
            crc >>= 1;
            if (flips) crc ^= 0x82F63B78U;
        }
    }
    return ~crc;
}

uint64_t little_endian(const std::string& bytes, size_t at, size_t count) {
    uint64_t out = 0;
    for (size_t i = 0; i < count; ++i) out |= static_cast<uint64_t>(static_cast<unsigned char>(bytes.at(at + i))) << 8 * i;
    return out;
}

uint32_t unmasked(uint64_t masked) {
    const auto rotated = static_cast<uint32_t>(masked - 0xa282ead8U);
    return rotated >> 17 | rotated << 15;
}

// The bytes of every record; fails where a length or a checksum is wrong.
std::vector<std::string> records_of(const std::string& file) {
    std::vector<std::string> out;
    for (size_t at = 0; at < file.size();) {
        const uint64_t length = little_endian(file, at, 8);
        EXPECT_EQ(unmasked(little_endian(file, at + 8, 4)), plain_crc32c(file.substr(at, 8)));
        out.push_back(file.substr(at + 12, length));
        EXPECT_EQ(out.back().size(), length);
        EXPECT_EQ(unmasked(little_endian(file, at + 12 + length, 4)), plain_crc32c(out.back()));
        at += 16 + length;
    }
    return out;
}

struct Message {
    std::multimap<int, uint64_t> numbers;
    std::multimap<int, std::string> bytes;
};

Message message_of(const std::string& text) {
    Message out;
    size_t at = 0;
    const auto varint = [&] {
        uint64_t value = 0;
        for (int shift = 0;; shift += 7) {
            const auto byte = static_cast<unsigned char>(text.at(at++));
            value |= static_cast<uint64_t>(byte & 0x7F) << shift;
            if (byte < 0x80) return value;
        }
    };
    while (at < text.size()) {
        const uint64_t key = varint();
        const int field = static_cast<int>(key >> 3), wire = static_cast<int>(key & 7);
        if (wire == 0) {
            out.numbers.emplace(field, varint());
        } else if (wire == 1 || wire == 5) {
            const size_t width = wire == 1 ? 8 : 4;
            out.numbers.emplace(field, little_endian(text, at, width));
            at += width;
        } else {
            EXPECT_EQ(wire, 2);
            const uint64_t length = varint();
            out.bytes.emplace(field, text.substr(at, length));
            at += length;
        }
    }
    return out;
}

const Message event_with(const std::vector<std::string>& records, size_t i) { return message_of(records.at(i)); }

TEST(TelemetryTensorBoard, RecordsHaveTheFramingAndTheMessages) {
    ScratchFolder s;
    {
        telemetry::TensorBoardFile file(s.path("tb"), 4);
        file.scalars(5, {{"loss_metrics/global_avg_loss", 8.25}, {"lr", -1e-3}});
        file.text(5, "recipe", "[model]");
    }
    const fs::path path = fs::directory_iterator(s.path("tb"))->path();
    EXPECT_TRUE(path.filename().string().starts_with("events.out.tfevents.")) << path;
    const std::vector<std::string> records = records_of(s.read("tb/" + path.filename().string()));
    ASSERT_EQ(records.size(), 4u);
    EXPECT_EQ(event_with(records, 0).bytes.find(3)->second, "brain.Event:2");
    const Message session = event_with(records, 1);
    EXPECT_EQ(session.numbers.find(2)->second, 5u) << "what older files say of step 5 and later no longer counts";
    EXPECT_EQ(message_of(session.bytes.find(7)->second).numbers.find(1)->second, 1u);
    const Message scalars = event_with(records, 2);
    EXPECT_GT(std::bit_cast<double>(scalars.numbers.find(1)->second), 1.6e9) << "seconds since 1970";
    EXPECT_EQ(scalars.numbers.find(2)->second, 5u);
    std::map<std::string, float> values;
    const Message summary = message_of(scalars.bytes.find(5)->second);
    for (const auto& [field, text] : summary.bytes) {
        const Message value = message_of(text);
        values[value.bytes.find(1)->second] = std::bit_cast<float>(static_cast<uint32_t>(value.numbers.find(2)->second));
    }
    EXPECT_EQ(values, (std::map<std::string, float>{{"loss_metrics/global_avg_loss", 8.25F}, {"lr", -1e-3F}}));
    const Message text = message_of(message_of(event_with(records, 3).bytes.find(5)->second).bytes.find(1)->second);
    EXPECT_EQ(text.bytes.find(1)->second, "recipe");
    EXPECT_EQ(message_of(text.bytes.find(8)->second).bytes.find(8)->second, "[model]");
    EXPECT_EQ(message_of(message_of(text.bytes.find(9)->second).bytes.find(1)->second).bytes.find(1)->second, "text");
}

TEST(TelemetryTensorBoard, ChecksumsAreThoseOfRfc3720) {
    EXPECT_EQ(telemetry::crc32c(std::string(32, '\0')), 0x8A9136AAU);
    EXPECT_EQ(telemetry::crc32c(std::string(32, '\xFF')), 0x62A8AB43U);
    EXPECT_EQ(telemetry::crc32c("123456789"), 0xE3069283U);
}

TEST(TelemetryTensorBoard, TwoFilesOfOneSecondHaveNamesOfTheirOwn) {
    ScratchFolder s;
    for (int i = 0; i < 3; ++i) telemetry::TensorBoardFile(s.path("tb"), i);
    EXPECT_EQ(std::distance(fs::directory_iterator(s.path("tb")), fs::directory_iterator()), 3);
    EXPECT_THROW(telemetry::TensorBoardFile("/proc/none", 0), UserError);
}

}  // namespace
}  // namespace lockstep::testing
