// Bad input of every kind: one clear message, the documented exit code.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

const std::string kSynthetic = "[training]\ndataset = \"synthetic\"\nlocal_batch_size = 1\nseq_len = 8\nsteps = 1\n";

struct Case {
    const char *arguments, *id, *message;
};

const Case kRefusals[] = {
    {"train absent.toml", "recipe.unreadable", "recipe absent.toml: cannot be read"},
    {"train broken.toml", "recipe.syntax", "broken.toml:1: not TOML"},
    {"train outside.toml", "recipe.no_section", "outside.toml:1: steps is outside any [section]"},
    {"train r.toml --training.stepz 3", "recipe.unknown_key", "there is no key training.stepz; the nearest is training.steps"},
    {"train r.toml --training.steps many", "recipe.wrong_type",
     "flag --training.steps: training.steps = \"many\" must be an integer"},
    {"train r.toml --training.steps -1", "recipe.out_of_range", "training.steps = -1: must be from 0"},
    {"train r.toml --metrics.log_freq 0", "recipe.out_of_range", "metrics.log_freq = 0: must be from 1"},
    {"train r.toml --training.dataset prepared", "recipe.no_data", "training.dataset_path is not set: give the folder that"},
    {"train r.toml --training.dataset c4", "recipe.no_data", "training.dataset = \"c4\": Lockstep downloads no data set"},
    {"train r.toml --training.dataset other", "recipe.unknown_word", "training.dataset = \"other\": must be prepared, synthetic"},
    {"train r.toml --validation.enable true", "recipe.no_heldout", "synthetic data has no held-out split"},
    {"train r.toml --runtime.disabled_kernels einsum", "recipe.disabled_kernels",
     "runtime.disabled_kernels = \"einsum\": einsum is no op that is made of parts; these are: "},
    {"train r.toml --runtime.kernels fast", "recipe.unknown_word", "runtime.kernels = \"fast\": must be cpu, cuda or reference"},
    {"train r.toml --runtime.threads_per_rank -1", "recipe.out_of_range",
     "runtime.threads_per_rank = -1: must be from 0 to 1024"},
    {"train r.toml --runtime.comm_thread maybe", "recipe.unknown_word",
     "runtime.comm_thread = \"maybe\": must be auto, on or off"},
    {"train r.toml --job.dump_folder /proc/nothing", "train.dump_folder", "job.dump_folder: /proc/nothing cannot be made"},
    {"train r.toml --job.dump_folder full", "metrics.cannot_write", "full/metrics.jsonl: cannot be written"},
    {"train r.toml --watch nothing", "train.watch_name", "--watch nothing: no op makes a tensor of that name"},
    {"train r.toml --watch 'layer[0].forward.o' --job.dump_folder watched", "train.watch", "cannot be written"},
    {"check r.toml --cluster.memory_gib_per_rank 0.000001", "check.does_not_fit", "too much; what would help most: "},
    {"check r.toml --parallelism.expert_parallel_degree 2 --training.enable_cpu_offload true", "recipe.not_available",
     "does not have:\n  offload to the memory of the CPU (training.enable_cpu_offload = true)\n"
     "  experts (parallelism.expert_parallel_degree = 2)"},
    {"check r.toml --activation_checkpoint.mode some", "recipe.unknown_word", "must be none, full, selective"},
    {"show r.toml --after nonsense", "show.unknown_pass", "--after nonsense: the passes are build_blocks"},
    {"diff r.toml other_batch.toml", "diff.batch", "steps must be equal; set training.global_batch_size"},
    {"data prepare /no/such/place --out d", "data.input_missing", "/no/such/place"},
    {"data prepare lines.jsonl --out d", "data.no_field",
     "there is no field \"text\"; the fields are: content, meta. Name the field that holds the text with --field"},
    {"data prepare lines.jsonl --out d --field meta", "data.no_field", "the field \"meta\" is an object, not text"},
    {"data prepare lines.jsonl --out d --field ..", "data.field", "--field \"..\" names no field"},
    {"data prepare a.jsonl.xz --out d", "data.input_unreadable", "it is compressed with xz. Unpack it first: xz -d "},
    {"data prepare utf16.txt --out d", "data.input_unreadable", "it is UTF-16 text. Convert it first: iconv -f UTF-16 -t UTF-8 "},
    {"data prepare ids.bin --out d", "data.ids_without_vocabulary",
     "holds token ids, from which no tokenizer can be learned. Give the tokenizer that made them with --tokenizer"},
    {"data prepare ids.bin --out d --vocab-size 4 --separator 9", "data.ids_options",
     "--vocab-size 4 and --separator 9 do not fit"},
    {"data prepare ids.bin --out d --vocab-size 4 --separator 3", "data.id_outside",
     "ids.bin#1: token 0 of the document is 513, outside the vocabulary of 4"},
    {"data prepare plain.txt --out d --vocab-size 4 --separator 3", "data.text_without_tokenizer",
     "plain.txt is text, and no tokenizer is given"},
    {"data prepare cut.npy --out d --vocab-size 4 --separator 3", "data.foreign_ids",
     "cut.npy: it is not an .npy file, or it was cut off"},
    {"data prepare lines.jsonl --out d --field content --heldout 1", "data.heldout_fraction",
     "the held-out fraction is 1; it must be"},
    {"data prepare plain.txt --out d --shard-tokens 3", "data.shard_tokens", "--shard-tokens 3: a token file of fewer than 1000"},
    {"data prepare plain.txt --out nothing --append", "data.not_prepared", "nothing is not a prepared data folder"},
    {"data prepare empty.txt --out d", "data.no_text", "nothing to read was found in empty.txt: 0 unreadable, 1 empty"},
    {"data prepare pipe --out d", "data.input_unreadable", "pipe is not read: it is not a regular file"},
};

class CliErrors : public ::testing::TestWithParam<Case> {};

TEST_P(CliErrors, SayWhatIsWrong) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kSynthetic));
    s.write("other_batch.toml", tiny_recipe(kSynthetic + "global_batch_size = 3\n"));
    s.write("lines.jsonl", "{\"content\": \"a\", \"meta\": {\"url\": \"b\"}}\n");
    s.write("a.jsonl.xz", std::string("\xFD"
                                      "7zXZ\0",
                                      6));
    s.write("utf16.txt", std::string("\xFF\xFEt\0e\0x\0t\0", 10));
    s.write("ids.bin", "\x01\x02\x03\x04");
    s.write("cut.npy", "\x93NUMPY");
    s.write("plain.txt", "text\n");
    s.write("empty.txt", "");
    ASSERT_EQ(mkfifo(s.path("pipe").c_str(), 0600), 0);
    s.write("broken.toml", "[training\nsteps = 1\n");
    s.write("outside.toml", "steps = 1\n");
    std::filesystem::create_directories(s.path("full/metrics.jsonl"));  // a folder where a file should be
    std::filesystem::create_directories(s.path("watched/watch/layer[0].forward.o.step1.txt"));
    const Finished f = s.lockstep(GetParam().arguments);
    EXPECT_EQ(f.code, 1) << f.err;
    EXPECT_NE(f.err.find(GetParam().message), std::string::npos) << f.err << f.out;
    EXPECT_NE(f.err.find(std::string("[") + GetParam().id + "]"), std::string::npos) << f.err << f.out;
}

INSTANTIATE_TEST_SUITE_P(All, CliErrors, ::testing::ValuesIn(kRefusals));

TEST(CliUsage, WrongFlagsExitWith2) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kSynthetic));
    for (const auto& [arguments, message] : {std::pair{"train", "recipe is required"},
                                             {"", "subcommand is required"},
                                             {"train r.toml --frobnicate", "--frobnicate"}}) {
        const Finished f = s.lockstep(arguments);
        EXPECT_EQ(f.code, 2) << arguments;
        EXPECT_NE((f.err + f.out).find(message), std::string::npos) << f.err << f.out;
    }
}

TEST(CliEnvironment, NumbersThatNoLauncherGivesCountForNothing) {
    const Scratch s;
    const Finished f =
        s.shell("OMPI_COMM_WORLD_RANK=4294967297 OMPI_COMM_WORLD_SIZE=4294967298 $LOCKSTEP schedule >out.txt 2>err.txt");
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.out.find("1F1B"), std::string::npos) << f.out;
}

// Checkpoints that cannot be used: the message names the file and what to choose instead.
TEST(CliCheckpointErrors, DamagedOrForeignCheckpoints) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kSynthetic) + "[checkpoint]\nenable = true\n");
    ASSERT_EQ(s.lockstep("train r.toml").code, 0);
    Finished f = s.lockstep("train r.toml --checkpoint.load_step 9");
    EXPECT_EQ(f.code, 1);
    EXPECT_NE(
        f.err.find("checkpoint.load_step = 9: out/checkpoint has complete checkpoints of the steps 1 [checkpoint.no_such_step]"),
        std::string::npos)
        << f.err;
    f = s.lockstep("train r.toml --training.steps 2 --model.ffn_dim 48");
    EXPECT_EQ(f.code, 1);
    EXPECT_NE(f.err.find("holds a model with model.ffn_dim = 24, but the recipe has 48"), std::string::npos) << f.err;
    std::filesystem::resize_file(s.path("out/checkpoint/step-00000001/model.safetensors"), 900);
    f = s.lockstep("train r.toml --training.steps 2");
    EXPECT_EQ(f.code, 1);
    EXPECT_NE(f.err.find("model.safetensors has 900 bytes, but "), std::string::npos) << f.err;
    s.write("out/checkpoint/step-00000001/manifest.json", "{\"version\": 1");
    f = s.lockstep("train r.toml --training.steps 2");
    EXPECT_EQ(f.code, 1);
    EXPECT_NE(f.err.find("is damaged"), std::string::npos) << f.err;
    EXPECT_NE(f.err.find("[checkpoint.none_whole]"), std::string::npos) << f.err;
}

TEST(CliDataErrors, VocabularySmallerThanTheTokens) {
    Scratch s;
    s.write("text.txt", std::string(4000, 'a') + " plain words again and again\n");
    s.write("more.txt", std::string(3000, 'b') + " other words\n");
    s.write("r.toml", tiny_recipe("[training]\ndataset_path = \"d\"\nseq_len = 8\nsteps = 1\nlocal_batch_size = 1\n"));
    Finished f = s.lockstep("check r.toml");
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.err.find("d is not prepared yet. `train` will refuse this recipe until then; here a vocabulary of 61 is assumed"),
              std::string::npos)
        << f.err;
    EXPECT_EQ(s.lockstep("train r.toml").code, 1);
    f = s.lockstep("data prepare text.txt more.txt --out d --tokenizer bytes --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.json()["vocab_size"], 257);
    f = s.lockstep("train r.toml");
    EXPECT_EQ(f.code, 1);
    EXPECT_NE(
        f.err.find("model.vocab_size = 61, but the tokens of d go up to 257: raise it, or leave it out [recipe.vocabulary]"),
        std::string::npos)
        << f.err;
    f = s.lockstep("train r.toml --json --model.vocab_size 257 --validation.enable true");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_GT(f.json()["heldout_loss"].get<double>(), 0);
    EXPECT_GT(f.json()["unigram_entropy_nats"].get<double>(), 0);
}

TEST(CliDataErrors, NothingHeldOut) {
    Scratch s;
    std::string lines;
    for (int i = 0; i < 40; ++i) lines += "{\"text\": \"line " + std::to_string(i) + " of some text\"}\n";
    s.write("c.jsonl", lines);
    s.write("r.toml", tiny_recipe("[training]\ndataset_path = \"d\"\nseq_len = 8\nsteps = 1\nlocal_batch_size = 1\n"
                                  "[checkpoint]\nenable = true\n"));
    Finished f = s.lockstep("data prepare c.jsonl --out d --tokenizer bytes --heldout 0 --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.json()["train_documents"], 40);
    EXPECT_EQ(f.json()["heldout_documents"], 0);
    f = s.lockstep("train r.toml --json --model.vocab_size 257");
    ASSERT_EQ(f.code, 0) << f.err;
    f = s.lockstep("train r.toml --model.vocab_size 257 --validation.enable true");
    EXPECT_EQ(f.code, 1);
    EXPECT_NE(f.err.find("d has no held-out documents (it was prepared with --heldout 0); set validation.dataset_path"),
              std::string::npos)
        << f.err;
    f = s.lockstep("eval out");
    EXPECT_EQ(f.code, 1);
    EXPECT_NE(f.err.find("give --split train, or other data with --data [eval.no_heldout]"), std::string::npos) << f.err;
    EXPECT_EQ(s.lockstep("eval out --split train").code, 0);
}

TEST(CliCheck, JsonOfARefusalHasMessageAndKey) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kSynthetic));
    Finished f = s.lockstep("check r.toml --json --cluster.memory_gib_per_rank 0.0001");
    EXPECT_EQ(f.code, 1);
    EXPECT_FALSE(f.json()["fits"]);
    EXPECT_EQ(f.json()["ranks"], 1);
    EXPECT_EQ(f.json()["error"]["id"], "check.does_not_fit");
    EXPECT_FALSE(f.json()["error"]["key"].get<std::string>().empty());
    f = s.lockstep("check r.toml --json --training.seq_len 0");
    EXPECT_EQ(f.json()["error"]["key"], "training.seq_len");
    f = s.lockstep("check r.toml --json");
    EXPECT_EQ(f.code, 0);
    int64_t sum = 0;
    for (const char* kind :
         {"weights", "gathered", "gradients", "optimizer", "activations", "workspace", "communication", "input", "snapshot"}) {
        sum += f.json()["stages"][0]["bytes"][kind].get<int64_t>();
    }
    EXPECT_EQ(sum, f.json()["stages"][0]["bytes"]["total"].get<int64_t>());
    EXPECT_GT(f.json()["stages"][0]["flops_executed"].get<double>(), 0);
}

TEST(CliHelp, EveryCommandHasAnExample) {
    Scratch s;
    for (const char* command : {"train", "check", "show", "diff", "eval", "sample", "convert", "data prepare", "recipe"}) {
        const Finished f = s.lockstep(std::string(command) + " --help");
        EXPECT_EQ(f.code, 0);
        EXPECT_NE(f.out.find("Example: lockstep"), std::string::npos) << command;
        EXPECT_NE(f.out.find("--json"), std::string::npos) << command;
    }
}

}  // namespace
}  // namespace lockstep::testing
