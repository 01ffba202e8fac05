// Token ids as numpy, llm.c, nanoGPT and Megatron-LM store them.
#include "data/id_files.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

int64_t sum(const data::IdArray& ids) {
    uint64_t total = 0;
    for (int64_t i = 0; i < ids.count; ++i) total += static_cast<uint64_t>(ids[i]);
    return static_cast<int64_t>(total);
}

void read_streams(std::string_view bytes) {
    fuzz::accepts_or_refuses([&] {
        const data::NpyArray array = data::parse_npy(bytes, "input");
        for (int64_t row = 0; row < array.rows; ++row) sum(array.ids.part(row * array.row_length, array.row_length));
        data::split_documents(array.ids, 5, [](const data::IdArray& ids) { return sum(ids) != 7; });
    });
    fuzz::accepts_or_refuses([&] { sum(data::parse_llm_c(bytes, "input")); });
    for (const int width : {0, 2, 4}) fuzz::accepts_or_refuses([&] { sum(data::parse_raw_ids(bytes, "input", width, 50257)); });
}

const fuzz::Declare declare_id_files("id_files", [](std::string_view bytes) {
    read_streams(bytes);
    // Of a pair, the index goes up to the last mark.
    const size_t mark = bytes.rfind("== a.bin\n");
    if (mark == std::string_view::npos) return;
    const data::MegatronIndex index = data::MegatronIndex::parse(bytes.substr(0, mark), bytes.substr(mark + 9), "input");
    std::vector<data::IdArray> sequences;
    for (int64_t d = 0; d < index.documents(); ++d) index.document(d, sequences);
    for (const data::IdArray& ids : sequences) sum(ids);
});

}  // namespace
