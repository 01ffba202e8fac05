#include "data/parquet_format.h"

#include <fmt/format.h>

#include <cstring>

namespace lockstep::data::parquet {
namespace {

constexpr int kDeepest = 32;  // of structs in structs, which are read over

// Thrift's compact protocol. Wire types: 1 and 2 are true and false, 3 a byte, 4 to 6 integers, 7 a double, 8 a string, 9 and
// 10 lists, 11 a map, 12 a struct.
class Thrift {
public:
    explicit Thrift(std::string_view bytes) : bytes_(bytes) {}

    size_t position() const { return at_; }

    uint64_t varint() {
        uint64_t value = 0;
        for (int shift = 0; shift < 64; shift += 7) {
            const uint8_t byte = next();
            value |= static_cast<uint64_t>(byte & 0x7F) << shift;
            if ((byte & 0x80) == 0) return value;
        }
        throw Damaged("a number in its metadata has no end");
    }
    int64_t integer() {
        const uint64_t value = varint();
        return static_cast<int64_t>(value >> 1 ^ (~(value & 1) + 1));
    }
    std::string_view string() {
        const uint64_t length = varint();
        if (length > bytes_.size() - at_) throw Damaged("a text in its metadata leaves the file");
        at_ += length;
        return bytes_.substr(at_ - length, length);
    }

    // Calls field(id, wire type) for each field; it must read the value, or call skip(type).
    template <class Field>
    void structure(Field field) {
        int64_t id = 0;
        while (true) {
            const uint8_t head = next();
            if (head == 0) return;
            id = head >> 4 != 0 ? id + (head >> 4) : integer();
            field(id, head & 0x0F);
        }
    }
    // Calls item(wire type) as often as the list is long.
    template <class Item>
    void list(Item item) {
        const uint8_t head = next();
        const uint64_t length = head >> 4 == 15 ? varint() : head >> 4;
        if (length > bytes_.size() - at_) throw Damaged("a list in its metadata leaves the file");  // an item has a byte at least
        for (uint64_t i = 0; i < length; ++i) item(head & 0x0F);
    }

    void skip(int type, int depth = 0) {
        if (depth > kDeepest) throw Damaged("its metadata is nested too deeply");
        switch (type) {
            case 1:
            case 2: return;
            case 3: next(); return;
            case 4:
            case 5:
            case 6: varint(); return;
            case 7: advance(8); return;
            case 8: string(); return;
            case 9:
            case 10: list([&](int item) { item <= 2 ? advance(1) : skip(item, depth + 1); }); return;
            case 11: return skip_map(depth);
            case 12: structure([&](int64_t, int field) { skip(field, depth + 1); }); return;
            default: throw Damaged(fmt::format("a value in its metadata has the unknown type {}", type));
        }
    }

private:
    uint8_t next() {
        if (at_ >= bytes_.size()) throw Damaged("its metadata was cut off");
        return static_cast<uint8_t>(bytes_[at_++]);
    }
    void advance(size_t bytes) {
        if (bytes > bytes_.size() - at_) throw Damaged("its metadata was cut off");
        at_ += bytes;
    }
    void skip_map(int depth) {
        const uint64_t length = varint();
        if (length == 0) return;
        const uint8_t types = next();
        for (uint64_t i = 0; i < length; ++i) {
            for (const int type : {types >> 4, types & 0x0F}) type <= 2 ? advance(1) : skip(type, depth + 1);
        }
    }

    std::string_view bytes_;
    size_t at_ = 0;
};

constexpr int kFalse = 2, kList = 9, kStruct = 12;
constexpr int64_t kUnknownType = 11;  // of the union LogicalType: a column of nulls

bool is_integer(int type) { return type >= 4 && type <= 6; }

SchemaNode schema_node(Thrift& in) {
    SchemaNode node;
    in.structure([&](int64_t id, int type) {
        if (id == 1 && is_integer(type)) node.type = static_cast<int>(in.integer());
        else if (id == 3 && is_integer(type)) node.repetition = static_cast<int>(in.integer());
        else if (id == 4 && type == 8) node.name = in.string();
        else if (id == 5 && is_integer(type)) node.children = static_cast<int>(in.integer());
        else if (id == 10 && type == kStruct)
            in.structure([&](int64_t logical, int inner) {
                node.is_null = node.is_null || logical == kUnknownType;
                in.skip(inner);
            });
        else in.skip(type);
    });
    return node;
}

void column_metadata(Thrift& in, ColumnChunk& column) {
    in.structure([&](int64_t id, int type) {
        if (!is_integer(type)) return in.skip(type);
        const int64_t value = in.integer();
        if (id == 1) column.type = static_cast<int>(value);
        if (id == 4) column.codec = static_cast<int>(value);
        if (id == 5) column.values = value;
        if (id == 7) column.compressed_bytes = value;
        if (id == 9) column.data_offset = value;
        if (id == 11) column.dictionary_offset = value;
    });
}

ColumnChunk column_chunk(Thrift& in) {
    ColumnChunk column;
    in.structure([&](int64_t id, int type) {
        if (id == 3 && type == kStruct) return column_metadata(in, column);
        if ((id == 1 && type == 8) || id == 8) column.is_elsewhere = true;
        in.skip(type);
    });
    return column;
}

RowGroup row_group(Thrift& in) {
    RowGroup group;
    in.structure([&](int64_t id, int type) {
        if (id == 1 && type == kList) in.list([&](int) { group.columns.push_back(column_chunk(in)); });
        else if (id == 3 && is_integer(type)) group.rows = in.integer();
        else in.skip(type);
    });
    return group;
}

}  // namespace

FileMetadata parse_metadata(std::string_view file) {
    constexpr size_t kMagicBytes = 4, kTailBytes = 8;
    if (file.size() < kMagicBytes + kTailBytes || !file.starts_with("PAR1"))
        throw Damaged("it is no Parquet file, or it was cut off");
    if (file.ends_with("PARE")) throw Damaged("it is encrypted");
    if (!file.ends_with("PAR1")) throw Damaged("its end is missing: it was cut off");
    uint32_t footer_bytes = 0;
    std::memcpy(&footer_bytes, file.data() + file.size() - kTailBytes, sizeof(footer_bytes));
    if (footer_bytes > file.size() - kTailBytes - kMagicBytes) throw Damaged("its footer is said to be longer than the file");
    Thrift in(file.substr(file.size() - kTailBytes - footer_bytes, footer_bytes));
    FileMetadata out;
    in.structure([&](int64_t id, int type) {
        if (id == 2 && type == kList) in.list([&](int) { out.schema.push_back(schema_node(in)); });
        else if (id == 3 && is_integer(type)) out.rows = in.integer();
        else if (id == 4 && type == kList) in.list([&](int) { out.row_groups.push_back(row_group(in)); });
        else {
            if (id == 8) out.is_encrypted = true;
            in.skip(type);
        }
    });
    return out;
}

PageHeader parse_page_header(std::string_view bytes) {
    Thrift in(bytes);
    PageHeader page;
    const auto data_header = [&](int values_id, int encoding_id) {
        in.structure([&](int64_t id, int type) {
            if (!is_integer(type)) {
                if (page.type == static_cast<int>(PageType::data_v2) && id == 7) page.is_compressed = type != kFalse;
                return in.skip(type);
            }
            const int64_t value = in.integer();
            if (id == values_id) page.values = value;
            if (id == encoding_id) page.encoding = static_cast<int>(value);
            if (page.type != static_cast<int>(PageType::data_v2)) return;
            if (id == 5) page.level_bytes = value;
            if (id == 6) page.repetition_bytes = value;
        });
    };
    in.structure([&](int64_t id, int type) {
        if (type == kStruct && (id == 5 || id == 7)) return data_header(1, 2);
        if (type == kStruct && id == 8) return data_header(1, 4);
        if (!is_integer(type)) return in.skip(type);
        const int64_t value = in.integer();
        if (id == 1) page.type = static_cast<int>(value);
        if (id == 2) page.uncompressed_bytes = value;
        if (id == 3) page.compressed_bytes = value;
    });
    page.header_bytes = static_cast<int64_t>(in.position());
    return page;
}

}  // namespace lockstep::data::parquet
