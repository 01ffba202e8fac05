#include "cli/tune_training.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/number_flags.h"
#include "sim/failures.h"
#include "telemetry/wrap.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string money(const TrainingArgs& args, double price) {
    return telemetry::grouped(std::llround(price)) + (args.currency.empty() ? "" : " " + args.currency);
}

bool is_priced(const tune::Training& t) { return t.tokens > 0 && t.price_per_device_hour > 0; }

void print_table(const TrainingArgs& args, const std::vector<tune::OfDevices>& rows, const tune::Training& t) {
    fmt::print("{:>8} {:>10} {:>12} {:>9} {:>13} {:>14}  layout\n", "devices", "step s", "tokens/s", t.tokens > 0 ? "days" : "",
               t.tokens > 0 ? "device hours" : "", is_priced(t) ? "price" : "");
    for (const tune::OfDevices& d : rows) {
        if (!d.best) {
            fmt::print("{:>8} {}\n", d.devices, d.why_not);
            continue;
        }
        fmt::print("{:>8} {:>10.5g} {:>12.6g} {:>9} {:>13} {:>14}  {}{}\n", d.devices, d.best->step_s, d.tokens_per_s,
                   t.tokens > 0 ? fmt::format("{:.1f}", d.hours / 24) : "",
                   t.tokens > 0 ? fmt::format("{:.0f}", d.device_hours()) : "", is_priced(t) ? money(args, d.price) : "",
                   tune::text_of(d.best->choice), d.in_budget ? "" : "  (over the budget of hours)");
    }
}

void print_devices(const TrainingArgs& args, const std::vector<tune::OfDevices>& rows, const tune::Training& t) {
    print_table(args, rows, t);
    if (t.tokens <= 0) return;
    const tune::OfDevices *cheap = tune::cheapest(rows), *fast = tune::fastest(rows);
    if (!fast) fmt::print("no number of devices is within the budget\n");
    if (cheap && is_priced(t)) fmt::print("cheapest: {} devices, {}\n", cheap->devices, money(args, cheap->price));
    if (fast) fmt::print("fastest: {} devices, {:.1f} days\n", fast->devices, fast->hours / 24);
}

void print_days(const TrainingArgs& args, const TrainingResult& r) {
    print_table(args, r.days, r.training);
    if (const tune::OfDevices* d = tune::smallest_within(r.days, args.days))
        fmt::print("smallest: {} devices train {:.4g} tokens within {:g} days, in {:.1f}; {:.0f} device hours{}\n", d->devices,
                   r.training.tokens, args.days, d->hours / 24, d->device_hours(),
                   is_priced(r.training) ? ", " + money(args, d->price) : "");
    else
        fmt::print("no number of devices that was searched trains {:.4g} tokens within {:g} days\n", r.training.tokens,
                   args.days);
}

void print_goodput(const TrainingResult& r) {
    const tune::Goodput& g = r.fastest.goodput;
    const tune::Failures& f = r.training.failures;
    fmt::print("goodput: {:.2f} % of the time is useful on {} devices; checkpoints take {:.2f} %, failures {:.2f} %\n",
               100 * g.useful, r.fastest.devices, 100 * g.saving, 100 * g.lost);
    fmt::print("  a device fails every {:.4g} hours, the job every {:.4g}; the best interval between checkpoints is {}\n",
               f.mtbf_hours, g.job_mtbf_s / 3600, telemetry::short_duration(g.interval_s));
    fmt::print("  a checkpoint stops training for {:g} s (--save-seconds), a failure until {:g} s later (--restart-seconds)\n",
               f.save_s, f.restart_s);
}

Json goodput_json(const tune::Goodput& g) {
    return {{"job_mtbf_hours", g.job_mtbf_s / 3600},
            {"checkpoint_interval_s", g.interval_s},
            {"useful", g.useful},
            {"saving", g.saving},
            {"lost", g.lost}};
}

Json row_json(const tune::OfDevices& d, const tune::Training& t) {
    Json out = {{"devices", d.devices}, {"fits", d.best.has_value()}};
    if (!d.best) {
        out["why_not"] = d.why_not;
        return out;
    }
    out["layout"] = tune::text_of(d.best->choice), out["step_time_s"] = d.best->step_s, out["tokens_per_s"] = d.tokens_per_s;
    if (t.tokens > 0) out["days"] = d.hours / 24, out["device_hours"] = d.device_hours(), out["in_budget"] = d.in_budget;
    if (is_priced(t)) out["price"] = d.price;
    if (t.failures.mtbf_hours > 0) out["goodput"] = goodput_json(d.goodput);
    return out;
}

Json rows_json_of(const std::vector<tune::OfDevices>& rows, const tune::Training& t) {
    Json out = Json::array();
    for (const tune::OfDevices& d : rows) out.push_back(row_json(d, t));
    return out;
}

}  // namespace

std::string TrainingArgs::objection() const {
    if (training.tokens > 0 && !is_asked()) return "--tokens requires --devices, --days or --goodput";
    if (training.price_per_device_hour > 0 && !is_asked())
        return "--price-per-device-hour requires --devices, --days or --goodput";
    if (!currency.empty() && training.price_per_device_hour <= 0) return "--currency requires --price";
    return "";
}

void add_training_flags(CLI::App& command, TrainingArgs& args) {
    auto* devices = command
                        .add_option("--devices", args.devices,
                                    "also search these numbers of devices, separated by commas: a table of speed, days and price")
                        ->delimiter(',')
                        ->check(positive_number());
    command
        .add_option(
            "--days", args.days,
            "the smallest number of devices that trains the tokens within so many days: parts of a host, then whole hosts")
        ->check(positive_number());
    auto* goodput = command.add_flag("--goodput", args.goodput,
                                     "what failures and checkpoints leave of the time, the best interval between checkpoints, "
                                     "days and device hours");
    command.add_option("--tokens", args.training.tokens, "tokens of the training (default: the recipe's steps)")
        ->check(positive_number());
    command.add_option("--price-per-device-hour,--price", args.training.price_per_device_hour, "price of a device and hour")
        ->check(nonnegative_number());
    command.add_option("--currency", args.currency, "word behind prices, such as EUR");
    command.add_option("--budget-hours", args.training.budget_hours, "with --devices: the training may take this long")
        ->check(positive_number())
        ->needs(devices);
    command
        .add_option("--mtbf", args.training.failures.mtbf_hours,
                    "with --goodput: hours of one device between two failures (default: machine.mtbf_hours of the cluster file)")
        ->check(positive_number())
        ->needs(goodput);
    command
        .add_option("--save-seconds", args.training.failures.save_s,
                    "with --goodput: seconds that training stops for a checkpoint (default 30)")
        ->check(positive_number())
        ->needs(goodput);
    command
        .add_option("--restart-seconds", args.training.failures.restart_s,
                    "with --goodput: from a failure to the first step after it (default 600)")
        ->check(nonnegative_number())
        ->needs(goodput);
}

tune::Training training_of(const TrainingArgs& args, const compile::Config& config, int64_t global_batch,
                           const std::string& cluster_file) {
    tune::Training t = args.training;
    if (t.tokens <= 0 && (args.goodput || args.days > 0))
        t.tokens = static_cast<double>(config.training.steps) * static_cast<double>(global_batch * config.training.seq_len);
    if (!args.goodput) {
        t.failures.mtbf_hours = 0;
        return t;
    }
    if (t.failures.mtbf_hours <= 0) t.failures.mtbf_hours = sim::mtbf_hours_of(sim::read_sources(cluster_file, "--cluster"));
    if (t.failures.mtbf_hours <= 0)
        throw UserError("tune.no_mtbf", "--mtbf",
                        fmt::format("{} does not say how often its devices fail (machine.mtbf_hours): give --mtbf, the hours of "
                                    "one device between two failures",
                                    cluster_file));
    return t;
}

void print(const TrainingArgs& args, const TrainingResult& r) {
    if (!r.devices.empty()) print_devices(args, r.devices, r.training);
    if (args.goodput) {
        print_goodput(r);
        fmt::print("training: {:.4g} tokens in {:.1f} days, {:.0f} device hours{}\n", r.training.tokens, r.fastest.hours / 24,
                   r.fastest.device_hours(), is_priced(r.training) ? ", " + money(args, r.fastest.price) : "");
    }
    if (args.days > 0) print_days(args, r);
}

Json json_of(const TrainingArgs& args, const TrainingResult& r) {
    Json out = {{"devices", rows_json_of(r.devices, r.training)}};
    if (args.goodput) {
        out["goodput"] = goodput_json(r.fastest.goodput);
        out["goodput"]["mtbf_hours"] = r.training.failures.mtbf_hours;
        out["goodput"]["save_s"] = r.training.failures.save_s, out["goodput"]["restart_s"] = r.training.failures.restart_s;
        out["training"] = row_json(r.fastest, r.training);
        out["training"]["tokens"] = r.training.tokens;
    }
    if (args.days > 0) {
        const tune::OfDevices* smallest = tune::smallest_within(r.days, args.days);
        out["within_days"] = {{"wanted", args.days},
                              {"tokens", r.training.tokens},
                              {"smallest", smallest ? row_json(*smallest, r.training) : Json(nullptr)},
                              {"searched", rows_json_of(r.days, r.training)}};
    }
    if (!args.currency.empty()) out["currency"] = args.currency;
    return out;
}

}  // namespace lockstep::cli
