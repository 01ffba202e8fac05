// The tokenizer: split, merges against a plain reference, inverse on any bytes, Hugging Face's file.
#include "data/tokenizer.h"

#include <algorithm>
#include <array>

#include "data/bpe_trainer.h"
#include "data/byte_alphabet.h"
#include "data/encoder.h"
#include "data_test_util.h"

namespace lockstep::data {
namespace {

using testing::expect_user_error;
using testing::random_bytes;
using testing::random_text;
using testing::sample_prose;
using testing::TempFolder;
using testing::TextCorpus;

std::vector<std::string> split(const PreSplitPattern& pattern, std::string_view text) {
    PreSplitter splitter(pattern);
    splitter.start(text);
    std::vector<std::string> pieces;
    for (std::string_view piece = splitter.next(); !piece.empty(); piece = splitter.next()) pieces.emplace_back(piece);
    return pieces;
}

std::vector<std::string> split(std::string_view text) { return split(PreSplitPattern{std::string(kLlama3SplitPattern)}, text); }

const Tokenizer& trained() {
    static const Tokenizer kTokenizer = [] {
        std::mt19937_64 random(7);
        return train_bpe(TextCorpus({sample_prose(1, 4000), random_text(random, 20000)}), 600);
    }();
    return kTokenizer;
}

// Merges by definition: among all applicable merges the lowest rank, leftmost, again and again.
std::vector<int32_t> encode_by_definition(const Tokenizer& tokenizer, std::string_view text) {
    const TokenizerParts& parts = tokenizer.parts();
    std::vector<int32_t> all;
    for (const std::string& piece : split(std::get<SplitStep>(parts.pre_tokenizer.front()).pattern, text)) {
        std::vector<int32_t> symbols;
        for (const char c : piece) symbols.push_back(static_cast<uint8_t>(c));
        for (size_t rank = 0; rank < parts.merges.size();) {
            const Merge& merge = parts.merges[rank];
            size_t at = 0;
            while (at + 1 < symbols.size() && (symbols[at] != merge.left || symbols[at + 1] != merge.right)) ++at;
            if (at + 1 >= symbols.size()) {
                ++rank;
                continue;
            }
            symbols[at] = merge.result;
            symbols.erase(symbols.begin() + at + 1);
            rank = 0;
        }
        all.insert(all.end(), symbols.begin(), symbols.end());
    }
    return all;
}

using Pieces = std::vector<std::string>;

TEST(DataPreSplit, CutsAsLlama3Does) {
    EXPECT_EQ(split("Hello world's 12345 cats!!\n\nYes"),
              (Pieces{"Hello", " world", "'s", " ", "123", "45", " cats", "!!\n\n", "Yes"}));
    EXPECT_EQ(split("a   b"), (Pieces{"a", "  ", " b"}));
    EXPECT_EQ(split("x \n y"), (Pieces{"x", " \n", " y"}));
    EXPECT_EQ(split("naïve 中文。"), (Pieces{"naïve", " 中文", "。"}));
    EXPECT_EQ(split("a\u180eb"), (Pieces{"a", "\u180eb"}));  // no white space since Unicode 6.3, unlike for PCRE2's \s
    EXPECT_EQ(split("a \u3000b"), (Pieces{"a", " ", "\u3000b"}));
    EXPECT_EQ(split(""), Pieces{});
}

TEST(DataPreSplit, BrokenUtf8IsSplitIntoBytes) {
    EXPECT_EQ(split("ab\xff\xfe"
                    "cd"),
              (Pieces{"ab", "\xff", "\xfe", "cd"}));
    EXPECT_EQ(split("\xe4\xb8"), (Pieces{"\xe4", "\xb8"}));              // cut off
    EXPECT_EQ(split("\xc0\x80"), (Pieces{"\xc0", "\x80"}));              // overlong
    EXPECT_EQ(split("\xed\xa0\x80"), (Pieces{"\xed", "\xa0", "\x80"}));  // surrogate
    EXPECT_EQ(valid_utf8_prefix_bytes("plain ascii, long enough\x80"), 24u);
    EXPECT_EQ(valid_utf8_prefix_bytes("\xf4\x8f\xbf\xbf"), 4u);
    EXPECT_EQ(valid_utf8_prefix_bytes("\xf4\x90\x80\x80"), 0u);
}

TEST(DataPreSplit, PiecesTileAnyBytes) {
    std::mt19937_64 random(3);
    for (int round = 0; round < 300; ++round) {
        std::string text = random_text(random, random() % 60);
        text += random_bytes(random, random() % 20);
        text += random_text(random, 5);
        std::string joined;
        for (const std::string& piece : split(text)) joined += piece;
        ASSERT_EQ(joined, text);
    }
}

TEST(DataPreSplit, TextBetweenMatchesIsAPiece) {
    EXPECT_EQ(split(PreSplitPattern("[0-9]+"), "ab12cd"), (Pieces{"ab", "12", "cd"}));
    EXPECT_EQ(split(PreSplitPattern("x*"), "abxxc"), (Pieces{"a", "b", "xx", "c"}));  // an empty match cuts, as with Oniguruma
    EXPECT_EQ(split(PreSplitPattern("(?=[A-Z])"), "aBcD"), (Pieces{"a", "Bc", "D"}));
}

TEST(DataPreSplit, ReadsExpressionsAsOnigurumaDoes) {
    EXPECT_EQ(split(PreSplitPattern(R"(\w+)"), "a_é1\u0301 ١"), (Pieces{"a_é1\u0301", " ", "١"}));  // marks are word characters
    EXPECT_EQ(split(PreSplitPattern(R"([^\w\s]+)"), "a\u0301,."), (Pieces{"a\u0301", ",."}));
    EXPECT_EQ(split(PreSplitPattern(R"(\W)"), "a\u0301,."), (Pieces{"a\u0301", ",", "."}));
    EXPECT_EQ(split(PreSplitPattern(R"(\h+)"), "xyz12 af"), (Pieces{"xyz", "12", " ", "af"}));  // hexadecimal digits
    EXPECT_EQ(split(PreSplitPattern("^a"), "b\na ab"), (Pieces{"b\n", "a", " ab"}));            // at every line
    EXPECT_EQ(split(PreSplitPattern(R"(\u4e00)"), "x一"), (Pieces{"x", "一"}));
    EXPECT_EQ(split(PreSplitPattern("[]x]+"), "a]x"), (Pieces{"a", "]x"}));
    EXPECT_EQ(split(PreSplitPattern("[[:digit:]]+"), "a12"), (Pieces{"a", "12"}));
}

// tokenizers 0.23.3 over all of Unicode: \w alone and \w in a class differ in six characters.
TEST(DataPreSplit, WordsOfLatin1AreThoseOfOniguruma) {
    const std::string six = "\u00b2\u00b3\u00b9\u00bc\u00bd\u00be";
    EXPECT_EQ(split(PreSplitPattern(R"(\w+)"), six + "\u00b4"), (Pieces{six, "\u00b4"}));
    EXPECT_EQ(split(PreSplitPattern(R"(\W+)"), six + "\u00b4\u2074"), (Pieces{six, "\u00b4\u2074"}));
    for (const char* in_class : {R"([\w])", "[[:word:]]", "[[:alnum:]]"})
        EXPECT_EQ(split(PreSplitPattern(in_class), six), Pieces{six}) << in_class;
    EXPECT_EQ(split(PreSplitPattern(R"([^\w]+)"), "a" + six), (Pieces{"a", six}));
    EXPECT_EQ(split(PreSplitPattern(R"(\bx)"), "m\u00b2x ,x"), (Pieces{"m\u00b2x ,", "x"}));
    EXPECT_EQ(split(PreSplitPattern(R"(\Bx)"), "m\u00b2x ,x"), (Pieces{"m\u00b2", "x", " ,x"}));
}

TEST(DataPreSplit, ReadsPosixClassesAsOnigurumaDoes) {
    const std::string text = "aA\u0345\u2177\u01051\u0661 \t\u00a0\u2028_-$+\u00ab\x7f";
    const auto members = [&](const std::string& name) {
        PreSplitter splitter(PreSplitPattern{"[[:" + name + ":]]"});
        splitter.start(text);
        std::string found;
        for (std::string_view piece = splitter.next(); !piece.empty(); piece = splitter.next())
            if (splitter.is_match()) found += piece;
        return found;
    };
    EXPECT_EQ(members("alpha"), "aA\u0345\u2177\u0105");
    EXPECT_EQ(members("alnum"), "aA\u0345\u2177\u01051\u0661");
    EXPECT_EQ(members("digit"), "1\u0661");
    EXPECT_EQ(members("lower"), "a\u0345\u2177\u0105");
    EXPECT_EQ(members("upper"), "A");
    EXPECT_EQ(members("space"), " \t\u00a0\u2028");
    EXPECT_EQ(members("blank"), " \t\u00a0");
    EXPECT_EQ(members("cntrl"), "\t\x7f");
    EXPECT_EQ(members("punct"), "_-$+\u00ab");  // symbols, too
    EXPECT_EQ(members("xdigit"), "aA1");
    EXPECT_EQ(members("word"), "aA\u0345\u2177\u01051\u0661_");
    EXPECT_EQ(members("^alpha"), "1\u0661 \t\u00a0\u2028_-$+\u00ab\x7f");
    for (const char* name : {"graph", "print", "^punct", "nonsense"})
        expect_user_error([&] { members(name); }, "data.split_pattern", std::string("has [:") + name + ":], which PCRE2 reads");
}

TEST(DataPreSplit, ReadsRepetitionsAndOptionsAsOnigurumaDoes) {
    EXPECT_EQ(split(PreSplitPattern("x{,2}"), "xxxxx yy"), (Pieces{"xx", "xx", "x", " ", "y", "y"}));
    EXPECT_EQ(split(PreSplitPattern("x{2,}"), "xxxxx x"), (Pieces{"xxxxx", " x"}));
    EXPECT_EQ(split(PreSplitPattern("x{,}"), "ax{,}"), (Pieces{"a", "x{,}"}));
    EXPECT_EQ(split(PreSplitPattern("(?m:a.b)"), "a\nb"), (Pieces{"a\nb"}));
    EXPECT_EQ(split(PreSplitPattern("a.b"), "a\nb"), (Pieces{"a\nb"}));
    EXPECT_EQ(split(PreSplitPattern(R"(\bb)"), "ab b e\u0301b"), (Pieces{"ab ", "b", " e\u0301b"}));
    EXPECT_EQ(split(PreSplitPattern(R"(\H)"), "ag"), (Pieces{"a", "g"}));
    EXPECT_EQ(split(PreSplitPattern(R"(\v)"), "a\n\x0b"), (Pieces{"a\n", "\x0b"}));
    EXPECT_EQ(split(PreSplitPattern(R"(\p{Han}+)"), "漢字、漢"), (Pieces{"漢字", "、", "漢"}));  // the script, not what it uses
    EXPECT_EQ(split(PreSplitPattern(R"(\p{^Han}+)"), "漢、a漢"), (Pieces{"漢", "、a", "漢"}));
    EXPECT_EQ(split(PreSplitPattern(R"([\P{Greek}]+)"), "aα\u0345"), (Pieces{"a", "α", "\u0345"}));
    for (const char* expression : {R"(\C)", R"(\Qa\E)", R"([\H])", R"(\pL)", "x{2}?"})
        expect_user_error([&] { PreSplitPattern{std::string(expression)}; }, "data.split_pattern", "PCRE2 reads in another way");
}

// The splits that are written as loops, against PCRE2 with the same expression, made unknown by a group around it.
TEST(DataPreSplit, KnownSplitsAreThoseOfTheirExpressions) {
    static const char* const kPieces[] = {" ",  "  ", "\n", "\r\n", "\t",  "\u3000", "\u00a0", "\u180e", "\u0085", "\u2028",
                                          "'s", "'S", "'ſ", "'ll",  "'LL", "'vE",    "'",      "'m",     "'re",    "a",
                                          "Z",  "é",  "ж",  "中",   "ª",   "ǅ",      "7",      "123",    "١",      "½",
                                          "ⅷ",  ".",  "?!", "_",    "😀",   "\u0301", "\u200d", "\u0903", "\x01",   "\U00020000"};
    std::mt19937_64 random(21);
    for (const std::string_view expression : {kGpt2SplitPattern, kLlama3SplitPattern, kQwen2SplitPattern}) {
        const PreSplitPattern known{std::string(expression)}, plain{"(?:" + std::string(expression) + ")"};
        ASSERT_TRUE(known.is_known());
        ASSERT_FALSE(plain.is_known());
        for (int round = 0; round < 4000; ++round) {
            std::string text;
            for (size_t n = random() % 24; n > 0; --n) {
                if (random() % 4 != 0) {
                    text += kPieces[random() % std::size(kPieces)];
                    continue;
                }
                const auto code_point = static_cast<uint32_t>(random() % (random() % 2 ? 0x3000 : 0x30000));
                if (code_point < 0xD800 || code_point > 0xDFFF) append_utf8(text, code_point);
            }
            if (random() % 8 == 0) text += random_bytes(random, 3);
            ASSERT_EQ(split(known, text), split(plain, text)) << expression << "\n" << text;
        }
    }
}

TEST(DataPreSplit, Errors) {
    expect_user_error([] { PreSplitPattern("(unclosed"); }, "data.split_pattern",
                      "split pattern '(unclosed' is not a valid expression: missing closing parenthesis");
    const auto refused = [](const char* expression, const char* text) {
        expect_user_error([&] { PreSplitPattern{std::string(expression)}; }, "data.split_pattern", text);
    };
    refused("[a-z&&[^b]]", "has && in a class of characters, which PCRE2 reads in another way");
    refused("[a[bc]]", "has a class of characters in another, which PCRE2 reads in another way");
    refused(R"([\W])", "has \\W in a class of characters");
    refused("a{1,2}+", "has a '+' behind a counted repetition");
    refused("\xff", "is not valid UTF-8");
    expect_user_error([] { split(PreSplitPattern("(?:a+)+[bc]"), std::string(2000, 'a')); }, "data.split_limit",
                      "gave up at byte 0 of a text: match limit exceeded");
}

TEST(DataTokenizer, BytesTokenizer) {
    const Tokenizer tokenizer = Tokenizer::bytes();
    EXPECT_EQ(tokenizer.vocab_size(), 257);
    EXPECT_EQ(tokenizer.separator(), 256);
    EXPECT_EQ(tokenizer.encode("a\xff"), (std::vector<int32_t>{'a', 0xff}));
    EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{'h', 'i', 256}), "hi<|end_of_text|>");
}

TEST(DataTokenizer, EncodesByDefinition) {
    std::mt19937_64 random(11);
    for (int round = 0; round < 150; ++round) {
        std::string text = random_text(random, random() % 80);
        text += sample_prose(random(), 10);
        text += random_bytes(random, 4);
        ASSERT_EQ(trained().encode(text), encode_by_definition(trained(), text)) << text;
    }
}

TEST(DataTokenizer, LongPiecesEncodeByDefinition) {  // through the heap
    std::mt19937_64 random(12);
    for (int round = 0; round < 20; ++round) {
        std::string text;
        while (text.size() < 400) text += std::array{"the", "step", "ing", "th", "e", "rank"}[random() % 6];
        ASSERT_EQ(trained().encode(text), encode_by_definition(trained(), text)) << text;
    }
    const std::string much(1 << 20, 'e');  // one piece of a mebibyte takes no quadratic time
    EXPECT_EQ(trained().decode(trained().encode(much)), much);
}

// A word of some megabytes is merged in windows. Merges that apply one after another, each from left to right, say what is right.
TEST(DataTokenizer, WordsWithoutEndEncodeByDefinition) {
    std::mt19937_64 random(14);
    const std::vector<std::string> kinds[] = {{"a", "b"}, {"th", "e", "ing", "rank", "中"}};
    for (const std::vector<std::string>& words : kinds) {
        std::string seed;
        while (seed.size() < 20000) seed += words[random() % words.size()];
        const Tokenizer tokenizer = train_bpe(TextCorpus({seed + " " + sample_prose(1, 300)}), 275);
        std::string text;
        while (text.size() < (9u << 18)) text += words[random() % words.size()];
        std::vector<int32_t> symbols;
        for (const char c : text) symbols.push_back(static_cast<uint8_t>(c));
        for (const Merge& merge : tokenizer.parts().merges) {
            size_t out = 0;
            for (size_t in = 0; in < symbols.size(); ++in, ++out) {
                const bool applies = in + 1 < symbols.size() && symbols[in] == merge.left && symbols[in + 1] == merge.right;
                symbols[out] = applies ? merge.result : symbols[in];
                in += applies ? 1 : 0;
            }
            symbols.resize(out);
        }
        std::vector<int32_t> drained;
        size_t most = 0;
        Encoder(tokenizer).encode_long_part(text, true, [&](std::span<const int32_t> tokens) {
            most = std::max(most, tokens.size());
            drained.insert(drained.end(), tokens.begin(), tokens.end());
        });
        EXPECT_TRUE(drained == symbols) << words.front();
        EXPECT_LT(most, size_t{2} << 20);
    }
}

TEST(DataTokenizer, DecodeInvertsEncodeOnAnyBytes) {
    std::mt19937_64 random(13);
    Encoder encoder(trained());
    for (int round = 0; round < 300; ++round) {
        const std::string text = round % 2 ? random_bytes(random, random() % 200) : random_text(random, random() % 200);
        std::vector<int32_t> tokens{trained().separator()};
        encoder.encode(text, tokens);  // appends
        ASSERT_EQ(tokens[0], trained().separator());
        tokens.erase(tokens.begin());
        ASSERT_EQ(trained().decode(tokens), text);
        ASSERT_EQ(trained().encode(text), tokens) << "a kept encoder's cache changed the result";
        ASSERT_EQ(Tokenizer::bytes().decode(Tokenizer::bytes().encode(text)), text);
    }
}

TEST(DataTokenizer, TextCannotForgeTheSeparator) {
    const std::vector<int32_t> tokens = trained().encode("end <|end_of_text|> of");
    EXPECT_EQ(std::count(tokens.begin(), tokens.end(), trained().separator()), 0);
    EXPECT_EQ(trained().decode(tokens), "end <|end_of_text|> of");
}

TEST(DataTokenizer, DecodeRefusesUnknownTokens) {
    expect_user_error([] { Tokenizer::bytes().decode(std::vector<int32_t>{257}); }, "data.token_out_of_range",
                      "token 257 is outside the tokenizer's vocabulary of 257");
    expect_user_error([] { Tokenizer::bytes().decode(std::vector<int32_t>{-1}); }, "data.token_out_of_range",
                      "token -1 is outside");
}

TEST(DataTokenizer, WholePiecesFirstSkipsMerges) {
    TokenizerParts parts = Tokenizer::bytes().parts();
    parts.tokens.push_back("abc");  // a token no merge leads to
    EXPECT_EQ(Tokenizer(parts).encode("abc"), (std::vector<int32_t>{'a', 'b', 'c'}));
    parts.whole_pieces_first = true;
    EXPECT_EQ(Tokenizer(parts).encode("abc abcd"), (std::vector<int32_t>{257, ' ', 'a', 'b', 'c', 'd'}));
}

TEST(DataByteAlphabet, IsGpt2s) {
    EXPECT_EQ(to_alphabet(" a\n"), "ĠaĊ");
    EXPECT_EQ(to_alphabet(std::string("\0\x7f\xad", 3)), "\u0100\u0121\u0143");
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
    EXPECT_EQ(from_alphabet(to_alphabet(all)), all);
    EXPECT_EQ(from_alphabet("a b"), std::nullopt);
    EXPECT_EQ(from_alphabet("中"), std::nullopt);
    EXPECT_EQ(from_alphabet("\xc4"), std::nullopt);
}

}  // namespace
}  // namespace lockstep::data
