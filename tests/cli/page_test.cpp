// plan --html and tune --html: the numbers in the page are those that the commands print.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

const char* kRecipeWithTags = R"([job]
description = "</script><b>bold</b>"
[model]
flavor = "debugmodel"
n_layers = 4
[training]
dataset = "synthetic"
seq_len = 64
mixed_precision_param = "bfloat16"
global_batch_size = 16
[parallelism]
pipeline_parallel_degree = 2
pipeline_parallel_microbatch_size = 1
tensor_parallel_degree = 2
)";

// What a page has between its data tags.
nlohmann::json data_of(const std::string& page) {
    const std::string begin = "<script type=\"application/json\" id=\"data\">";
    const size_t at = page.find(begin), end = page.find("</script>", at);
    EXPECT_NE(at, std::string::npos);
    return nlohmann::json::parse(page.substr(at + begin.size(), end - at - begin.size()));
}

std::string cluster() { return std::string(" --cluster ") + LOCKSTEP_SOURCE_DIR + "/clusters/h100.toml"; }

TEST(PlanPage, HasTheNumbersOfThePlan) {
    Scratch s;
    s.write("r.toml", kRecipeWithTags);
    const Finished f = s.lockstep("plan r.toml --html p.html --json" + cluster());
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json data = data_of(s.read("p.html")), printed = f.json();
    for (const char* key : {"step_time_s", "mfu", "fits", "stages", "needed_bytes", "exposed_communication_s"})
        EXPECT_EQ(data["plan"][key], printed[key]) << key;
    EXPECT_NE(data["recipe"].get<std::string>().find("</script><b>bold</b>"), std::string::npos);
    double causes_s = 0;
    for (const auto& [name, time_s] : data["causes"].items()) causes_s += time_s.get<double>();
    EXPECT_NEAR(causes_s, printed["step_time_s"].get<double>(), 1e-9);

    // Slices of a thread follow each other within the step, and no cause is unknown.
    const double unit_s = data["unit_s"];
    ASSERT_EQ(data["timeline"]["ranks"].size(), 2u);
    for (const auto& rank : data["timeline"]["ranks"]) {
        for (const auto& slices : rank["threads"]) {
            ASSERT_EQ(slices.size() % 6, 0u);
            int64_t last = 0;
            for (size_t i = 0; i < slices.size(); i += 6) {
                EXPECT_GE(slices[i].get<int64_t>(), last - 1);  // rounded
                last = slices[i].get<int64_t>() + slices[i + 1].get<int64_t>();
                EXPECT_LT(slices[i + 2].get<size_t>(), data["timeline"]["causes"].size());
                EXPECT_LT(slices[i + 3].get<size_t>(), data["timeline"]["names"].size());
            }
            EXPECT_LE(static_cast<double>(last) * unit_s, data["step_s"].get<double>() * (1 + 1e-6));
        }
        EXPECT_GT(rank["threads"][0].size(), 6u * 16);  // sixteen microbatches
    }

    // The fullest moment is what the plan prints, but for what its placement leaves unused.
    for (size_t rank = 0; rank < 2; ++rank) {
        const auto& memory = data["memory"]["ranks"][rank];
        const int64_t total = printed["stages"][rank]["bytes"]["total"];
        EXPECT_EQ(memory["total"], total);
        int64_t most = 0;
        for (const auto& bin : memory["bytes"]) {
            int64_t sum = 0;
            for (const auto& bytes : bin) sum += bytes.get<int64_t>();
            most = std::max(most, sum);
        }
        EXPECT_LE(most, total);
        EXPECT_GT(static_cast<double>(most), 0.9 * static_cast<double>(total));
    }
    double ops_s = 0, most_flops_per_s = 0;
    for (const auto& op : data["roofline"]["ops"]) {
        ops_s += op["time_s"].get<double>();
        most_flops_per_s = std::max(most_flops_per_s, op["flops"].get<double>() / op["time_s"].get<double>());
    }
    EXPECT_LT(ops_s, printed["step_time_s"].get<double>());
    EXPECT_LE(most_flops_per_s, data["roofline"]["flops_per_s"].get<double>());
    std::set<std::string> over;
    for (const auto& c : data["communication"]) over.insert(c["over"]);
    EXPECT_TRUE(over.contains("tp"));
}

TEST(PlanPage, SaysThatAShortenedStepIsOne) {
    Scratch s;
    s.write("r.toml", kRecipeWithTags);
    const Finished f = s.lockstep("plan r.toml --html p.html --json --training.global_batch_size 256" + cluster());
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json data = data_of(s.read("p.html"));
    EXPECT_EQ(data["microbatches"]["all"], 256);
    EXPECT_LT(data["microbatches"]["played"], 256);
    EXPECT_LT(data["step_s"], data["plan"]["step_time_s"]);
    // Inputs of the microbatches that were not played stand in the arena, too.
    EXPECT_EQ(data["memory"]["ranks"][0]["total"], f.json()["stages"][0]["bytes"]["total"]);
}

TEST(TunePage, HasEveryLayoutThatWasPlanned) {
    Scratch s;
    s.write("r.toml", kRecipeWithTags);
    const Finished f = s.lockstep(
        "tune r.toml --ranks 4 --html t.html --out best.toml --json --parallelism.pipeline_parallel_degree 2 "
        "--parallelism.enable_async_tensor_parallel false" +
        cluster());
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json data = data_of(s.read("t.html")), printed = f.json();
    EXPECT_EQ(data["points"].size(), printed["planned"].get<size_t>());
    EXPECT_EQ(data["search"]["best"], printed["best"]);
    double fastest_s = 1e30;
    for (const auto& p : data["points"]) {
        EXPECT_FALSE(p["keys"]["parallelism.tensor_parallel_degree"].get<std::string>().empty());
        if (p["fits"] && p["step_s"] > 0) fastest_s = std::min(fastest_s, p["step_s"].get<double>());
    }
    EXPECT_NEAR(fastest_s, printed["best"][0]["step_time_s"].get<double>(), 1e-3 * fastest_s);
    EXPECT_EQ(data["recipe"], s.read("best.toml"));
}

TEST(Pages, AreWrittenWholeOrNotAtAll) {
    Scratch s;
    s.write("r.toml", kRecipeWithTags);
    for (const std::string command : {"plan r.toml", "tune r.toml --ranks 2"}) {
        const Finished f = s.lockstep(command + " --html missing/p.html" + cluster());
        EXPECT_NE(f.code, 0);
        EXPECT_NE(f.err.find("missing/p.html"), std::string::npos) << f.err;
        EXPECT_NE(f.err.find("file.cannot_write"), std::string::npos) << f.err;
    }
}

}  // namespace
}  // namespace lockstep::testing
