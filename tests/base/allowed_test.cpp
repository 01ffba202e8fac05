// Ranges and words: what is allowed, and what is said of the rest.
#include "base/allowed.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/nearest.h"

namespace lockstep::testing {
namespace {

TEST(Allowed, RangesOfNumbers) {
    EXPECT_EQ(from_to(0, 1).objection(0.0), "");
    EXPECT_EQ(from_to(0, 1).objection(1.0), "");
    EXPECT_EQ(from_to(0, 1).objection(1.5), "must be from 0 to 1");
    EXPECT_EQ(above_to(0, 1).objection(0.0), "must be above 0 and at most 1");
    EXPECT_EQ(from_below(0, 1).objection(1.0), "must be at least 0 and below 1");
    EXPECT_EQ(from_to(1, 8).or_value(-1).objection(-1.0), "");
    EXPECT_EQ(from_to(1, 8).or_value(-1).objection(0.0), "must be from 1 to 8, or -1");
    for (const double value : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
        EXPECT_NE(from_to(0, 1).objection(value), "");
        EXPECT_EQ(Allowed().objection(value), "must be a finite number");
    }
    EXPECT_EQ(from_to(1, 1 << 30).objection(9.3e18), "must be from 1 to 1073741824");
}

TEST(Allowed, Words) {
    const Allowed decay = one_of({"linear", "sqrt", "cosine"});
    EXPECT_EQ(decay.objection("sqrt"), "");
    EXPECT_EQ(decay.objection("cosin"), "must be linear, sqrt or cosine; the nearest is cosine");
    EXPECT_EQ(decay.objection("zzzzzzzz"), "must be linear, sqrt or cosine");
    EXPECT_EQ(decay.objection("Linear"), "must be linear, sqrt or cosine; the nearest is linear");
    EXPECT_EQ(decay.with_any_case().objection("Linear"), "");
    EXPECT_EQ(decay.advise("read the paper").objection("step"), "must be linear, sqrt or cosine; read the paper");
    EXPECT_EQ(one_of({"", "a"}).objection("b"), "must be empty or a");
    const auto short_text = [](const std::string& text) { return text.size() < 3; };
    EXPECT_EQ(one_of({"word"}).or_form("two letters", short_text).objection("ab"), "");
    EXPECT_EQ(of_form("two letters", short_text).objection("abc"), "must be two letters");
    EXPECT_EQ(Allowed().objection("any text"), "");
}

TEST(Nearest, TheLastPartOfAKeyCountsMost) {
    const std::vector<std::string> keys = {"model.dim",
                                           "optimizer.lr",
                                           "optimizer.eps",
                                           "training.seq_len",
                                           "training.steps",
                                           "training.local_batch_size",
                                           "lr_scheduler.min_lr_factor",
                                           "lr_scheduler.decay_ratio"};
    EXPECT_EQ(nearest_key("lr", keys), "optimizer.lr");
    EXPECT_EQ(nearest_key("lr_scheduler.lr_min", keys), "lr_scheduler.min_lr_factor");
    EXPECT_EQ(nearest_key("training.stepz", keys), "training.steps");
    EXPECT_EQ(nearest_key("training.sequence_len", keys), "training.seq_len");
    EXPECT_EQ(nearest_key("training.batch_size", keys), "training.local_batch_size");
    EXPECT_EQ(nearest_key("optimizer.learning_rate", keys), "optimizer.lr");
    EXPECT_EQ(nearest_key("optimizer.steps", keys), "training.steps");
    EXPECT_EQ(nearest_key("training-steps", keys), "training.steps");
    EXPECT_EQ(nearest("trian", {"check", "train", "plan"}), "train");
    EXPECT_EQ(nearest_if_close("fast", {"cpu", "reference"}), "");
}

}  // namespace
}  // namespace lockstep::testing
