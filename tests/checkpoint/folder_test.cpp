// A checkpoint is complete or not there: whatever is damaged is noticed, and wherever a save is killed or the disk fills, the
// checkpoint before stays whole.
#include "checkpoint/folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/error.h"
#include "base/output_file.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/system_calls.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using lockstep::testing::ScratchFolder;
using lockstep::testing::SystemCalls;

constexpr int64_t kElements = 700'000;  // 2.8 MB: three pieces

SafetensorsLayout layout() {
    return SafetensorsLayout({{"a", "F32", {kElements}}, {"empty", "F32", {0}}, {"b", "F64", {5}}}, {});
}

float value(int64_t step, int64_t i) { return static_cast<float>(step * 1000 + i % 977); }

void save(const std::string& root, int64_t step) {
    NewCheckpoint folder(root, step);
    for (const std::string& file : {kModelFile, kOptimizerFile}) {
        folder.write(file, layout(), [&](const TensorEntry& t, int64_t begin, int64_t count, char* to) {
            for (int64_t i = begin; i < begin + count; ++i) {
                if (t.spec.name == "a") reinterpret_cast<float*>(to)[i - begin] = value(step, i);
                else reinterpret_cast<double*>(to)[i - begin] = static_cast<double>(step);
            }
        });
    }
    Manifest m;
    m.steps = step, m.samples_seen = 8 * step, m.dtype = "F32", m.recipe = "[training]\nsteps = 3\n";
    folder.publish(m);
}

void expect_whole(const std::string& root, int64_t step) {
    const std::string folder = folder_of(root, step);
    EXPECT_EQ(what_is_wrong(folder), std::nullopt);
    const Manifest m = read_manifest(folder);
    EXPECT_EQ(m.steps, step);
    const SafetensorsReader reader = open_file(folder, m, kOptimizerFile);
    std::vector<float> a(kElements);
    reader.read("a", 0, kElements, a.data());
    for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(a[static_cast<size_t>(i)], value(step, i)) << i;
}

TEST(CheckpointFolder, ReadsSlicesAcrossPiecesThroughACursor) {
    const ScratchFolder s;
    save(s.path("c"), 4);
    expect_whole(s.path("c"), 4);
    const std::string folder = folder_of(s.path("c"), 4);
    const Manifest m = read_manifest(folder);
    EXPECT_EQ(m.samples_seen, 32);
    EXPECT_EQ(m.files.at(kModelFile).xxh3.size(), 3u);
    const SafetensorsReader reader = open_file(folder, m, kModelFile);
    SafetensorsReader::Cursor cursor;
    for (int64_t begin = 0; begin < kElements; begin += 777) {
        std::vector<float> part(static_cast<size_t>(std::min<int64_t>(777, kElements - begin)));
        reader.read("a", begin, static_cast<int64_t>(part.size()), part.data(), cursor);
        for (size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], value(4, begin + static_cast<int64_t>(i)));
    }
    double b[5];
    reader.read("b", 0, 5, b, cursor);
    EXPECT_EQ(b[4], 4);
}

TEST(CheckpointFolder, FilesAreOnTheDiskBeforeTheirNamesAndNamesBeforeTheEnd) {
    const ScratchFolder s;
    fs::create_directories(s.path("c"));
    SystemCalls calls;
    save(s.path("c"), 1);
    std::vector<std::string> log = calls.log();
    log.erase(std::unique(log.begin(), log.end()), log.end());  // several writes of one file
    EXPECT_EQ(log, (std::vector<std::string>{"write model.safetensors", "fsync model.safetensors", "write optimizer.safetensors",
                                             "fsync optimizer.safetensors", "write manifest.json", "fsync manifest.json",
                                             "fsync step-00000001.partial", "rename step-00000001", "fsync c"}));
}

// At every write, fsync and rename of a save, of a new step and of one that stood there before.
TEST(CheckpointFolder, KilledAnywhereTheCheckpointBeforeStaysWhole) {
    for (const int64_t second : {2, 1}) {
        int calls = 0;
        {
            const ScratchFolder s;
            save(s.path("c"), 1);
            SystemCalls counted;
            save(s.path("c"), second);
            calls = static_cast<int>(counted.log().size());
        }
        EXPECT_GT(calls, 10);
        for (int at = 0; at < calls; ++at) {
            const ScratchFolder s;
            save(s.path("c"), 1);
            EXPECT_FALSE(lockstep::testing::survives([&] {
                SystemCalls killer;
                killer.kill_at(at);
                save(s.path("c"), second);
            })) << at;
            const std::vector<int64_t> steps = complete_steps(s.path("c"));
            ASSERT_FALSE(steps.empty()) << at;
            EXPECT_EQ(steps.front(), 1);
            for (int64_t step : steps) expect_whole(s.path("c"), step);
            remove_partial(s.path("c"));
            EXPECT_EQ(std::distance(fs::directory_iterator(s.path("c")), fs::directory_iterator()),
                      static_cast<long>(steps.size()));
        }
    }
}

TEST(CheckpointFolder, AFullDiskAnywhereIsSaidAndLeavesNothing) {
    for (int at = 0; at < 20; ++at) {
        const ScratchFolder s;
        save(s.path("c"), 1);
        SystemCalls disk;
        disk.fail_from(at, ENOSPC);
        try {
            save(s.path("c"), 2);
            EXPECT_GT(at, 10);
            break;
        } catch (const UserError& e) {
            EXPECT_EQ(e.id(), "file.cannot_write");
            EXPECT_NE(
                std::string(e.what()).find("No space left on device. Choose a folder that exists, is writable and has room."),
                std::string::npos)
                << e.what();
        }
        expect_whole(s.path("c"), 1);
        EXPECT_FALSE(fs::exists(folder_of(s.path("c"), 2) + ".partial"));
    }
}

// At 60 places of each file: a bit is flipped, and the file is cut off.
TEST(CheckpointFolder, EveryDamageIsNoticed) {
    const ScratchFolder s;
    save(s.path("c"), 1);
    const std::string folder = folder_of(s.path("c"), 1);
    int files = 0;
    for (const fs::directory_entry& e : fs::directory_iterator(folder)) {
        ++files;
        const std::string path = e.path().string(), whole = s.read("c/step-00000001/" + e.path().filename().string());
        for (size_t k = 0; k < 60; ++k) {
            const size_t at = k * (whole.size() - 2) / 59;
            std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
            file.seekp(static_cast<long>(at)).put(static_cast<char>(whole[at] ^ (1 << k % 8)));
            file.close();
            EXPECT_NE(what_is_wrong(folder), std::nullopt) << path << ", a bit of byte " << at;
            fs::resize_file(path, at);
            EXPECT_NE(what_is_wrong(folder), std::nullopt) << path << ", " << at << " bytes";
            std::ofstream(path, std::ios::binary | std::ios::trunc) << whole;
        }
    }
    EXPECT_EQ(files, 3);
    EXPECT_EQ(what_is_wrong(folder), std::nullopt);
}

TEST(CheckpointFolder, DamageIsNamed) {
    const ScratchFolder s;
    save(s.path("c"), 1);
    const std::string folder = folder_of(s.path("c"), 1), file = folder + "/" + kModelFile;
    const Manifest m = read_manifest(folder);
    const auto error = [&] {
        try {
            std::vector<float> a(kElements);
            open_file(folder, m, kModelFile).read("a", 0, kElements, a.data());
        } catch (const UserError& e) {
            return e.id() + ": " + e.what();
        }
        return std::string();
    };
    EXPECT_EQ(error(), "");
    std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(1'500'000).put('\x7f');
    EXPECT_NE(error().find("checkpoint.damaged: " + file + ": the bytes 1048576 to 2097151 have changed since they were written"),
              std::string::npos)
        << error();
    fs::resize_file(file, 2'000'000);
    EXPECT_NE(error().find("checkpoint.damaged: " + file + " has 2000000 bytes, but 28"), std::string::npos) << error();
    const SafetensorsReader reader = open_file(folder, m, kOptimizerFile);
    fs::resize_file(folder + "/" + kOptimizerFile, 2'000'000);
    std::vector<float> a(kElements);
    try {
        reader.read("a", 0, kElements, a.data());
        ADD_FAILURE();
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "checkpoint.truncated");
        EXPECT_NE(std::string(e.what()).find("became shorter while it was read"), std::string::npos);
    }
}

TEST(CheckpointFolder, ADamagedManifestIsRefused) {
    const ScratchFolder s;
    save(s.path("c"), 1);
    const std::string folder = folder_of(s.path("c"), 1), good = s.read("c/step-00000001/manifest.json");
    const auto error = [&](const std::string& text) {
        s.write("c/step-00000001/manifest.json", text);
        try {
            read_manifest(folder);
        } catch (const UserError& e) {
            EXPECT_EQ(e.id(), "checkpoint.manifest");
            return std::string(e.what());
        }
        return std::string();
    };
    EXPECT_EQ(error(good), "");
    std::string changed = good;
    changed.replace(changed.find("\"samples_seen\": 8"), 17, "\"samples_seen\": 9");
    EXPECT_NE(error(changed).find("has changed since it was written: its checksum is another"), std::string::npos);
    EXPECT_NE(error(good.substr(0, good.size() / 2)).find("is damaged"), std::string::npos);
    changed = good;
    changed.replace(changed.find("\"version\": 2"), 12, "\"version\": 1");
    EXPECT_NE(error(changed).find("has version 1, and this program reads version 2"), std::string::npos);
    // Brackets in brackets, more than the stack has room for calls.
    const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
    EXPECT_NE(error(good.substr(0, good.rfind('}')) + ", \"x\": " + deep + "}").find("brackets are nested too deeply in it"),
              std::string::npos);
    std::string keys;  // of which each looks through those before it
    for (int i = 0; i < 10'001; ++i) keys += ", \"" + std::to_string(i) + "\": 0";
    EXPECT_NE(error(good.substr(0, good.rfind('}')) + keys + "}").find("it has too many keys"), std::string::npos);
    fs::remove(folder + "/manifest.json");
    try {
        read_manifest(folder);
        ADD_FAILURE();
    } catch (const UserError& e) {
        EXPECT_NE(std::string(e.what()).find("has no readable manifest"), std::string::npos);
    }
}

TEST(CheckpointFolder, WhatIsAbsentIsNamed) {
    const ScratchFolder s;
    {
        NewCheckpoint folder(s.path("c"), 7);
        folder.write(kModelFile, layout(), [](const TensorEntry& t, int64_t, int64_t count, char* to) {
            std::memset(to, 0, static_cast<size_t>(count * dtype_bytes(t.spec.dtype)));
        });
        Manifest manifest;
        manifest.steps = 7;
        folder.publish(manifest);
    }
    const std::string folder = folder_of(s.path("c"), 7);
    EXPECT_FALSE(read_manifest(folder).has_optimizer());
    try {
        open_file(folder, read_manifest(folder), kOptimizerFile);
        ADD_FAILURE();
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "checkpoint.no_such_file");
        EXPECT_NE(std::string(e.what()).find("holds no optimizer.safetensors: only the model was saved"), std::string::npos);
    }
}

TEST(CheckpointFolder, OldOnesGoAndAnInterruptedRemovalIsNoCheckpoint) {
    const ScratchFolder s;
    for (int64_t step = 1; step <= 4; ++step) save(s.path("c"), step);
    remove_old(s.path("c"), 0);
    EXPECT_EQ(complete_steps(s.path("c")).size(), 4u);
    remove_old(s.path("c"), 2);
    EXPECT_EQ(complete_steps(s.path("c")), (std::vector<int64_t>{3, 4}));
    fs::rename(folder_of(s.path("c"), 3), folder_of(s.path("c"), 3) + ".partial");
    EXPECT_EQ(complete_steps(s.path("c")), (std::vector<int64_t>{4}));
}

}  // namespace
}  // namespace lockstep::checkpoint
