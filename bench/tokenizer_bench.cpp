// Encodes documents with a tokenizer.json on several threads, for bench/peers/tokenizer_speed.py.
//     tokenizer_bench TOKENIZER.json DOCUMENTS THREADS      for each line of standard input a round: its seconds, its tokens
// DOCUMENTS: for each its number of bytes as a 32-bit integer, then its bytes.
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <vector>

#include "base/error.h"
#include "data/batch_encoder.h"
#include "data/file_io.h"

int main(int argc, char** argv) try {
    using namespace lockstep;
    using Clock = std::chrono::steady_clock;
    if (argc != 4) throw UserError("bench.arguments", "", "tokenizer_bench TOKENIZER.json DOCUMENTS THREADS");
    const data::Tokenizer tokenizer = data::Tokenizer::load(argv[1]);
    const data::MappedFile file = data::MappedFile::open(argv[2]);
    std::vector<std::string_view> documents;
    for (std::string_view rest = file.text(); rest.size() >= sizeof(uint32_t);) {
        uint32_t bytes = 0;
        std::memcpy(&bytes, rest.data(), sizeof(bytes));
        documents.push_back(rest.substr(sizeof(bytes), bytes));
        rest.remove_prefix(std::min(rest.size(), sizeof(bytes) + bytes));
    }
    data::BatchEncoder encoder(tokenizer, std::stoi(argv[3]));
    // A round whenever a line comes in, so that two programs can take turns.
    for (std::string line; std::getline(std::cin, line);) {
        size_t tokens = 0;
        const Clock::time_point start = Clock::now();
        encoder.encode(documents, [&](size_t, std::span<const int32_t> ids) { tokens += ids.size(); });
        fmt::print("{} {}\n", std::chrono::duration<double>(Clock::now() - start).count(), tokens);
        std::fflush(stdout);
    }
    return 0;
} catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
}
