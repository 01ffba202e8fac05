// The Python programs of docs/token_files.md: what they write is trained on, what `data prepare` writes they read.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

// All blocks of Python of the page.
std::string python_of_the_page() {
    std::ifstream page(std::string(LOCKSTEP_SOURCE_DIR) + "/docs/token_files.md");
    std::string code, line;
    bool inside = false;
    while (std::getline(page, line)) {
        if (line.starts_with("```")) inside = line == "```python";
        else if (inside) code += line + "\n";
    }
    return code;
}

TEST(CliTokenFiles, ThePagesProgramsReadAndWrite) {
    Scratch s;
    s.write("page.py", python_of_the_page());
    s.write("c.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"c\"}\n{\"text\": \"def\"}\n");
    Finished f = s.lockstep("data prepare c.jsonl --out d --tokenizer bytes --heldout 0");
    ASSERT_EQ(f.code, 0) << f.err;
    f = s.shell("python3 -c 'from page import *; print(read_tokens(\"d/train.tokens\"))' >out.txt 2>err.txt");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.out, "[[97, 98, 256], [99, 256], [100, 101, 102, 256]]\n");

    const char* const write =
        "python3 -c 'from page import *; write_folder(\"w\", [[i % 50] * (i + 1) for i in range(30)], 61, 60); "
        "assert read_tokens(\"w/train.tokens\") == [[i % 50] * (i + 1) + [60] for i in range(30)]' >out.txt 2>err.txt";
    f = s.shell(write);
    ASSERT_EQ(f.code, 0) << f.err;
    s.write("r.toml", tiny_recipe("[training]\ndataset_path = \"w\"\nseq_len = 8\nsteps = 1\nlocal_batch_size = 1\n"));
    f = s.lockstep("train r.toml --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_NEAR(f.json()["final_loss"].get<double>(), 4.5718, 1e-3);
}

}  // namespace
}  // namespace lockstep::testing
