#include "data/parquet_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace lockstep::data::parquet {
namespace {

constexpr uint64_t kMostDeltas = uint64_t{1} << 26;
constexpr int64_t kMostTextsOfDictionary = int64_t{1} << 24;  // writers give up dictionaries of more than some megabytes

uint64_t varint(std::string_view bytes, size_t& at) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (at >= bytes.size()) throw Damaged("a page was cut off");
        const auto byte = static_cast<uint8_t>(bytes[at++]);
        value |= static_cast<uint64_t>(byte & 0x7F) << shift;
        if ((byte & 0x80) == 0) return value;
    }
    throw Damaged("a number in a page has no end");
}

int64_t zigzag(std::string_view bytes, size_t& at) {
    const uint64_t value = varint(bytes, at);
    return static_cast<int64_t>(value >> 1 ^ (~(value & 1) + 1));
}

// `width` bits (at most 64) from bit `bit` on; the bytes must be there.
uint64_t bits_at(std::string_view bytes, size_t bit, int width) {
    uint64_t value = 0;
    for (int done = 0; done < width;) {
        const auto byte = static_cast<uint8_t>(bytes[(bit + done) / 8]);
        const int offset = static_cast<int>((bit + done) % 8), now = std::min(8 - offset, width - done);
        value |= static_cast<uint64_t>(byte >> offset & ((1 << now) - 1)) << done;
        done += now;
    }
    return value;
}

// A length, then the bytes.
class PlainTexts : public TextReader {
public:
    explicit PlainTexts(std::string_view bytes) : bytes_(bytes) {}
    std::string_view next() override {
        uint32_t length = 0;
        if (bytes_.size() < sizeof(length)) throw Damaged("a page holds fewer texts than it promises");
        std::memcpy(&length, bytes_.data(), sizeof(length));
        bytes_.remove_prefix(sizeof(length));
        if (length > bytes_.size()) throw Damaged("a text leaves its page");
        const std::string_view text = bytes_.substr(0, length);
        bytes_.remove_prefix(length);
        return text;
    }

private:
    std::string_view bytes_;
};

class DictionaryTexts : public TextReader {
public:
    DictionaryTexts(std::string_view bytes, const std::vector<std::string_view>& dictionary)
        : dictionary_(dictionary),
          indices_(bytes.empty() ? bytes : bytes.substr(1), bytes.empty() ? 0 : static_cast<uint8_t>(bytes[0])) {}
    std::string_view next() override {
        const uint32_t index = indices_.next();
        if (index >= dictionary_.size())
            throw Damaged(fmt::format("a page names text {} of a dictionary of {}", index, dictionary_.size()));
        return dictionary_[index];
    }

private:
    const std::vector<std::string_view>& dictionary_;
    HybridReader indices_;
};

// All lengths, then all bytes.
class DeltaLengthTexts : public TextReader {
public:
    explicit DeltaLengthTexts(std::string_view bytes) : lengths_(parse_deltas(bytes)), bytes_(bytes.substr(lengths_.bytes)) {}
    std::string_view next() override {
        if (index_ >= lengths_.values.size()) throw Damaged("a page holds fewer texts than it promises");
        const int32_t length = lengths_.values[index_++];
        if (length < 0 || static_cast<size_t>(length) > bytes_.size()) throw Damaged("a text leaves its page");
        const std::string_view text = bytes_.substr(0, static_cast<size_t>(length));
        bytes_.remove_prefix(text.size());
        return text;
    }

private:
    Deltas lengths_;
    std::string_view bytes_;
    size_t index_ = 0;
};

// How much of the text before each text begins with, then what follows.
class DeltaTexts : public TextReader {
public:
    explicit DeltaTexts(std::string_view bytes) : prefixes_(parse_deltas(bytes)), suffixes_(bytes.substr(prefixes_.bytes)) {}
    std::string_view next() override {
        if (index_ >= prefixes_.values.size()) throw Damaged("a page holds fewer texts than it promises");
        const int32_t prefix = prefixes_.values[index_++];
        if (prefix < 0 || static_cast<size_t>(prefix) > text_.size())
            throw Damaged("a text repeats more than there was before it");
        text_.resize(static_cast<size_t>(prefix));
        text_ += suffixes_.next();
        return text_;
    }

private:
    Deltas prefixes_;
    DeltaLengthTexts suffixes_;
    std::string text_;
    size_t index_ = 0;
};

}  // namespace

HybridReader::HybridReader(std::string_view bytes, int bit_width) : bytes_(bytes), bit_width_(bit_width) {
    if (bit_width < 0 || bit_width > 32) throw Damaged(fmt::format("a page has numbers of {} bits", bit_width));
}

void HybridReader::next_run() {
    if (is_packed_) at_ = packed_end_;
    const uint64_t head = varint(bytes_, at_);
    is_packed_ = (head & 1) != 0;
    const size_t room = bytes_.size() - at_;
    if (!is_packed_) {
        const auto value_bytes = static_cast<size_t>((bit_width_ + 7) / 8);
        if (value_bytes > room) throw Damaged("a page was cut off");
        repeated_ = static_cast<uint32_t>(bits_at(bytes_, at_ * 8, static_cast<int>(value_bytes) * 8));
        at_ += value_bytes;
        left_ = head >> 1;
        return;
    }
    // Eight values take bit_width bytes. The last group may be cut off behind its last value.
    uint64_t groups = head >> 1;
    if (bit_width_ > 0 && groups > room / static_cast<size_t>(bit_width_) + 1)
        groups = room / static_cast<size_t>(bit_width_) + 1;
    const uint64_t wanted = groups * static_cast<uint64_t>(bit_width_);
    packed_end_ = at_ + static_cast<size_t>(std::min<uint64_t>(wanted, room));
    left_ = bit_width_ == 0 ? std::min<uint64_t>(groups, UINT64_MAX / 8) * 8
                            : std::min<uint64_t>(groups * 8, (packed_end_ - at_) * 8 / static_cast<uint64_t>(bit_width_));
    bit_ = at_ * 8;
}

uint32_t HybridReader::next() {
    for (int empty = 0; left_ == 0; ++empty) {
        if (empty > 1000) throw Damaged("a page has runs of no values");
        next_run();
    }
    --left_;
    if (!is_packed_) return repeated_;
    const auto value = static_cast<uint32_t>(bits_at(bytes_, bit_, bit_width_));
    bit_ += static_cast<uint64_t>(bit_width_);
    return value;
}

Deltas parse_deltas(std::string_view bytes) {
    Deltas out;
    const uint64_t block = varint(bytes, out.bytes), parts = varint(bytes, out.bytes), count = varint(bytes, out.bytes);
    int64_t value = zigzag(bytes, out.bytes);
    if (parts == 0 || block == 0 || block % parts != 0 || block > (1u << 20) || (block / parts) % 8 != 0 || count > kMostDeltas)
        throw Damaged("the lengths of a page's texts are damaged");
    const uint64_t of_part = block / parts;
    if (count > 0) out.values.push_back(static_cast<int32_t>(value));
    while (out.values.size() < count) {
        const int64_t least = zigzag(bytes, out.bytes);
        if (bytes.size() - out.bytes < parts) throw Damaged("a page was cut off");
        const std::string_view widths = bytes.substr(out.bytes, parts);
        out.bytes += parts;
        for (uint64_t part = 0; part < parts && out.values.size() < count; ++part) {
            const int width = static_cast<uint8_t>(widths[part]);
            const uint64_t part_bytes = of_part / 8 * static_cast<uint64_t>(width);
            if (width > 64 || part_bytes > bytes.size() - out.bytes) throw Damaged("a page was cut off");
            for (uint64_t i = 0; i < of_part && out.values.size() < count; ++i) {
                const uint64_t delta = bits_at(bytes, out.bytes * 8 + i * static_cast<uint64_t>(width), width);
                value = static_cast<int64_t>(static_cast<uint64_t>(value) + static_cast<uint64_t>(least) + delta);
                out.values.push_back(static_cast<int32_t>(value));
            }
            out.bytes += part_bytes;
        }
    }
    return out;
}

std::unique_ptr<TextReader> TextReader::make(int encoding, std::string_view bytes,
                                             const std::vector<std::string_view>* dictionary) {
    if (bytes.empty()) encoding = static_cast<int>(Encoding::plain);  // nothing but nulls
    switch (static_cast<Encoding>(encoding)) {
        case Encoding::plain: return std::make_unique<PlainTexts>(bytes);
        case Encoding::delta_length: return std::make_unique<DeltaLengthTexts>(bytes);
        case Encoding::delta_byte_array: return std::make_unique<DeltaTexts>(bytes);
        case Encoding::plain_dictionary:
        case Encoding::rle_dictionary:
            if (dictionary == nullptr) throw Damaged("a page needs a dictionary, and there is none");
            return std::make_unique<DictionaryTexts>(bytes, *dictionary);
        default: throw Damaged(fmt::format("its texts have the encoding {}, which is not read", encoding));
    }
}

std::vector<std::string_view> parse_plain_texts(std::string_view bytes, int64_t count) {
    if (count < 0 || static_cast<size_t>(count) > bytes.size() / 4)
        throw Damaged("a dictionary holds fewer texts than it promises");
    if (count > kMostTextsOfDictionary) throw Damaged(fmt::format("a dictionary is said to hold {} texts", count));
    PlainTexts in(bytes);
    std::vector<std::string_view> texts;
    texts.reserve(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) texts.push_back(in.next());
    return texts;
}

}  // namespace lockstep::data::parquet
