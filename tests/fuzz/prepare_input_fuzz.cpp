// A file that `lockstep data prepare` is given, from its bytes to token files. Text and Parquet get a token for each byte,
// learn.txt a vocabulary of its own, ids the vocabulary of GPT-2. Megatron-LM's ids are two files.
#include <algorithm>

#include "data/prepare.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_prepare_input("prepare_input", [](std::string_view bytes) {
    static const fuzz::MemoryFolder folder;
    const std::vector<std::string> names = folder.write_all(
        bytes, {"a.txt", "learn.txt", "a.jsonl", "a.json", "a.gz", "a.zst", "a.parquet", "a.npy", "a.bin", "a.idx"});
    if (names.empty()) return;
    data::PrepareOptions options;
    options.inputs = {folder.path(names[0])};
    options.out = folder.path("out");
    options.threads = 1;
    options.existing = data::ExistingData::replace;
    options.heldout_fraction = 0;
    const std::string extension = options.inputs[0].extension();
    if (extension == ".npy" || extension == ".bin" || extension == ".idx") {
        options.ids_vocab_size = 50257, options.ids_separator = 50256;
    } else if (names[0] == "learn.txt") {
        options.vocab = 300;
    } else {
        options.tokenizer = "bytes";
    }
    const data::Manifest manifest = data::prepare(options).manifest;
    ensure(data::PreparedData::open(options.out).manifest.train == manifest.train, "what was prepared opens otherwise");
});

}  // namespace
