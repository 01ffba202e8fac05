// Token ids of another program's file, where they lie (unaligned, little-endian), in one of the integer types that such files
// have. A view: the file must stay mapped.
#pragma once

#include <cstdint>
#include <cstring>

namespace lockstep::data {

enum class IdType { u8, i8, u16, i16, u32, i32, i64 };

inline int64_t bytes_of(IdType type) {
    constexpr int64_t kBytes[] = {1, 1, 2, 2, 4, 4, 8};
    return kBytes[static_cast<int>(type)];
}

struct IdArray {
    const char* data = nullptr;
    int64_t count = 0;
    IdType type = IdType::u16;

    IdArray part(int64_t first, int64_t length) const { return {data + first * bytes_of(type), length, type}; }

    int64_t operator[](int64_t i) const {
        switch (type) {
            case IdType::u8: return at<uint8_t>(i);
            case IdType::i8: return at<int8_t>(i);
            case IdType::u16: return at<uint16_t>(i);
            case IdType::i16: return at<int16_t>(i);
            case IdType::u32: return at<uint32_t>(i);
            case IdType::i32: return at<int32_t>(i);
            case IdType::i64: return at<int64_t>(i);
        }
        return 0;
    }

private:
    template <class T>
    int64_t at(int64_t i) const {
        T value;
        std::memcpy(&value, data + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
        return static_cast<int64_t>(value);
    }
};

}  // namespace lockstep::data
