// `lockstep convert`: models of Hugging Face transformers in and out. tests/golden/hugging_face.json holds what transformers
// makes of weights by formula (tests/peers/hugging_face.py --figures); here the same folders are written, imported and sampled
// from.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/random.h"
#include "checkpoint/safetensors.h"
#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

using checkpoint::SafetensorsReader;
using checkpoint::TensorSpec;
using nlohmann::json;

json figures() { return json::parse(std::ifstream(std::string(LOCKSTEP_SOURCE_DIR) + "/tests/golden/hugging_face.json")); }

std::vector<float> values(const std::string& name, const std::vector<int64_t>& shape) {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    std::vector<float> out;
    for (int64_t i = 0; i < n; ++i) {
        const double x = 2 * (static_cast<double>(splitmix64(hash_name(name) + static_cast<uint64_t>(i)) >> 11) * 0x1p-53) - 1;
        if (shape.size() > 1) out.push_back(static_cast<float>(x * (1.5 / std::sqrt(static_cast<double>(shape.back())))));
        else out.push_back(static_cast<float>(name.ends_with("bias") ? 0.2 * x : 1 + 0.25 * x));
    }
    return out;
}

using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

Shapes shapes_of(const json& figures_of_case) {
    Shapes out;
    for (const auto& [name, shape] : figures_of_case["shapes"].items()) out.emplace_back(name, shape);
    return out;
}

void write_weights(const std::string& file, const Shapes& shapes) {
    std::vector<TensorSpec> specs;
    for (const auto& [name, shape] : shapes) specs.push_back({name, "F32", shape});
    checkpoint::SafetensorsWriter writer(file, checkpoint::SafetensorsLayout(specs, {{"format", "pt"}}));
    for (const auto& [name, shape] : shapes) writer.write(name, values(name, shape).data());
    writer.finish();
}

// A folder as transformers saves it, in one file or two shards.
void write_folder(const Scratch& s, const std::string& folder, const json& of_case, bool shards = false) {
    std::filesystem::create_directories(s.path(folder));
    s.write(folder + "/config.json", of_case["config"].dump());
    const Shapes all = shapes_of(of_case);
    if (!shards) return write_weights(s.path(folder + "/model.safetensors"), all);
    const auto middle = all.begin() + static_cast<long>(all.size() / 2);
    const Shapes halves[] = {{all.begin(), middle}, {middle, all.end()}};
    json map;
    for (int h = 0; h < 2; ++h) {
        const std::string file = "model-0000" + std::to_string(h + 1) + "-of-00002.safetensors";
        write_weights(s.path(folder + "/" + file), halves[h]);
        for (const auto& [name, shape] : halves[h]) map[name] = file;
    }
    s.write(folder + "/model.safetensors.index.json", json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump());
}

std::string prompt(const json& all) {
    std::string text;
    for (const json& t : all["prompt"]) text += (text.empty() ? "" : ",") + t.dump();
    return text;
}

std::vector<float> read_tensor(const SafetensorsReader& reader, const std::string& name) {
    std::vector<float> out(static_cast<size_t>(reader.find(name).elements));
    reader.read(name, 0, reader.find(name).elements, out.data());
    return out;
}

class Convert : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Cli, Convert,
                         ::testing::Values("llama", "llama_scaled_tied", "qwen3", "qwen2", "mistral", "gpt2", "gpt2_erf"));

TEST_P(Convert, AnImportedModelHasTheLogitsOfTransformers) {
    const json all = figures(), of_case = all["cases"][GetParam()];
    Scratch s;
    write_folder(s, "hf", of_case, GetParam() == "llama");
    Finished f = s.lockstep("convert hf here --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.json()["direction"], "import");
    for (const char* layout : {"", " --parallelism.tensor_parallel_degree 2"}) {
        f = s.lockstep("sample here --json --temperature 0 --max-tokens 8 --logits logits.txt --prompt-tokens " + prompt(all) +
                       layout);
        ASSERT_EQ(f.code, 0) << f.err;
        EXPECT_EQ(f.json()["sequences"][0]["tokens"], of_case["tokens"]);
        std::istringstream numbers(s.read("logits.txt"));
        for (const json& row : of_case["logits"]) {
            for (const json& want : row) {
                double got = NAN;
                numbers >> got;
                ASSERT_NEAR(got, want.get<double>(), 1e-5 * std::max(1.0, std::abs(want.get<double>())));
            }
        }
    }
}

TEST_P(Convert, ThereAndBackKeepsEveryBit) {
    const json of_case = figures()["cases"][GetParam()];
    Scratch s;
    write_folder(s, "hf", of_case);
    ASSERT_EQ(s.lockstep("convert hf here").code, 0);
    Finished f = s.lockstep("convert here/step-00000000 back --shard-bytes 9000 --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.json()["direction"], "export");
    const json index = json::parse(s.read("back/model.safetensors.index.json"));
    EXPECT_GT(std::filesystem::file_size(s.path("back/" + index["weight_map"].begin()->get<std::string>())), 0u);
    int64_t bytes = 0;
    for (const auto& [name, shape] : shapes_of(of_case)) {
        ASSERT_TRUE(index["weight_map"].contains(name)) << name;
        const SafetensorsReader reader(s.path("back/" + index["weight_map"][name].get<std::string>()));
        EXPECT_EQ(reader.find(name).spec.shape, shape) << name;
        EXPECT_EQ(read_tensor(reader, name), values(name, shape)) << name;
        bytes += reader.find(name).bytes;
    }
    EXPECT_EQ(index["weight_map"].size(), of_case["shapes"].size());
    EXPECT_EQ(index["metadata"]["total_size"], bytes);
    const json config = json::parse(s.read("back/config.json"));
    for (const char* key : {"model_type", "architectures", "vocab_size", "tie_word_embeddings", "hidden_size", "head_dim",
                            "n_embd", "n_positions", "num_key_value_heads", "sliding_window", "rms_norm_eps"}) {
        if (config.contains(key) && of_case["config"].contains(key)) {
            EXPECT_EQ(config[key], of_case["config"][key]) << key;
        }
    }
    // What was exported is imported again, and is the same checkpoint.
    f = s.lockstep("convert back again");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(s.read("again/step-00000000/model.safetensors") == s.read("here/step-00000000/model.safetensors"));
}

TEST(ConvertTypes, HalfTheBytesAndBack) {
    const json of_case = figures()["cases"]["llama"];
    Scratch s;
    write_folder(s, "hf", of_case);
    ASSERT_EQ(s.lockstep("convert hf here").code, 0);
    for (const auto& [dtype, tolerance] : {std::pair{"bfloat16", 1.0 / 256}, std::pair{"float16", 1.0 / 2048}}) {
        const std::string out = dtype, again = out + "-again";
        ASSERT_EQ(s.lockstep("convert here " + out + " --dtype " + dtype).code, 0);
        const Finished f = s.lockstep("convert " + out + " " + again);
        ASSERT_EQ(f.code, 0) << f.err;
        EXPECT_EQ(json::parse(s.read(out + "/config.json"))["torch_dtype"], dtype);
        const SafetensorsReader reader(s.path(again + "/step-00000000/model.safetensors"));
        for (const auto& [name, shape] : shapes_of(of_case)) {
            const std::vector<float> got = read_tensor(reader, name), want = values(name, shape);
            for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], tolerance * std::abs(want[i]) + 1e-7) << name;
        }
    }
    // Weights of half the size as a checkpoint, too.
    ASSERT_EQ(s.lockstep("convert hf half --dtype bfloat16").code, 0);
    const Finished f = s.lockstep("sample half --prompt-tokens 3,41,7 --max-tokens 4 --temperature 0 --json");
    EXPECT_EQ(f.code, 0) << f.err;
}

TEST(ConvertTraining, AnImportedModelTrainsAndATrainedOneIsExportedWithItsTokenizer) {
    Scratch s;
    std::vector<std::string> texts;
    for (int i = 0; i < 3; ++i) {
        std::string text;
        for (int k = 0; k < 200; ++k) text += static_cast<char>('a' + (k * k + i) % 26);
        texts.push_back(text);
    }
    s.prepare(texts);
    s.write("r.toml", prepared_recipe("local_batch_size = 2\nseq_len = 16\nsteps = 3\n"
                                      "[checkpoint]\nenable = true\n"));
    ASSERT_EQ(s.lockstep("train r.toml").code, 0);
    Finished f = s.lockstep("convert out hf");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(json::parse(s.read("hf/tokenizer_config.json"))["eos_token"], "<|end_of_text|>");
    EXPECT_EQ(json::parse(s.read("hf/config.json"))["eos_token_id"], 256);
    ASSERT_EQ(s.lockstep("convert hf back").code, 0);
    const std::string ask = " --prompt abc --temperature 0 --max-tokens 6 --json";
    const Finished before = s.lockstep("sample out" + ask), after = s.lockstep("sample back" + ask);
    ASSERT_EQ(after.code, 0) << after.err;
    EXPECT_EQ(before.json()["sequences"], after.json()["sequences"]);
    EXPECT_NEAR(s.lockstep("eval out --json").json()["loss"].get<double>(),
                s.lockstep("eval back --data d --json").json()["loss"].get<double>(), 1e-6);
    // Training begins where the imported weights are: its first loss is far below a new model's.
    const std::string train = "train r.toml --training.steps 1 --json --job.dump_folder ";
    f = s.lockstep(train + "more --checkpoint.initial_load_path back");
    ASSERT_EQ(f.code, 0) << f.err;
    const double imported = f.json()["final_loss"], fresh = s.lockstep(train + "fresh").json()["final_loss"];
    EXPECT_LT(imported, fresh - 0.05);
}

TEST(ConvertTokenizers, OneThatCannotBeReadHereGoesThereAndBackAsItIs) {
    Scratch s;
    write_folder(s, "hf", figures()["cases"]["llama"]);
    const std::string unigram = "{\"model\": {\"type\": \"Unigram\",\n \"vocab\": []}}";
    s.write("hf/tokenizer.json", unigram);
    ASSERT_EQ(s.lockstep("convert hf here").code, 0);
    EXPECT_EQ(s.read("here/step-00000000/tokenizer.json"), unigram);
    const Finished f = s.lockstep("convert here back");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.err.find("tokenizer.json is copied as it is"), std::string::npos) << f.err;
    EXPECT_NE(f.err.find("needs a model of type 'Unigram'"), std::string::npos) << f.err;
    EXPECT_EQ(s.read("back/tokenizer.json"), unigram);
}

// Qwen's stages: NFC, its split, added tokens that are not special.
TEST(ConvertTokenizers, AModelsOwnIsTrainedWithSampledFromAndExported) {
    Scratch s;
    const json fixture = json::parse(std::ifstream(LOCKSTEP_SOURCE_DIR "/tests/data/tokenizers.json"));
    const std::string tokenizer = fixture["tokenizers"]["qwen"]["tokenizer"].dump(1);
    s.write("qwen.json", tokenizer);
    std::vector<std::string> texts;
    for (int i = 0; i < 3; ++i) {
        std::string text;
        for (int k = 0; k < 30; ++k) text += fixture["texts"][static_cast<size_t>(i + k) % 12].get<std::string>() + "\n";
        texts.push_back(text);
    }
    s.prepare(texts, "qwen.json");
    EXPECT_EQ(s.read("d/tokenizer.json"), tokenizer);
    s.write("r.toml", prepared_recipe("local_batch_size = 2\nseq_len = 16\nsteps = 2\n"
                                      "[checkpoint]\nenable = true\n"));
    Finished f = s.lockstep("train r.toml");
    ASSERT_EQ(f.code, 0) << f.err;
    f = s.lockstep("sample out --prompt '<tool_call>e\u0301' --max-tokens 3 --temperature 0 --json");
    ASSERT_EQ(f.code, 0) << f.err;
    const size_t as_one = f.json()["sequences"][0]["prompt_tokens"];
    EXPECT_LT(as_one, 4u);  // the tag is one token, and the letter is composed
    f = s.lockstep("convert out hf");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(s.read("hf/tokenizer.json"), tokenizer);
    EXPECT_EQ(json::parse(s.read("hf/tokenizer_config.json"))["eos_token"], "<|endoftext|>");
}

TEST(ConvertRefusals, SayWhatDoesNotFit) {
    const json all = figures();
    const json llama = all["cases"]["llama"];
    Scratch s;
    int number = 0;
    const auto refusal = [&](const std::function<void(json&, Shapes&)>& change) {
        const std::string folder = "hf" + std::to_string(++number);
        json of_case = llama;
        Shapes shapes = shapes_of(llama);
        change(of_case, shapes);
        std::filesystem::create_directories(s.path(folder));
        s.write(folder + "/config.json", of_case["config"].dump());
        write_weights(s.path(folder + "/model.safetensors"), shapes);
        const Finished f = s.lockstep("convert " + folder + " out" + std::to_string(number));
        EXPECT_EQ(f.code, 1) << f.out;
        EXPECT_FALSE(std::filesystem::exists(s.path("out" + std::to_string(number) + "/step-00000000")));
        return f.err;
    };
    const auto config = [](const char* key, const json& value) {
        return [key, value](json& c, Shapes&) { c["config"][key] = value; };
    };
    const auto expect = [](const std::string& got, const std::string& text, const std::string& id) {
        EXPECT_NE(got.find(text), std::string::npos) << got;
        EXPECT_NE(got.find("[" + id + "]"), std::string::npos) << got;
    };
    expect(refusal(config("model_type", "bert")), "known here are llama, qwen2, qwen3, mistral and gpt2", "convert.unsupported");
    expect(refusal(config("rope_parameters", {{"rope_type", "yarn"}, {"rope_theta", 1e4}})),
           "of rope types only default and llama3 are known here", "convert.unsupported");
    expect(refusal(config("rope_parameters", json::array({1}))), "rope_parameters is no object", "convert.config");
    expect(refusal(config("hidden_act", "gelu")), "hidden_act = \"gelu\": only \"silu\" is known here", "convert.unsupported");
    expect(refusal(config("attention_bias", true)), "attention_bias = true: only false is known here", "convert.unsupported");
    expect(refusal(config("quantization_config", {{"bits", 4}})), "take the unquantized model", "convert.unsupported");
    expect(refusal(config("hidden_size", "wide")), "hidden_size is missing or of another type", "convert.config");
    expect(refusal(config("hidden_size", 24.5)), "hidden_size is missing or of another type", "convert.config");
    expect(refusal(config("hidden_size", 1e300)), "hidden_size is missing or of another type", "convert.config");
    expect(refusal(config("num_attention_heads", 0)), "config.json: makes model.n_heads = 0: must be from 1", "convert.config");
    expect(refusal(config("num_attention_heads", 5)), "model.n_heads = 5 is not a multiple of", "model.kv_heads");
    expect(refusal(config("intermediate_size", 44)), "mlp.gate_proj.weight is F32 [40, 24], but config.json makes it [44, 24]",
           "convert.shape");
    expect(refusal([](json&, Shapes& t) { t.pop_back(); }), "which the model of its config.json needs", "convert.missing_tensor");
    expect(refusal([](json&, Shapes& t) { t.emplace_back("model.layers.0.self_attn.q_proj.bias", std::vector<int64_t>{24}); }),
           "holds model.layers.0.self_attn.q_proj.bias, which the model of its config.json does not have",
           "convert.unknown_tensor");

    write_folder(s, "hf", llama, true);
    EXPECT_EQ(s.lockstep("convert hf made").code, 0);
    expect(s.lockstep("convert hf made").err, "already exists: choose another folder, or remove it", "convert.exists");
    expect(s.lockstep("convert hf other --dtype int8").err, "--dtype int8: must be float32, bfloat16 or float16",
           "convert.dtype");
    std::filesystem::create_directories(s.path("hf/tokenizer.json"));
    expect(s.lockstep("convert hf other").err,
           "hf/tokenizer.json: cannot be read (Is a directory); make it readable, or remove it", "convert.tokenizer");
    std::filesystem::remove(s.path("hf/tokenizer.json"));
    expect(s.lockstep("convert nowhere other").err, "nowhere holds no complete checkpoint", "checkpoint.not_found");
    std::filesystem::resize_file(s.path("hf/model-00002-of-00002.safetensors"), 3000);
    expect(s.lockstep("convert hf damaged").err, "model-00002-of-00002.safetensors", "checkpoint.truncated");
    std::filesystem::remove(s.path("hf/model-00002-of-00002.safetensors"));
    expect(s.lockstep("convert hf damaged").err, "names the shard model-00002-of-00002.safetensors, which is not there",
           "convert.index");
    s.write("hf/model.safetensors.index.json", "{\"weight_map\": 3}");
    expect(s.lockstep("convert hf damaged").err, "is not an index of shards", "convert.index");
    std::filesystem::remove(s.path("hf/model.safetensors.index.json"));
    expect(s.lockstep("convert hf damaged").err, "is a shard without its index", "convert.no_weights");
    const std::string good = s.read("hf/config.json"), deep = std::string(200'000, '[') + std::string(200'000, ']');
    s.write("hf/config.json", good.substr(0, good.rfind('}')) + ", \"hidden_act\": " + deep + "}");
    expect(s.lockstep("convert hf damaged").err, "only \"silu\" is known here", "convert.unsupported");
    s.write("hf/config.json", "{");
    expect(s.lockstep("convert hf damaged").err, "is not JSON", "convert.config");
}

}  // namespace
}  // namespace lockstep::testing
