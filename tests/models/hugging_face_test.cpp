// Shapes here and configs of transformers, without any file.
#include "models/hugging_face_config.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::models {
namespace {

HuggingFaceModel llama() {
    HuggingFaceModel m{"llama3", {}, 64};
    for (const ModelKey& k : llama3().keys) m.shape[k.name] = k.default_value;
    return m;
}

TEST(HuggingFace, AShapeComesBackFromItsConfig) {
    HuggingFaceModel m = llama();
    m.shape["n_kv_heads"] = int64_t{4};
    m.shape["qk_norm"] = m.shape["tie_embeddings"] = int64_t{1};
    m.shape["rope_theta"] = 1234.5;
    const HuggingFaceModel back = from_hugging_face(to_hugging_face(m), "test");
    EXPECT_EQ(back.name, "llama3");
    EXPECT_EQ(back.context, 64);
    for (const char* key :
         {"dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "norm_eps", "qk_norm", "tie_embeddings", "rope_theta",
          "rope_scaling_factor", "rope_low_freq_factor", "rope_high_freq_factor", "rope_original_positions"})
        EXPECT_EQ(back.shape.at(key), m.shape.at(key)) << key;
    EXPECT_EQ(to_hugging_face(back), to_hugging_face(m));  // widths left to be worked out are written out
}

TEST(HuggingFace, HeadsAreOneDimOfAStoredTensor) {
    const HuggingFaceModel m = llama();
    const std::vector<StoredTensor> tensors = stored_tensors(m);
    EXPECT_EQ(tensors.size(), 1u + 6 * 9 + 2);
    for (const StoredTensor& t : tensors) {
        if (t.name != "model.layers.5.self_attn.o_proj.weight") continue;
        EXPECT_EQ(t.shape, (std::vector<int64_t>{256, 256}));
        EXPECT_EQ(t.parts[0].shape, (std::vector<int64_t>{256, 16, 1, 16}));
        return;
    }
    FAIL() << "no o_proj in the last layer";
}

TEST(HuggingFace, TwoArchitecturesInOneCannotBeExported) {
    HuggingFaceModel m = llama();
    m.shape["qk_norm"] = m.shape["qkv_bias"] = int64_t{1};
    try {
        to_hugging_face(m);
        FAIL();
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "convert.no_architecture");
        EXPECT_NE(std::string(e.what()).find("none has two of them: such a model cannot be exported"), std::string::npos);
    }
}

}  // namespace
}  // namespace lockstep::models
