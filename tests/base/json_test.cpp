#include "base/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lockstep::testing {
namespace {

using Json = nlohmann::ordered_json;

std::string nested(int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
}

TEST(JsonText, WhatStandsTooDeepIsLeftOut) {
    for (const int depth : {100, 100'000}) {
        const auto json = parse_json<Json>("{\"a\": 1, \"b\": " + nested(depth) + ", \"c\": 2}");
        const Json copy = json;  // calls itself once a level
        EXPECT_EQ(copy["c"], 2);
        EXPECT_LT(json.dump().size(), 300u);
        EXPECT_EQ(json_or_discarded<Json>(nested(depth)).dump().size(), 2u * 65);
    }
    EXPECT_EQ(parse_json<Json>(nested(64)).dump(), nested(64));
    const std::string brackets(1000, '[');
    EXPECT_EQ(parse_json<Json>("[\"" + brackets + "\\\"" + brackets + "\"]")[0], brackets + "\"" + brackets);
    EXPECT_FALSE(is_deep("[\"" + brackets + "\\\\\", \"" + brackets + "\"]"));
    EXPECT_TRUE(is_deep("{\"a\": \"\", \"b\": " + brackets));
}

TEST(JsonText, CommentsAreSkippedWhereTheyMayStand) {
    const std::string text = "{ // \" [[[\n \"a\": /* \" { */ 1}";
    EXPECT_EQ(parse_json<Json>(text, JsonComments::Skipped)["a"], 1);
    EXPECT_THROW(parse_json<Json>(text), JsonError);
    EXPECT_TRUE(is_deep("// \"\n" + nested(100)));
    EXPECT_FALSE(is_deep("// " + nested(100)));
}

TEST(JsonText, SaysWhatIsWrong) {
    try {
        parse_json<Json>("{\"a\": }");
        ADD_FAILURE() << "it was read";
    } catch (const JsonError& e) {
        EXPECT_EQ(e.byte(), 7u);
        EXPECT_EQ(std::string(e.what()).find("json.exception"), std::string::npos) << e.what();
    }
    EXPECT_TRUE(json_or_discarded<Json>("{").is_discarded());
    EXPECT_TRUE(json_or_discarded<Json>("").is_discarded());
    EXPECT_TRUE(json_or_discarded<Json>(std::string(100'000, '[')).is_discarded());
}

}  // namespace
}  // namespace lockstep::testing
