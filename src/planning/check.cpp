#include "planning/check.h"

#include "planning/refusal.h"
#include "planning/run_data.h"
#include "planning/topology.h"

namespace lockstep::planning {

Checked check(compile::Recipe recipe, const std::string& cluster_file) {
    Checked c;
    set_levels(recipe, cluster_file);
    open_run_data(recipe, MissingData::Assume);
    const compile::Config config = compile::config_of(recipe);
    c.machine = machine_of(config, cluster_file);
    c.compiled = compile::compile(config, c.machine.options);
    c.reports = compile::reports_of(c.compiled);
    const mesh::Topology& topology = c.machine.options.route.topology;
    c.groups = compile::traffic_of(c.compiled, hosts_described(c.machine.cluster, topology, c.compiled.layout.ranks));
    c.bytes_by_host = compile::bytes_by_host(c.compiled, topology);
    c.refusal = refusal_of(config, c.machine.options, c.compiled, c.machine.capacity);
    return c;
}

}  // namespace lockstep::planning
