// A file that `lockstep data prepare` is given. The first byte says what it is called, and so which reader it gets.
#include <array>

#include "tests/fuzz/command.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lockstep;
    if (size == 0) return 0;
    static const fuzz::MemoryFolder folder;
    constexpr std::array kNames = {"a.txt",     "a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.txt.gz",
                                   "a.parquet", "a.npy",   "a.bin",      "a.idx"};
    const std::string name = kNames[data[0] % kNames.size()];
    folder.write(name, fuzz::text_of(data, size).substr(1));
    fuzz::expect_done_or_refused(
        {"data", "prepare", folder.path() + "/" + name, "--out", folder.path() + "/out", "--tokenizer", "bytes", "--overwrite"});
    std::filesystem::remove(folder.path() + "/" + name);
    return 0;
}
