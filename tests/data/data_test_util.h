// Shared by the tests of data/: a folder of its own for each test, the check of an error's id and text,
// random texts, and a corpus in memory.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/corpus.h"

namespace lockstep::data::testing {

namespace fs = std::filesystem;

class TempFolder {
public:
    TempFolder() {
        std::string pattern = (fs::temp_directory_path() / "lockstep_data_XXXXXX").string();
        path_ = mkdtemp(pattern.data());
    }
    ~TempFolder() {
        std::error_code ignored;
        fs::remove_all(path_, ignored);
    }
    fs::path operator/(const std::string& name) const { return path_ / name; }
    const fs::path& path() const { return path_; }

    // Writes a file, with its folders, and returns its path.
    fs::path write(const std::string& name, const std::string& bytes) const {
        const fs::path file = path_ / name;
        fs::create_directories(file.parent_path());
        std::ofstream(file, std::ios::binary) << bytes;
        return file;
    }

private:
    fs::path path_;
};

inline std::string read_file(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

inline void flip_byte(const fs::path& file, size_t offset) {
    std::string bytes = read_file(file);
    bytes.at(offset) ^= 0x10;
    std::ofstream(file, std::ios::binary) << bytes;
}

// Expects a UserError with this id, whose message holds `text`.
template <typename Function>
void expect_user_error(Function function, const std::string& id, const std::string& text) {
    try {
        function();
        ADD_FAILURE() << "no error, expected " << id;
    } catch (const UserError& error) {
        EXPECT_EQ(error.id(), id) << error.what();
        EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << "the message is: " << error.what();
    }
}

inline std::string random_bytes(std::mt19937_64& random, size_t length) {
    std::string bytes(length, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    return bytes;
}

// Text of letters, digits, spaces, marks and characters of one to four bytes.
inline std::string random_text(std::mt19937_64& random, size_t characters) {
    static const char* const kCharacters[] = {"a",    "b",  "e",  "t",  "th", "ing",    " ",      "  ",  "\n",
                                              "\r\n", "\t", "7",  "42", ".",  "(",      "'s",     "'LL", "é",
                                              "ß",    "ж",  "中", "文", "१",  "\u00a0", "\u2003", "😀",   "e\u0301"};
    std::string text;
    for (size_t i = 0; i < characters; ++i) text += kCharacters[random() % std::size(kCharacters)];
    return text;
}

// Words of a small invented language: enough repetition to learn merges from.
inline std::string sample_prose(uint64_t seed, size_t words) {
    static const char* const kWords[] = {"the",      "step",  "rank", "gradient", "of",     "a",
                                         "pipeline", "stage", "loss", "token",    "weight", "and"};
    std::mt19937_64 random(seed);
    std::string text;
    for (size_t i = 0; i < words; ++i) {
        text += kWords[random() % std::size(kWords)];
        text += random() % 9 == 0 ? ".\n" : " ";
    }
    return text;
}

// Texts in memory, each a file of one document.
class TextCorpus : public Corpus {
public:
    explicit TextCorpus(std::vector<std::string> texts) : texts_(std::move(texts)) {}
    int64_t files() const override { return static_cast<int64_t>(texts_.size()); }
    int64_t file_bytes(int64_t file) const override { return static_cast<int64_t>(texts_[file].size()); }
    void visit(int64_t file, const Use& use) const override {
        Document document;
        document.text = texts_[file];
        document.file_bytes_done = file_bytes(file);
        use(document);
    }

private:
    std::vector<std::string> texts_;
};

}  // namespace lockstep::data::testing
