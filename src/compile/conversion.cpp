#include "compile/conversion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "base/error.h"
#include "compile/recipe.h"
#include "ir/kinds.h"
#include "ir/sources.h"
#include "passes/float8_products.h"
#include "passes/pack_products.h"

namespace lockstep::compile {
namespace {

using ir::Program;
using Keys = std::set<std::string>;

constexpr const char* kAutoFilter = "auto_filter_small_kn";

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

int64_t product(const std::vector<ir::Dim>& dims, size_t begin, size_t end) {
    int64_t out = 1;
    for (size_t i = begin; i < end; ++i) out *= dims[i].size;
    return out;
}

// Float8 units multiply blocks of 16.
bool has_whole_blocks(const ir::Parameter& p) {
    constexpr int64_t kBlock = 16;
    const std::optional<size_t> rows = ir::rows_of_matrix(p);
    return rows && product(p.dims, 0, *rows) % kBlock == 0 && product(p.dims, *rows, p.dims.size()) % kBlock == 0;
}

// A product of some rows by n columns that sums k elements: torchao's rules, from its measurements on H100. There a weight is
// [n, k], as in torch.nn.Linear. rule_of_small() says the same.
bool is_small(Float8::Recipe recipe, int64_t k, int64_t n) {
    if (recipe == Float8::Recipe::Tensorwise) return k <= 4096 && n <= 1024;
    return n <= 2048 || k <= 1024 || (n <= 4096 && k <= 2048);
}

// Weights of a product, and how many elements it sums (k) for how many columns (n).
struct Sides {
    const ir::Tensor* weights;
    int64_t k = 1, n = 1;
};

std::vector<Sides> products_of(const ir::Routine& r) {
    const auto is_parameter = [&](const ir::Tensor& t) {
        return t.port >= 0 && r.ports[static_cast<size_t>(t.port)].kind == ir::PortKind::Params;
    };
    std::vector<Sides> out;
    for (const ir::Op& op : r.ops) {
        if (op.kind != ir::kEinsum || !is_parameter(r.tensors[static_cast<size_t>(op.in.back())])) continue;
        Sides sides{&r.tensors[static_cast<size_t>(op.in.back())]};
        const std::vector<ir::DimId>& result = r.tensors[static_cast<size_t>(op.out[0])].dims;
        for (const ir::DimId d : sides.weights->dims) {
            const bool is_kept = std::find(result.begin(), result.end(), d) != result.end();
            (is_kept ? sides.n : sides.k) *= r.dims[static_cast<size_t>(d)].size;
        }
        out.push_back(sides);
    }
    return out;
}

// Keys of the block's weights whose product is too small to gain. `packed`: after pack_products.
Keys small_products(const Program& packed, const std::string& block, Float8::Recipe recipe) {
    Keys out;
    for (const ir::Routine& r : packed.routines) {
        if (r.block != block) continue;
        for (const auto& [weights, k, n] : products_of(r)) {
            if (!is_small(recipe, k, n)) continue;
            for (const std::string_view key : ir::sources_of(*weights)) out.emplace(key);
        }
    }
    return out;
}

void mark(Program& p, const std::string& block, const Keys& keys) {
    for (ir::Parameter& x : p.params) {
        if (x.block == block) x.converted = keys.contains(x.key);
    }
}

bool is_filtered(const std::string& name, const Float8& float8) {
    return std::any_of(float8.filter_fqns.begin(), float8.filter_fqns.end(),
                       [&](const std::string& filter) { return contains(name, filter); });
}

// By name and sides.
Keys may_convert(const Program& blocks, const ir::Block& block, int64_t instance, const Float8& float8) {
    Keys out;
    for (const ir::Parameter& p : blocks.params) {
        const std::string name = p.block == block.name ? module_name(p, instance) : "";
        if (!name.empty() && has_whole_blocks(p) && !is_filtered(name, float8)) out.insert(p.key);
    }
    return out;
}

Keys without_small(const Program& blocks, const ir::Block& block, Keys keys, const Float8& float8, bool packs) {
    if (!float8.auto_filter_small_kn) return keys;
    Program marked = blocks;
    mark(marked, block.name, keys);
    if (packs) marked = passes::pack_products(std::move(marked), {});
    for (const std::string& key : small_products(marked, block.name, float8.recipe)) keys.erase(key);
    return keys;
}

// Consecutive instances of a block that convert the same parameters.
struct Run {
    int64_t first = 0, count = 0;
    Keys keys;
};

std::vector<Run> runs_of(const Program& blocks, const ir::Block& block, const Float8& float8, bool packs) {
    std::vector<Run> out;
    std::map<Keys, Keys> known;  // by what their names allow
    for (const int64_t i : block.all()) {
        const auto [at, is_new] = known.try_emplace(may_convert(blocks, block, i, float8));
        if (is_new) at->second = without_small(blocks, block, at->first, float8, packs);
        const Keys& keys = at->second;
        if (out.empty() || out.back().keys != keys) out.push_back({i, 0, keys});
        ++out.back().count;
    }
    return out;
}

// A name as the instances from `first` on have it.
std::string numbered(std::string_view name, int64_t first) { return fmt::format("{}_{}", name, first); }

// The block's routine for other instances, whose parameters have keys of their own.
ir::Routine routine_of(ir::Routine r, const std::string& block, int64_t first, const Keys& own) {
    r.name.replace(0, r.block.size(), block);
    r.block = block;
    for (ir::Tensor& t : r.tensors) {
        if (t.port >= 0 && r.ports[static_cast<size_t>(t.port)].kind == ir::PortKind::Params && own.contains(t.source))
            t.source = numbered(t.source, first);
    }
    return r;
}

// The instances of a run become a block of their own behind `block`.
void add_block(Program& p, const std::string& block, const Run& run) {
    const std::string name = numbered(block, run.first);
    const auto is_before = [&](const std::string& known) {  // of the runs of this block
        return known == block || known.starts_with(block + "_");
    };
    const auto behind = [](auto& list, const auto& belongs) { return std::find_if(list.rbegin(), list.rend(), belongs).base(); };
    std::vector<ir::Parameter> params;
    Keys own;
    for (const ir::Parameter& x : p.params) {
        if (x.block != block) continue;
        own.insert(x.key);
        ir::Parameter copy = x;
        copy.key = numbered(x.key, run.first), copy.block = name, copy.converted = run.keys.contains(x.key);
        params.push_back(std::move(copy));
    }
    const auto source =
        std::find_if(p.routines.begin(), p.routines.end(), [&](const ir::Routine& r) { return r.block == block; });
    const ir::Routine routine = routine_of(*source, name, run.first, own);
    p.routines.insert(behind(p.routines, [&](const ir::Routine& r) { return is_before(r.block); }), routine);
    p.params.insert(behind(p.params, [&](const ir::Parameter& x) { return is_before(x.block); }), params.begin(), params.end());
    p.blocks.insert(behind(p.blocks, [&](const ir::Block& b) { return is_before(b.name); }), {name, run.count, run.first, {}});
}

bool asks(const Config& c, Converter converter) {
    return std::find(c.model.converters.begin(), c.model.converters.end(), converter) != c.model.converters.end();
}
bool asks_float8(const Config& c) { return asks(c, Converter::Float8); }
bool asks_mx(const Config& c) { return asks(c, Converter::Mx); }

constexpr const char *kConverters = "model.converters", *kFloat8Recipe = "quantize.linear.float8.recipe_name",
                     *kGather = "quantize.linear.float8.enable_fsdp_float8_all_gather",
                     *kFloat8Filter = "quantize.linear.float8.filter_fqns", *kMxRecipe = "quantize.linear.mx.recipe_name",
                     *kMxFilter = "quantize.linear.mx.filter_fqns";

struct Absent {
    Unavailable what;
    bool (*is_asked)(const Config&);
};
constexpr Absent kAbsent[] = {
    {{kConverters, "experts"},
     [](const Config& c) { return asks(c, Converter::GroupedFloat8) || asks(c, Converter::GroupedMx); }},
    {{kGather, "all-gathers in float8 with a scale for each block"},
     [](const Config& c) {
         const Config::LinearFloat8& f = c.linear_float8;
         return asks_float8(c) && f.recipe_name == Float8Name::Blockwise && f.enable_fsdp_float8_all_gather;
     }},
    {{kMxRecipe, "4-bit types"},
     [](const Config& c) {
         const MxName name = c.linear_mx.recipe_name;
         return asks_mx(c) && (name == MxName::Fp4Cutlass || name == MxName::Fp4Emulated);
     }},
};

}  // namespace

std::optional<Float8> Config::float8() const {
    Float8 out;
    if (asks_float8(*this)) {
        switch (linear_float8.recipe_name) {
            case Float8Name::Unnamed:
            case Float8Name::Tensorwise: out.recipe = Float8::Recipe::Tensorwise; break;
            case Float8Name::Rowwise: out.recipe = Float8::Recipe::Rowwise; break;
            case Float8Name::RowwiseWithGwHp: out.recipe = Float8::Recipe::RowwiseGwHp; break;
            case Float8Name::Blockwise: out.recipe = Float8::Recipe::Blockwise; break;
        }
        out.fsdp_gather = linear_float8.enable_fsdp_float8_all_gather;
        for (const std::string& filter : linear_float8.filter_fqns) {
            if (filter == kAutoFilter) out.auto_filter_small_kn = true;
            else out.filter_fqns.push_back(filter);
        }
    } else if (asks_mx(*this)) {
        out.recipe = linear_mx.recipe_name == MxName::CublasRceil ? Float8::Recipe::MxRceil : Float8::Recipe::MxFloor;
        out.filter_fqns = linear_mx.filter_fqns;
    } else {
        return std::nullopt;
    }
    out.scale_sequences = quantize.scale_sequences, out.scale_context_blocks = quantize.scale_context_blocks;
    return out;
}

std::string_view name_in_model(std::string_view name) {
    const size_t bar = name.rfind('_');
    const bool is_numbered = bar != std::string_view::npos && bar + 1 < name.size() &&
                             std::all_of(name.begin() + static_cast<long>(bar) + 1, name.end(),
                                         [](char c) { return std::isdigit(static_cast<unsigned char>(c)); });
    return is_numbered ? name.substr(0, bar) : name;
}

std::string module_name(const ir::Parameter& param, int64_t instance) {
    constexpr std::pair<std::string_view, std::string_view> modules[] = {
        {"wq", "attention"},    {"wk", "attention"},    {"wv", "attention"},   {"wo", "attention"},
        {"w1", "feed_forward"}, {"w2", "feed_forward"}, {"w3", "feed_forward"}};
    for (const auto& [key, module] : modules) {
        if (name_in_model(param.key) == key) return fmt::format("layers.{}.{}.{}", instance, module, key);
    }
    return "";
}

ConvertedLayers converted_layers(const Program& blocks, const Float8& float8, bool packs) {
    ConvertedLayers out;
    std::vector<std::string> names;
    for (const ir::Block& block : blocks.blocks) {
        for (const Run& run : runs_of(blocks, block, float8, packs)) {
            for (int64_t i = run.first; i < run.first + run.count; ++i) {
                for (const ir::Parameter& p : blocks.params) {
                    const std::string name = p.block == block.name ? module_name(p, i) : "";
                    if (name.empty()) continue;
                    names.push_back(name);
                    const std::string module = name.substr(name.find('.', name.find('.') + 1) + 1);
                    if (run.keys.contains(p.key)) ++out.converted;
                    else if (is_filtered(name, float8)) ++out.filtered;
                    else (has_whole_blocks(p) ? out.small : out.uneven)[module].push_back(i);
                }
            }
        }
    }
    out.all = static_cast<int64_t>(names.size());
    for (const std::string& filter : float8.filter_fqns) {
        const auto holds = [&](const std::string& name) { return contains(name, filter); };
        if (filter != "output" && std::none_of(names.begin(), names.end(), holds)) out.idle_filters.push_back(filter);
    }
    return out;
}

Program convert(Program blocks, const Float8& float8, bool packs) {
    Program out = blocks;
    for (const ir::Block& block : blocks.blocks) {
        const std::vector<Run> runs = runs_of(blocks, block, float8, packs);
        mark(out, block.name, runs.front().keys);
        for (ir::Block& b : out.blocks) {
            if (b.name == block.name) b.count = runs.front().count;
        }
        for (size_t i = 1; i < runs.size(); ++i) add_block(out, block.name, runs[i]);
    }
    return out;
}

std::vector<Unavailable> unavailable(const Config& config) {
    std::vector<Unavailable> out;
    for (const auto& [what, is_asked] : kAbsent) {
        if (is_asked(config)) out.push_back(what);
    }
    return out;
}

void check_converters(const Config& c) {
    if (asks_float8(c) && asks_mx(c))
        throw UserError("recipe.converters", kConverters,
                        fmt::format("{}model.converters names float8 and MX: a linear layer has one of them; leave one out",
                                    c.where(kConverters)));
    const Config::LinearFloat8& f = c.linear_float8;
    const bool is_by_rows = f.recipe_name == Float8Name::Rowwise || f.recipe_name == Float8Name::RowwiseWithGwHp;
    if (asks_float8(c) && f.enable_fsdp_float8_all_gather && is_by_rows)
        throw UserError("recipe.float8_all_gather", kGather,
                        fmt::format("{}{} = true with {} = \"{}\": forward and backward scale a weight by other rows, so that no "
                                    "one copy in float8 serves both; set it to false, or the recipe to tensorwise",
                                    c.where(kGather), kGather, kFloat8Recipe, word_of(f.recipe_name)));
    const bool has_rule = f.recipe_name != Float8Name::RowwiseWithGwHp && f.recipe_name != Float8Name::Blockwise;
    const bool is_auto = std::find(f.filter_fqns.begin(), f.filter_fqns.end(), kAutoFilter) != f.filter_fqns.end();
    if (asks_float8(c) && is_auto && !has_rule)
        throw UserError("recipe.auto_filter", kFloat8Filter,
                        fmt::format("{}{} names {}, but nothing says which products are small for {} = \"{}\": leave it out, and "
                                    "name the layers, or set the recipe to tensorwise or rowwise",
                                    c.where(kFloat8Filter), kFloat8Filter, kAutoFilter, kFloat8Recipe, word_of(f.recipe_name)));
}

std::optional<UserError> set_scales(const Config& config, Layout& l) {
    const std::optional<Float8> float8 = config.float8();
    if (!float8) return std::nullopt;
    const int64_t cp = config.parallelism.context_parallel_degree;
    l.scale_sequences = float8->scale_sequences > 0 ? float8->scale_sequences : l.local_batch;
    l.scale_context_blocks = float8->scale_context_blocks > 0 ? float8->scale_context_blocks : cp;
    const auto no = [&](const char* key, int64_t value, const std::string& why) {
        return UserError("recipe.divides", key, fmt::format("{}{} = {} {}", config.where(key), key, value, why));
    };
    if (l.local_batch % l.scale_sequences != 0)
        return no("quantize.scale_sequences", l.scale_sequences,
                  fmt::format("does not divide the {} sequences of a microbatch on a data rank: choose a divisor, or 0 for all "
                              "of them",
                              l.local_batch));
    // A block is on one rank, where sequence parallelism divides tokens, too, and one piece of the sequence in head-tail order. Of
    // one block, and of one for each context rank, the largest elements are found over the ranks that share it.
    const int64_t n = l.scale_context_blocks, tp = l.sequence_parallel ? config.parallelism.tensor_parallel_degree : 1,
                  whole = std::lcm(cp * tp, l.head_tail > 1 ? 2 * l.head_tail : 1);
    const std::string allowed = whole == 1 ? "choose a number"
                                : cp == 1  ? fmt::format("choose 1, or a multiple of {}", whole)
                                           : fmt::format("choose 1, {}, or a multiple of {}", cp, whole);
    const char* const blocks = "quantize.scale_context_blocks";
    std::vector<std::string> dividers;
    if (cp > 1) dividers.push_back(fmt::format("{} context ranks", cp));
    if (tp > 1) dividers.push_back(fmt::format("{} tensor-parallel {} with sequence parallelism", tp, cp > 1 ? "ones" : "ranks"));
    if (l.head_tail > 1) dividers.emplace_back("head-tail order");
    if (n != 1 && n != cp && n % whole != 0)
        return no(blocks, n,
                  fmt::format("would divide a block between ranks, or join two pieces of a sequence ({}): {}",
                              fmt::join(dividers, ", "), allowed));
    if (l.seq_len % n != 0)
        return no(blocks, n, fmt::format("does not divide training.seq_len = {}: {} that divides it", l.seq_len, allowed));
    return std::nullopt;
}

std::optional<UserError> cuts_blocks(const Program& blocks, const Config& config, const Layout& l) {
    const std::optional<Float8> float8 = config.float8();
    const int64_t block = float8 ? passes::block_of(float8->recipe) : 0;
    const auto converts = [](const ir::Parameter& p) { return p.converted; };
    if (block == 0 || std::none_of(blocks.params.begin(), blocks.params.end(), converts)) return std::nullopt;
    const int64_t tp = config.parallelism.tensor_parallel_degree,
                  cut = config.parallelism.context_parallel_degree * (l.sequence_parallel ? tp : 1),
                  pieces = std::lcm(cut, l.head_tail > 1 ? 2 * l.head_tail : 1);
    const char* const tokens = "training.seq_len";
    if (l.seq_len % (block * pieces) != 0)
        return UserError(
            "recipe.divides", tokens,
            fmt::format("{}{} = {}{}: {} tokens next to each other share a scale; choose a multiple of {}", config.where(tokens),
                        tokens, l.seq_len, pieces > 1 ? fmt::format(" in {} pieces", pieces) : "", block, block * pieces));
    std::map<std::string, std::vector<std::string>> uneven;  // layers by the size that has no whole blocks
    std::vector<std::string> filters = asks_mx(config) ? config.linear_mx.filter_fqns : config.linear_float8.filter_fqns;
    const auto add = [](std::vector<std::string>& list, std::string_view key) {
        if (std::find(list.begin(), list.end(), key) == list.end()) list.emplace_back(key);
    };
    for (const ir::Parameter& p : blocks.params) {
        if (!p.converted) continue;
        for (const ir::Dim& d : {p.dims[*ir::rows_of_matrix(p) - 1], p.dims.back()}) {
            const int64_t ranks = d.role == ir::DimRole::Ffn ? tp : 1;
            if (d.size % (block * ranks) == 0) continue;
            const std::string over = ranks > 1 ? fmt::format(" on {} tensor-parallel ranks", ranks) : "";
            add(uneven[fmt::format("{} = {}{}", d.name, d.size, over)], name_in_model(p.key));
            add(filters, name_in_model(p.key));
        }
    }
    if (uneven.empty()) return std::nullopt;
    std::string list;
    for (const auto& [size, layers] : uneven) list += fmt::format("\n  {}: {}", size, fmt::join(layers, ", "));
    return UserError(
        "recipe.divides", kConverters,
        fmt::format("{}{}: {} neighbours share a scale, and these sizes of linear layers are no multiples of {} on a "
                    "rank:{}\nChange the sizes, leave the layers out ({} = {}), or {}",
                    config.where(kConverters), kConverters, block, block, list, asks_mx(config) ? kMxFilter : kFloat8Filter,
                    text_of(Value(filters)),
                    asks_mx(config) ? "take the converter float8, whose recipes tensorwise and rowwise have no blocks"
                                    : "choose the recipe tensorwise or rowwise"));
}

std::string_view rule_of_small(Float8::Recipe recipe) {
    if (recipe == Float8::Recipe::Tensorwise) return "n <= 1024 and k <= 4096";
    return "n <= 2048, k <= 1024, or n <= 4096 and k <= 2048";
}

bool has_token_groups(Float8::Recipe recipe) { return recipe == Float8::Recipe::Tensorwise || recipe == Float8::Recipe::Rowwise; }

bool has_converter(const Config& c, std::string_view key) {
    if (key.starts_with("quantize.linear.float8.")) return asks_float8(c);
    if (key.starts_with("quantize.linear.mx.")) return asks_mx(c);
    return !key.starts_with("quantize.") || asks_float8(c) || asks_mx(c);
}

}  // namespace lockstep::compile
