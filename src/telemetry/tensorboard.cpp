#include "telemetry/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "base/output_file.h"

namespace lockstep::telemetry {
namespace {

// Fields of protocol buffers: a key (number, wire type), then the value.
enum Wire { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void add_varint(std::string& out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
    out.push_back(static_cast<char>(value));
}

void add_key(std::string& out, int field, Wire wire) { add_varint(out, static_cast<uint64_t>(field) << 3 | wire); }

template <class T>
void add_little_endian(std::string& out, T value) {
    for (size_t i = 0; i < sizeof value; ++i) out.push_back(static_cast<char>(value >> 8 * i));
}

void add_int(std::string& out, int field, int64_t value) {
    add_key(out, field, kVarint);
    add_varint(out, static_cast<uint64_t>(value));
}
void add_double(std::string& out, int field, double value) {
    add_key(out, field, kFixed64);
    add_little_endian(out, std::bit_cast<uint64_t>(value));
}
void add_float(std::string& out, int field, float value) {
    add_key(out, field, kFixed32);
    add_little_endian(out, std::bit_cast<uint32_t>(value));
}
void add_bytes(std::string& out, int field, std::string_view value) {
    add_key(out, field, kBytes);
    add_varint(out, value.size());
    out += value;
}

double wall_time_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

// Event: wall_time = 1, step = 2, file_version = 3, summary = 5, session_log = 7.
std::string event_of(int64_t step, int field, std::string_view what) {
    std::string event;
    add_double(event, 1, wall_time_s());
    add_int(event, 2, step);
    add_bytes(event, field, what);
    return event;
}

std::string host() {
    std::array<char, 256> name{};
    gethostname(name.data(), name.size() - 1);
    return name.data();
}

uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8U; }

[[noreturn]] void refuse_events(const std::string& path) {
    throw UserError("metrics.cannot_write", "metrics.save_tb_folder",
                    fmt::format("{}: cannot be written: {}; choose another metrics.save_tb_folder or job.dump_folder", path,
                                std::strerror(errno)));
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
    static const std::array<uint32_t, 256> table = [] {
        std::array<uint32_t, 256> t{};
        for (uint32_t i = 0; i < 256; ++i) {
            t[i] = i;
            for (int bit = 0; bit < 8; ++bit) t[i] = t[i] >> 1 ^ (t[i] & 1 ? 0x82F63B78U : 0);
        }
        return t;
    }();
    uint32_t crc = 0xFFFFFFFFU;
    for (char c : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
    return ~crc;
}

TensorBoardFile::TensorBoardFile(const std::string& folder, int64_t step) {
    make_folder(folder);
    // TensorBoard reads a folder's files in the order of their names.
    for (auto time = static_cast<int64_t>(wall_time_s());; ++time) {
        path_ = fmt::format("{}/events.out.tfevents.{}.{}.{}", folder, time, host(), getpid());
        file_ = std::fopen(path_.c_str(), "wbx");
        if (file_) break;
        if (errno != EEXIST) refuse_events(path_);
    }
    record(event_of(0, 3, "brain.Event:2"));
    std::string session;
    add_int(session, 1, 1);  // SessionLog: status = 1 is START
    record(event_of(step + 1, 7, session));
}

TensorBoardFile::~TensorBoardFile() { std::fclose(file_); }

void TensorBoardFile::scalars(int64_t step, const Metrics& metrics) {
    std::string summary;
    for (const auto& [tag, value] : metrics) {
        std::string one;  // Summary.Value: tag = 1, simple_value = 2
        add_bytes(one, 1, tag);
        add_float(one, 2, static_cast<float>(value));
        add_bytes(summary, 1, one);
    }
    record(event_of(step, 5, summary));
}

void TensorBoardFile::text(int64_t step, std::string_view tag, std::string_view markdown) {
    std::string plugin, metadata, shape, size, tensor, value, summary;
    add_bytes(plugin, 1, "text");    // PluginData: plugin_name = 1
    add_bytes(metadata, 1, plugin);  // SummaryMetadata: plugin_data = 1
    add_int(size, 1, 1);             // TensorShapeProto.Dim: size = 1
    add_bytes(shape, 2, size);       // TensorShapeProto: dim = 2
    add_int(tensor, 1, 7);           // TensorProto: dtype = 1 is DT_STRING
    add_bytes(tensor, 2, shape);     // tensor_shape = 2
    add_bytes(tensor, 8, markdown);  // string_val = 8
    add_bytes(value, 1, tag);        // Summary.Value: tag = 1
    add_bytes(value, 9, metadata);   // metadata = 9
    add_bytes(value, 8, tensor);     // tensor = 8
    add_bytes(summary, 1, value);    // Summary: value = 1
    record(event_of(step, 5, summary));
}

void TensorBoardFile::record(const std::string& event) {
    std::string head, out;
    add_little_endian<uint64_t>(head, event.size());
    out = head;
    add_little_endian(out, masked(crc32c(head)));
    out += event;
    add_little_endian(out, masked(crc32c(event)));
    if (std::fwrite(out.data(), 1, out.size(), file_) != out.size() || std::fflush(file_) != 0) refuse_events(path_);
}

}  // namespace lockstep::telemetry
