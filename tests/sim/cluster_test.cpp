// Cluster files: what prints parses, what is wrong is refused by name.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/error.h"
#include "sim/cluster.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

constexpr const char* kRates = "[rates]\nbytes_per_s = [1e9]\n[rates.flops_per_s]\nf32 = [1e9]\n";

void expect_refusal(const std::string& text, const std::string& id, const std::string& part) {
    try {
        sim::parse_cluster(text, "here.toml");
        FAIL() << "accepted: " << text;
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), id);
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
}

TEST(ClusterFile, PrintsAndParses) {
    sim::Cluster c;
    c.name = "x", c.description = "y", c.memory_bytes = 1e9, c.links = {{8, {1e9, 1e-6}}, {0, {1e8, 2e-6}}};
    c.devices = true, c.declared = true;
    c.costs.cores = 3, c.costs.flops_per_s = {{"bf16", {4e9}}, {"f32", {1e9, 2e9}}, {"f8", {8e9}}},
    c.costs.bytes_per_s = {1e10, 2e10};
    c.costs.rows = {{{"einsum", "cpu.matmul", "f32", "nt", 2, {1, 2, 3}, 12, 44}, 1e-6, 2e-6, 3e-6}};
    c.costs.collectives = {{"all_reduce", 2, 1024, 1e-5, 4e-6}};
    c.costs.caches = {{2e6, 1, 0.25}, {6.4e7, 3, 1}};
    const std::string text = sim::print(c);
    const sim::Cluster again = sim::parse_cluster(text, "here.toml");
    EXPECT_EQ(sim::print(again), text);
    EXPECT_EQ(again.costs.collectives[0].core_s, 4e-6);
    EXPECT_EQ(again.costs.caches[0].price_beyond, 0.25);
}

TEST(ClusterFile, CachesGetDearerOutwards) {
    const auto caches = [](const char* first, const char* second) {
        return fmt::format(
            "{}[[caches]]\nbytes = 2e6\nprice_beyond = {}\n[[caches]]\nbytes = 6e7\ncores = 2\nprice_beyond = {}\n", kRates,
            first, second);
    };
    EXPECT_EQ(sim::parse_cluster(caches("0.3", "1.0"), "here.toml").costs.caches.size(), 2u);
    expect_refusal(caches("0.3", "0.2"), "cluster.incomplete",
                   "caches.price_beyond = 0.2: must not be below that of the cache before, 0.3");
    expect_refusal(caches("0.3", "1.5"), "cluster.out_of_range", "caches.price_beyond = 1.5: must be from 0 to 1");
    expect_refusal(fmt::format("{}[[caches]]\ncores = 2\n", kRates), "cluster.incomplete", "[[caches]] need bytes");
}

TEST(ClusterFile, HostsPrintAndParse) {
    sim::Cluster c;
    c.name = "x", c.description = "y", c.memory_bytes = 1e9;
    c.costs.cores = 3, c.costs.flops_per_s = {{"f32", {1e9, 2e9}}}, c.costs.bytes_per_s = {1e10, 2e10};
    c.hosts = {4, 2, true, {2.5e7, 1e-4}, 1e-9, 5e8, 2e-5, 0.125};
    const std::string text = sim::print(c);
    const sim::Cluster again = sim::parse_cluster(text, "here.toml");
    EXPECT_EQ(sim::print(again), text);
    EXPECT_EQ(sim::topology_of(again, 6), (mesh::Topology{{0, 0, 0, 0, 1, 1}, 2}));
    EXPECT_TRUE(sim::topology_of({}, 6).is_one_process());
    // Keys: hosts.ranks, hosts.ranks_per_process
    expect_refusal(fmt::format("{}[hosts]\nranks = 4\nranks_per_process = 3\n", kRates), "cluster.incomplete",
                   "hosts.ranks_per_process = 3: must divide hosts.ranks = 4");
    expect_refusal(fmt::format("{}[hosts]\nranks = 4\nlatency_s = -1.0\n", kRates), "cluster.out_of_range",
                   "here.toml, line 7: hosts.latency_s = -1: must be from 0 to 3600");
    expect_refusal(fmt::format("{}[hosts]\nranks = 4\nbandwidth_bytes_per_s = inf\n", kRates), "cluster.out_of_range",
                   "hosts.bandwidth_bytes_per_s = inf: must be above 0");
    expect_refusal(fmt::format("{}[hosts]\nlatency_s = 1.0\n", kRates), "cluster.incomplete", "[hosts] needs ranks");
    expect_refusal(fmt::format("{}[memory]\nlogit_bytes = 4.0\n", kRates), "cluster.incomplete", "[memory] needs gradient_bytes");
    expect_refusal(fmt::format("{}[memory]\ngradient_bytes = 4.0\nreserve = 2.0\n", kRates), "cluster.out_of_range",
                   "memory.reserve = 2");
    expect_refusal(fmt::format("{}[memory]\ngradient_bytes = 4.0\n[memory.saved_bytes]\nswigle = 2.0\n", kRates),
                   "cluster.unknown_key", "memory.saved_bytes.swigle");
    expect_refusal(fmt::format("[machine]\ndevices = true\n{}[hosts]\nranks = 4\n", kRates), "cluster.incomplete",
                   "[hosts] is of ranks without devices");
}

TEST(ClusterFile, DeclaredMachinesAreSound) {
    int files = 0;
    for (const auto& e : std::filesystem::directory_iterator(LOCKSTEP_SOURCE_DIR "/clusters")) {
        if (e.path().extension() != ".toml") continue;
        const sim::Cluster c = sim::read_cluster(e.path().string(), "--cluster");
        EXPECT_TRUE(c.declared) << e.path();
        EXPECT_EQ(c.name, e.path().stem().string());
        ++files;
    }
    EXPECT_GE(files, 2);
}

TEST(ClusterFile, TheLinkIsThatOfTheSmallestBlock) {
    sim::Cluster c;
    c.links = {{2, {3, 0}}, {8, {2, 0}}, {0, {1, 0}}};
    EXPECT_EQ(sim::link_of(c, {2, 3}, 16).level, 0);
    EXPECT_EQ(sim::link_of(c, {1, 2}, 16).level, 1);
    EXPECT_EQ(sim::link_of(c, {0, 8, 16}, 24).level, 2);
}

TEST(ClusterFile, NumbersThatNoMachineHas) {
    const auto rates = [](const char* line) { return fmt::format("[rates]\n{}\nbytes_per_s = [1e9]\n", line); };
    for (const auto& [text, part] : {
             std::pair{rates("product_efficiency = 7"),
                       "here.toml, line 2: rates.product_efficiency = 7: must be above 0 and at most 1"},
             {rates("product_efficiency = nan"), "rates.product_efficiency = nan: must be above 0 and at most 1"},
             {rates("bandwidth_efficiency = 0"), "rates.bandwidth_efficiency = 0: must be above 0"},
             {rates("op_overhead_s = -1e-6"), "rates.op_overhead_s = -1e-06: must be from 0"},
             {std::string("[rates]\nbytes_per_s = [0]\n"), "rates.bytes_per_s = 0: must be above 0"},
             {std::string("[rates]\nbytes_per_s = [1e9]\n[rates.flops_per_s]\nf32 = [-1e9]\n"),
              "here.toml, line 4: rates.flops_per_s.f32 = -1000000000: must be above 0"},
             {std::string("[[links]]\nranks = 0\nbandwidth_bytes_per_s = 0\n"),
              "here.toml, line 3: links.bandwidth_bytes_per_s = 0"},
             {std::string("[machine]\nmemory_bytes = -1\n"), "machine.memory_bytes = -1: must be from 0"},
             {std::string("[machine]\ncores = 0\n"), "machine.cores = 0: must be from 1"},
             {std::string("[machine]\ncores = 9223372036854775807\n"), "must be from 1 to 1048576"},
         })
        expect_refusal(text, "cluster.out_of_range", part);
    const std::string devices = fmt::format("[machine]\ndevices = true\n{}", kRates);
    const char* link = "[[links]]\nranks = {}\nbandwidth_bytes_per_s = 1e9\n";
    const auto links = [&](int first, int second) {
        return devices + fmt::format(fmt::runtime(link), first) + fmt::format(fmt::runtime(link), second);
    };
    expect_refusal(links(0, 0), "cluster.incomplete", "[[links]] are in the order of their ranks");
    expect_refusal(links(8, 8) + fmt::format(fmt::runtime(link), 0), "cluster.incomplete", "links.ranks = 8");
    expect_refusal(devices + "[[links]]\nranks = 0\n", "cluster.incomplete", "[[links]] need bandwidth_bytes_per_s");
    expect_refusal(fmt::format("[machine]\nmemory_bytes = 1e9\nreserve_bytes = 2e9\n{}", kRates), "cluster.incomplete",
                   "machine.reserve_bytes = 2000000000: must be less than machine.memory_bytes = 1000000000");
    expect_refusal("[rates]\nbytes_per_s = [1e9]\n[rates.flops_per_s]\nf32 = [1e9]\nbf15 = [1e9]\n", "cluster.unknown_key",
                   "no key rates.flops_per_s.bf15; the nearest is rates.flops_per_s.bf16");
}

// The keys of a table are read once for each of its ops.
TEST(ClusterFile, ARefusalNamesAKeyOnce) {
    try {
        sim::parse_cluster("[[ops]]\nops = [\"einsum\", \"addmm\"]\ntrafic = 1\n", "here.toml");
        FAIL() << "accepted";
    } catch (const UserError& e) {
        const std::string text = e.what(), known = text.substr(text.find("known here"));
        EXPECT_NE(known.find("traffic"), std::string::npos) << text;
        EXPECT_EQ(known.find("traffic"), known.rfind("traffic")) << text;
    }
}

TEST(ClusterFile, EveryKeyIsDescribedOnce) {
    std::set<std::pair<std::string, std::string>> seen;
    for (const sim::ClusterKey& k : sim::cluster_keys()) {
        EXPECT_TRUE(seen.emplace(k.table, k.key).second) << k.table << " " << k.key;
        EXPECT_FALSE(k.values.empty() || k.help.empty()) << k.table << " " << k.key;
    }
    EXPECT_TRUE(seen.contains({"[[links]]", "latency_s"}));
}

TEST(ClusterFile, Refusals) {
    expect_refusal("nmae = \"x\"\n", "cluster.unknown_key",
                   "here.toml, line 1: a cluster file has no key nmae; the nearest is name (known here: machine");
    expect_refusal("[machine]\ncores = \"two\"\n", "cluster.value",
                   "here.toml, line 2: machine.cores has a value of the wrong type");
    expect_refusal("[rates.flops_per_s]\nf32 = [1e12]\nf8 = 1979e12\n", "cluster.value",
                   "here.toml, line 3: rates.flops_per_s.f8 must be a list of numbers, as in f8 = [1e12]");
    expect_refusal("[rates.flops_per_s]\nf32 = [1e12]\ne8m0 = [1e12]\n", "cluster.unknown_key",
                   "a cluster file has no key rates.flops_per_s.e8m0");
    expect_refusal("name = \n", "cluster.syntax", "here.toml, line 1: ");
    expect_refusal("name = \"x\"\n", "cluster.incomplete", "a cluster needs [rates.flops_per_s] with at least f32");
    expect_refusal(fmt::format("[machine]\ndevices = true\n{}[[links]]\nranks = 8\nbandwidth_bytes_per_s = 1e9\n", kRates),
                   "cluster.incomplete", "the last of [[links]] has ranks = 0");
    expect_refusal(fmt::format("{}[[kernels]]\nop = \"add\"\nkernel = \"cpu.add\"\n", kRates), "cluster.incomplete",
                   "the row of add (cpu.add) needs warm_s, cold_s and crowded_s");
    const std::string attention = fmt::format("[machine]\ndevices = true\n{}[[attention]]\n", kRates);
    expect_refusal(attention + "kernel = \"flash2\"\n", "cluster.incomplete", "an [[attention]] table needs kernel and op");
    expect_refusal(attention + "kernel = \"flsh2\"\nop = \"attention\"\n", "cluster.unknown_word",
                   "attention.kernel = \"flsh2\"");
    expect_refusal(attention + "kernel = \"flash2\"\nop = \"einsum\"\n", "cluster.unknown_word", "attention.op = \"einsum\"");
    expect_refusal(fmt::format("{}[stack]\ngroup_bytes_per_s = 0\n", kRates), "cluster.out_of_range",
                   "stack.group_bytes_per_s = 0: must be above 0");
    expect_refusal(fmt::format("[machine]\nclass = \"no_such.toml\"\n{}", kRates), "cluster.cannot_read", "no_such.toml");
    try {
        sim::read_cluster("/nowhere.toml", "cluster.file");
        FAIL();
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "cluster.cannot_read");
        EXPECT_NE(std::string(e.what()).find("cluster.file /nowhere.toml: cannot be read (No such file or directory)"),
                  std::string::npos);
    }
}

}  // namespace
}  // namespace lockstep::testing
