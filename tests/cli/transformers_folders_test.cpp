// Folders of transformers of every kind that people have: which weights are read, what is kept for those who serve the model,
// rows that no token has, and a vocabulary that grows. tests/peers/hugging_face.py asks transformers about the same folders.
#include <gtest/gtest.h>

#include <filesystem>

#include "data/utf8.h"
#include "tests/cli/transformers_folder.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string kLanguageHead = "lm_head.weight", kTokenTable = "model.embed_tokens.weight",
                  kStepZeroModel = "/step-00000000/model.safetensors";

// The texts of tokenizer(), once more.
const std::string kPrepareAgain = "data prepare text0.txt text1.txt text2.txt --out e --heldout 0 --tokenizer ";
const std::string kTrainFromFolder =
    "train r.toml --training.seq_len 8 --training.local_batch_size 2 --lr_scheduler.warmup_steps 0 "
    "--training.mixed_precision_param float32 ";

Finished succeeds(const Scratch& s, const std::string& arguments) {
    Finished f = s.lockstep(arguments);
    EXPECT_EQ(f.code, 0) << arguments << "\n" << f.err;
    return f;
}

json json_in(const Scratch& s, const std::string& file) { return json::parse(s.read(file)); }

// tokenizer.json of bytes, 256 ends a document, with more special tokens behind it.
json tokenizer_of_bytes(const Scratch& s, const std::vector<std::string>& more = {}) {
    if (!fs::exists(s.path("d"))) s.prepare({std::string(300, 'a'), std::string(300, 'b'), std::string(300, 'c')});
    json out = json_in(s, "d/tokenizer.json");
    int64_t id = 257;
    for (const std::string& text : more) {
        json added = out["added_tokens"][0];
        added["id"] = id, added["content"] = text;
        out["added_tokens"].push_back(added);
        out["model"]["vocab"][text] = id++;
    }
    return out;
}

TEST(CliTransformersWeights, OneFileCountsBeforeAnIndex) {
    Scratch s;
    SmallTensors old = small_tensors();
    for (auto& [name, tensor] : old) tensor.first += 100;
    write_small_shards(s, "hf", old, json::object());
    write_small_folder(s, "hf", small_config(), small_tensors());
    const Finished f = succeeds(s, "convert hf out");
    EXPECT_TRUE(has(f.err, "the weights are those of model.safetensors, as transformers reads it before")) << f.err;
    EXPECT_EQ(tensor_of(s, "out" + kStepZeroModel, kLanguageHead), small_tensors()[kLanguageHead].values());
    fs::remove(s.path("hf/model.safetensors"));
    succeeds(s, "convert hf old");
    EXPECT_EQ(tensor_of(s, "old" + kStepZeroModel, kLanguageHead), old[kLanguageHead].values());
}

TEST(CliTransformersWeights, AnIndexMayNameABufferThatNoShardHas) {
    Scratch s;
    s.write("hf/config.json", small_config().dump());
    write_small_shards(s, "hf", small_tensors(), {{"model.layers.0.self_attn.rotary_emb.inv_freq", "shard-1.safetensors"}});
    succeeds(s, "convert hf out");
    // What a model needs is missing, whatever the index says of it.
    SmallTensors fewer = small_tensors();
    fewer.erase("model.norm.weight");
    s.write("less/config.json", small_config().dump());
    write_small_shards(s, "less", fewer, {{"model.norm.weight", "shard-1.safetensors"}});
    Finished f = s.lockstep("convert less out2");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "less: has no tensor model.norm.weight")) << f.err;
    // Twice: which of them counts is not known.
    write_tensors(s, "hf/shard-13.safetensors", {{"model.norm.weight", {{8}, 77}}});
    json index = json_in(s, "hf/model.safetensors.index.json");
    index["weight_map"]["more"] = "shard-13.safetensors";
    s.write("hf/model.safetensors.index.json", index.dump());
    f = s.lockstep("convert hf out3");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "model.norm.weight is in the shard ") && has(f.err, "[convert.index]")) << f.err;
}

TEST(CliTransformersWeights, AHeadOfItsOwnIsKeptThoughTheConfigTiesIt) {
    Scratch s;
    json config = small_config();
    config["tie_word_embeddings"] = true;
    write_small_folder(s, "hf", config, small_tensors());
    Finished f = succeeds(s, "convert hf out");
    EXPECT_TRUE(has(f.err, "lm_head.weight differs from model.embed_tokens.weight: both are kept, as transformers does"))
        << f.err;
    EXPECT_EQ(tensor_of(s, "out" + kStepZeroModel, kLanguageHead), small_tensors()[kLanguageHead].values());
    succeeds(s, "convert out back");
    EXPECT_EQ(json_in(s, "back/config.json")["tie_word_embeddings"], false);
    EXPECT_EQ(tensor_of(s, "back/model.safetensors", kLanguageHead), small_tensors()[kLanguageHead].values());
    EXPECT_TRUE(has(succeeds(s, "recipe --from hf").out, "tie_embeddings = 0"));

    SmallTensors same = small_tensors();
    same[kLanguageHead] = same[kTokenTable];
    write_small_folder(s, "same", config, same);
    f = succeeds(s, "convert same tied --json");
    EXPECT_EQ(f.json()["tensors"], 11);
    EXPECT_FALSE(has(f.err, "differs")) << f.err;
    EXPECT_TRUE(has(succeeds(s, "recipe --from same").out, "tie_embeddings = 1"));

    same.erase(kTokenTable);  // it is tied to the one that is there
    write_small_folder(s, "head_alone", config, same);
    succeeds(s, "convert head_alone alone");
    EXPECT_EQ(s.read("alone" + kStepZeroModel), s.read("tied" + kStepZeroModel));
}

TEST(CliTransformersServing, WhatServingNeedsComesBack) {
    Scratch s;
    json config = small_config(260);
    config["bos_token_id"] = 3, config["eos_token_id"] = {256, 257}, config["pad_token_id"] = 258;
    config["initializer_range"] = 0.03, config["quantization_config"] = nullptr;
    write_small_folder(s, "hf", config, small_tensors(260));
    const std::map<std::string, std::string> files = {
        {"tokenizer.json", tokenizer_of_bytes(s, {"<|eot_id|>", "<|pad|>"}).dump()},
        {"tokenizer_config.json", R"({"bos_token": "\u0003", "eos_token": "<|eot_id|>", "chat_template": "{{ messages }}"})"},
        {"generation_config.json", R"({"eos_token_id": [256, 257], "temperature": 0.6})"},
        {"special_tokens_map.json", R"({"eos_token": "<|eot_id|>"})"},
        {"added_tokens.json", R"({"<|eot_id|>": 257})"},
        {"chat_template.jinja", "{% for m in messages %}{{ m }}{% endfor %}"},
        {"additional_chat_templates/tools.jinja", "{{ tools }}"},
        {"vocab.json", "{}"},
        {"merges.txt", "#version: 0.2\n"},
        {"tokenizer.model", std::string("\0\xff\n", 3)}};
    for (const auto& [name, bytes] : files) s.write("hf/" + name, bytes);
    s.write("hf/README.md", "a model");
    s.write("hf/modeling_own.py", "pass");
    const Finished f = succeeds(s, "convert hf a");
    EXPECT_TRUE(has(f.err, "not carried along: README.md, modeling_own.py")) << f.err;
    succeeds(s, "convert a b");
    const auto expect_all = [&](const std::string& folder) {
        for (const auto& [name, bytes] : files) EXPECT_EQ(s.read(folder + "/" + name), bytes) << folder << " " << name;
        const json got = json_in(s, folder + "/config.json");
        for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id", "initializer_range", "vocab_size", "rope_theta"})
            EXPECT_EQ(got[key], config[key]) << folder << " " << key;
        EXPECT_FALSE(got.contains("quantization_config"));
        EXPECT_FALSE(fs::exists(s.path(folder + "/transformers_config.json")));
    };
    expect_all("b");
    EXPECT_EQ(json_in(s, "b/config.json")["max_position_embeddings"], 64);

    // Through runs that begin from the folder, or from the checkpoint of it, and are gone on with.
    succeeds(s, kPrepareAgain + "hf/tokenizer.json");
    succeeds(s, "recipe --from hf --out r.toml");
    const std::string train = kTrainFromFolder + "--training.dataset_path e ";
    for (const char* steps : {"1", "2"})
        succeeds(s, train +
                        "--checkpoint.last_save_model_only false --checkpoint.last_save_in_hf false --job.dump_folder run "
                        "--training.steps " +
                        steps);
    succeeds(s, "convert run c");
    expect_all("c");
    succeeds(s, train + "--training.steps 2 --job.dump_folder run_hf --checkpoint.last_save_in_hf true");
    expect_all("run_hf/checkpoint/step-00000002");
    succeeds(
        s,
        train +
            "--training.steps 2 --job.dump_folder run_ck --checkpoint.initial_load_in_hf false --checkpoint.initial_load_path a");
    succeeds(s, "convert run_ck from_ck");
    expect_all("from_ck");
}

// A folder's ids mean nothing to tokens of another tokenizer.
TEST(CliTransformersServing, OfAnotherTokenizerIsNotCarried) {
    Scratch s;
    json config = small_config(257);
    config["eos_token_id"] = 4;
    write_small_folder(s, "hf", config, small_tensors(257));
    s.write("hf/generation_config.json", R"({"eos_token_id": 4})");
    s.write("hf/tokenizer.json", R"({"model": {"type": "Unigram", "vocab": []}})");
    tokenizer_of_bytes(s);
    succeeds(s, "recipe --from hf --out r.toml");
    const Finished f =
        succeeds(s, kTrainFromFolder +
                        "--training.steps 1 --training.dataset_path d --job.dump_folder run --checkpoint.last_save_in_hf true");
    EXPECT_TRUE(has(f.err, "is another tokenizer than that of ") && has(f.err, "is not carried along (generation_config.json, "))
        << f.err;
    EXPECT_FALSE(fs::exists(s.path("run/checkpoint/step-00000001/generation_config.json")));
    EXPECT_EQ(json_in(s, "run/checkpoint/step-00000001/config.json")["eos_token_id"], 256);
}

// As every Qwen has: rows for nothing.
TEST(CliTransformersRows, WithoutATokenAreNeverDrawn) {
    Scratch s;
    SmallTensors tensors = small_tensors(330);
    write_small_folder(s, "hf", small_config(330), tensors);
    s.write("hf/tokenizer.json", tokenizer_of_bytes(s).dump());
    succeeds(s, "convert hf out");
    for (const char* from : {"hf", "out"}) {
        for (const char* how : {"--seed 0", "--seed 1", "--seed 2 --top-k 300", "--seed 3 --top-p 0.99", "--temperature 0",
                                "--seed 4 --temperature 50"}) {
            const std::string ask = std::string("sample ") + from + " --prompt ab --prompt c --max-tokens 12 " + how;
            for (const json& sequence : succeeds(s, ask + " --json").json()["sequences"]) {
                for (const json& token : sequence["tokens"]) EXPECT_LT(token.get<int64_t>(), 257) << ask;
            }
            succeeds(s, ask);
        }
    }
    // Its logits are all there.
    succeeds(s, "sample out --prompt ab --max-tokens 1 --logits logits.txt");
    const std::string row = s.read("logits.txt");
    EXPECT_EQ(std::count(row.begin(), row.end(), ' '), 329);
    succeeds(s, "sample out --prompt-tokens 300,97 --max-tokens 2");
}

// As Llama 2 with an added [PAD]: the tokenizer has tokens behind the rows of the model.
TEST(CliTransformersRows, MayBeFewerThanTheTokenizersTokens) {
    Scratch s;
    write_small_folder(s, "hf", small_config(257), small_tensors(257));
    json tokenizer = tokenizer_of_bytes(s, {"[PAD]", "<x>"});
    tokenizer["added_tokens"][2]["special"] = false;
    s.write("hf/tokenizer.json", tokenizer.dump());
    succeeds(s, "convert hf out");
    for (const std::string from : {"hf", "out"}) {
        const Finished f = succeeds(s, "sample " + from + " --prompt ab --max-tokens 12 --temperature 50 --json");
        EXPECT_TRUE(has(f.err, "tokenizer.json has 259 tokens; the model has rows for the first 257")) << f.err;
        for (const json& token : f.json()["sequences"][0]["tokens"]) EXPECT_LT(token.get<int64_t>(), 257);
        const Finished refused = s.lockstep("sample " + from + " --prompt 'a<x>b'");
        EXPECT_EQ(refused.code, 1);
        EXPECT_TRUE(has(refused.err,
                        "a prompt holds the token '<x>' (258), for which the model has no row: it has 257. Leave it "
                        "out of the prompt, or train a model with model.vocab_size = 259 that begins from this one") &&
                    has(refused.err, "[sample.no_row]"))
            << refused.err;
    }
    // Text of rows alone is evaluated as with the smaller tokenizer.
    s.write("plain/a.txt", std::string(300, 'a'));
    s.write("with/a.txt", std::string(300, 'a') + "<x>");
    for (const std::string data : {"plain", "with"})
        succeeds(s, "data prepare " + data + " --out of_" + data + " --heldout 0 --tokenizer hf/tokenizer.json");
    write_small_folder(s, "small", small_config(257), small_tensors(257));
    s.write("small/tokenizer.json", tokenizer_of_bytes(s).dump());
    succeeds(s, "data prepare plain --out of_small --heldout 0 --tokenizer small/tokenizer.json");
    const std::string how = " --split train --json --training.seq_len 16 --data ";
    EXPECT_EQ(succeeds(s, "eval hf" + how + "of_plain").json()["loss"],
              succeeds(s, "eval small" + how + "of_small").json()["loss"]);
    const Finished refused = s.lockstep("eval out" + how + "of_with");
    EXPECT_EQ(refused.code, 1);
    EXPECT_TRUE(has(refused.err,
                    "holds the token '<x>' (258), for which the model has no row: it has 257. Evaluate text without "
                    "this token, or a model that was trained with model.vocab_size = 259") &&
                has(refused.err, "[eval.no_row]"))
        << refused.err;
}

// Names as save_pretrained of a base model writes them, and of a model in a wrapper.
TEST(CliTransformersWeights, PrefixesOfNamesMayBeMissingOrMore) {
    Scratch s;
    const auto renamed = [](const SmallTensors& tensors, const auto& name) {
        SmallTensors out;
        for (const auto& [old, tensor] : tensors) out[name(old)] = tensor;
        return out;
    };
    const auto bare = [](const std::string& n) { return n.starts_with("model.") ? n.substr(6) : n; };
    json tied = small_config();
    tied["tie_word_embeddings"] = true;
    SmallTensors headless = small_tensors();
    headless.erase(kLanguageHead);
    write_small_folder(s, "hf", small_config(), small_tensors());
    write_small_folder(s, "tied", tied, headless);
    succeeds(s, "convert hf out");
    succeeds(s, "convert tied out_tied");

    write_small_folder(s, "base", tied, renamed(headless, bare));
    succeeds(s, "convert base out_base");
    EXPECT_EQ(s.read("out_base" + kStepZeroModel), s.read("out_tied" + kStepZeroModel));
    for (const std::string wrapper : {"module.", "_orig_mod.", "module._orig_mod."}) {
        const auto wrapped = [&](const std::string& n) { return wrapper + n; };
        write_small_folder(s, wrapper, small_config(), renamed(small_tensors(), wrapped));
        const Finished f = succeeds(s, "convert " + wrapper + " out_" + wrapper);
        EXPECT_TRUE(has(f.err, "the names of all weights begin with " + wrapper + ", as a wrapped model has them")) << f.err;
        EXPECT_EQ(s.read("out_" + wrapper + kStepZeroModel), s.read("out" + kStepZeroModel));
        write_small_folder(s, "both", tied, renamed(renamed(headless, bare), wrapped));
        succeeds(s, "convert both both_" + wrapper);
        EXPECT_EQ(s.read("both_" + wrapper + kStepZeroModel), s.read("out_tied" + kStepZeroModel));
    }

    write_small_folder(s, "headless", small_config(), renamed(headless, bare));
    Finished f = s.lockstep("convert headless x");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err,
                    "headless: has no tensor lm_head.weight, which the model of its config.json needs, as "
                    "tie_word_embeddings is not true there. These are the weights of a base model, such as one for "
                    "embeddings: without a head it predicts no token. Save the whole model (LlamaForCausalLM)"))
        << f.err;
    write_small_folder(s, "other", small_config(), renamed(small_tensors(), [](const std::string& n) { return "llm." + n; }));
    f = s.lockstep("convert other x");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "Its names begin with llm.: save only the model, without what it was wrapped in")) << f.err;
}

// Python's json writes and reads numbers that are not finite.
TEST(CliTransformersText, AConfigMayHoldNumbersThatAreNotFinite) {
    Scratch s;
    json config = small_config();
    config["router_aux"] = "#", config["a \"NaN\""] = "-Infinity NaN", config["eos_token_id"] = 3;
    const auto with = [&](std::string text, const std::string& mark, const std::string& by) {
        return text.replace(text.find(mark), mark.size(), by);
    };
    for (const char* number : {"NaN", "Infinity", "-Infinity", "[NaN, {\"x\": -Infinity}]"}) {
        write_small_folder(s, "hf", small_config(), small_tensors());
        s.write("hf/config.json", with(config.dump(2), "\"#\"", number));
        succeeds(s, "convert hf out");
        succeeds(s, "convert out back");
        EXPECT_EQ(json_in(s, "back/config.json")["eos_token_id"], 3);
        EXPECT_EQ(json_in(s, "back/config.json")["a \"NaN\""], "-Infinity NaN");
        fs::remove_all(s.path("out")), fs::remove_all(s.path("back"));
    }
    s.write("hf/config.json", with(small_config().dump(), "10000.0", "NaN"));
    const Finished f = s.lockstep("convert hf out");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "rope_theta is missing or of another type")) << f.err;
}

TEST(CliTransformersText, PointersOfGitLfsAreCalledSo) {
    Scratch s;
    const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 3\n";
    write_small_folder(s, "hf", small_config(), small_tensors());
    const auto refused = [&](const std::string& file, const std::string& id, const std::string& command) {
        const std::string before = fs::exists(s.path(file)) ? s.read(file) : "";
        s.write(file, pointer);
        const Finished f = s.lockstep(command);
        EXPECT_EQ(f.code, 1) << f.out;
        EXPECT_TRUE(has(f.err, "it is a pointer of Git LFS, not the file itself. Get the file: git lfs pull [" + id + "]"))
            << f.err;
        s.write(file, before);
    };
    refused("hf/model.safetensors", "checkpoint.lfs_pointer", "convert hf out");
    refused("hf/config.json", "convert.config", "convert hf out");
    refused("hf/tokenizer.json", "data.tokenizer_malformed", "sample hf --prompt a");
    fs::remove(s.path("hf/model.safetensors"));
    refused("hf/model.safetensors.index.json", "convert.index", "convert hf out");
}

TEST(CliTransformersUse, AFolderAndItsCheckpointGiveTheSameNumbers) {
    Scratch s;
    json config = small_config(260);
    config["eos_token_id"] = 256;
    write_small_folder(s, "hf", config, small_tensors(260));
    s.write("hf/tokenizer.json", tokenizer_of_bytes(s).dump());
    succeeds(s, "convert hf out");
    const std::string ask = " --prompt ab --prompt abc --temperature 0 --max-tokens 20 --json";
    const json a = succeeds(s, "sample hf" + ask).json(), b = succeeds(s, "sample out" + ask).json();
    EXPECT_EQ(a["sequences"], b["sequences"]);
    EXPECT_EQ(a["checkpoint"], "hf");
    EXPECT_EQ(a["step"], 0);
    const std::string data = " --data d --split train --json --training.seq_len 16";
    EXPECT_EQ(succeeds(s, "eval hf" + data).json()["loss"], succeeds(s, "eval out" + data).json()["loss"]);
    // On two ranks as well.
    EXPECT_EQ(succeeds(s, "sample hf --parallelism.tensor_parallel_degree 2" + ask).json()["sequences"], a["sequences"]);
    // The tokens that end a text stop it: those of generation_config.json before those of config.json.
    const json tokens = a["sequences"][0]["tokens"];
    ASSERT_EQ(tokens.size(), 20u);
    const int64_t third = tokens[2];
    const auto stopped = [&](const std::string& folder) {
        const json sequence = succeeds(s, "sample " + folder + ask).json()["sequences"][0];
        return sequence["finish_reason"] == "end_of_text" && sequence["tokens"].back() == third;
    };
    s.write("hf/generation_config.json", json{{"eos_token_id", {250, third}}}.dump());
    EXPECT_TRUE(stopped("hf"));
    succeeds(s, "convert hf again");
    EXPECT_TRUE(stopped("again"));
    fs::remove(s.path("hf/generation_config.json"));
    config["eos_token_id"] = third;
    s.write("hf/config.json", config.dump());
    EXPECT_TRUE(stopped("hf"));
}

// More tokens than rows: the new rows begin as those of a new model.
TEST(CliTransformersRows, AreAddedForALargerTokenizer) {
    Scratch s;
    write_small_folder(s, "hf", small_config(257), small_tensors(257));
    s.write("hf/tokenizer.json", tokenizer_of_bytes(s).dump());
    s.write("more.json", tokenizer_of_bytes(s, {"<|one|>", "<|two|>", "<|three|>"}).dump());
    succeeds(s, kPrepareAgain + "more.json");
    succeeds(s, "convert hf ck");
    succeeds(s, "recipe --from hf --out r.toml");
    const std::string train = kTrainFromFolder + "--training.dataset_path e --optimizer.lr 1e-9 ";
    Finished f = s.lockstep(train + "--training.steps 1 --job.dump_folder small");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "model.vocab_size = 257, but the tokens of e go up to 260: raise it")) << f.err;
    const std::vector<float> known = small_tensors(257)[kLanguageHead].values();
    const auto expect_rows = [&](const std::string& run, const std::string& from) {
        f = succeeds(s, train + "--training.steps 1 --model.vocab_size 260 --job.dump_folder " + run + " " + from);
        EXPECT_TRUE(has(f.err, "model.vocab_size is 3 larger than that of ")) << f.err;
        const std::vector<float> rows = tensor_of(s, run + "/checkpoint/step-00000001/model.safetensors", kLanguageHead);
        ASSERT_EQ(rows.size(), 260u * 8);
        double square = 0;
        for (size_t i = 0; i < rows.size(); ++i) {
            if (i < known.size()) ASSERT_NEAR(rows[i], known[i], 1e-6) << i;
            else square += rows[i] * rows[i];
        }
        EXPECT_GT(square, 1e-6);
        EXPECT_LT(square, 10);
    };
    expect_rows("a", "");
    expect_rows("two", "--parallelism.tensor_parallel_degree 2");
    expect_rows("b", "--checkpoint.initial_load_in_hf false --checkpoint.initial_load_path ck");
    EXPECT_EQ(tensor_of(s, "a/checkpoint/step-00000001/model.safetensors", kLanguageHead),
              tensor_of(s, "b/checkpoint/step-00000001/model.safetensors", kLanguageHead));
    succeeds(s, "convert a back");
    EXPECT_EQ(json_in(s, "back/config.json")["vocab_size"], 260);
    // Only behind the known ones, and only where a run begins.
    f = s.lockstep(train + "--model.vocab_size 261 --job.dump_folder a --training.steps 2");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "holds a model with model.vocab_size = 260, but the recipe has 261")) << f.err;
    f = s.lockstep(train + "--training.steps 1 --model.vocab_size 260 --job.dump_folder c --model.dim 16");
    EXPECT_TRUE(has(f.err, "holds a model with model.dim = 8, but the recipe has 16")) << f.err;
}

// Whatever stands in a file, what is said of it can be shown.
TEST(CliTransformersText, AManifestThatIsNoUtf8IsLeftAsideInUtf8) {
    Scratch s;
    s.write("r.toml", training_recipe(4, "[checkpoint]\nenable = true\ninterval = 2\nlast_save_model_only = false\n"));
    succeeds(s, "train r.toml");
    s.write("out/checkpoint/step-00000006/manifest.json", "{\"version\": 2, \"steps\": 6, \xdf}");
    for (const char* more : {"", " --json", " --log-format json"}) {
        const Finished f = succeeds(s, std::string("train r.toml --training.steps 5") + more);
        EXPECT_TRUE(has(f.err, "step-00000006 is left aside")) << f.err;
        EXPECT_EQ(data::invalid_utf8(f.err).bytes, 0) << f.err;
        EXPECT_EQ(data::invalid_utf8(f.out).bytes, 0) << f.out;
    }
    for (const char* command : {"checkpoints out", "checkpoints out --json", "train r.toml --checkpoint.load_step 6",
                                "train r.toml --checkpoint.load_step 6 --json", "eval out/checkpoint/step-00000006 --json"}) {
        const Finished f = s.lockstep(command);
        EXPECT_EQ(data::invalid_utf8(f.err + f.out).bytes, 0) << f.err << f.out;
        EXPECT_TRUE(has(f.err + f.out, "\xEF\xBF\xBD")) << f.err << f.out;
    }
}

}  // namespace
}  // namespace lockstep::testing
