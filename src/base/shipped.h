// Files that come with the program: recipes and descriptions of machines, which users name without a path. They lie in
// share/lockstep of the prefix that the program or the library was installed to, in the package of the Python module, or in the
// source tree that holds the build folder.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

enum class Shipped { Recipes, Clusters, Stacks };

// Empty: nothing came with this program.
std::filesystem::path shipped_folder(Shipped kind);
// Names, in the order of the alphabet: "h100".
std::vector<std::string> shipped_names(Shipped kind);

// The file that `named` means: a path comes first, then a shipped file of that name, with or without ".toml". What is neither
// stays as it is. A folder is no file, so one that is called as a shipped file does not hide it.
std::string file_or_shipped(Shipped kind, const std::string& named);

// The shipped name that is closest to `named`; empty where none is close, or `named` looks like a path.
std::string nearest_shipped(Shipped kind, std::string_view named);

}  // namespace lockstep
