#include "tests/base/scratch_folder.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <sstream>

namespace lockstep::testing {

namespace fs = std::filesystem;

ScratchFolder::ScratchFolder() {
    static std::atomic<int> number{0};
    folder_ = fs::temp_directory_path() / fmt::format("lockstep-test-{}-{}", getpid(), ++number);
    fs::create_directories(folder_);
}

ScratchFolder::~ScratchFolder() {
    std::error_code error;
    fs::remove_all(folder_, error);
}

std::string ScratchFolder::write(const std::string& file, const std::string& text) const {
    fs::create_directories(fs::path(path(file)).parent_path());
    std::ofstream(path(file)) << text;
    return path(file);
}

std::string ScratchFolder::read(const std::string& file) const {
    std::stringstream text;
    text << std::ifstream(path(file)).rdbuf();
    return text.str();
}

}  // namespace lockstep::testing
