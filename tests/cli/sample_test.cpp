// `lockstep sample` as a user types it (docs/cli.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <sstream>

#include "cli/text_stream.h"
#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

// A run on text that repeats itself, long enough for a greedy continuation to be that text.
void train(const Scratch& s) {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "abcdefgh ";
    s.prepare({text, text + "x", text + "xx", text + "xxx"});
    s.write("r.toml", prepared_recipe("local_batch_size = 4\nseq_len = 32\nsteps = 60\n[checkpoint]\nenable = true\n"
                                      "[parallelism]\ndata_parallel_shard_degree = 2\n"));
    const Finished f = s.lockstep("train r.toml");
    ASSERT_EQ(f.code, 0) << f.err;
}

class CliSample : public ::testing::Test {
protected:
    static void SetUpTestSuite() {
        s = std::make_unique<Scratch>();
        train(*s);
    }
    static void TearDownTestSuite() { s.reset(); }
    static inline std::unique_ptr<Scratch> s;
};

TEST_F(CliSample, GoesOnFromAPromptInAnyLayout) {
    const Finished text = s->lockstep("sample out --prompt 'abcdefgh abc' --temperature 0 --max-tokens 15");
    ASSERT_EQ(text.code, 0) << text.err;
    EXPECT_EQ(text.out, "defgh abcdefgh \n");
    EXPECT_NE(text.err.find("15 tokens, "), std::string::npos) << text.err;
    for (const char* layout :
         {"", " --parallelism.tensor_parallel_degree 2", " --parallelism.tensor_parallel_degree 4",
          " --parallelism.data_parallel_shard_degree 2", " --training.dtype float64 --runtime.kernels reference"}) {
        const Finished f =
            s->lockstep(std::string("sample out --json --prompt 'abcdefgh abc' --temperature 0 --max-tokens 15") + layout);
        ASSERT_EQ(f.code, 0) << f.err;
        const nlohmann::json j = f.json();
        EXPECT_EQ(j["sequences"][0]["text"], "defgh abcdefgh ") << layout;
        EXPECT_EQ(j["sequences"][0]["prompt_tokens"], 12);
        EXPECT_EQ(j["sequences"][0]["tokens"].size(), 15u);
        EXPECT_EQ(j["sequences"][0]["finish_reason"], "max_tokens");
        EXPECT_EQ(j["context"], 27);
        EXPECT_GT(j["tokens_per_s"].get<double>(), 0);
        EXPECT_EQ(j["checkpoint"], "out/checkpoint/step-00000060");
    }
}

TEST_F(CliSample, SeedsRepeatAndSeveralPromptsDoNotMeet) {
    const std::string drawn = "sample out --json --max-tokens 18 --temperature 1.5 --top-k 20 --top-p 0.98 ";
    const nlohmann::json a = s->lockstep(drawn + "--prompt 'abc' --prompt 'cdefgh a' --seed 3").json(),
                         b = s->lockstep(drawn +
                                         "--prompt 'abc' --prompt 'cdefgh a' --seed 3 --parallelism.tensor_parallel_degree 2 "
                                         "--training.dtype float64 --runtime.kernels reference")
                                 .json(),
                         other = s->lockstep(drawn + "--prompt 'abc' --prompt 'cdefgh a' --seed 4").json(),
                         alone = s->lockstep(drawn + "--prompt 'abc' --seed 3").json();
    EXPECT_EQ(a["sequences"], b["sequences"]);
    EXPECT_NE(a["sequences"][0]["tokens"], other["sequences"][0]["tokens"]);
    EXPECT_EQ(a["sequences"][0], alone["sequences"][0]);
    EXPECT_EQ(a["sequences"].size(), 2u);
}

TEST_F(CliSample, StopsWhereToldAndAtTheEndOfTheContext) {
    nlohmann::json j = s->lockstep("sample out --json --prompt 'abcdefgh abc' --temperature 0 --stop 'h a' --stop zz").json();
    EXPECT_EQ(j["sequences"][0]["text"], "defg");
    EXPECT_EQ(j["sequences"][0]["finish_reason"], "stop");
    EXPECT_EQ(s->lockstep("sample out --prompt 'abcdefgh abc' --temperature 0 --stop 'h a'").out, "defg\n");
    j = s->lockstep("sample out --json --prompt 'abcdefgh abc' --temperature 0 --max-tokens 1000").json();
    EXPECT_EQ(j["sequences"][0]["finish_reason"], "context");
    EXPECT_EQ(j["sequences"][0]["tokens"].size(), 32u - 12u + 1u);
}

TEST_F(CliSample, TakesPromptsFromFilesInputAndTokens) {
    s->write("prompt.txt", "abcdefgh abc");
    const std::string greedy = " --temperature 0 --max-tokens 4 --json";
    for (const std::string& prompt : {std::string("--prompt-file prompt.txt"), std::string("--prompt-file - <prompt.txt"),
                                      std::string("--prompt-tokens 97,98,99,100,101,102,103,104,32,97,98,99")}) {
        const Finished f = s->lockstep("sample out" + greedy + " " + prompt);
        ASSERT_EQ(f.code, 0) << f.err;
        EXPECT_EQ(f.json()["sequences"][0]["text"], "defg") << prompt;
    }
    // An empty prompt begins a document.
    const Finished empty = s->lockstep("sample out --prompt ''" + greedy);
    ASSERT_EQ(empty.code, 0) << empty.err;
    EXPECT_EQ(empty.json()["sequences"][0]["prompt_tokens"], 1);
}

TEST_F(CliSample, WritesTheLogitsOfEveryStep) {
    const Finished f = s->lockstep("sample out --json --prompt 'abc' --temperature 0 --max-tokens 5 --logits logits.txt");
    ASSERT_EQ(f.code, 0) << f.err;
    std::istringstream lines(s->read("logits.txt"));
    int rows = 0;
    for (std::string line; std::getline(lines, line); ++rows) {
        std::istringstream numbers(line);
        std::vector<double> row;
        for (double x; numbers >> x;) row.push_back(x);
        ASSERT_EQ(row.size(), 257u);
        EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), f.json()["sequences"][0]["tokens"][rows].get<long>());
    }
    EXPECT_EQ(rows, 5);
}

TEST_F(CliSample, SaysWhatIsWrong) {
    s->write("synthetic.toml", tiny_recipe("[training]\ndataset = \"synthetic\"\nlocal_batch_size = 1\nseq_len = 8\nsteps = 1\n"
                                           "[checkpoint]\nenable = true\n"));
    ASSERT_EQ(s->lockstep("train synthetic.toml --job.dump_folder synthetic").code, 0);
    std::filesystem::create_directories(s->path("folder"));
    const struct {
        const char *arguments, *id, *message;
    } cases[] = {
        {"sample out", "sample.no_prompt", "no prompt: give --prompt, --prompt-file or --prompt-tokens"},
        {"sample out --prompt 'abcdefgh abcdefgh abcdefgh abcdefgh'", "sample.prompt_too_long", "training.seq_len = 32"},
        {"sample out --prompt a --temperature -1", "sample.out_of_range", "--temperature -1: must be from 0 to 1000000"},
        {"sample out --prompt a --top-p 0", "sample.out_of_range", "--top-p 0: must be above 0 and at most 1"},
        {"sample out --prompt a --top-k -2", "sample.out_of_range", "--top-k -2: must be 0 (all) or more"},
        {"sample out --prompt a --max-tokens 0", "sample.out_of_range", "--max-tokens 0: must be at least 1"},
        {"sample out --prompt-file absent.txt", "sample.prompt_file", "--prompt-file absent.txt: cannot be read"},
        {"sample out --prompt-tokens 1,257", "sample.prompt_tokens", "'257' is not a token id below 257"},
        {"sample out --prompt-tokens 1,x", "sample.prompt_tokens", "'x' is not a token id"},
        {"sample out --prompt a --logits folder", "sample.logits", "--logits folder: cannot be written"},
        {"sample synthetic --prompt a", "sample.no_tokenizer", "the tokenizer of this checkpoint was not found"},
        {"sample synthetic --prompt a --tokenizer d/tokenizer.json", "sample.vocabulary",
         "the tokenizer has 257 tokens, but the model knows 61"},
        {"sample nowhere --prompt a", "checkpoint.not_found", "nowhere holds no complete checkpoint"},
    };
    for (const auto& c : cases) {
        const Finished f = s->lockstep(c.arguments);
        EXPECT_EQ(f.code, 1) << c.arguments << f.out;
        EXPECT_NE(f.err.find(c.message), std::string::npos) << f.err;
        EXPECT_NE(f.err.find(std::string("[") + c.id + "]"), std::string::npos) << f.err;
    }
    const Finished tokens = s->lockstep("sample synthetic --prompt-tokens 5,6 --max-tokens 3");
    EXPECT_EQ(tokens.code, 0) << tokens.err;
    EXPECT_EQ(std::count(tokens.out.begin(), tokens.out.end(), ','), 2) << tokens.out;
}

TEST(TextStream, HoldsBackWhatIsNotCertain) {
    const data::Tokenizer bytes = data::Tokenizer::bytes();
    const auto add = [&](cli::TextStream& t, const std::string& text) {
        bool stopped = false;
        std::string out;
        for (char c : text) {
            stopped = t.add(static_cast<unsigned char>(c));
            out += t.take() + "|";
            if (stopped) break;
        }
        return out + (stopped ? "!" : "") + t.take_rest();
    };
    cli::TextStream plain(bytes, {}, true), accents(bytes, {}, true), stops(bytes, {"END", "..", ""}, true),
        almost(bytes, {"END"}, true);
    EXPECT_EQ(add(plain, "abc"), "a|b|c|");
    EXPECT_EQ(add(accents, "a\xc3\xa9\xe2\x82\xacz"), "a||\xc3\xa9|||\xe2\x82\xac|z|");
    EXPECT_EQ(add(stops, "xEN.yENDz"), "x|||EN|.y||||!");
    EXPECT_EQ(stops.text(), "xEN.y");
    EXPECT_EQ(add(almost, "EENE"), "|E||EN|E");
}

}  // namespace
}  // namespace lockstep::testing
