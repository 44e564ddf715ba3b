//! Clusters that are described and not here: the topology and the settings that their jobs would have.

use std::path::Path;

use anyhow::{Context, Result};
use hawser_plan::PlanConfig;
use hawser_runtime::comm;
use hawser_sim::cluster::nccl;
use hawser_sim::{Cluster, File};

/// Reads a cluster: a file, or a sentence such as `64 hosts of hgx-h200, rail-optimised, 2:1`.
///
/// # Errors
/// The file cannot be read or understood, or the cluster cannot be.
pub fn read(name: &str) -> Result<Cluster> {
    let path = Path::new(name);
    if !path.exists() && name.contains(" of ") {
        let file = with_topologies(File::sentence(name)?, Path::new(""))?;
        return Ok(Cluster::new(&file, None)?);
    }
    let text = std::fs::read_to_string(path).with_context(|| {
        format!("cannot read {name}: name a cluster file, or write \"2 hosts of hgx-h200\"")
    })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let file = File::parse(&text).with_context(|| name.to_owned())?;
    let file = with_topologies(file, folder).with_context(|| name.to_owned())?;
    let measured = file.constants_file.as_ref().map(|constants| {
        // Beside the cluster's own file, unless it is an absolute path.
        let place = folder.join(constants);
        std::fs::read_to_string(&place).with_context(|| {
            format!("{name}: cannot read {0}, which hawser measure -o {0} would write", place.display())
        })
    });
    Cluster::new(&file, measured.transpose()?.as_deref()).with_context(|| name.to_owned())
}

/// Puts what NCCL's topologies say below the hosts that name one. They lie in `folder`.
fn with_topologies(mut file: File, folder: &Path) -> Result<File> {
    for hosts in &mut file.hosts {
        let Some(topology) = &hosts.topology_file else { continue };
        let place = folder.join(topology);
        let shown = place.display();
        let text = std::fs::read_to_string(&place)
            .with_context(|| format!("cannot read {shown}, which NCCL writes by NCCL_TOPO_DUMP_FILE"))?;
        *hosts = hosts.over(nccl::host(&text).with_context(|| shown.to_string())?);
    }
    Ok(file)
}

/// The settings that the cluster's ranks would have: the environment's, and nothing else of this machine.
///
/// # Errors
/// Settings are wrong.
pub fn settings(cluster: &Cluster) -> Result<PlanConfig> {
    Ok(comm::plan_config_elsewhere(&cluster.topology, cluster.most_blocks())?)
}
