// The table of keys: every key that acts says what its values are, and its own values are among them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "compile/recipe.h"
#include "models/model.h"

namespace lockstep::testing {
namespace {

using compile::RecipeKey;

std::string objection(const Allowed& allowed, const compile::Value& value) {
    if (const auto* i = std::get_if<int64_t>(&value)) return allowed.objection(static_cast<double>(*i));
    if (const auto* d = std::get_if<double>(&value)) return allowed.objection(*d);
    if (const auto* s = std::get_if<std::string>(&value)) return allowed.objection(*s);
    return "";
}

TEST(RecipeKeys, NumbersThatActHaveARange) {
    for (const RecipeKey& k : compile::recipe_keys()) {
        const bool number = std::holds_alternative<int64_t>(k.default_value) || std::holds_alternative<double>(k.default_value);
        if (k.status == compile::KeyStatus::Acts && number && k.name != "debug.seed") {
            EXPECT_TRUE(std::isfinite(k.allowed.least) && std::isfinite(k.allowed.most)) << k.name;
        }
        EXPECT_EQ(objection(k.allowed, k.default_value), "") << k.name;
    }
}

TEST(RecipeKeys, ShapesOfAllFlavorsAreAllowed) {
    for (const models::ModelSpec& m : models::all_models()) {
        for (const models::ModelKey& k : m.keys) {
            const auto check = [&](const ir::Attr& value, const std::string& whose) {
                const auto* i = std::get_if<int64_t>(&value);
                EXPECT_EQ(k.allowed.objection(i ? static_cast<double>(*i) : std::get<double>(value)), "")
                    << whose << " " << k.name;
            };
            EXPECT_TRUE(std::isfinite(k.allowed.least) && std::isfinite(k.allowed.most)) << m.name << " " << k.name;
            check(k.default_value, m.name);
            for (const models::Flavor& f : m.flavors) {
                if (f.values.contains(k.name)) check(f.values.at(k.name), f.name);
            }
        }
    }
}

// Values beyond both ends of every range, NaN and infinity, by flag and by file.
TEST(RecipeKeys, RefuseWhatIsOutOfRange) {
    int refused = 0;
    const auto refuses = [&](const std::string& key, const std::string& value) {
        ++refused;
        try {
            compile::Recipe().set(key, value);
            ADD_FAILURE() << key << " = " << value << " is accepted";
        } catch (const UserError& e) {
            EXPECT_EQ(e.key(), key);
            EXPECT_EQ(std::string(e.what()).find("flag --" + key + ": " + key + " = "), 0u) << e.what();
        }
    };
    for (const RecipeKey& k : compile::recipe_keys()) {
        const bool fraction = std::holds_alternative<double>(k.default_value);
        if (fraction) {
            for (const char* value : {"nan", "-nan", "inf", "-inf"}) refuses(k.name, value);
        }
        if (k.status != compile::KeyStatus::Acts || (!fraction && !std::holds_alternative<int64_t>(k.default_value))) continue;
        if (k.name == "debug.seed") continue;
        refuses(k.name, fraction ? "1e300" : "9223372036854775807");
        refuses(k.name, fraction ? "-2.5" : "-9223372036854775807");
    }
    for (const RecipeKey& k : compile::recipe_keys()) {
        if (k.status == compile::KeyStatus::Acts && k.allowed.restricts_text() &&
            std::holds_alternative<std::string>(k.default_value))
            refuses(k.name, "no such word");
    }
    EXPECT_GT(refused, 100);
    try {
        compile::Recipe::from_text("[optimizer]\nlr = nan\n", "run.toml");
        FAIL();
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "recipe.out_of_range");
        EXPECT_STREQ(e.what(), "run.toml:2: optimizer.lr = nan: must be from 0 to 1000000");
    }
}

TEST(RecipeKeys, Durations) {
    EXPECT_EQ(compile::seconds_of("90"), 90);
    EXPECT_EQ(compile::seconds_of("1:30:00"), 5400);
    EXPECT_EQ(compile::seconds_of("0"), 0);
    for (const char* text : {"", "1:30", "1:99:99", "1:60:00", "-5", "1:x:3", "::", "tomorrow", "99999999999999999999:00:00"})
        EXPECT_FALSE(compile::seconds_of(text).has_value()) << text;
}

}  // namespace
}  // namespace lockstep::testing
