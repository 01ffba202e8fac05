// Several data sets in one run as a user asks for them (docs/your_own_data.md).
#include <gtest/gtest.h>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

// Three data sets of one tokenizer, letters, digits and signs, which a model tells apart; r.toml trains on what flags say.
class CliMixture : public ::testing::Test {
protected:
    CliMixture() {
        prepare("letters", "abcdefgh", 3000, "--tokenizer bytes");
        prepare("digits", "01234567", 1500, "--tokenizer letters/tokenizer.json");
        prepare("signs", "+-*/%=<>", 800, "--tokenizer letters/tokenizer.json");
        std::string recipe = tiny_recipe(
            "[training]\nlocal_batch_size = 4\nglobal_batch_size = 8\nseq_len = 16\nsteps = 6\n[validation]\nenable = true\n"
            "freq = 3\n[checkpoint]\nenable = true\ninterval = 3\n");
        recipe.erase(recipe.find("vocab_size = 61\n"), 16);
        s.write("r.toml", recipe);
    }

    void prepare(const std::string& name, const std::string& alphabet, int letters, const std::string& tokenizer) {
        ASSERT_EQ(s.shell("mkdir " + name + "_text").code, 0);
        for (int document = 0; document < 4; ++document) {
            std::string text;
            for (int i = 0; i < letters / 4; ++i) text += alphabet[static_cast<size_t>((i * i + document * 3 + i / 7) % 8)];
            s.write(name + "_text/" + std::to_string(document) + ".txt", text);
        }
        const Finished f = s.lockstep("data prepare " + name + "_text --out " + name + " --heldout 0.3 " + tokenizer);
        ASSERT_EQ(f.code, 0) << f.err;
    }

    nlohmann::json train(const std::string& flags) const {
        const Finished f = s.lockstep("train r.toml --json " + flags);
        EXPECT_EQ(f.code, 0) << f.err;
        return f.code == 0 ? f.json() : nlohmann::json();
    }

    // The last line of metrics.jsonl, and the data of the run's start.
    nlohmann::json last_metrics(const std::string& out = "out") const { return last_line(out + "/metrics.jsonl"); }
    nlohmann::json data_of_start(const std::string& out = "out") const {
        const std::string events = s.read(out + "/events.jsonl");
        return nlohmann::json::parse(events.substr(0, events.find('\n')))["data"];
    }
    nlohmann::json last_line(const std::string& file) const {
        std::string text = s.read(file);
        text.erase(text.find_last_not_of('\n') + 1);
        return nlohmann::json::parse(text.substr(text.rfind('\n') + 1));
    }

    Scratch s;
};

TEST_F(CliMixture, SaysTheLossOfEachDataSetAndIsTheSameInEveryLayout) {
    const std::string mixture = "--training.dataset_path letters,digits,signs --training.dataset_weights 5,3,2";
    const nlohmann::json one = train(mixture + " --checkpoint.enable false");
    ASSERT_TRUE(one.contains("heldout_loss_of")) << one.dump();
    EXPECT_EQ(one["heldout_loss_of"].size(), 3u);
    const nlohmann::json metrics = last_metrics();
    EXPECT_EQ(metrics["validation_metrics/digits/loss"], one["heldout_loss_of"]["digits"]);
    const nlohmann::json data = data_of_start();
    ASSERT_EQ(data.size(), 3u);
    EXPECT_EQ(data[0]["name"], "letters");
    EXPECT_NEAR(data[1]["share"].get<double>(), 0.3, 1e-12);
    EXPECT_GT(data[0]["sequences"], data[2]["sequences"]);
    const nlohmann::json four = train(mixture +
                                      " --checkpoint.enable false --job.dump_folder four --parallelism.tensor_parallel_degree 2 "
                                      "--parallelism.data_parallel_shard_degree 2");
    EXPECT_NEAR(four["final_loss"].get<double>(), one["final_loss"].get<double>(), 1e-5);
    for (const auto& [name, loss] : one["heldout_loss_of"].items())
        EXPECT_NEAR(four["heldout_loss_of"][name].get<double>(), loss.get<double>(), 1e-5) << name;
}

TEST_F(CliMixture, OfOneDataSetWithAllTheWeightIsThatDataSet) {
    const nlohmann::json alone = train("--training.dataset_path digits --checkpoint.enable false --validation.enable false"),
                         most = train(
                             "--training.dataset_path letters,digits --training.dataset_weights 1e-9,1e9 "
                             "--job.dump_folder most --checkpoint.enable false --validation.enable false"),
                         half = train(
                             "--training.dataset_path letters,digits --training.dataset_weights 1,1 "
                             "--job.dump_folder half --checkpoint.enable false --validation.enable false");
    EXPECT_EQ(alone["final_loss"], most["final_loss"]);
    EXPECT_NE(alone["final_loss"], half["final_loss"]);
}

TEST_F(CliMixture, WithoutWeightsItsDataSetsEndTheirEpochsTogether) {
    train("--training.dataset_path '[\"letters\", \"digits\"]' --checkpoint.enable false");
    const nlohmann::json data = data_of_start();
    EXPECT_NEAR(data[0]["share"].get<double>() / data[1]["share"].get<double>(),
                data[0]["sequences"].get<double>() / data[1]["sequences"].get<double>(), 1e-9);
}

TEST_F(CliMixture, GoesOnWhereItStopped) {
    std::string recipe = s.read("r.toml");
    const size_t training = recipe.find("[training]\n") + 11;
    recipe.insert(training, "dataset_path = [\"letters\", \"digits\", \"signs\"]\ndataset_weights = [5, 3, 2.5]\n");
    s.write("r.toml", recipe);
    const nlohmann::json whole = train("--job.dump_folder whole");
    train("--training.steps 3 --lr_scheduler.total_steps 6");
    const nlohmann::json resumed = train("--lr_scheduler.total_steps 6");
    EXPECT_EQ(resumed["final_loss"], whole["final_loss"]);
    EXPECT_EQ(resumed["heldout_loss_of"], whole["heldout_loss_of"]);
    // Other weights are a change that is said.
    const Finished f = s.lockstep("train r.toml --training.steps 7 --training.dataset_weights 1,1,1");
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.err.find("training.dataset_weights [5.0, 3.0, 2.5] -> [1.0, 1.0, 1.0]"), std::string::npos) << f.err;
}

TEST_F(CliMixture, IsEvaluatedByDataSet) {
    const nlohmann::json trained = train("--training.dataset_path letters,digits");
    const Finished all = s.lockstep("eval out --json");
    ASSERT_EQ(all.code, 0) << all.err;
    const nlohmann::json j = all.json();
    ASSERT_EQ(j["data_sets"].size(), 2u);
    EXPECT_NEAR(j["loss"].get<double>(), trained["heldout_loss"].get<double>(), 1e-5);
    EXPECT_NEAR(j["data_sets"][1]["loss"].get<double>(), trained["heldout_loss_of"]["digits"].get<double>(), 1e-5);
    EXPECT_EQ(j["tokens"], j["data_sets"][0]["tokens"].get<int>() + j["data_sets"][1]["tokens"].get<int>());
    const Finished two = s.lockstep("eval --data signs --data digits out");
    ASSERT_EQ(two.code, 0) << two.err;
    EXPECT_NE(two.out.find("  signs/heldout.tokens: loss "), std::string::npos) << two.out;
}

TEST_F(CliMixture, StandsInTheReport) {
    train("--training.dataset_path letters,digits");
    const Finished f = s.lockstep("report out --html page.html");
    ASSERT_EQ(f.code, 0) << f.err;
    const Finished text = s.lockstep("report out");
    EXPECT_NE(text.out.find(" of letters\n"), std::string::npos) << text.out;
    EXPECT_NE(text.out.find(" of digits\n"), std::string::npos) << text.out;
    EXPECT_NE(s.read("page.html").find("\"heldout_of\":{\"letters\":[[3,"), std::string::npos);
}

TEST_F(CliMixture, OverlappingWindowsAndWindowsApart) {
    const auto sequences = [&](int stride) {
        const std::string out = "w" + std::to_string(stride);
        train("--training.dataset_path letters --training.steps 1 --checkpoint.enable false --job.dump_folder " + out +
              " --training.window_stride " + std::to_string(stride));
        return data_of_start(out)[0]["sequences"].get<int64_t>();
    };
    const nlohmann::json manifest = nlohmann::json::parse(s.read("letters/manifest.json"));
    const int64_t tokens = manifest["train"]["tokens"];
    EXPECT_EQ(sequences(0), (tokens - 1) / 16);
    EXPECT_EQ(sequences(17), tokens / 17);
    EXPECT_EQ(sequences(4), (tokens - 17) / 4 + 1);
}

TEST_F(CliMixture, RefusesWhatDoesNotBelongTogether) {
    prepare("alien", "abcdefgh", 800, "--vocab 300");
    ASSERT_EQ(s.lockstep("data prepare signs_text --out no_heldout --heldout 0 --tokenizer bytes").code, 0);
    const struct {
        const char *flags, *id, *text;
    } cases[] = {
        {"--training.dataset_path letters,digits --training.dataset_weights 1", "recipe.dataset_weights",
         "give one number for each folder"},
        {"--training.dataset_path letters,digits --training.dataset_weights 1,0", "recipe.out_of_range", "must be from 1e-09"},
        {"--training.dataset_path letters,digits --training.dataset_weights 1,nan", "recipe.out_of_range", "nan"},
        {"--training.dataset_path letters,digits --training.dataset_weights 1,much", "recipe.wrong_type", "a list of numbers"},
        {"--training.dataset_path letters,./letters", "data.repeated", "./letters is named twice"},
        {"--training.dataset_path letters,alien", "data.other_tokenizer", "letters and alien are tokens of two tokenizers"},
        {"--training.dataset_path letters --validation.dataset_path alien", "data.other_tokenizer", "two tokenizers"},
        {"--training.dataset_path letters,letters_text", "data.not_prepared", "letters_text is not a prepared data folder"},
        {"--training.dataset_path no_heldout", "recipe.no_heldout", "no_heldout has no held-out documents"},
        {"--training.dataset_path letters --training.window_stride -1", "recipe.out_of_range", "must be from 0"},
        {"--training.dataset_path letters --training.seq_len 100000 --training.local_batch_size 1", "data.too_few_tokens",
         "Shorten the sequence length"},
    };
    for (const auto& c : cases) {
        for (const char* command : {"check", "train"}) {
            const Finished f = s.lockstep(std::string(command) + " r.toml --json " + c.flags);
            EXPECT_EQ(f.code, 1) << command << " " << c.flags << f.err;
            EXPECT_NE((f.err + f.out).find(c.id), std::string::npos) << command << " " << c.flags << f.err;
            EXPECT_NE((f.err + f.out).find(c.text), std::string::npos) << command << " " << c.flags << f.err;
        }
    }
    // One of several without held-out documents is left out, and said.
    const Finished f = s.lockstep("train r.toml --training.dataset_path letters,no_heldout --checkpoint.enable false");
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_NE(f.err.find("validation leaves out no_heldout"), std::string::npos) << f.err;
}

}  // namespace
}  // namespace lockstep::testing
