#include "base/shipped.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>

#include "base/nearest.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// The program, or the shared library that holds this code.
fs::path file_of_this_code() {
    Dl_info info{};
    link_map* map = nullptr;
    const bool found =
        dladdr1(reinterpret_cast<const void*>(&file_of_this_code), &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0;
    const bool is_library = found && map && map->l_name && *map->l_name;
    std::error_code unknown;
    return fs::canonical(is_library ? map->l_name : "/proc/self/exe", unknown);
}

fs::path root_of_shipped() {
    std::error_code unknown;
    for (fs::path at = file_of_this_code().parent_path(); !at.empty(); at = at.parent_path()) {
        for (const fs::path& root : {at / "share/lockstep", at}) {
            if (fs::is_directory(root / "clusters/chips", unknown) && fs::is_directory(root / "recipes", unknown)) return root;
        }
        if (at == at.root_path()) break;
    }
    return {};
}

const char* folder_of(Shipped kind) {
    switch (kind) {
        case Shipped::Recipes: return "recipes";
        case Shipped::Clusters: return "clusters";
        case Shipped::Stacks: return "clusters/stacks";
    }
    return "";
}

}  // namespace

fs::path shipped_folder(Shipped kind) {
    static const fs::path root = root_of_shipped();
    return root.empty() ? fs::path() : root / folder_of(kind);
}

std::vector<std::string> shipped_names(Shipped kind) {
    std::vector<std::string> names;
    std::error_code unknown;
    for (fs::directory_iterator at(shipped_folder(kind), unknown), end; at != end; at.increment(unknown)) {
        if (at->path().extension() == ".toml") names.push_back(at->path().stem().string());
    }
    std::sort(names.begin(), names.end());
    return names;
}

std::string file_or_shipped(Shipped kind, const std::string& named) {
    std::error_code unknown;
    const fs::path folder = shipped_folder(kind);
    const bool may_be_name = !named.empty() && named.find('/') == named.npos && !folder.empty();
    if (!may_be_name) return named;
    if (fs::exists(named, unknown) && !fs::is_directory(named, unknown)) return named;
    const fs::path file = folder / (named.ends_with(".toml") ? named : named + ".toml");
    return fs::is_regular_file(file, unknown) ? file.string() : named;
}

std::string nearest_shipped(Shipped kind, std::string_view named) {
    const bool is_path = named.find('/') != named.npos || named.ends_with(".toml");
    return is_path ? "" : nearest_if_close(named, shipped_names(kind));
}

}  // namespace lockstep
