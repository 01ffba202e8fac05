// `lockstep report`: what a run has left, as text, page and picture; flight records, damaged ones among them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <regex>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

using Json = nlohmann::json;

const char* kWholeCheckpoints = R"([checkpoint]
enable = true
interval = 3
last_save_model_only = false
)";

// The data of a page.
Json data_in_page(const std::string& page) {
    const std::string mark = "<script type=\"application/json\" id=\"data\">";
    const size_t at = page.find(mark), end = page.find("</script>", at);
    return at == std::string::npos ? Json() : Json::parse(page.substr(at + mark.size(), end - at - mark.size()));
}

// Three steps, then on to the sixth with another learning rate.
class CliReport : public ::testing::Test {
protected:
    static void SetUpTestSuite() {
        scratch = new Scratch;
        scratch->write("r.toml", training_recipe(6, kWholeCheckpoints));
        ASSERT_EQ(
            scratch->lockstep("train r.toml --training.steps 3 --lr_scheduler.total_steps 6 --job.description '<b>first</b>'")
                .code,
            0);
        const Finished second = scratch->lockstep(
            "train r.toml --lr_scheduler.total_steps 6 --optimizer.lr 5e-3 "
            "--metrics.enable_tensorboard true --job.description '</script><b>x'");
        ASSERT_EQ(second.code, 0) << second.err;
    }
    static void TearDownTestSuite() { delete scratch; }
    static Scratch* scratch;
    Scratch& s = *scratch;
};
Scratch* CliReport::scratch = nullptr;

TEST_F(CliReport, EventsSayWhatHappenedToTheRun) {
    std::vector<std::string> names;
    const std::vector<Json> events = s.objects("out/events.jsonl");
    for (const Json& e : events) names.push_back(fmt::format("{} {}", e["event"].get<std::string>(), e["step"].get<int>()));
    EXPECT_EQ(names, (std::vector<std::string>{"start 0", "checkpoint 3", "end 3", "start 3", "checkpoint 6", "end 6"}));
    const Json& start = events[3];
    EXPECT_EQ(start["resumed_from"], "out/checkpoint/step-00000003");
    EXPECT_TRUE(events[0]["resumed_from"].is_null());
    EXPECT_EQ(start["steps"], 6);
    EXPECT_EQ(start["job"]["tokens_per_step"], 64);
    EXPECT_EQ(start["machine"]["cores"].get<int>() > 0, true);
    EXPECT_TRUE(has(start["recipe"], "lr = 0.005")) << start["recipe"];
    int64_t bytes = 0;
    for (const auto& [kind, n] : start["plan"]["bytes_by_kind"].items()) bytes += n.get<int64_t>();
    EXPECT_EQ(bytes, start["plan"]["bytes_of_a_rank"]) << "the kinds sum to the arena";
    // 61 x 16 embedding and head, 2 layers of 16 x 16 twice, 16 x 8 twice, 3 x 16 x 24, 2 x 16; a norm.
    EXPECT_EQ(start["model"]["parameters"], 2 * 61 * 16 + 2 * (2 * 256 + 2 * 128 + 3 * 384 + 32) + 16);
    EXPECT_EQ(events.back()["reason"], "done");
    EXPECT_EQ(events.back()["summary"]["steps"], 6);
}

TEST_F(CliReport, TextAndJsonSumTheRunUp) {
    const Finished text = s.lockstep("report out");
    EXPECT_EQ(text.code, 0) << text.err;
    for (const char* part : {"status                done\n", "steps                 6 of 6\n", "last training loss    ",
                             "resident ", "starts                2\n", "checkpoints           2\n"})
        EXPECT_TRUE(has(text.out, part)) << part << " in\n" << text.out;
    const Json j = s.lockstep("report out --json").json()["run"];
    const std::vector<Json> metrics = s.objects("out/metrics.jsonl");
    EXPECT_EQ(j["final_loss"], metrics.back()["loss_metrics/global_avg_loss"]);
    EXPECT_EQ(j["steps"], 6);
    EXPECT_EQ(j["tokens_seen"], 384);
    EXPECT_GT(j["bytes_planned"].get<double>(), 0);
}

TEST_F(CliReport, ThePageHoldsTheRunAndNeedsNoNetwork) {
    const Finished f = s.lockstep("report out --html page.html");
    ASSERT_EQ(f.code, 0) << f.err;
    const std::string page = s.read("page.html");
    for (const char* fetched : {"src=\"", "href=\"http", "@import", "url("})
        EXPECT_FALSE(has(page.substr(0, page.find("<script>")), fetched)) << fetched;
    EXPECT_FALSE(has(page, "</script><b>")) << "what the recipe says cannot end the script";
    const Json run = data_in_page(page);
    EXPECT_EQ(run["metrics"]["step"], Json({1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(run["metrics"]["loss"].size(), 6u);
    EXPECT_EQ(run["events"].size(), 6u);
    EXPECT_EQ(run["checkpoints"].size(), 2u);
    EXPECT_EQ(run["checkpoints"][1]["step"], 6);
    EXPECT_GT(run["checkpoints"][1]["bytes"].get<int64_t>(), 1000);
    EXPECT_TRUE(has(page, "Chart.js v3.9.1"));
}

TEST_F(CliReport, AStepThatWasDoneAgainCountsOnceAndDamagedLinesNotAtAll) {
    const std::string line = R"({{"step":{},"loss_metrics/global_avg_loss":{}}})";
    std::string text;
    for (const auto& [step, loss] : {std::pair{1, 9}, {2, 8}, {3, 7}, {2, 5}, {3, 4}})
        text += fmt::format(fmt::runtime(line), step, loss) + "\n";
    s.write("again/metrics.jsonl",
            text + "{\"step\":\"x\"}\nnot json\n[]\n{\"step\":4,\"loss_metrics/global_avg_loss\":null}\n{\"ste");
    s.write("again/events.jsonl",
            "{\"event\":5,\"step\":1}\n{\"event\":\"start\",\"step\":0,\"time\":\"\",\"plan\":7,\"recipe\":3}\n");
    ASSERT_EQ(s.lockstep("report again --html again.html").code, 0);
    const Json m = data_in_page(s.read("again.html"))["metrics"];
    EXPECT_EQ(m["step"], Json({1, 2, 3, 4}));
    EXPECT_EQ(m["loss"], Json({9, 5, 4, nullptr}));
    const Finished f = s.lockstep("report again");
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(has(f.out, "no end recorded")) << f.out;
}

// What is refused before its first step is no end of the run, in files of this version and of older ones.
TEST_F(CliReport, ARefusedStartIsNoEndOfTheRun) {
    std::filesystem::copy(s.path("out"), s.path("refused"), std::filesystem::copy_options::recursive);
    const Json before = s.lockstep("report refused --json").json()["run"];
    EXPECT_EQ(before["status"], "done");
    const Finished f = s.lockstep("train r.toml --job.dump_folder refused --training.steps 9 --model.n_layers 3");
    EXPECT_EQ(f.code, 1) << f.err;
    EXPECT_EQ(s.objects("refused/events.jsonl").back()["event"], "refused");
    EXPECT_EQ(s.lockstep("report refused --json").json()["run"], before);
    ASSERT_EQ(s.lockstep("report refused --html refused.html").code, 0);
    EXPECT_EQ(data_in_page(s.read("refused.html"))["events"].back()["event"], "refused");

    s.write("old/metrics.jsonl", s.read("out/metrics.jsonl"));
    s.write("old/events.jsonl",
            s.read("out/events.jsonl") +
                R"({"time": "2026-01-01T00:00:00Z", "event": "end", "step": 0, "reason": "failed", "text": "x"})"
                "\n");
    EXPECT_EQ(s.lockstep("report old --json").json()["run"]["status"], "done");
    s.write("fails/metrics.jsonl", s.read("out/metrics.jsonl"));
    s.write("fails/events.jsonl", R"({"time": "t", "event": "start", "step": 0})"
                                  "\n"
                                  R"({"time": "t", "event": "end", "step": 6, "reason": "failed", "text": "x"})"
                                  "\n");
    EXPECT_EQ(s.lockstep("report fails --json").json()["run"]["status"], "failed");
}

TEST_F(CliReport, ARunThatNeverBeganSaysWhy) {
    const Finished f = s.lockstep("train r.toml --job.dump_folder never --checkpoint.initial_load_path /nope");
    EXPECT_EQ(f.code, 1) << f.err;
    const Finished text = s.lockstep("report never");
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_TRUE(has(text.out, "status                refused\n") &&
                has(text.out, "refused for           checkpoint.initial_load_path: /nope holds no complete checkpoint"))
        << text.out;
    EXPECT_EQ(s.lockstep("report never --json").json()["run"]["status"], "refused");
    EXPECT_TRUE(has(s.lockstep("report never out").out, "refused"));
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder never --training.steps 1").code, 0);
    EXPECT_EQ(s.lockstep("report never --json").json()["run"]["status"], "done");
}

TEST_F(CliReport, AStartThatAskedForFewerStepsSaysSo) {
    std::filesystem::copy(s.path("out"), s.path("fewer"), std::filesystem::copy_options::recursive);
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder fewer --training.steps 2").code, 0);
    EXPECT_TRUE(has(s.lockstep("report fewer").out, "steps                 6 (the last start asked for 2)\n"));
    EXPECT_TRUE(has(s.lockstep("report out").out, "steps                 6 of 6\n"));
}

TEST_F(CliReport, MemoryIsShownWhileARunGoesOn) {
    std::string events;
    for (const Json& e : s.objects("out/events.jsonl")) {
        if (e["event"] == "start") events = e.dump() + "\n";
    }
    s.write("on/metrics.jsonl", s.read("out/metrics.jsonl"));
    s.write("on/events.jsonl", events);
    const Json run = s.lockstep("report on --json").json()["run"];
    EXPECT_EQ(run["status"], "no end recorded");
    EXPECT_TRUE(run["bytes_resident"].is_null() && run["bytes_resident_first_process"].is_number()) << run;
    const Finished f = s.lockstep("report on");
    EXPECT_TRUE(has(f.out, "iB in the first process, planned ")) << f.out;
}

TEST_F(CliReport, SeveralRunsAreCompared) {
    ASSERT_EQ(
        s.lockstep("train r.toml --job.dump_folder other --training.steps 4 --lr_scheduler.total_steps 6 --optimizer.lr 7e-3")
            .code,
        0);
    Finished f = s.lockstep("report out other --html both.html --svg both.svg --json");
    ASSERT_EQ(f.code, 0) << f.err;
    const Json out = f.json();
    ASSERT_EQ(out["runs"].size(), 2u);
    EXPECT_EQ(out["runs"][0], s.lockstep("report out --json").json()["run"]);
    EXPECT_EQ(out["runs"][1]["steps"], 4);
    std::map<std::string, Json> keys;
    for (const Json& k : out["keys"]) keys[k["key"]] = k["values"];
    EXPECT_EQ(keys["optimizer.lr"], Json({"0.005", "0.007"}));
    EXPECT_EQ(keys["training.steps"], Json({"6", "4"}));
    EXPECT_EQ(keys["metrics.enable_tensorboard"], Json({"true", "false"}));
    EXPECT_FALSE(keys.contains("model.dim"));
    EXPECT_FALSE(keys.contains("job.dump_folder"));
    const Json data = data_in_page(s.read("both.html"));
    EXPECT_EQ(data["runs"][0]["metrics"]["step"], Json({1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(data["runs"][1]["metrics"]["step"].size(), 4u);
    EXPECT_EQ(data["keys"], out["keys"]);
    const std::string picture = s.read("both.svg");
    EXPECT_TRUE(has(picture, "Training loss of 2 runs over 6 steps")) << picture;
    EXPECT_TRUE(has(picture, ">other: ")) << picture;

    f = s.lockstep("report out other out");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(has(f.out, "run    status  steps  last loss")) << f.out;
    const std::string row = f.out.substr(f.out.find("\noptimizer.lr") + 1), rates = row.substr(0, row.find('\n'));
    EXPECT_EQ(std::regex_replace(rates, std::regex(" +"), " "), "optimizer.lr 0.005 0.007 0.005") << f.out;
    EXPECT_TRUE(has(s.lockstep("report out out").out, "the recipes do not differ"));
    f = s.lockstep("report out nowhere");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "nowhere: holds no run")) << f.err;

    s.write("bare/metrics.jsonl", s.read("out/metrics.jsonl"));
    f = s.lockstep("report out bare");
    EXPECT_TRUE(has(f.out, "the recipe of bare cannot be read, so its keys are not compared")) << f.out;
}

TEST_F(CliReport, WatchesARunUntilItEnds) {
    Finished f = s.lockstep("report out --watch");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.out, s.lockstep("report out").out);
    // One that was killed: nobody holds its folder.
    s.write("killed/metrics.jsonl", s.read("out/metrics.jsonl"));
    EXPECT_TRUE(has(s.lockstep("report killed --watch").out, "no end recorded"));
    f = s.shell(
        "{ ($LOCKSTEP train r.toml --job.dump_folder live --checkpoint.enable false 2>train.txt; touch ended) & "
        "until [ -e live/metrics.jsonl ] || [ -e ended ]; do :; done; "
        "timeout 60 $LOCKSTEP report live --watch --html live.html >out.txt 2>err.txt; code=$?; wait; exit $code; }");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_TRUE(has(f.out, "status                done")) << f.out;
    EXPECT_EQ(data_in_page(s.read("live.html"))["events"].back()["event"], "end");
    f = s.lockstep("report out out --watch");
    EXPECT_EQ(f.code, 1);
    EXPECT_TRUE(has(f.err, "--watch follows one run, and several folders were given: name one [report.watch]")) << f.err;
}

TEST_F(CliReport, BracketsInBracketsAreLeftOut) {
    const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
    s.write("deep/metrics.jsonl", "{\"step\":1,\"loss_metrics/global_avg_loss\":5,\"x\":" + deep + "}\n");
    s.write("deep/events.jsonl", "{\"event\":\"start\",\"step\":0,\"time\":\"\",\"plan\":" + deep + "}\n");
    const Finished f = s.lockstep("report deep --json --html deep.html");
    EXPECT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.json()["run"]["final_loss"], 5);
}

TEST_F(CliReport, ThePictureHasTheLoss) {
    ASSERT_EQ(s.lockstep("report out --svg loss.svg").code, 0);
    const std::string picture = s.read("loss.svg");
    EXPECT_TRUE(picture.starts_with("<svg xmlns=")) << picture.substr(0, 80);
    EXPECT_TRUE(has(picture, "Loss over 6 steps: training from 4."));
    EXPECT_TRUE(picture.ends_with("</svg>\n"));
    s.write("none/metrics.jsonl", "");
    EXPECT_TRUE(has(s.lockstep("report none --svg x.svg").err, "[report.no_steps]"));
}

TEST_F(CliReport, SamplesThatWereKeptStandInThePage) {
    std::string text;
    for (int i = 0; i < 200; ++i) text += "the quick brown fox ";
    s.prepare({text, text});
    s.write("p.toml",
            prepared_recipe("local_batch_size = 1\nglobal_batch_size = 4\nseq_len = 16\nsteps = 6\n") + kWholeCheckpoints);
    const Finished trained = s.lockstep("train p.toml --job.dump_folder kept --training.steps 2");
    ASSERT_EQ(trained.code, 0) << trained.err;
    const Finished f = s.lockstep("sample kept --prompt 'the quick' --prompt fox --max-tokens 4 --keep");
    ASSERT_EQ(f.code, 0) << f.err;
    ASSERT_EQ(s.lockstep("report kept --html kept.html").code, 0);
    const Json samples = data_in_page(s.read("kept.html"))["samples"];
    ASSERT_EQ(samples.size(), 2u);
    EXPECT_EQ(samples[0]["prompt"], "the quick");
    EXPECT_EQ(samples[1]["prompt"], "fox");
    EXPECT_EQ(samples[1]["step"], 2);
    std::filesystem::copy(s.path("kept/checkpoint"), s.path("loose"), std::filesystem::copy_options::recursive);
    const Finished loose = s.lockstep("sample loose --prompt fox --keep");
    EXPECT_EQ(loose.code, 1);
    EXPECT_TRUE(has(loose.err, "[sample.no_run]")) << loose.err;
}

TEST_F(CliReport, WhatIsNoRunIsRefused) {
    std::filesystem::create_directories(s.path("empty"));
    const Finished page = s.lockstep("report empty --html x.html");
    EXPECT_EQ(page.code, 1);
    EXPECT_TRUE(has(page.err, "empty: holds no run") && has(page.err, "[report.no_run]")) << page.err;
    EXPECT_TRUE(has(s.lockstep("report empty").err, "[report.no_records]"));
    EXPECT_EQ(s.lockstep("report out --html /proc/x/y.html").code, 1);
}

TEST_F(CliReport, DamagedFlightRecordsAreLeftOutByName) {
    const std::string good =
        R"({"rank":0,"ranks":2,"process":0,"host":"h","pid":7,"reason":"r","streams":{"compute":[{"step":1,"began_s_ago":2.5,"op":"gather",
            "routine":"layer","layer":0,"microbatch":0,"ranks":[0,1]}],"communication":[]}})";
    const auto with = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        text.replace(text.find(from), from.size(), to);
        return text;
    };
    const std::string damaged[] = {R"({"rank":0,"ranks":1,"reason":"a","streams":{}})",
                                   R"({"rank":0,"ranks":4,"reason":"r","streams":{"compute":[{}],"comm":[]}})",
                                   with("\"ranks\":2", "\"ranks\":1000000000000"),
                                   with("\"ranks\":2", "\"ranks\":18446744073709551615"),
                                   with("\"ranks\":2", "\"ranks\":0"),
                                   with("\"rank\":0", "\"rank\":\"x\""),
                                   with("\"rank\":0", "\"rank\":2"),
                                   with("\"rank\":0", "\"rank\":-1"),
                                   with("[0,1]", "[0,2]"),
                                   with("[0,1]", "{}"),
                                   with("2.5", "\"soon\""),
                                   with("\"layer\":0", "\"layer\":1e99"),
                                   with("\"reason\":\"r\"", "\"reason\":[]"),
                                   R"({"rank":0,"ranks":1,"process":0,"host":"h","pid":7,"reason":"r","streams":[]})",
                                   R"({"rank":0,"ranks":1,"process":0,"host":"h","pid":7,"reason":"r","streams":5})",
                                   good.substr(0, 150),
                                   "5",
                                   ""};
    for (const std::string& text : damaged) {
        std::filesystem::remove_all(s.path("lost"));
        s.write("lost/comm_traces/rank_0.json", text);
        const Finished alone = s.lockstep("report lost");
        EXPECT_EQ(alone.code, 1) << text << alone.err;
        EXPECT_TRUE(has(alone.err, "rank_0.json is left out, it is no whole flight record: ")) << text << alone.err;
        s.write("lost/comm_traces/rank_1.json", with("\"rank\":0", "\"rank\":1"));
        const Finished f = s.lockstep("report lost");
        EXPECT_EQ(f.code, 0) << text << f.err;
        EXPECT_TRUE(has(f.out, "ranks without a record: 0 (stopped, dead or cut off)")) << f.out;
        EXPECT_TRUE(has(f.out, "waiting   layer (layer 0, microbatch 0) gather with ranks 0 1: ranks 1")) << f.out;
    }
    s.write("lost/comm_traces/rank_0.json", good);
    EXPECT_EQ(s.lockstep("report lost --json").json()["without_record"], Json::array());
}

}  // namespace
}  // namespace lockstep::testing
