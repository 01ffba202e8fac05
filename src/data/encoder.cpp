#include "data/encoder.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace lockstep::data {
namespace {

constexpr size_t kCacheSlots = size_t{1} << 15;  // 2 MiB: fits a core's second-level cache on servers
// Longer pieces go through a heap: the scan of a short array is simple and quick, but quadratic. Words are below this.
constexpr size_t kShortPieceSymbols = 48;
constexpr size_t kCachedPartBytes = size_t{1} << 16;  // a normalized part stays in the cache
constexpr size_t kDrainTokens = size_t{1} << 16;
constexpr size_t kWindowBytes = size_t{1} << 20;  // of a word without end, merged at a time

// Calls between(text, whether it is the first) for what is between added tokens, and token(id) for them.
template <class Between, class Token>
void for_each_added(const AddedTokens& added, std::string_view text, const Between& between, const Token& token) {
    if (added.empty()) return between(text, true);
    size_t taken = 0;
    for (size_t from = 0;;) {
        const AddedTokens::Found found = added.find(text, from, taken);
        if (found.begin > taken) between(text.substr(taken, found.begin - taken), taken == 0);
        if (found.id < 0) return;
        token(found.id);
        taken = std::max(taken, found.end);
        from = found.searched;
    }
}

}  // namespace

Encoder::Encoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer), pre_tokenizer_(tokenizer.parts_.pre_tokenizer) {
    static_assert(sizeof(CachedPiece) == 64);
}

void Encoder::encode(std::string_view text, std::vector<int32_t>& tokens) {
    for (size_t begin = 0; begin < text.size();) {
        const size_t end = tokenizer_.part_end(text, begin, kCachedPartBytes);
        encode_part(text.substr(begin, end - begin), begin == 0, tokens);
        begin = end;
    }
}

void Encoder::encode_part(std::string_view part, bool first, std::vector<int32_t>& tokens) {
    for_each_added(
        tokenizer_.raw_added_, part,
        [&](std::string_view text, bool is_first) {
            append_segment(text, {first && is_first, !first && is_first}, tokens);
        },
        [&](int32_t id) { tokens.push_back(id); });
}

void Encoder::encode_long_part(std::string_view part, bool first, Drain drain) {
    std::vector<int32_t> tokens;
    drain_ = drain;
    try {
        encode_part(part, first, tokens);
    } catch (...) {
        drain_.reset();
        throw;
    }
    drain_.reset();
    if (!tokens.empty()) drain(tokens);
}

void Encoder::drain_full(std::vector<int32_t>& tokens) {
    if (!drain_ || tokens.size() < kDrainTokens) return;
    (*drain_)(tokens);
    tokens.clear();
}

void Encoder::append_segment(std::string_view text, Before before, std::vector<int32_t>& tokens) {
    text = tokenizer_.normalizer_.apply(text, before.continues, normalized_);
    for_each_added(
        tokenizer_.normalized_added_, text,
        [&](std::string_view between, bool is_first) {
            append_pieces(between, {before.nothing && is_first, before.continues && is_first}, tokens);
        },
        [&](int32_t id) { tokens.push_back(id); });
}

void Encoder::append_pieces(std::string_view text, Before before, std::vector<int32_t>& tokens) {
    if (tokenizer_.word_mark_.empty())
        pre_tokenizer_.run(text, before, [&](std::string_view piece) { append_piece(piece, tokens); });
    else pre_tokenizer_.run(text, before, [&](std::string_view piece) { append_words(piece, tokens); });
}

// A word begins with a mark that does not follow another mark; no merge reaches across its beginning.
void Encoder::append_words(std::string_view piece, std::vector<int32_t>& tokens) {
    const std::string_view mark = tokenizer_.word_mark_;
    for (size_t begin = 0; begin < piece.size();) {
        size_t inside = begin;
        while (piece.substr(inside).starts_with(mark)) inside += mark.size();
        const size_t end = std::min(piece.find(mark, inside), piece.size());
        append_piece(piece.substr(begin, end - begin), tokens);
        begin = end;
    }
}

void Encoder::append_piece(std::string_view piece, std::vector<int32_t>& tokens) {
    drain_full(tokens);
    if (piece.size() == 1 && tokenizer_.parts_.byte_level && tokenizer_.byte_ids_[static_cast<uint8_t>(piece[0])] >= 0) {
        tokens.push_back(tokenizer_.byte_ids_[static_cast<uint8_t>(piece[0])]);
        return;
    }
    if (piece.size() > sizeof(CachedPiece::piece) || tokenizer_.pairs_.empty()) return merge_piece(piece, tokens);
    if (cache_.empty()) cache_.resize(kCacheSlots);
    CachedPiece& slot = cache_[XXH3_64bits(piece.data(), piece.size()) % kCacheSlots];
    if (std::string_view(slot.piece, slot.piece_bytes) == piece) {
        tokens.insert(tokens.end(), slot.ids, slot.ids + slot.tokens);
        return;
    }
    const size_t before = tokens.size();
    merge_piece(piece, tokens);
    const size_t made = tokens.size() - before;
    if (made > std::size(slot.ids)) return;
    slot.piece_bytes = static_cast<uint8_t>(piece.size());
    slot.tokens = static_cast<uint8_t>(made);
    std::memcpy(slot.piece, piece.data(), piece.size());
    std::copy(tokens.begin() + before, tokens.end(), slot.ids);
}

void Encoder::merge_piece(std::string_view piece, std::vector<int32_t>& tokens) {
    if (tokenizer_.parts_.whole_pieces_first && piece.size() <= tokenizer_.longest_token_bytes_) {
        const auto found = tokenizer_.whole_pieces_.find(std::string(piece));
        if (found != tokenizer_.whole_pieces_.end()) {
            tokens.push_back(found->second);
            return;
        }
    }
    if (piece.size() > 2 * kWindowBytes) {
        if (const std::optional<size_t> reach = tokenizer_.merge_reach_) return merge_in_windows(piece, *reach, tokens);
    }
    find_symbols(piece);
    merge_symbols(tokens);
}

void Encoder::merge_symbols(std::vector<int32_t>& tokens) {
    if (tokenizer_.pairs_.empty()) {
        tokens.insert(tokens.end(), symbols_.begin(), symbols_.end());
    } else if (symbols_.size() <= kShortPieceSymbols) {
        merge_short(tokens);
    } else {
        merge_long(tokens);
    }
}

// Merges a window of a long word, keeps the tokens that no text behind the window can change, and goes on behind the last of
// them: what is between two tokens of a word is merged as if it were by itself.
void Encoder::merge_in_windows(std::string_view piece, size_t reach, std::vector<int32_t>& tokens) {
    std::vector<int32_t> made;
    for (size_t begin = 0, window = std::max(kWindowBytes, 2 * reach); begin < piece.size();) {
        std::string_view shown = piece.substr(begin, window);
        const bool is_last = shown.size() == piece.size() - begin;
        if (!is_last && !tokenizer_.parts_.byte_level) {  // no character is cut
            while (!shown.empty() && (static_cast<uint8_t>(piece[begin + shown.size()]) & 0xC0) == 0x80) shown.remove_suffix(1);
        }
        made.clear();
        find_symbols(shown);
        merge_symbols(made);
        if (is_last) return static_cast<void>(tokens.insert(tokens.end(), made.begin(), made.end()));
        size_t bytes = 0;
        const size_t settled = settled_tokens(made, shown.size() > reach ? shown.size() - reach : 0, bytes);
        tokens.insert(tokens.end(), made.begin(), made.begin() + static_cast<std::ptrdiff_t>(settled));
        drain_full(tokens);
        begin += bytes;
        if (settled == 0) window *= 2;  // one unknown token of many characters
    }
}

// How many of a window's tokens lie before `settled_bytes`, and how many bytes they stand for. An unknown token that may go on
// is not one of them.
size_t Encoder::settled_tokens(std::span<const int32_t> tokens, size_t settled_bytes, size_t& bytes) const {
    const TokenizerParts& parts = tokenizer_.parts_;
    size_t settled = 0, unknown = 0;
    for (size_t at = 0, i = 0; i < tokens.size(); ++i) {
        const bool is_unknown = tokens[i] == parts.unknown;
        at += is_unknown ? unknown_bytes_[unknown++] : tokenizer_.symbol_bytes(tokens[i]);
        if (at > settled_bytes) break;
        if (is_unknown && parts.fuse_unknown) continue;
        settled = i + 1;
        bytes = at;
    }
    return settled;
}

// The tokens that merging begins with: of bytes or characters, or unknown.
void Encoder::find_symbols(std::string_view piece) {
    symbols_.clear();
    unknown_bytes_.clear();
    const TokenizerParts& parts = tokenizer_.parts_;
    size_t unknown = 0;  // bytes that are not yet a symbol: more may become one with them
    const auto end_unknown = [&] {
        if (unknown == 0) return;
        symbols_.push_back(parts.unknown);
        unknown_bytes_.push_back(static_cast<uint32_t>(unknown));
        unknown = 0;
    };
    const auto add_known = [&](int32_t id) {
        end_unknown();
        symbols_.push_back(id);
    };
    const auto add_unknown = [&](size_t bytes) {
        if (!parts.fuse_unknown) end_unknown();
        if (parts.unknown >= 0) unknown += bytes;
    };
    const auto byte_id = [&](char c) { return tokenizer_.byte_ids_[static_cast<uint8_t>(c)]; };
    if (parts.byte_level) {
        for (const char c : piece) byte_id(c) >= 0 ? add_known(byte_id(c)) : add_unknown(1);
        return end_unknown();
    }
    while (!piece.empty()) {
        const Character character = first_character(piece);
        const std::string_view bytes = piece.substr(0, std::max<size_t>(1, character.bytes));
        piece.remove_prefix(bytes.size());
        const auto found =
            character.bytes == 0 ? tokenizer_.character_ids_.end() : tokenizer_.character_ids_.find(character.code_point);
        if (found != tokenizer_.character_ids_.end()) {
            add_known(found->second);
        } else if (std::all_of(bytes.begin(), bytes.end(), [&](char c) { return byte_id(c) >= 0; })) {
            for (const char c : bytes) symbols_.push_back(byte_id(c));
        } else {
            add_unknown(bytes.size());
        }
    }
    end_unknown();
}

// Scans for the lowest rank again after every merge; merges_[i] is the merge of symbols i and i + 1.
void Encoder::merge_short(std::vector<int32_t>& tokens) {
    const PairTable& pairs = tokenizer_.pairs_;
    size_t count = symbols_.size();
    merges_.resize(count);
    for (size_t i = 0; i + 1 < count; ++i) merges_[i] = pairs.find(symbols_[i], symbols_[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; ++i)
            if (merges_[i].rank < merges_[best].rank) best = i;
        if (merges_[best].rank == PairTable::kNoRank) break;
        symbols_[best] = merges_[best].result;
        std::copy(symbols_.begin() + best + 2, symbols_.begin() + count, symbols_.begin() + best + 1);
        std::copy(merges_.begin() + best + 2, merges_.begin() + count, merges_.begin() + best + 1);
        --count;
        if (best > 0) merges_[best - 1] = pairs.find(symbols_[best - 1], symbols_[best]);
        if (best + 1 < count) merges_[best] = pairs.find(symbols_[best], symbols_[best + 1]);
    }
    tokens.insert(tokens.end(), symbols_.begin(), symbols_.begin() + count);
}

void Encoder::push_candidate(int32_t left_at, int32_t right_at) {
    const PairMerge merge = tokenizer_.pairs_.find(symbols_[left_at], symbols_[right_at]);
    if (merge.rank == PairTable::kNoRank) return;
    heap_.push_back({merge.rank, left_at, symbols_[left_at], symbols_[right_at], merge.result});
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

// A heap of candidate merges over a linked list: n log n for pieces of any length. Candidates whose symbols have changed since
// are dropped when they come up. A symbol that was merged into its left neighbour is -1.
void Encoder::merge_long(std::vector<int32_t>& tokens) {
    const auto count = static_cast<int32_t>(symbols_.size());
    previous_.resize(count);
    next_.resize(count);
    heap_.clear();
    for (int32_t i = 0; i < count; ++i) {
        previous_[i] = i - 1;
        next_[i] = i + 1 < count ? i + 1 : -1;
    }
    for (int32_t i = 0; i + 1 < count; ++i) push_candidate(i, i + 1);
    while (!heap_.empty()) {
        std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
        const Candidate best = heap_.back();
        heap_.pop_back();
        const int32_t right = next_[best.at];
        if (symbols_[best.at] != best.left || right < 0 || symbols_[right] != best.right) continue;
        symbols_[best.at] = best.result;
        symbols_[right] = -1;
        next_[best.at] = next_[right];
        if (next_[right] >= 0) previous_[next_[right]] = best.at;
        if (previous_[best.at] >= 0) push_candidate(previous_[best.at], best.at);
        if (next_[best.at] >= 0) push_candidate(best.at, next_[best.at]);
    }
    for (int32_t i = 0; i >= 0; i = next_[i]) tokens.push_back(symbols_[i]);
}

}  // namespace lockstep::data
