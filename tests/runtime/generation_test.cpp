// Generation with caches of keys and values: the same logits as a forward pass over the whole text, in any layout.
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "check/check.h"
#include "kernels/kernel.h"
#include "runtime/capture.h"
#include "runtime/evaluator.h"
#include "runtime/generator.h"
#include "tests/base/plain.h"
#include "tests/comm/process_groups.h"
#include "tests/compile/recipes.h"
#include "tests/runtime/allocations.h"

namespace lockstep::testing {
namespace {

constexpr int kVocab = 61, kContext = 80;

compile::Recipe recipe(const Settings& settings, Dtype dtype, int64_t batch) {
    compile::Recipe r = plain(compile::Recipe::from_text(
        "[model]\ndim = 24\nn_layers = 3\nn_heads = 4\nn_kv_heads = 2\nffn_dim = 40\nvocab_size = 61\nrope_theta = 100.0\n"
        "[training]\nseq_len = 80\n",
        "test"));
    for (const auto& [key, value] : settings) r.set(key, value);
    r.set("training.dtype", dtype == Dtype::F64 ? "float64" : "float32");
    r.set("training.fuse_loss", "false");
    r.set("training.local_batch_size", std::to_string(batch));
    return r;
}

compile::Compiled compiled_for(const compile::Recipe& r, Backend backend, const std::vector<ir::EntryKind>& entries) {
    compile::CompileOptions options;
    options.catalog = backend == Backend::Reference ? kernels::reference_catalog() : kernels::cpu_catalog(1);
    options.entries = entries;
    compile::Compiled c = compile::compile(r, options);
    const std::vector<const ir::Program*> ranks(static_cast<size_t>(c.layout.ranks), &c.programs[0]);
    const auto refused = check::prove(ranks);
    EXPECT_FALSE(refused) << refused->reason << ": " << refused->message;
    return c;
}

runtime::Values weights(const ir::Parameter& p, int64_t instance) {
    return [initial = runtime::InitialValues(p, instance, 5), is_normal = p.init.kind == ir::InitKind::Normal](int64_t i) {
        return is_normal ? 6 * initial(i) : initial(i) + 0.01 * static_cast<double>(i % 7);
    };
}

std::vector<int32_t> text(uint64_t which, int64_t length) {
    std::vector<int32_t> out;
    for (int64_t t = 0; t < length; ++t)
        out.push_back(static_cast<int32_t>(splitmix64(which * 1000 + static_cast<uint64_t>(t)) % kVocab));
    return out;
}

// Tokens of the given texts as an evaluation reads them.
class Texts : public data::Source {
public:
    explicit Texts(std::vector<std::vector<int32_t>> texts) : texts_(std::move(texts)) {}
    int seq_len() const override { return kContext; }
    int vocab_size() const override { return kVocab; }
    void sample(int64_t n, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> positions,
                std::span<int32_t> documents) const override {
        const std::vector<int32_t>& own = texts_[static_cast<size_t>(n) % texts_.size()];
        for (size_t t = 0; t < ids.size(); ++t) {
            ids[t] = t < own.size() ? own[t] : 0;
            targets[t] = 0;
            positions[t] = static_cast<int32_t>(t);
            documents[t] = 0;
        }
    }

private:
    std::vector<std::vector<int32_t>> texts_;
};

// Logits of every position of every text, by one forward pass on one rank.
std::vector<double> whole_forward(const std::vector<std::vector<int32_t>>& texts, const Settings& model, Dtype dtype) {
    const compile::Recipe r = recipe(model, dtype, static_cast<int64_t>(texts.size()));
    const compile::Compiled c = compiled_for(r, Backend::Reference, {ir::EntryKind::Eval});
    runtime::Ranks ranks(c.programs, {});
    const Texts source(texts);
    runtime::Loader loader(c.programs[0], ir::EntryKind::Eval, 0, runtime::batch_shape(c.layout));
    runtime::Capture capture(ranks, [](const std::string& name) { return name == "head[0].eval.logits"; });
    ranks.parallel([&](runtime::Executor& e) {
        runtime::fill_weights(e, weights);
        loader.load(e, 0,
                    [&](int64_t i, auto ids, auto targets, auto pos, auto doc) { source.sample(i, ids, targets, pos, doc); });
        e.run(ir::EntryKind::Eval);
    });
    return capture.take().at("head[0].eval.logits").values;
}

class Generation : public ::testing::TestWithParam<NamedSettings> {};

// Two prompts of different lengths, one of them longer than a step of prefill; then 64 tokens each, one at a time.
double largest_difference(const Settings& layout, const Settings& model, Dtype dtype, Backend backend) {
    const std::vector<std::vector<int32_t>> texts = {text(1, 67), text(2, kContext)};
    const int64_t lengths[] = {3, 16};
    const std::vector<double> whole = whole_forward(texts, model, dtype);
    const int64_t padded = static_cast<int64_t>(whole.size()) / 2 / kContext;
    compile::Recipe r = recipe(model, dtype, 2);
    for (const auto& [key, value] : layout) r.set(key, value);
    const compile::Compiled c = compiled_for(r, backend, {ir::EntryKind::Prefill, ir::EntryKind::Decode});
    runtime::Ranks ranks(c.programs, {});
    ranks.parallel([](runtime::Executor& e) { runtime::fill_weights(e, weights); });
    runtime::Generator generator(ranks);
    EXPECT_EQ(generator.sequences(), 2);
    EXPECT_EQ(generator.vocab(), kVocab);
    double worst = 0, scale = 0;
    for (int round = 0; round < 2; ++round) {  // the second begins anew on used caches
        generator.begin(std::vector<std::vector<int32_t>>{{texts[0].begin(), texts[0].begin() + lengths[0]},
                                                          {texts[1].begin(), texts[1].begin() + lengths[1]}});
        for (int64_t n = 0; n < 64; ++n) {
            std::vector<int32_t> next;
            for (int s = 0; s < 2; ++s) next.push_back(texts[static_cast<size_t>(s)][static_cast<size_t>(lengths[s] - 1 + n)]);
            generator.step(next);
            for (int64_t s = 0; s < 2; ++s) {
                const double* row = whole.data() + (s * kContext + lengths[s] - 1 + n) * padded;
                for (int64_t v = 0; v < kVocab; ++v) {
                    const double d = std::abs(generator.logits(s)[static_cast<size_t>(v)] - row[v]);
                    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
                    scale = std::max(scale, std::abs(row[v]));
                }
            }
        }
    }
    EXPECT_GT(scale, 0.5);
    return worst / scale;
}

const std::string kTensorDegree = "parallelism.tensor_parallel_degree", kShardDegree = "parallelism.data_parallel_shard_degree";
const NamedSettings kLayouts[] = {
    {"one_rank", {}},
    {"tp2", {{kTensorDegree, "2"}}},
    {"tp4_cut_heads", {{kTensorDegree, "4"}}},
    {"tp2_without_sequence_parallel", {{kTensorDegree, "2"}, {"parallelism.sequence_parallel", "false"}}},
    {"sharded_weights", {{kShardDegree, "2"}, {kTensorDegree, "2"}, {"training.local_batch_size", "1"}}},
};
INSTANTIATE_TEST_SUITE_P(Layouts, Generation, ::testing::ValuesIn(kLayouts), [](const auto& info) { return info.param.name; });

TEST_P(Generation, EqualsTheWholeForwardFloat64) {
    EXPECT_LT(largest_difference(GetParam().settings, {}, Dtype::F64, Backend::Reference), 1e-10);
    EXPECT_LT(largest_difference(GetParam().settings, {{"model.qk_norm", "1"}, {"model.tie_embeddings", "1"}}, Dtype::F64,
                                 Backend::Reference),
              1e-10);
}

TEST_P(Generation, OfBiasesAndWindowsAndGpt2) {
    const Settings relatives = {{"model.qkv_bias", "1"}, {"model.sliding_window", "9"}};
    EXPECT_LT(largest_difference(GetParam().settings, relatives, Dtype::F64, Backend::Reference), 1e-10);
    EXPECT_LT(largest_difference(GetParam().settings, relatives, Dtype::F32, Backend::Cpu), 1e-5);
}

TEST_P(Generation, EqualsTheWholeForwardFloat32) {
    EXPECT_LT(largest_difference(GetParam().settings, {}, Dtype::F32, Backend::Cpu), 1e-5);
}

// Caches in bfloat16, beside a residual stream in either type; both passes round alike but for the order of sums.
TEST_P(Generation, EqualsTheWholeForwardInBfloat16) {
    for (const char* wide : {"false", "true"}) {
        const Settings model = {{"training.mixed_precision_param", "bfloat16"},
                                {"training.fp32_residual_connection", wide},
                                {"training.mixed_precision_norm", wide == std::string("true") ? "float32" : ""}};
        EXPECT_LT(largest_difference(GetParam().settings, model, Dtype::F32, Backend::Cpu), 0.02) << wide;
    }
}

// Logits of every step, by the first process of a process group, which alone knows what follows.
std::vector<double> generated(const compile::Compiled& c, comm::ProcessGroup& group) {
    runtime::RanksOptions options;
    options.group = &group;
    runtime::Ranks ranks(c.programs, options);
    ranks.parallel([](runtime::Executor& e) { runtime::fill_weights(e, weights); });
    runtime::Generator generator(ranks);
    const std::vector<std::vector<int32_t>> prompts = {text(1, 5), text(2, 70)};
    std::vector<int32_t> next(2, runtime::kNoToken);
    std::vector<double> out;
    generator.begin(prompts);
    if (group.is_first()) next = {prompts[0].back(), prompts[1].back()};
    for (int n = 0; generator.step(next); ++n) {
        if (!group.is_first()) continue;
        for (int64_t s = 0; s < 2; ++s) {
            const std::span<const double> row = generator.logits(s);
            out.insert(out.end(), row.begin(), row.end());
            const auto likeliest = static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
            next[static_cast<size_t>(s)] = n < 4 + 2 * s ? likeliest : runtime::kNoToken;  // one ends before the other
        }
    }
    EXPECT_EQ(generator.place(0), 9);
    EXPECT_EQ(generator.place(1), 76);
    return out;
}

TEST(Generation, OverProcessesItHasTheBitsOfThreads) {
    for (const NamedSettings& layout : kLayouts) {
        for (const std::vector<int>& host_of : {std::vector<int>{0, 0}, {0, 1}, {0, 0, 1, 1}}) {
            compile::Recipe r = recipe(layout.settings, Dtype::F32, 2);
            for (const auto& [key, value] : layout.settings) r.set(key, value);
            const auto ranks = compile::layout_of(compile::config_of(r)).ranks, processes = static_cast<int64_t>(host_of.size());
            if (ranks % processes != 0) continue;
            compile::CompileOptions options;
            options.catalog = kernels::cpu_catalog(1);
            options.entries = {ir::EntryKind::Prefill, ir::EntryKind::Decode};
            options.route.topology.ranks_per_process = static_cast<int>(ranks / processes);
            for (int64_t rank = 0; rank < ranks; ++rank)
                options.route.topology.host_of_rank.push_back(host_of[static_cast<size_t>(rank * processes / ranks)]);
            const compile::Compiled c = compile::compile(r, options);
            comm::ProcessGroup alone;
            const std::vector<double> threads = generated(c, alone);
            std::vector<double> parts;
            const auto errors = comm::test::in_process_groups(host_of, [&](comm::ProcessGroup& group) {
                std::vector<double> own = generated(c, group);
                if (group.is_first()) parts = std::move(own);
            });
            for (const std::exception_ptr& e : errors) EXPECT_EQ(e, nullptr) << layout.name;
            EXPECT_EQ(threads.size(), size_t{7 * 2 * kVocab}) << layout.name;
            EXPECT_TRUE(parts == threads) << layout.name << " in " << processes << " processes";
        }
    }
}

TEST(Generation, AStepAllocatesNothing) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer's operator new does not count";
#endif
    for (const NamedSettings& layout : kLayouts) {
        const compile::Compiled c =
            compiled_for(recipe(layout.settings, Dtype::F32, 1), Backend::Cpu, {ir::EntryKind::Prefill, ir::EntryKind::Decode});
        runtime::Ranks ranks(c.programs, {});
        runtime::Generator generator(ranks);
        const std::vector<std::vector<int32_t>> prompts = {text(1, 70)};
        std::vector<int32_t> next(static_cast<size_t>(generator.sequences()), runtime::kNoToken);
        next[0] = 7;
        generator.begin(prompts);
        generator.step(next);
        const int64_t before = allocations();
        generator.begin(prompts);
        for (int i = 0; i < 10; ++i) generator.step(next);
        EXPECT_EQ(allocations() - before, 0) << layout.name;
    }
}

TEST(Generation, EntriesOverlayTheirTransientsAndShareTheRest) {
    const compile::Recipe r = recipe({}, Dtype::F32, 1);
    const int64_t both =
        compiled_for(r, Backend::Cpu, {ir::EntryKind::Prefill, ir::EntryKind::Decode}).programs[0].arena_bytes[Place::Device];
    const compile::Compiled c = compiled_for(r, Backend::Cpu, {ir::EntryKind::Prefill, ir::EntryKind::Decode});
    int64_t weights = 0, caches = 0;
    for (const ir::Buffer& b : c.programs[0].buffers) {
        if (b.kind == ir::MemoryKind::Weights) weights += b.bytes;
        if (b.name.starts_with("cache.")) caches += b.bytes;
        EXPECT_NE(b.kind, ir::MemoryKind::Optimizer) << b.name;
    }
    EXPECT_EQ(caches, 3 * 2 * kContext * 2 * 6 * 4);  // layers, keys and values, tokens, key heads, head_dim, bytes
    EXPECT_LT(both, weights + caches + 200000);
}

}  // namespace
}  // namespace lockstep::testing
