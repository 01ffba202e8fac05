// Several prepared folders that one run reads: their tokens mean the same.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/prepared_data.h"

namespace lockstep::data {

struct DataSet {
    std::string name;  // the last part of the folder's path; the whole path where another folder has the same last part
    PreparedData prepared;
};

// In the order of `folders`. Errors: data.repeated (a folder is named twice), data.other_tokenizer (two have not the same
// vocabulary, separator and tokenizer; a folder without a tokenizer is believed), and those of PreparedData::open.
std::vector<DataSet> open_data_sets(const std::vector<std::string>& folders);

// data.other_tokenizer, as above.
void require_same_tokenizer(const PreparedData& a, const PreparedData& b);

// Do two tokenizer.json say the same, perhaps written in another way? False where one of them cannot be read.
bool is_same_tokenizer(const std::filesystem::path& a, const std::filesystem::path& b);

}  // namespace lockstep::data
