// Data sets of other programs that are known and not read: the files that describe them are no text, and the files that hold
// them are of other formats. What is said of each is what to do with it.
#pragma once

#include <optional>
#include <string_view>

namespace lockstep::data {

struct KnownDataset {
    const char* what;    // "shards of mosaicml-streaming (MDS)"
    const char* remedy;  // "{}" stands for the path
    bool is_of_folder;   // this file says what its folder is
};

// `name` without the folder, `head` the file's first bytes. Nothing for a file of no such data set.
std::optional<KnownDataset> known_dataset(std::string_view name, std::string_view head);

// The names of files that say what their folder is.
inline constexpr const char* kDescribingFiles[] = {"index.json", "state.json", "dataset_dict.json", "dataset_info.json"};

}  // namespace lockstep::data
