// Finds added tokens in text, as Hugging Face's tokenizers do: leftmost, then longest. Special tokens are not found: a text
// that spells one stays text. But like there, they hide another token that begins inside of them.
// Immutable: one AddedTokens may serve many threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::data {

struct AddedToken {
    int32_t id = 0;
    std::string text;
    bool special = false;
    bool normalized = false;     // searched in normalized text, else in the text as it comes
    bool single_word = false;    // only where no letter, digit or mark is next to it
    bool lstrip = false;         // takes the white space before it
    bool rstrip = false;         // takes the white space behind it
    bool in_vocabulary = false;  // merges may make it, too
};

class AddedTokens {
public:
    // `text` is what is searched: the token's own, or what the normalizer makes of it. An empty one is never found.
    void add(const AddedToken& token, const std::string& text);
    // No token can be found.
    bool empty() const { return !any_; }

    struct Found {
        size_t begin, end;  // of the text that the token takes
        int32_t id;
        size_t searched;  // where the search goes on
    };
    // The first token in text[from, size). What lies before `taken` belongs to another token. Nothing found: begin is
    // text.size().
    Found find(std::string_view text, size_t from, size_t taken) const;

private:
    struct Node {
        std::vector<std::pair<uint8_t, uint32_t>> next;  // few each
        int32_t token = -1;                              // in tokens_
    };
    uint32_t child(uint32_t node, uint8_t byte) const;
    int32_t longest_at(std::string_view text, size_t at) const;

    std::vector<Node> nodes_{1};  // a trie; [0] is its root
    std::vector<AddedToken> tokens_;
    std::vector<size_t> lengths_;
    std::string first_bytes_;
    bool any_ = false;
};

}  // namespace lockstep::data
