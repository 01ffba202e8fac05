// Tables of runs, and the constants that are fitted to them.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "base/text_file.h"
#include "calibration/band.h"
#include "calibration/csv.h"
#include "calibration/report.h"
#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep {
namespace {

using lockstep::testing::Finished;
using lockstep::testing::has;
using lockstep::testing::Scratch;

void expect_refusal(const std::function<void()>& act, const std::string& id, const std::string& part) {
    try {
        act();
        FAIL() << "accepted; expected " << id;
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), id) << e.what();
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
}

TEST(Csv, QuotesHoldCommasQuotesAndLines) {
    const auto rows = calibration::read_csv("a,b\r\n\"x,\"\"y\"\"\n z\",2\n\n3,\n", "t.csv");
    ASSERT_EQ(rows.size(), 3u);
    EXPECT_EQ(rows[0].fields, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(rows[1].fields, (std::vector<std::string>{"x,\"y\"\n z", "2"}));
    EXPECT_EQ(rows[2].fields, (std::vector<std::string>{"3", ""}));
    EXPECT_EQ(rows[1].line, 2);
    EXPECT_EQ(rows[2].line, 5);
    expect_refusal([] { calibration::read_csv("a\n\"b\nc\n", "t.csv"); }, "runs.syntax", "t.csv, line 2: a quote is opened");
}

TEST(Runs, TablesThatAreNone) {
    Scratch s;
    const auto refused = [&](const std::string& text, const std::string& id, const std::string& part) {
        expect_refusal([&] { calibration::read_runs(s.write("t.csv", text)); }, id, part);
    };
    expect_refusal([] { calibration::read_runs("/nowhere.csv"); }, "runs.cannot_read", "--rows /nowhere.csv: cannot be read");
    refused("", "runs.table", "line 1: the table has no header");
    refused("id\n", "runs.table", "needs the columns id and step_time_s");
    refused("id,step_time_s,id\n", "runs.table", "has two columns id");
    refused("id,step_time_s,training.seq_lem\n", "runs.table",
            "a column training.seq_lem that is neither one of runs nor a key of a "
            "recipe; the nearest is training.seq_len");
    refused("id,step_time_s\na-1,1\na-1,2\n", "runs.table", "line 3: the table has a second run a-1");
    refused("id,step_time_s\na-1\n", "runs.table", "line 2: the table has 2 columns, and this line 1");
    refused("id,step_time_s\n,1\n", "runs.table", "has a run without an id");
    refused("id,step_time_s\na-1,-1\n", "runs.value", "line 2: step_time_s = -1: give a number above 0");
    refused("id,step_time_s\na-1,soon\n", "runs.value", "step_time_s = soon");
    refused("id,step_time_s,training.seq_len\na-1,1,many\n", "recipe.wrong_type", "t.csv, line 2: ");
}

TEST(Runs, ARunIsARecipeAndWhatWasMeasured) {
    Scratch s;
    const auto runs = calibration::read_runs(
        s.write("t.csv",
                "id,cluster,stack,step_time_s,memory_gib,memory_is,out_of_memory,assumed,left_out,notes,training.seq_len\n"
                "ours-7,h100,,2.5,3,reserved,,vocab,,\"a, b\",512\nours-8,,,,,,yes,,experts,,\n"));
    ASSERT_EQ(runs.size(), 2u);
    EXPECT_EQ(runs[0].source, "ours");
    EXPECT_EQ(runs[0].step_time_s, 2.5);
    EXPECT_EQ(runs[0].memory_bytes, 3.0 * (1 << 30));
    EXPECT_TRUE(runs[0].memory_is_reserved);
    EXPECT_EQ(runs[0].assumed, "vocab");
    EXPECT_EQ(runs[0].recipe->integer("training.seq_len"), 512);
    EXPECT_FALSE(runs[1].recipe);
    EXPECT_TRUE(runs[1].out_of_memory);
    EXPECT_EQ(runs[1].left_out, "experts");
}

TEST(Errors, ByHand) {
    const calibration::Errors e = calibration::errors_of({1.1, 0.8, 0, 1.0, 1.3});
    EXPECT_EQ(e.count, 4);
    EXPECT_NEAR(e.median, 0.15, 1e-12);     // of 0, 0.1, 0.2, 0.3
    EXPECT_NEAR(e.ninetieth, 0.27, 1e-12);  // 0.2 + 0.7 x 0.1
    EXPECT_NEAR(e.bias, 0.05, 1e-12);
    EXPECT_NEAR(calibration::rank_correlation({1, 2, 3, 4}, {10, 20, 40, 30}), 0.8, 1e-12);
    EXPECT_EQ(calibration::rank_correlation({1, 2, 3}, {3, 2, 1}), -1);
    EXPECT_EQ(calibration::rank_correlation({1, 2}, {1, 2}), 0);
}

TEST(Measured, OneRunGivesOneMultiplier) {
    const sim::Measured one = calibration::measured_by({0.8, 0});
    EXPECT_EQ(one.runs, 1);
    EXPECT_NEAR(one.multiplier, 1.25, 1e-12);
    const sim::Measured many = calibration::measured_by({0.8, 0.8, 0.8, 0.8});
    EXPECT_LT(many.spread, one.spread);
    EXPECT_EQ(calibration::measured_by({}).runs, 0);
}

const char* kCluster =
    "# A comment stays.\nname = \"c\"\ndescription = \"d\"\ndeclared = true\n\n[machine]\ndevices = true\nkernels = "
    "\"" LOCKSTEP_SOURCE_DIR
    "/clusters/kernels/amd.toml\"\nmemory_bytes = 1e12\n\n[rates]\nbytes_per_s = [1e12]\nproduct_efficiency = 0.5  # of long "
    "ones\n"
    "\n[rates.flops_per_s]\nf32 = [1e13]\nbf16 = [1e14]\n\n[[links]]\nranks = 4\nbandwidth_bytes_per_s = 1e11\nefficiency = 1\n"
    "latency_s = 1e-6\n\n[[links]]\nranks = 0\nbandwidth_bytes_per_s = 1e10\nlatency_s = 1e-5\n\n"
    "[[constants]]\nkey = \"rates.product_efficiency\"\nprior = 0.5\nspread = 1.0\n\n"
    "[[constants]]\nkey = \"links.4.efficiency\"\nprior = 0.9\nspread = 1.0\nlow = 0.8\nhigh = 1.0\nruns = 3\n";

// Runs of a small model of several widths and layouts on a machine with these constants.
std::string table_of(const std::string& cluster, const std::function<double(size_t)>& step_s) {
    std::string out =
        "id,cluster,step_time_s,model.flavor,model.dim,training.seq_len,training.local_batch_size,"
        "parallelism.data_parallel_shard_degree,parallelism.tensor_parallel_degree\n";
    size_t i = 0;
    for (const int dim : {256, 512})
        for (const auto& [data, tensor] : {std::pair{1, 1}, {4, 1}, {1, 4}, {8, 1}}) {
            out += fmt::format("x-{},{},{:.12g},debugmodel,{},512,2,{},{}\n", i, cluster, step_s(i), dim, data, tensor);
            ++i;
        }
    return out;
}

struct Prepared {
    std::vector<calibration::Run> table;
    std::vector<calibration::PreparedRun> runs;
    calibration::Constants constants;
    explicit Prepared(const std::string& path) : table(calibration::read_runs(path)) {
        for (const calibration::Run& r : table) runs.push_back(calibration::prepare(r, calibration::ClusterFiles("")));
        for (const calibration::PreparedRun& r : runs) {
            EXPECT_EQ(r.refusal, "");
            constants.add(r.sources);
        }
    }
};

TEST(Fit, FindsTheConstantsThatMadeTheRuns) {
    Scratch s;
    const std::string cluster = s.write("c.toml", kCluster);
    const Prepared guess(s.write("guess.csv", table_of(cluster, [](size_t) { return 1.0; })));
    // The constants of the kernels' file, too.
    ASSERT_GE(guess.constants.size(), 2u);
    std::vector<double> truth = guess.constants.values();
    for (size_t k = 0; k < truth.size(); ++k) {
        if (guess.constants[k].known.key == "rates.product_efficiency") truth[k] = 0.3;
        if (guess.constants[k].known.key == "links.4.efficiency") truth[k] = 0.6;
    }
    const std::vector<double> times = calibration::ratios(guess.runs, guess.constants, truth);
    const Prepared p(s.write("t.csv", table_of(cluster, [&](size_t i) { return times[i]; })));
    const std::vector<bool> used(p.runs.size(), true);
    const calibration::Fit f = calibration::Fitting(p.runs, p.constants, p.constants.values()).fit(used);
    for (size_t k = 0; k < truth.size(); ++k) {
        const std::string& key = p.constants[k].known.key;
        if (key == "rates.product_efficiency") {
            EXPECT_NEAR(f.values[k], 0.3, 0.02);
        }
        if (key == "links.4.efficiency") {
            EXPECT_NEAR(f.values[k], 0.6, 0.06);
        }
        EXPECT_LT(f.low[k], f.values[k]);
        EXPECT_GT(f.high[k], f.values[k]);
        EXPECT_EQ(f.runs[k], 8);
    }
    EXPECT_LT(calibration::errors_of(calibration::ratios(p.runs, p.constants, f.values)).ninetieth, 0.02);
    // The same again, to the bit.
    EXPECT_EQ(calibration::Fitting(p.runs, p.constants, p.constants.values()).fit(used).values, f.values);
}

// Eight runs of one source tell less than eight sources: two runs of another pull more than two eighths as hard.
TEST(Fit, RunsOfOneSourceShareAnError) {
    Scratch s;
    const std::string cluster = s.write("c.toml", kCluster);
    const auto table = [&](const std::function<double(size_t)>& step_s) {
        std::string out = "id,cluster,step_time_s,model.flavor,model.dim,training.seq_len,training.local_batch_size\n";
        for (size_t i = 0; i < 10; ++i)
            out += fmt::format("{}-{},{},{:.12g},debugmodel,1024,512,{}\n", i < 8 ? "many" : "few", i, cluster, step_s(i),
                               4 + i % 4);
        return out;
    };
    const Prepared guess(s.write("guess.csv", table([](size_t) { return 1.0; })));
    const std::vector<double> times = calibration::ratios(guess.runs, guess.constants, guess.constants.values());
    const Prepared p(s.write("t.csv", table([&](size_t i) { return times[i] * (i < 8 ? 1 : 1.04); })));
    const calibration::Fit f =
        calibration::Fitting(p.runs, p.constants, p.constants.values()).fit(std::vector<bool>(p.runs.size(), true));
    const std::vector<double> ratios = calibration::ratios(p.runs, p.constants, f.values);
    const double of_many = std::log(ratios[0]), of_few = -std::log(ratios[8]);
    EXPECT_GT(of_many, 0.4 * of_few) << "a quarter if all runs weighed the same";
    EXPECT_LT(of_many, 0.8 * of_few);
}

TEST(Constants, AreWrittenIntoTheirFileAndNothingElse) {
    Scratch s;
    const std::string path = s.write("c.toml", kCluster);
    calibration::Constants constants;
    constants.add(sim::read_sources(path, "--cluster"));
    std::vector<calibration::FittedConstant> all;
    for (size_t k = 0; k < constants.size(); ++k) all.push_back(constants[k]);
    for (calibration::FittedConstant& c : all) c.value = 0.25, c.known.low = 0.2, c.known.high = 0.3, c.known.runs = 9;
    const std::string text = calibration::with_constants(kCluster, path, all);
    EXPECT_NE(text.find("# A comment stays.\n"), std::string::npos);
    EXPECT_NE(text.find("product_efficiency = 0.2500  # of long ones\n"), std::string::npos) << text;
    EXPECT_NE(text.find("efficiency = 0.2500\nlatency_s = 1e-6\n"), std::string::npos) << text;
    EXPECT_NE(text.find("spread = 1.0\nlow = 0.2000\nhigh = 0.3000\nruns = 9\n"), std::string::npos) << text;
    const sim::Cluster c = sim::parse_cluster(text, path);
    EXPECT_EQ(c.costs.product_efficiency, 0.25);
    EXPECT_EQ(c.links[0].efficiency, 0.25);
    EXPECT_EQ(calibration::with_constants(text, path, all), text);
    const std::string missing =
        s.write("m.toml", std::string(kCluster) + "\n[[constants]]\nkey = \"host.step_s\"\nprior = 1.0\nspread = 1.0\n");
    expect_refusal([&] { calibration::Constants().add(sim::read_sources(missing, "--cluster")); }, "cluster.constant",
                   "[[constants]] names host.step_s, which this file does not set");
}

TEST(PublishedRuns, AreWhatTheConstantsInTheRepositoryPlan) {
    Scratch s;
    const std::string source = LOCKSTEP_SOURCE_DIR;
    const auto f =
        s.lockstep("calibrate --rows " + source + "/data/published_runs.csv --folder " + source + "/clusters --no-fit --json");
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json j = f.json();
    std::vector<double> of_main, of_others;
    const std::set<std::string> main = {"llmf", "kort22", "mtnlg", "lucie", "zerobub", "ornl", "torchtitan", "llama3"};
    for (const auto& run : j["runs"]) (main.contains(run["source"]) ? of_main : of_others).push_back(run["ratio"]);
    const calibration::Errors m = calibration::errors_of(of_main), o = calibration::errors_of(of_others);
    EXPECT_EQ(m.count, 183);
    EXPECT_EQ(o.count, 84);
    EXPECT_LE(m.median, 0.03);
    EXPECT_LE(m.ninetieth, 0.10);
    EXPECT_LE(o.median, 0.10);
    EXPECT_LE(o.ninetieth, 0.25);
    EXPECT_GE(j["coverage"], 0.7);
    double loss = 0, good = 0;
    for (const auto& c : j["choices"]) {
        loss += c["loss"].get<double>(), good += c["loss"] <= 0.05;
        EXPECT_LE(c["loss"], c["mean_loss"]) << c["of"];
        // Its three runs of one batch are two in bfloat16 and one in float8: not layouts of one job.
        EXPECT_FALSE(c["of"].get<std::string>().starts_with("torchtitan")) << c["of"];
    }
    const auto groups = static_cast<double>(j["choices"].size());
    EXPECT_GE(groups, 20);
    EXPECT_GE(good / groups, 0.8);
    EXPECT_LE(loss / groups, 0.04);
    // Memory of the software that ran.
    std::vector<double> of_memory;
    int64_t measured = 0, misfits = 0;
    for (const auto& run : j["runs"]) {
        if (run.contains("memory_ratio")) of_memory.push_back(run["memory_ratio"]);
        if (run.contains("out_of_memory")) {
            EXPECT_FALSE(run["fits"]) << run["id"];
        } else {
            ++measured, misfits += !run["fits"].get<bool>();
        }
    }
    const calibration::Errors bytes = calibration::errors_of(of_memory);
    EXPECT_EQ(bytes.count, 56);
    EXPECT_LE(bytes.median, 0.08);
    EXPECT_LE(bytes.ninetieth, 0.15);
    EXPECT_LE(static_cast<double>(misfits), 0.02 * static_cast<double>(measured));
    // What is not planned says why.
    EXPECT_EQ(j["not_planned"].size(), 28u);
    for (const auto& run : j["not_planned"]) EXPECT_FALSE(run["why"].get<std::string>().empty());
}

// A chip, a network or a stack that no published run was on, and one that runs of one source were on, widen the band.
TEST(Band, IsWiderForPartsThatFewRunsWereOn) {
    const auto part = [](sim::Part::Kind kind, const char* name, int64_t runs, int64_t sources) {
        return sim::Part{kind, name, "", runs, sources};
    };
    using Kind = sim::Part::Kind;
    EXPECT_EQ(calibration::text_of({part(Kind::Chip, "a100", 220, 8), part(Kind::Stack, "s", 30, 2)}), "");
    EXPECT_EQ(calibration::text_of(
                  {part(Kind::Chip, "mi300x", 0, 0), part(Kind::Network, "mi300x", 0, 0), part(Kind::Stack, "nanotron", 5, 1)}),
              "No run was ever compared with a plan of: chip mi300x, network mi300x. Only one publication has runs of: stack "
              "nanotron. The band is wider for it.");
    Scratch s;
    const std::string plan = std::string("plan ") + LOCKSTEP_SOURCE_DIR + "/recipes/llama3_8b.toml --json --cluster " +
                             LOCKSTEP_SOURCE_DIR + "/clusters/";
    const auto width = [&](const std::string& file) {
        const nlohmann::json j = s.lockstep(plan + file).json();
        EXPECT_EQ(j["parts"].size(), 3U) << j["parts"];
        return std::log(j["step_time_high_s"].get<double>() / j["step_time_low_s"].get<double>()) / 2 / 1.2816;
    };
    const double seen = width("a100_80gb_8nic.toml"), unseen = width("mi300x.toml");
    EXPECT_GT(unseen, seen);
    EXPECT_GT(unseen, std::sqrt(2) * calibration::kNeverSeen) << "chip and network";
    const Finished text = s.lockstep(std::string("plan ") + LOCKSTEP_SOURCE_DIR + "/recipes/llama3_8b.toml --cluster " +
                                     LOCKSTEP_SOURCE_DIR + "/clusters/mi300x.toml");
    EXPECT_TRUE(has(text.out, "Class amd_cdna3 says: bandwidth_efficiency 0.8")) << text.out;
    EXPECT_TRUE(has(text.out, "No run was ever compared with a plan of: chip mi300x, network mi300x")) << text.out;
}

// A machine whose files give no number a spread.
TEST(Band, OfAMachineOfUnknownSpreads) {
    Scratch s;
    const std::string cluster = kCluster;
    std::string own = cluster.substr(0, cluster.find("[[constants]]"));
    own.replace(own.find("kernels = "), own.find("memory_bytes") - own.find("kernels = "), "");
    s.write("c.toml", own);
    calibration::Constants constants;
    const auto sources = sim::read_sources(s.path("c.toml"), "--cluster");
    constants.add(sources);
    EXPECT_TRUE(constants.of(sources).empty());
    const sim::Part unseen{sim::Part::Kind::Chip, "c", "", 0, 0};
    const double none = calibration::deviation_of(1, {}, {}, constants, sources, {}, {}, {unseen});
    EXPECT_NEAR(none, std::hypot(calibration::kUnexplained, calibration::kNoSpread), 1e-12);
}

// Every shipped file says how many of the table's runs were on what it describes.
// A machine whose ranks share processors: its steps are worked out anew for each value.
TEST(Calibration, FitsAMachineOfProcessors) {
    Scratch s;
    const std::string machine =
        s.write("machine.toml", read_text_file(LOCKSTEP_SOURCE_DIR "/tests/cli/stored_machine.toml").text +
                                    "\n[[constants]]\nkey = \"rates.step_overhead_s\"\nprior = 4e-5\nspread = 1.0\n");
    const std::string rows = s.write(
        "rows.csv",
        "id,step_time_s,model.flavor,training.dataset,training.global_batch_size,training.seq_len,training.local_batch_size\n"
        "a,0.08,debugmodel,synthetic,8,64,2\nb,0.15,debugmodel,synthetic,8,128,2\n");
    for (const char* how : {"--no-fit", "", "--leave-out"}) {
        const Finished f = s.lockstep(fmt::format("calibrate --rows {} --cluster {} --json {}", rows, machine, how));
        ASSERT_EQ(f.code, 0) << how << f.err;
        const nlohmann::json j = f.json();
        for (const auto& run : j["runs"]) EXPECT_GT(run["ratio"], 0) << how;
        if (std::string(how) != "--no-fit") {
            EXPECT_EQ(j["constants"][0]["runs"], 2);
            EXPECT_GT(j["constants"][0]["value"], 4e-5) << "the runs take longer than planned";
        }
    }
}

// Runs with a chip and a stack that no constant saw in one run.
TEST(PublishedRuns, ThatNoConstantWasFittedToArePlanned) {
    Scratch s;
    const std::string source = LOCKSTEP_SOURCE_DIR;
    const auto f =
        s.lockstep("calibrate --rows " + source + "/data/unfitted_runs.csv --folder " + source + "/clusters --no-fit --json");
    ASSERT_EQ(f.code, 0) << f.err;
    const nlohmann::json j = f.json();
    std::vector<double> ratios;
    for (const auto& run : j["runs"]) ratios.push_back(run["ratio"]);
    const calibration::Errors e = calibration::errors_of(ratios);
    EXPECT_EQ(e.count, 70);
    EXPECT_LE(e.median, 0.05);
    EXPECT_LE(e.ninetieth, 0.10);
    EXPECT_GE(j["coverage"], 0.7);
}

TEST(PublishedRuns, AreCountedInTheFilesOfTheirMachines) {
    const std::string source = LOCKSTEP_SOURCE_DIR;
    std::map<std::string, std::set<std::string>> sources;
    std::map<std::string, int64_t> count;
    const std::vector<calibration::Run> table = calibration::read_runs(source + "/data/published_runs.csv");
    const calibration::ClusterFiles files(source + "/clusters");
    std::map<std::string, sim::Part> parts;
    for (const calibration::Run& r : table) {
        if (!r.recipe || r.step_time_s == 0) continue;
        for (const sim::Part& p : sim::cluster_of(files.sources(r.cluster, r.stack)).parts) {
            if (p.path.empty()) continue;
            parts[p.path] = p, ++count[p.path], sources[p.path].insert(r.source);
        }
    }
    EXPECT_GT(parts.size(), 20U);
    for (const auto& [path, p] : parts) {
        EXPECT_EQ(p.runs, count[path]) << path;
        EXPECT_EQ(p.sources, static_cast<int64_t>(sources[path].size())) << path;
    }
}

TEST(CliCalibrate, OneRunOfOnesOwnNarrowsTheBand) {
    Scratch s;
    s.write("c.toml", kCluster);
    s.write("one.csv",
            "id,step_time_s,model.flavor,training.seq_len,parallelism.data_parallel_shard_degree\nmine-1,0.5,debugmodel,512,4\n");
    s.write("r.toml", "[job]\ndescription = \"as the run\"\n");
    const std::string plan =
        "plan r.toml --model.flavor debugmodel --training.seq_len 512 --training.dataset synthetic "
        "--parallelism.data_parallel_shard_degree 4 ";
    const nlohmann::json before = s.lockstep(plan + "--cluster c.toml --json").json();
    EXPECT_EQ(s.lockstep("calibrate --rows one.csv").code, 1);  // runs.no_cluster
    const auto f = s.lockstep("calibrate --rows one.csv --cluster c.toml --multiplier --out mine.toml --json");
    ASSERT_EQ(f.code, 0) << f.err;
    EXPECT_EQ(f.json()["measured"]["runs"], 1);
    const nlohmann::json after = s.lockstep(plan + "--cluster mine.toml --json").json();
    EXPECT_NEAR(after["step_time_s"], 0.5, 1e-3);
    const auto width = [](const nlohmann::json& j) {
        return j["step_time_high_s"].get<double>() / j["step_time_low_s"].get<double>();
    };
    EXPECT_LT(width(after), width(before));
    EXPECT_GT(width(after), 1.05);
    const auto text = s.lockstep(plan + "--cluster mine.toml");
    EXPECT_NE(text.out.find("step time    0.5 s, between 0.46"), std::string::npos) << text.out;
    const auto none = s.lockstep("calibrate --rows one.csv --cluster c.toml --source other");
    EXPECT_EQ(none.code, 1);
    EXPECT_NE(none.err.find("runs.none"), std::string::npos) << none.err;
}

}  // namespace
}  // namespace lockstep
