// Which linear layers model.converters converts to 8 bits, by torchtitan's names of modules and its rules (torchtitan v0.2.2,
// torchao 0.18): `layers.{i}.attention.wq|wk|wv|wo` and `layers.{i}.feed_forward.w1|w2|w3`, for every model here. GPT-2's keys
// have no w3; its q, k and v are three modules. Embedding, output, norms, biases and attention stay as they are.
//
// A layer stays as it is, too, where a filter is part of its name, where a side of its matrix is no multiple of 16, or, with
// the filter auto_filter_small_kn, where its product is too small. That is judged on the product that runs: of q, k and v, or
// of gate and up, which pack_products makes one, so that n is the sum of their results. What passes read is
// Parameter::converted.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "compile/config.h"
#include "compile/layout.h"
#include "ir/program.h"

namespace lockstep::compile {

// "layers.3.attention.wq"; empty: the parameter is no weight of a linear layer that may be converted.
std::string module_name(const ir::Parameter& param, int64_t instance);
// A block or a key as the model has it: without the number that convert() adds, "layer" of "layer_3".
std::string_view name_in_model(std::string_view name);

// Marks the parameters that convert. `blocks`: the model's forward routines, before any pass. `packs`:
// training.pack_products. All instances of a block are one routine, so a block whose instances differ becomes several, each of
// consecutive instances. The first keeps the name and the keys of its parameters. To those of another one the number of its
// first instance is added: block `layer_3`, parameter `wq_3`. Names of saved tensors stay.
ir::Program convert(ir::Program blocks, const Float8& float8, bool packs);

// How many linear layers convert, which filters are part of no layer's name, and which layers stay though no filter names them.
struct ConvertedLayers {
    using Modules = std::map<std::string, std::vector<int64_t>>;  // numbers of layers by module, "attention.wq"
    int64_t converted = 0, all = 0, filtered = 0;
    std::vector<std::string> idle_filters;
    Modules uneven, small;  // with a side that is no multiple of 16; too small, as auto_filter_small_kn judges
};
ConvertedLayers converted_layers(const ir::Program& blocks, const Float8& float8, bool packs);

// What model.converters and [quantize] ask for and this version does not have, with the key that asks for it.
struct Unavailable {
    const char *key, *technique;
};
std::vector<Unavailable> unavailable(const Config& config);

// Refuses converters that contradict each other or their keys. Throws UserError.
void check_converters(const Config& config);
// Which tokens share a scale: they are on one data rank, those of a part of a sequence on one context rank. The refusal is
// recipe.divides.
std::optional<UserError> set_scales(const Config& config, Layout& layout);
// Blocks of elements that share a scale are whole on a rank, and no layout changes which tokens are in one. The refusal is
// recipe.divides. `blocks`: the model's, converted.
std::optional<UserError> cuts_blocks(const ir::Program& blocks, const Config& config, const Layout& layout);
// What auto_filter_small_kn calls small: "n <= 1024 and k <= 4096".
std::string_view rule_of_small(Float8::Recipe recipe);
// Does a scale of this recipe depend on which tokens make a group (quantize.scale_*)?
bool has_token_groups(Float8::Recipe recipe);
// False: a key of [quantize] that does nothing, as model.converters does not name its family.
bool has_converter(const Config& config, std::string_view key);

}  // namespace lockstep::compile
