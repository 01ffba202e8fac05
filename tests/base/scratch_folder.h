// A folder of its own for each test, removed at the end.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep::testing {

class ScratchFolder {
public:
    ScratchFolder();
    ~ScratchFolder();
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    std::string path(const std::string& file) const { return (folder_ / file).string(); }
    // Writes a file, with its folders, and returns its path.
    std::string write(const std::string& file, const std::string& text) const;
    std::string read(const std::string& file) const;

protected:
    std::filesystem::path folder_;
};

}  // namespace lockstep::testing
