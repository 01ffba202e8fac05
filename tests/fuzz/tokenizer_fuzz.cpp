// A tokenizer.json. One that is accepted encodes bytes and decodes them to the same.
#include "data/tokenizer.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lockstep;
    return fuzz::accepts_or_refuses([&] {
        const data::Tokenizer tokenizer = data::Tokenizer::from_json(fuzz::text_of(data, size), "input");
        const std::vector<int32_t> tokens = tokenizer.encode("The 12 caf\xc3\xa9s\n\xff  aaaa");
        for (const int32_t t : tokens) ensure(t >= 0 && t < tokenizer.vocab_size(), "an id outside the vocabulary");
        tokenizer.decode(tokens);
    });
}
