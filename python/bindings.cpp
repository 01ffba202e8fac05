// The Python module lockstep._lockstep: lockstep.h, with names and values as Python has them. Every function that computes lets
// other Python threads run meanwhile.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <cstring>
#include <exception>
#include <filesystem>

#include "lockstep/lockstep.h"

namespace py = pybind11;
using namespace lockstep;
using Path = std::filesystem::path;
using Unlocked = py::call_guard<py::gil_scoped_release>;

namespace {

// A value as it stands in TOML.
std::string toml_text(const py::handle& value, bool quoted) {
    if (py::isinstance<py::bool_>(value)) return value.cast<bool>() ? "true" : "false";
    if (py::isinstance<py::str>(value)) {
        const auto text = value.cast<std::string>();
        if (!quoted) return text;
        std::string out = "\"";
        for (const char c : text) out += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
        return out + "\"";
    }
    if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
        std::string out;
        for (const py::handle& item : value) out += (out.empty() ? "" : ", ") + toml_text(item, true);
        return "[" + out + "]";
    }
    if (py::hasattr(value, "__fspath__")) return toml_text(value.attr("__fspath__")(), quoted);
    return py::str(value);
}

Settings settings_of(const py::dict& given) {
    Settings out;
    for (const auto& [key, value] : given) out.emplace_back(key.cast<std::string>(), toml_text(value, false));
    return out;
}

// lockstep.UserError with id, key and message. It lives as long as the interpreter.
PyObject* user_error = nullptr;

py::object error_object(const UserError& e) {
    py::object error = py::reinterpret_borrow<py::object>(user_error)(e.what());
    error.attr("id") = e.id(), error.attr("key") = e.key(), error.attr("message") = std::string(e.what());
    return error;
}

// Who takes messages; null: nobody. Leaked, as messages may come while the interpreter ends.
py::object* message_taker = nullptr;

void apply_messages() {
    if (!message_taker || message_taker->is_none()) return set_messages(nullptr);
    set_messages([](MessageLevel level, std::string_view text) {
        if (!Py_IsInitialized()) return;
        const py::gil_scoped_acquire locked;
        constexpr const char* kLevels[] = {"info", "warning", "error"};
        try {
            (*message_taker)(kLevels[static_cast<int>(level)], std::string(text));
        } catch (py::error_already_set& e) {
            e.discard_as_unraisable("lockstep.set_messages");
        }
    });
}

TrainResult train_recipe(const Recipe& recipe, const py::object& on_step, const std::vector<std::string>& watch,
                         const Path& cluster, bool progress) {
    std::exception_ptr raised;  // by on_step, or by a signal: Ctrl-C is KeyboardInterrupt
    TrainOptions options;
    options.watch = watch;
    options.cluster = cluster.string();
    options.on_step = [&](const Step& step) {
        const py::gil_scoped_acquire locked;
        try {
            if (PyErr_CheckSignals() != 0) throw py::error_already_set();
            if (on_step.is_none()) return true;
            const py::object answer = on_step(step);
            return answer.is_none() || py::bool_(answer).cast<bool>();
        } catch (...) {
            raised = std::current_exception();
            return false;  // a checkpoint is written before it is thrown again
        }
    };
    if (progress) print_messages();
    TrainResult result;
    try {
        const py::gil_scoped_release unlocked;
        result = train(recipe, options);
    } catch (...) {
        if (progress) apply_messages();
        throw;
    }
    if (progress) apply_messages();
    if (raised) std::rethrow_exception(raised);
    return result;
}

Evaluation evaluate_checkpoint(const Path& checkpoint, const py::dict& settings, const std::vector<std::string>& data,
                               const Path& tokens, const std::string& split, int64_t steps) {
    const EvaluateOptions options{settings_of(settings), data, tokens.string(), split, steps};
    const py::gil_scoped_release unlocked;
    return evaluate(checkpoint.string(), options);
}

// Arrays are made in __init__.py: their memory layout differs between versions of numpy, and bytes do not.
py::dict metrics_of(const Path& path) {
    py::dict out;
    for (const auto& [name, column] : read_metrics(path.string()))
        out[py::str(name)] = py::bytes(reinterpret_cast<const char*>(column.data()), column.size() * sizeof(double));
    return out;
}

void read_tensor(const Checkpoint& checkpoint, const std::string& name, const py::buffer& to) {
    const py::buffer_info info = to.request(true);
    if (info.size * info.itemsize != checkpoint.info(name).bytes) throw py::value_error("the buffer has another size");
    const py::gil_scoped_release unlocked;
    checkpoint.read(name, info.ptr);
}

void read_floats(const Checkpoint& checkpoint, const std::string& name, const py::buffer& to) {
    const py::buffer_info info = to.request(true);
    const std::vector<float> values = checkpoint.read_as_float(name);
    if (info.size * info.itemsize != static_cast<py::ssize_t>(values.size() * sizeof(float)))
        throw py::value_error("the buffer has another size");
    std::memcpy(info.ptr, values.data(), values.size() * sizeof(float));
}

}  // namespace

PYBIND11_MODULE(_lockstep, m) {
    user_error = PyErr_NewExceptionWithDoc("lockstep.UserError",
                                           "A recipe, data, a flag, a file or a machine is wrong. Attributes: id, key, message.",
                                           PyExc_ValueError, nullptr);
    m.add_object("UserError", py::reinterpret_borrow<py::object>(user_error));
    py::register_exception_translator([](std::exception_ptr p) {
        try {
            if (p) std::rethrow_exception(p);
        } catch (const UserError& e) {
            PyErr_SetObject(user_error, error_object(e).ptr());
        }
    });

    m.def("version", &version);
    m.def("set_messages", [](const py::object& take) {
        if (!message_taker) message_taker = new py::object();
        *message_taker = take;
        apply_messages();
    });
    m.def("print_messages", &print_messages);
    m.def(
        "use_gpu_module", [](const Path& file) { use_gpu_module(file.string()); }, py::arg("file"));
    apply_messages();

    py::class_<Stage>(m, "Stage")
        .def_readonly("pipeline_rank", &Stage::pipeline_rank)
        .def_readonly("total_bytes", &Stage::total_bytes)
        .def_readonly("bytes", &Stage::bytes)
        .def_readonly("host_bytes", &Stage::host_bytes)
        .def_readonly("flops_model", &Stage::flops_model)
        .def_readonly("flops_executed", &Stage::flops_executed);
    py::class_<PlannedOp>(m, "PlannedOp")
        .def_readonly("name", &PlannedOp::name)
        .def_readonly("count", &PlannedOp::count)
        .def_readonly("time_s", &PlannedOp::time_s)
        .def_readonly("flops", &PlannedOp::flops)
        .def_readonly("bytes", &PlannedOp::bytes);
    py::class_<PlannedStage, Stage>(m, "PlannedStage")
        .def_readonly("waiting_s", &PlannedStage::waiting_s)
        .def_readonly("compute", &PlannedStage::compute)
        .def_readonly("communication", &PlannedStage::communication);
    py::class_<Pass>(m, "Pass").def_readonly("name", &Pass::name).def_readonly("time_s", &Pass::time_s);
    py::class_<Program>(m, "Program")
        .def_readonly("ranks", &Program::ranks)
        .def_readonly("parameters", &Program::parameters)
        .def_readonly("microbatches", &Program::microbatches)
        .def_readonly("global_batch", &Program::global_batch)
        .def_readonly("seq_len", &Program::seq_len)
        .def_readonly("bytes_of_a_rank", &Program::bytes_of_a_rank)
        .def_readonly("bytes_of_all_ranks", &Program::bytes_of_all_ranks)
        .def_readonly("host_bytes_of_a_rank", &Program::host_bytes_of_a_rank)
        .def_readonly("passes", &Program::passes)
        .def_readonly("text", &Program::text);
    py::class_<Check>(m, "Check")
        .def_readonly("fits", &Check::fits)
        .def_readonly("machine", &Check::machine)
        .def_readonly("ranks", &Check::ranks)
        .def_readonly("capacity_bytes", &Check::capacity_bytes)
        .def_readonly("stages", &Check::stages)
        .def_property_readonly("refusal",
                               [](const Check& c) { return c.refusal ? error_object(*c.refusal) : py::object(py::none()); });
    py::class_<Plan>(m, "Plan")
        .def_readonly("step_time_s", &Plan::step_time_s)
        .def_readonly("tokens_per_s", &Plan::tokens_per_s)
        .def_readonly("mfu", &Plan::mfu)
        .def_readonly("hfu", &Plan::hfu)
        .def_readonly("bubble_fraction", &Plan::bubble_fraction)
        .def_readonly("exposed_communication_s", &Plan::exposed_communication_s)
        .def_readonly("hidden_communication_s", &Plan::hidden_communication_s)
        .def_readonly("fits", &Plan::fits)
        .def_readonly("ranks", &Plan::ranks)
        .def_readonly("cluster", &Plan::cluster)
        .def_readonly("machine", &Plan::machine)
        .def_readonly("declared", &Plan::declared)
        .def_readonly("stages", &Plan::stages);

    py::class_<Recipe>(m, "Recipe")
        .def_static(
            "read", [](const Path& path, const py::dict& settings) { return Recipe::read(path.string(), settings_of(settings)); },
            py::arg("path"), py::arg("settings") = py::dict())
        .def_static(
            "parse", [](const std::string& toml, const py::dict& settings) { return Recipe::parse(toml, settings_of(settings)); },
            py::arg("toml"), py::arg("settings") = py::dict())
        .def(
            "set", [](Recipe& r, const std::string& key, const py::object& value) { r.set(key, toml_text(value, false)); },
            py::arg("key"), py::arg("value"))
        .def("get", &Recipe::get, py::arg("key"))
        .def("toml", &Recipe::toml)
        .def("config",
             [](const Recipe& r) {
                 py::dict out;
                 for (const auto& [key, value] : r.config()) out[py::str(key)] = value;
                 return out;
             })
        .def(
            "compile",
            [](const Recipe& r, const std::string& after, const std::vector<std::string>& skip) {
                return r.compile({after, skip});
            },
            py::arg("after") = "", py::arg("skip") = std::vector<std::string>(), Unlocked())
        .def(
            "show",
            [](const Recipe& r, const std::string& after, const std::vector<std::string>& skip) {
                return r.compile({after, skip}).text;
            },
            py::arg("after") = "", py::arg("skip") = std::vector<std::string>(), Unlocked())
        .def(
            "check", [](const Recipe& r, const Path& cluster) { return r.check(cluster.string()); }, py::arg("cluster") = "",
            Unlocked())
        .def(
            "plan", [](const Recipe& r, const Path& cluster) { return r.plan(cluster.string()); }, py::arg("cluster") = "",
            Unlocked());

    py::class_<Step>(m, "Step")
        .def_readonly("step", &Step::step)
        .def_readonly("steps", &Step::steps)
        .def_readonly("loss", &Step::loss)
        .def_readonly("grad_norm", &Step::grad_norm)
        .def_readonly("lr", &Step::lr)
        .def_readonly("committed", &Step::committed)
        .def_readonly("step_time_s", &Step::step_time_s)
        .def_readonly("tokens_per_s", &Step::tokens_per_s)
        .def_readonly("heldout_loss", &Step::heldout_loss)
        .def_readonly("checkpoint", &Step::checkpoint);
    py::class_<TrainResult>(m, "TrainResult")
        .def_readonly("done", &TrainResult::done)
        .def_readonly("stopped", &TrainResult::stopped)
        .def_readonly("steps", &TrainResult::steps)
        .def_readonly("final_loss", &TrainResult::final_loss)
        .def_readonly("tokens_per_s", &TrainResult::tokens_per_s)
        .def_readonly("step_time_s", &TrainResult::step_time_s)
        .def_readonly("heldout_loss", &TrainResult::heldout_loss)
        .def_readonly("planned_bytes", &TrainResult::planned_bytes)
        .def_readonly("resident_bytes", &TrainResult::resident_bytes)
        .def_readonly("checkpoint", &TrainResult::checkpoint)
        .def_readonly("dump_folder", &TrainResult::dump_folder);
    m.def("train", &train_recipe, py::arg("recipe"), py::arg("on_step") = py::none(), py::kw_only(),
          py::arg("watch") = std::vector<std::string>(), py::arg("cluster") = "", py::arg("progress") = false);

    py::class_<Evaluation>(m, "Evaluation")
        .def_readonly("step", &Evaluation::step)
        .def_readonly("loss", &Evaluation::loss)
        .def_readonly("perplexity", &Evaluation::perplexity)
        .def_readonly("bits_per_byte", &Evaluation::bits_per_byte)
        .def_readonly("tokens", &Evaluation::tokens);
    m.def("evaluate", &evaluate_checkpoint, py::arg("checkpoint"), py::kw_only(), py::arg("settings") = py::dict(),
          py::arg("data") = std::vector<std::string>(), py::arg("tokens") = "", py::arg("split") = "heldout",
          py::arg("steps") = 0);

    py::class_<TensorInfo>(m, "TensorInfo")
        .def_readonly("dtype", &TensorInfo::dtype)
        .def_readonly("shape", &TensorInfo::shape)
        .def_readonly("bytes", &TensorInfo::bytes);
    py::class_<Checkpoint>(m, "CheckpointFiles")
        .def(py::init([](const Path& path) { return Checkpoint(path.string()); }))
        .def_property_readonly("folder", &Checkpoint::folder)
        .def_property_readonly("step", &Checkpoint::step)
        .def_property_readonly("recipe", &Checkpoint::recipe)
        .def("names", &Checkpoint::names)
        .def("info", &Checkpoint::info)
        .def("read", &read_tensor)
        .def("read_as_float", &read_floats);
    m.def("metrics_columns", &metrics_of, py::arg("path"));
}
