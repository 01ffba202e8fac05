#include "data/id_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/error.h"

namespace lockstep::data {
namespace {

constexpr size_t kLlmCHeaderBytes = 256 * sizeof(int32_t);
constexpr int32_t kLlmC16 = 20240520, kLlmC32 = 20240801;

[[noreturn]] void refuse(const std::filesystem::path& file, const std::string& what) {
    throw UserError("data.foreign_ids", file.string(), fmt::format("{}: {}.", file.string(), what));
}

template <class T>
T number_at(std::string_view bytes, size_t at) {
    T value{};
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    return value;
}

// The text behind a key of numpy's header, which is a Python dictionary: {'descr': '<u2', 'fortran_order': False, 'shape':
// (9,), }
std::string_view python_value(std::string_view header, std::string_view key) {
    const size_t at = header.find(fmt::format("'{}':", key));
    if (at == std::string_view::npos) return {};
    std::string_view value = header.substr(at + key.size() + 3);
    while (value.starts_with(' ')) value.remove_prefix(1);
    const size_t end = value.starts_with('(') ? value.find(')') : value.find(',');
    return value.substr(0, end);
}

// "(3, 4" -> 3 4; nothing where it is no such list.
std::vector<int64_t> python_tuple(std::string_view text) {
    std::vector<int64_t> numbers;
    if (!text.starts_with('(')) return {};
    text.remove_prefix(1);
    while (true) {
        while (text.starts_with(' ') || text.starts_with(',')) text.remove_prefix(1);
        if (text.empty()) return numbers;
        int64_t number = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        if (error != std::errc() || number < 0) return {};
        numbers.push_back(number);
        text.remove_prefix(static_cast<size_t>(end - text.data()));
        if (text.starts_with('L')) text.remove_prefix(1);  // of Python 2
    }
}

// A chunk begins with the number of its items and the places where they begin and end, behind these numbers.
bool begins_as_litdata(std::string_view bytes) {
    if (bytes.size() < 2 * sizeof(uint32_t)) return false;
    const uint64_t items = number_at<uint32_t>(bytes, 0), header_bytes = (items + 2) * sizeof(uint32_t);
    return items > 0 && header_bytes <= bytes.size() && number_at<uint32_t>(bytes, sizeof(uint32_t)) == header_bytes;
}

// The upper halves of wider ids.
bool is_every_other_zero(const IdArray& ids) {
    constexpr int64_t kFewestIds = 8;  // of fewer it may be chance
    int64_t lower = 0, upper = 0;      // those that are not 0
    for (int64_t i = 0; i < ids.count; ++i) {
        (i % 2 == 1 ? upper : lower) += ids[i] != 0;
    }
    // A few ids may be large or negative.
    const bool few_upper = upper * 10 <= ids.count / 2 && lower * 2 > ids.count / 2;
    return lower > 0 && (upper == 0 || few_upper) && ids.count >= kFewestIds;
}

}  // namespace

bool is_llm_c(std::string_view bytes) {
    if (bytes.size() < sizeof(int32_t)) return false;
    const auto magic = number_at<int32_t>(bytes, 0);
    return magic == kLlmC16 || magic == kLlmC32;
}

NpyArray parse_npy(std::string_view bytes, const std::filesystem::path& file) {
    if (!bytes.starts_with(kNpyMagic) || bytes.size() < 10) refuse(file, "it is not an .npy file, or it was cut off");
    const int version = static_cast<unsigned char>(bytes[6]);
    if (version < 1 || version > 3) refuse(file, fmt::format("its .npy version is {}; 1 to 3 are known", version));
    const size_t prefix = version == 1 ? 10 : 12;
    if (bytes.size() < prefix) refuse(file, "it was cut off in its header");
    const size_t header_bytes = version == 1 ? number_at<uint16_t>(bytes, 8) : number_at<uint32_t>(bytes, 8);
    if (bytes.size() - prefix < header_bytes) refuse(file, "it was cut off in its header");
    const std::string_view header = bytes.substr(prefix, header_bytes);

    std::string_view descr = python_value(header, "descr");
    if (descr.starts_with('[')) descr = "'a record of several fields'";
    if (descr.size() >= 2) descr = descr.substr(1, descr.size() - 2);  // without the quotes
    constexpr std::pair<std::string_view, IdType> kTypes[] = {{"|u1", IdType::u8},  {"<u2", IdType::u16}, {"<i2", IdType::i16},
                                                              {"<u4", IdType::u32}, {"<i4", IdType::i32}, {"<i8", IdType::i64},
                                                              {"<u8", IdType::i64}};
    const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& t) { return t.first == descr; });
    if (type == std::end(kTypes)) {
        const bool are_numbers = descr.size() == 3 && std::string_view("iufb").find(descr[1]) != std::string_view::npos;
        refuse(file, fmt::format(
                         "its elements are '{}'; token ids are little-endian integers of 16, 32 or 64 bits, or bytes. {}", descr,
                         are_numbers ? "Convert it with numpy: np.save(FILE, array.astype(\"<u4\"))"
                                     : "Save the ids as one array of numbers: np.save(FILE, np.concatenate([np.asarray(ids, "
                                       "\"<u4\") for ids in documents]))"));
    }
    const std::vector<int64_t> shape = python_tuple(python_value(header, "shape"));
    if (shape.empty() || shape.size() > 2) {
        refuse(file, fmt::format("its shape is {}; one dimension (a stream of documents) or two (a document a row) are read. "
                                 "Reshape it with numpy: array.reshape(-1, array.shape[-1])",
                                 shape.empty() ? "unknown" : fmt::format("of {} dimensions", shape.size())));
    }
    const bool is_table = shape.size() == 2;
    if (is_table && python_value(header, "fortran_order") != "False")
        refuse(file, "it is stored by columns. Save it by rows: np.save(FILE, np.ascontiguousarray(array))");
    const std::string_view data = bytes.substr(prefix + header_bytes);
    const auto most = static_cast<int64_t>(data.size()) / bytes_of(type->second);
    const int64_t rows = shape[0], row_length = is_table ? shape[1] : 1;
    if (row_length == 0 && data.empty()) {
        refuse(file, fmt::format("its header promises {} x 0 elements of {} bytes, and 0 bytes follow: it was saved without ids. "
                                 "Save it again with them",
                                 rows, bytes_of(type->second)));
    }
    if (row_length == 0 || rows > most / row_length ||
        rows * row_length * bytes_of(type->second) != static_cast<int64_t>(data.size())) {
        refuse(file, fmt::format("its header promises {}{} elements of {} bytes, and {} bytes follow: it was cut off or added to",
                                 rows, is_table ? fmt::format(" x {}", row_length) : "", bytes_of(type->second), data.size()));
    }
    const IdArray ids{data.data(), rows * row_length, type->second};
    return is_table ? NpyArray{ids, rows, row_length} : NpyArray{ids, 0, 0};
}

IdArray parse_llm_c(std::string_view bytes, const std::filesystem::path& file) {
    if (!is_llm_c(bytes)) refuse(file, "it does not begin with the header of llm.c's token files");
    if (bytes.size() < kLlmCHeaderBytes) refuse(file, "it was cut off in its header, which has 1024 bytes");
    const auto magic = number_at<int32_t>(bytes, 0), version = number_at<int32_t>(bytes, 4), count = number_at<int32_t>(bytes, 8);
    const int32_t known = magic == kLlmC16 ? 1 : 7;
    if (version != known)
        refuse(file, fmt::format("its version is {}, the one of magic number {} that is known is {}", version, magic, known));
    const IdType type = magic == kLlmC16 ? IdType::u16 : IdType::u32;
    const size_t wanted = static_cast<size_t>(std::max(count, 0)) * static_cast<size_t>(bytes_of(type));
    if (count < 0 || bytes.size() - kLlmCHeaderBytes != wanted) {
        refuse(file, fmt::format("its header promises {} ids of {} bytes, and {} bytes follow: it was cut off or added to", count,
                                 bytes_of(type), bytes.size() - kLlmCHeaderBytes));
    }
    return {bytes.data() + kLlmCHeaderBytes, count, type};
}

IdArray parse_raw_ids(std::string_view bytes, const std::filesystem::path& file, int id_bytes, int vocab_size) {
    constexpr int kVocabOf16Bits = 65536;
    const bool needs_32_bits = vocab_size > kVocabOf16Bits;
    if (id_bytes == 2 && needs_32_bits)
        refuse(file, fmt::format("ids of 2 bytes (--id-bytes) are those of at most {} tokens, and the vocabulary has {}. Say "
                                 "--id-bytes 4, or the size of the vocabulary that the ids were made with",
                                 kVocabOf16Bits, vocab_size));
    if (begins_as_litdata(bytes))
        refuse(file, "it is a chunk of litdata, with a header. Write its token ids as .npy with litdata.StreamingDataset");
    const bool is_wide = id_bytes == 4 || (id_bytes == 0 && needs_32_bits);
    const auto width = static_cast<size_t>(is_wide ? 4 : 2);
    if (bytes.size() % width != 0)
        refuse(file, fmt::format("it holds {} bytes, {}, and is read as {}-bit ids without a header (nanoGPT's form). "
                                 "Say the width of its ids with --id-bytes, or save other types as .npy",
                                 bytes.size(), is_wide ? "no multiple of 4" : "an odd number", 8 * width));
    const IdArray ids{bytes.data(), static_cast<int64_t>(bytes.size() / width), is_wide ? IdType::u32 : IdType::u16};
    if (is_every_other_zero(ids))
        refuse(file, is_wide ? "read as 32-bit ids, every other id is 0: they seem to have 64 bits. Save them with their type: "
                               "numpy.save(\"ids.npy\", numpy.fromfile(FILE, \"<i8\"))"
                             : "read as 16-bit ids, every other id is 0: they seem to have 32 bits. Say --id-bytes 4, or of "
                               "Megatron-LM's data put the .idx next to the .bin");
    return ids;
}

MegatronIndex MegatronIndex::parse(std::string_view index, std::string_view bin, const std::filesystem::path& file) {
    constexpr size_t kHeaderBytes = 9 + 8 + 1 + 8 + 8;
    if (!index.starts_with(kMegatronMagic) || index.size() < kHeaderBytes)
        refuse(file, "it is not an index of Megatron-LM, or it was cut off");
    if (const auto version = number_at<uint64_t>(index, 9); version != 1)
        refuse(file, fmt::format("its version is {}; version 1 is known", version));
    const int code = static_cast<unsigned char>(index[17]);
    constexpr std::pair<int, IdType> kTypes[] = {{1, IdType::u8},  {2, IdType::i8},  {3, IdType::i16},
                                                 {4, IdType::i32}, {5, IdType::i64}, {8, IdType::u16}};
    const auto* type = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& t) { return t.first == code; });
    if (type == std::end(kTypes)) refuse(file, fmt::format("its element type has the code {}, which is no integer", code));
    const auto sequences = number_at<uint64_t>(index, 18), borders = number_at<uint64_t>(index, 26);
    const size_t room = index.size() - kHeaderBytes;
    // More may follow: the modes of multimodal data.
    if (sequences > room / 12 || borders > room / 8 || sequences * 12 + borders * 8 > room)
        refuse(file, fmt::format("it promises {} sequences and {} borders of documents, and {} bytes follow: it was cut off",
                                 sequences, borders, room));
    MegatronIndex out;
    const char* data = index.data() + kHeaderBytes;
    out.lengths_ = {data, static_cast<int64_t>(sequences), IdType::i32};
    out.offsets_ = {data + sequences * 4, static_cast<int64_t>(sequences), IdType::i64};
    out.borders_ = {data + sequences * 12, static_cast<int64_t>(borders), IdType::i64};
    out.bin_ = bin;
    out.type_ = type->second;
    out.documents_ = std::max<int64_t>(static_cast<int64_t>(borders) - 1, 0);
    for (int64_t s = 0; s < out.lengths_.count; ++s) {
        const int64_t length = out.lengths_[s], offset = out.offsets_[s];
        const auto room_here = static_cast<int64_t>(bin.size());
        if (length < 0 || offset < 0 || offset > room_here || length > (room_here - offset) / bytes_of(out.type_))
            refuse(file, fmt::format("sequence {} ({} ids from byte {}) lies outside the .bin, which has {} bytes", s, length,
                                     offset, bin.size()));
    }
    for (int64_t d = 0; d < out.borders_.count; ++d) {
        const int64_t least = d == 0 ? 0 : out.borders_[d - 1];
        if (out.borders_[d] < least || out.borders_[d] > out.lengths_.count)
            refuse(file, fmt::format("border {} of its documents is {}, outside {} to {}", d, out.borders_[d], least,
                                     out.lengths_.count));
    }
    return out;
}

void MegatronIndex::document(int64_t d, std::vector<IdArray>& sequences) const {
    for (int64_t s = borders_[d]; s < borders_[d + 1]; ++s) sequences.push_back({bin_.data() + offsets_[s], lengths_[s], type_});
}

void split_documents(const IdArray& stream, int64_t separator, const std::function<bool(const IdArray&)>& use) {
    int64_t begin = 0;
    for (int64_t i = 0; i < stream.count; ++i) {
        if (stream[i] != separator) continue;
        if (!use(stream.part(begin, i + 1 - begin))) return;
        begin = i + 1;
    }
    if (begin < stream.count) use(stream.part(begin, stream.count - begin));
}

}  // namespace lockstep::data
