// Token ids as other programs store them. The parsers look at bytes only, so a damaged file is refused and nothing is read
// outside it. Sources: numpy's NEP 1; llm.c's dev/data/data_common.py; nanoGPT's prepare.py; Megatron-LM's indexed_dataset.py.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "data/id_array.h"

namespace lockstep::data {

// A one-dimensional array is a stream of documents; each row of a two-dimensional one is a document, taken as it is.
struct NpyArray {
    IdArray ids;
    int64_t rows = 0;  // 0: one-dimensional
    int64_t row_length = 0;
};

// All throw UserError data.foreign_ids, whose text names `file` and what is wrong with it.
NpyArray parse_npy(std::string_view bytes, const std::filesystem::path& file);
// 256 int32 of header (20240520 with 16-bit ids, or 20240801 with 32-bit ids), then the ids.
IdArray parse_llm_c(std::string_view bytes, const std::filesystem::path& file);
// Ids of `id_bytes` (2 or 4) and nothing else; 0: as many as the vocabulary needs. What cannot be such ids is refused: a chunk
// of litdata, and ids of another width, since every other id would be 0.
IdArray parse_raw_ids(std::string_view bytes, const std::filesystem::path& file, int id_bytes, int vocab_size);

// Megatron-LM's pair: documents of one or several sequences, which lie anywhere in the .bin.
class MegatronIndex {
public:
    // `bin` is the file that `index` (the .idx) describes.
    static MegatronIndex parse(std::string_view index, std::string_view bin, const std::filesystem::path& file);
    int64_t documents() const { return documents_; }
    // Appends the sequences of a document.
    void document(int64_t d, std::vector<IdArray>& sequences) const;

private:
    IdArray lengths_;  // i32, of each sequence
    IdArray offsets_;  // i64, bytes into the .bin
    IdArray borders_;  // i64, documents + 1 numbers of sequences
    std::string_view bin_;
    IdType type_ = IdType::u16;
    int64_t documents_ = 0;
};

inline constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
inline constexpr std::string_view kNpyMagic = "\x93NUMPY";
bool is_llm_c(std::string_view bytes);

// Calls `use` with the documents of a stream: each ends with a separator, which is part of it; the last may lack one.
// Stops when `use` returns false.
void split_documents(const IdArray& stream, int64_t separator, const std::function<bool(const IdArray&)>& use);

}  // namespace lockstep::data
