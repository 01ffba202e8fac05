#include "data/known_datasets.h"

#include <algorithm>
#include <array>

namespace lockstep::data {
namespace {

constexpr const char* kMds = "a data set of mosaicml-streaming (MDS)";
constexpr const char* kMdsRemedy =
    "Write its texts as JSON Lines with its own package: for s in streaming.LocalDataset(\"{}\"): "
    "print(json.dumps({{\"text\": s[\"text\"]}}))";
constexpr const char* kLitdata = "a data set of litdata";
constexpr const char* kLitdataRemedy =
    "Write its token ids as .npy with its own package: numpy.save(\"ids.npy\", numpy.concatenate([numpy.asarray(x) for x in "
    "litdata.StreamingDataset(\"{}\")]))";
constexpr const char* kSaved = "a data set that Hugging Face datasets wrote with save_to_disk";
constexpr const char* kSavedRemedy =
    "Write it as Parquet: datasets.load_from_disk(\"{}\").to_parquet(\"data.parquet\"), of several splits "
    "load_from_disk(..)[\"train\"]";
constexpr const char* kTfds = "a data set of TensorFlow Datasets";
constexpr const char* kTfdsRemedy =
    "Write its texts as JSON Lines with its own package: for s in tensorflow_datasets.as_numpy("
    "tensorflow_datasets.builder_from_directory(\"{}\").as_dataset(split=\"train\")): "
    "print(json.dumps({{\"text\": s[\"text\"].decode()}}))";
constexpr const char* kDatatrove = "token ids of datatrove, without a header";
constexpr const char* kDatatroveRemedy =
    "Copy the .ds file to a .bin, and say the width of its ids with --id-bytes: 2 for a vocabulary of up to 65536 tokens, "
    "else 4";

struct Describing {
    std::string_view name;
    std::array<std::string_view, 2> keys;  // which the file must have
    KnownDataset dataset;
};
constexpr Describing kDescribing[] = {
    {"index.json", {"\"shards\"", "\"format\""}, {kMds, kMdsRemedy, true}},
    {"index.json", {"\"shards\"", "\"version\""}, {kMds, kMdsRemedy, true}},  // without shards
    {"index.json", {"\"chunks\"", "\"config\""}, {kLitdata, kLitdataRemedy, true}},
    {"index.json", {"\"chunks\"", "\"filename\""}, {kLitdata, kLitdataRemedy, true}},
    {"state.json", {"\"_data_files\"", ""}, {kSaved, kSavedRemedy, true}},
    {"state.json", {"\"_fingerprint\"", ""}, {kSaved, kSavedRemedy, true}},
    {"dataset_dict.json", {"\"splits\"", ""}, {kSaved, kSavedRemedy, true}},
    {"dataset_info.json",
     {"\"features\"", ""},
     {"what Hugging Face datasets says of a data set", "Name the files of the data set", false}},
    {"dataset_info.json",
     {"\"builder_name\"", ""},
     {"what Hugging Face datasets says of a data set", "Name the files of the data set", false}},
    {"dataset_info.json", {"\"splits\"", "\"name\""}, {kTfds, kTfdsRemedy, true}},
    {"features.json", {"\"content\"", "\"type\""}, {kTfds, kTfdsRemedy, false}},
    {"features.json", {"pythonClassName", ""}, {kTfds, kTfdsRemedy, false}},
    {"sizes.json", {".tar\"", ""}, {"what WebDataset says of its shards", "Unpack its shards with tar -xf", false}},
    {"dataset_infos.json",
     {"\"features\"", ""},
     {"what Hugging Face datasets says of a data set", "Name the files of the data set", false}},
};

struct Holding {
    std::string_view suffix;
    KnownDataset dataset;
};
constexpr Holding kHolding[] = {
    {".mds", {"a shard of mosaicml-streaming (MDS)", "Name its folder to hear how its texts become JSON Lines", false}},
    {".ds", {kDatatrove, kDatatroveRemedy, false}},
    {".ds.index", {"an index of datatrove", kDatatroveRemedy, false}},
    {".ds.loss", {"a mask of datatrove", kDatatroveRemedy, false}},
    {".ds.metadata", {"what datatrove says of token ids", kDatatroveRemedy, false}},
};

bool has_part(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace

std::optional<KnownDataset> known_dataset(std::string_view name, std::string_view head) {
    for (const Describing& d : kDescribing) {
        const bool has_keys =
            std::all_of(d.keys.begin(), d.keys.end(), [&](std::string_view key) { return has_part(head, key); });
        if (name == d.name && has_keys) return d.dataset;
    }
    for (const std::string_view packed : {"", ".zst", ".zstd", ".gz"}) {
        if (!name.ends_with(packed)) continue;
        for (const Holding& h : kHolding)
            if (name.substr(0, name.size() - packed.size()).ends_with(h.suffix)) return h.dataset;
    }
    return std::nullopt;
}

}  // namespace lockstep::data
