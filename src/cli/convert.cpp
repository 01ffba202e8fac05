// Both directions are one copy, some elements at a time, so memory does not grow with the model. The folder that is made has
// its name only when everything in it is on the disk.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/elements.h"
#include "base/error.h"
#include "base/text_file.h"
#include "checkpoint/hugging_face_folder.h"
#include "cli/commands.h"
#include "cli/number_flags.h"
#include "data/prepared_data.h"
#include "job/stored.h"
#include "runtime/load_states.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

struct ConvertArgs {
    std::string in, out, dtype = "float32";
    int64_t shard_bytes = 5'000'000'000;
    bool json = false;
};

namespace fs = std::filesystem;
using checkpoint::TensorSpec;
using models::HuggingFaceModel;

std::string file_dtype(const std::string& name) {
    if (name == "float32" || name == "bfloat16" || name == "float16") return std::string(file_type_of(name));
    throw UserError("convert.dtype", "--dtype", fmt::format("--dtype {}: must be float32, bfloat16 or float16", name));
}

void refuse_existing(const std::string& path) {
    std::error_code cannot_be;  // making it says what is wrong with it
    if (fs::exists(path, cannot_be))
        throw UserError("convert.exists", path, fmt::format("{} already exists: choose another folder, or remove it", path));
}

struct Outcome {
    std::string direction, out, model;
    int64_t tensors = 0, parameters = 0;
};

Outcome import_from(const ConvertArgs& args) {
    const std::string dtype = file_dtype(args.dtype);
    const checkpoint::HuggingFaceFolder source(args.in);
    for (const std::string& note : source.notes()) telemetry::info(note);
    std::vector<TensorSpec> specs = source.parameters();
    Outcome outcome{"import", args.out, source.model().name, static_cast<int64_t>(specs.size()), 0};
    for (TensorSpec& spec : specs) {
        spec.dtype = dtype;
        outcome.parameters += checkpoint::elements_of(spec);
    }
    refuse_existing(checkpoint::folder_of(args.out, 0));
    checkpoint::NewCheckpoint folder(args.out, 0);
    checkpoint::TensorSource::Cursor cursor;
    folder.write(checkpoint::kModelFile, checkpoint::SafetensorsLayout(specs, {{"format", "pt"}}),
                 [&](const checkpoint::TensorEntry& e, int64_t begin, int64_t count, char* to) {
                     source.read_as(e.spec.name, begin, count, dtype, to, cursor);
                 });
    if (const fs::path tokenizer = fs::path(args.in) / data::kTokenizerFile; fs::exists(tokenizer)) {
        const TextFile text = read_text_file(tokenizer, Pipes::Refused);
        if (!text.is_readable())
            throw UserError("convert.tokenizer", tokenizer.string(),
                            fmt::format("{}: cannot be read ({}); make it readable, or remove it to convert only the weights",
                                        tokenizer.string(), text.reason));
        write_whole_file(fs::path(folder.temporary()) / data::kTokenizerFile, text.text);
        try {
            data::Tokenizer::from_json(text.text, tokenizer.string());
        } catch (const UserError& e) {
            telemetry::warn(
                fmt::format("{} is copied, but it cannot be used here, so prompts must be token ids (`lockstep sample "
                            "--prompt-tokens`): {}",
                            tokenizer.string(), e.what()));
        }
    }
    const checkpoint::ServingFiles serving = checkpoint::read_serving_files(args.in);
    checkpoint::write_serving_files(folder.temporary(), serving, checkpoint::ServingFolder::Checkpoint);
    if (const std::vector<std::string> left = checkpoint::not_carried(args.in); !left.empty())
        telemetry::info(fmt::format("not carried along: {}", fmt::join(left, ", ")));
    checkpoint::Manifest manifest;
    manifest.dtype = dtype;
    manifest.tokenizer = job::tokenizer_sum(folder.temporary() + "/" + data::kTokenizerFile);
    manifest.recipe = job::converted_recipe(source.model()).toml();
    outcome.out = folder.publish(manifest);
    return outcome;
}

// What cannot be read here goes out as it came in.
void take_tokenizer(const std::string& file, checkpoint::HuggingFaceForm& form) {
    if (file.empty()) return telemetry::warn("the tokenizer is not known, so the folder has none");
    try {
        form.tokenizer = data::Tokenizer::load(file);
    } catch (const UserError& e) {
        form.unread_tokenizer = read_text_file(file, Pipes::Refused).text;
        telemetry::warn(fmt::format("{} is copied as it is: {}", file, e.what()));
    }
}

Outcome export_to(const ConvertArgs& args) {
    planning::RecipeArgs checkpoint_args;
    checkpoint_args.path = args.in;
    const job::Stored stored = job::open_stored(checkpoint_args, {});
    const std::string dtype = file_dtype(args.dtype);
    checkpoint::HuggingFaceForm form{job::hugging_face_model(stored.recipe), std::nullopt, args.shard_bytes};
    form.serving = checkpoint::read_serving_files(stored.folder);
    take_tokenizer(job::tokenizer_file(job::tokenizer_folders(stored)), form);
    const std::vector<models::StoredTensor> tensors = models::stored_tensors(form.model);
    Outcome outcome{"export", args.out, form.model.name, static_cast<int64_t>(tensors.size()), 0};
    for (const models::StoredTensor& t : tensors) outcome.parameters += checkpoint::elements_of({t.name, dtype, t.shape});
    refuse_existing(args.out);
    const auto source = runtime::open_weights(stored.folder, stored.manifest);
    checkpoint::NewFolder folder(args.out);
    checkpoint::write_hugging_face(folder.temporary(), form, dtype, *source);
    folder.publish();
    return outcome;
}

int convert(const ConvertArgs& args) {
    const Outcome o = checkpoint::HuggingFaceFolder::is_at(args.in) ? import_from(args) : export_to(args);
    if (args.json) {
        print_json(nlohmann::ordered_json{{"direction", o.direction},
                                          {"out", o.out},
                                          {"model", o.model},
                                          {"tensors", o.tensors},
                                          {"parameters", o.parameters},
                                          {"dtype", args.dtype}});
        return kDone;
    }
    fmt::print("{}: {} with {} parameters in {} tensors of {}\n", o.out, o.model, o.parameters, o.tensors, args.dtype);
    return kDone;
}

}  // namespace

Command add_convert(CLI::App& app) {
    const auto args = std::make_shared<ConvertArgs>();
    CLI::App* command =
        app.add_subcommand("convert", "convert a Hugging Face folder to a checkpoint, or a checkpoint to a Hugging Face folder");
    command->add_option("in", args->in, "Hugging Face folder (with config.json), or checkpoint")->required();
    command->add_option("out", args->out, "folder to create")->required();
    command->add_option("--dtype", args->dtype, "element type of the output: float32, bfloat16 or float16");
    command->add_option("--shard-bytes", args->shard_bytes, "largest file of an export, in bytes (default 5 GB)")
        ->check(positive_number());
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep convert Llama-3.2-1B checkpoints/llama");
    return {.app = command, .run = [args](comm::ProcessGroup&) { return convert(*args); }};
}

}  // namespace lockstep::cli
