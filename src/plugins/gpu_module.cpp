#include "plugins/gpu_module.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <mutex>
#include <optional>
#include <variant>

#include "base/build_info.h"
#include "base/error.h"
#include "kernels/cuda/planned.h"

namespace lockstep::plugins {
namespace {

constexpr const char* kFile = "liblockstep_cuda.so";

std::optional<std::string>& named() {
    static std::optional<std::string> file;
    return file;
}

// Where the module is looked for.
std::vector<std::filesystem::path> places() {
    if (named()) return {*named()};
    std::error_code error;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
    return {program / kFile, program / ".." / "lib" / "lockstep" / kFile};
}

template <class Function>
Function function_of(void* library, const char* symbol) {
    return reinterpret_cast<Function>(dlsym(library, symbol));
}

// The module; or why there is none.
std::variant<const GpuModule*, std::string> open() {
    std::filesystem::path file;
    for (const std::filesystem::path& place : places()) {
        std::error_code error;
        if (std::filesystem::exists(place, error)) {
            file = place;
            break;
        }
    }
    if (file.empty()) {
        return named()
                   ? fmt::format("{} = {}: there is no such file", kModuleVariable, *named())
                   : fmt::format("this build has no module for GPUs ({}): build it where CUDA's toolkit is (docs/gpu.md)", kFile);
    }
    void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return fmt::format("{} cannot be opened: {}", file.string(), dlerror());
    const auto build = function_of<BuildFunction>(library, kBuildSymbol);
    const auto module = function_of<ModuleFunction>(library, kModuleSymbol);
    if (!build || !module) return fmt::format("{} is no module of Lockstep", file.string());
    if (build() != build_text())
        return fmt::format("{} was built from {}, and this is {}: build both together", file.string(), build(), build_text());
    const GpuModule* const found = module();
    if (!found->why_none.empty()) return found->why_none;
    return found;
}

const std::variant<const GpuModule*, std::string>& opened() {
    static const std::variant<const GpuModule*, std::string> module = open();
    return module;
}

}  // namespace

std::string build_text() {
    const BuildInfo& b = build_info();
    return fmt::format("{}, {}, {}", b.version, b.commit, b.compiler);
}

void use_gpu_module(const std::string& file) { named() = file; }

const GpuModule& gpu_module() {
    const auto& module = opened();
    if (const std::string* why_none = std::get_if<std::string>(&module))
        throw UserError(
            "runtime.no_gpu", "runtime.kernels",
            fmt::format("runtime.kernels = \"cuda\" needs a GPU: {}. runtime.kernels = \"cpu\" needs none", *why_none));
    static std::once_flag known;
    const GpuModule& found = *std::get<const GpuModule*>(module);
    std::call_once(known, [&] {
        for (const std::vector<kernels::Registered>* list : found.kernels) kernels::add_backend(*list);
    });
    return found;
}

ops::KernelCatalog gpu_catalog() {
    ops::KernelCatalog catalog = kernels::cuda::catalog_of(gpu_module().kernels);
    catalog.origin = "runtime.kernels = \"cuda\"", catalog.key = "runtime.kernels";
    return catalog;
}

std::string gpu_text() {
    const auto& module = opened();
    if (const std::string* why_none = std::get_if<std::string>(&module)) return "none: " + *why_none;
    return std::get<const GpuModule*>(module)->description;
}

}  // namespace lockstep::plugins
