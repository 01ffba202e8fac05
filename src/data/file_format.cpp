#include "data/file_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/text_file.h"
#include "data/id_files.h"
#include "data/unicode.h"

namespace lockstep::data {
namespace {

constexpr size_t kBinaryCheckBytes = 8 << 10;

struct Signature {
    size_t at;
    std::string_view bytes, what, remedy;
};

using namespace std::string_view_literals;

constexpr const char* kTarRemedy = "Unpack it first: tar -xf {}. Of WebDataset's shards, the .txt files in it are then documents";

constexpr Signature kNotRead[] = {
    {0,
     "\xFD"
     "7zXZ\0"sv,
     "compressed with xz", "Unpack it first: xz -d {}"},
    {0, "BZh"sv, "compressed with bzip2", "Unpack it first: bzip2 -d {}"},
    {0, "PK\x03\x04"sv, "a zip archive", "Unpack it first: unzip {}"},
    {0, "7z\xBC\xAF\x27\x1C"sv, "a 7z archive", "Unpack it first: 7z x {}"},
    {0, "Rar!"sv, "a RAR archive", "Unpack it first: unrar x {}"},
    {0, "\x04\x22\x4D\x18"sv, "compressed with lz4", "Unpack it first: lz4 -d {}"},
    {257, "ustar"sv, "a tar archive", kTarRemedy},
    {0, "ARROW1"sv, "an Arrow file",
     "Write it as Parquet with pyarrow: pyarrow.parquet.write_table(pyarrow.ipc.open_file(\"{}\").read_all(), \"data.parquet\")"},
    {0, "\xFF\xFF\xFF\xFF"sv, "an Arrow stream",
     "Write it as Parquet with pyarrow: pyarrow.parquet.write_table(pyarrow.ipc.open_stream(\"{}\").read_all(), "
     "\"data.parquet\")"},
    {0, "Obj\x01"sv, "an Avro file", "Write it as JSON Lines: avro-tools tojson {} > data.jsonl"},
    {0, "ORC"sv, "an ORC file", "Write it as Parquet with pyarrow"},
    {0, "\x89HDF"sv, "an HDF5 file", "Write its text as JSON Lines or Parquet"},
    {0, "%PDF-"sv, "a PDF document", "Extract its text first: pdftotext {}"},
    {0, "SQLite format 3"sv, "an SQLite database", "Write its text as JSON Lines or Parquet"},
    {0, kLfsBegin, kLfsWhat, kLfsRemedy},
    {0, "PARE"sv, "an encrypted Parquet file", "Write it again without encryption, or its text as JSON Lines"},
    {0, "LSTOKENS"sv, "a token file of Lockstep", "Give the folder that it is in to training.dataset_path"},
};

bool has_at(std::string_view head, size_t at, std::string_view bytes) {
    return head.size() >= at + bytes.size() && head.substr(at, bytes.size()) == bytes;
}

// Text of 16-bit units has its zeros at even places only, or at odd ones only.
bool is_utf16(std::string_view head) {
    if (has_at(head, 0, "\xFF\xFE") || has_at(head, 0, "\xFE\xFF")) return true;
    size_t zeros[2] = {0, 0};
    const std::string_view checked = head.substr(0, kBinaryCheckBytes);
    for (size_t i = 0; i < checked.size(); ++i) zeros[i % 2] += checked[i] == '\0';
    return checked.size() >= 16 && std::min(zeros[0], zeros[1]) == 0 && std::max(zeros[0], zeros[1]) * 4 > checked.size();
}

// Bytes that a person can read: UTF-8, perhaps cut off at the end, without control characters but those of lines.
bool is_readable_text(std::string_view head) {
    const bool has_controls = std::any_of(head.begin(), head.end(), [](char c) {
        return (static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\r' && c != '\t' && c != '\f') || c == 0x7F;
    });
    constexpr size_t kLongestCharacter = 4;
    return !has_controls && head.size() - valid_utf8_prefix_bytes(head) < kLongestCharacter;
}

// The suffix that promises a format that the bytes do not have; empty: the name promises none.
std::string_view broken_promise(std::string_view lower_name) {
    for (const std::string_view suffix : {".parquet", ".npy", ".gz", ".gzip", ".zst", ".zstd"}) {
        if (lower_name.ends_with(suffix)) return suffix;
    }
    return "";
}

// In lower case, without the suffix of the packing.
std::string unpacked_name(std::string_view name, Packing packing) {
    std::string lower(name);
    std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
    if (packing == Packing::none) return lower;
    for (const char* suffix : {".gz", ".gzip", ".zst", ".zstd"})
        if (lower.ends_with(suffix)) lower.erase(lower.size() - std::string_view(suffix).size());
    if (lower.ends_with(".tgz") || lower.ends_with(".tzst")) lower += ".tar";
    return lower;
}

FileFormat unreadable(std::string_view what, std::string_view remedy) {
    return {Format::unreadable, std::string(what), std::string(remedy)};
}

}  // namespace

Packing packing_of(std::string_view head) {
    if (head.starts_with("\x1F\x8B")) return Packing::gzip;
    const bool skippable = head.size() >= 4 && (head[0] & 0xF0) == 0x50 && head.substr(1, 3) == "\x2A\x4D\x18";
    if (head.starts_with("\x28\xB5\x2F\xFD") || skippable) return Packing::zstd;
    return Packing::none;
}

NamePromise promise_of(std::string_view name, Packing packing) {
    const std::string lower = unpacked_name(name, packing);
    for (const char* suffix : {".jsonl", ".ndjson", ".jsonlines"})
        if (lower.ends_with(suffix)) return NamePromise::json_lines;
    if (lower.ends_with(".json")) return NamePromise::json;
    for (const char* suffix : {".txt", ".text", ".md"})
        if (lower.ends_with(suffix)) return NamePromise::text;
    return NamePromise::none;
}

FileFormat format_of(std::string_view name, Packing packing, std::string_view head, int id_bytes, bool is_named) {
    const std::string lower = unpacked_name(name, packing);
    const Format known = head.starts_with(kNpyMagic)        ? Format::npy
                         : head.starts_with("PAR1")         ? Format::parquet
                         : head.starts_with(kMegatronMagic) ? Format::megatron_index
                         : is_llm_c(head)                   ? Format::llm_c
                                                            : Format::text;
    if (known != Format::text && packing == Packing::none) return {known, "", ""};
    if (lower.ends_with(".tar")) return unreadable("a tar archive", kTarRemedy);
    const bool is_zip = head.starts_with("PK\x03\x04");
    const bool is_pickled = head.substr(0, kBinaryCheckBytes).find("/data.pkl") != std::string_view::npos;
    if (is_zip && (is_pickled || lower.ends_with(".bin") || lower.ends_with(".pt") || lower.ends_with(".pth")))
        return unreadable("what PyTorch's torch.save wrote",
                          "If it is a tensor of token ids: numpy.save(\"ids.npy\", torch.load(\"{}\").numpy())");
    for (const Signature& s : kNotRead)
        if (has_at(head, s.at, s.bytes)) return unreadable(s.what, s.remedy);
    const bool is_bin = lower.ends_with(".bin"), is_npy = lower.ends_with(".npy");
    const bool is_text = (is_bin || is_npy) && is_readable_text(head);
    if (is_bin && is_text)
        return unreadable("named .bin and holds text, not token ids", "Rename it to .txt if it is text to train on");
    if (is_npy && !is_text && packing == Packing::none && id_bytes == 0) {
        return unreadable("an .npy whose header is missing, as those of OLMo",
                          "If it holds token ids and nothing else, say their width: --id-bytes 2 or --id-bytes 4");
    }
    const NamePromise promise = promise_of(name, packing);
    const bool is_said_raw = is_named && id_bytes != 0 && promise == NamePromise::none && !is_readable_text(head);
    const bool is_raw = is_bin || (is_npy && !is_text) || (is_said_raw && packing == Packing::none);
    if (is_raw && packing == Packing::none) return {Format::raw_ids, "", ""};
    if (is_raw || known != Format::text) {
        return unreadable("a compressed file of another format than text",
                          packing == Packing::gzip ? "Unpack it first: gunzip {}" : "Unpack it first: unzstd {}");
    }
    if (const std::string_view suffix = broken_promise(lower); !suffix.empty())
        return unreadable(fmt::format("named {} and holds something else", suffix), "Get it again, or rename it to what it is");
    if (has_at(head, 0, "\xFF\xFE\0\0"sv) || has_at(head, 0, "\0\0\xFE\xFF"sv))
        return unreadable("UTF-32 text", "Convert it first: iconv -f UTF-32 -t UTF-8 {0} > {0}.txt");
    if (is_utf16(head)) return unreadable("UTF-16 text", "Convert it first: iconv -f UTF-16 -t UTF-8 {0} > {0}.txt");
    const bool has_zeros = head.substr(0, kBinaryCheckBytes).find('\0') != std::string_view::npos;
    // Of JSON Lines, lines with zeros are damaged, as after a crash; the others are good.
    if (has_zeros && promise != NamePromise::json_lines) return {Format::binary, "", ""};
    if (lower.ends_with(".csv") || lower.ends_with(".tsv"))
        return unreadable("a table with separators",
                          "Write it as Parquet, with read_csv and to_parquet of pandas; or rename it to .txt, to train on the "
                          "table as it is");
    return {Format::text, "", ""};
}

}  // namespace lockstep::data
