//! The place of this process in the job: read from the launcher's variables, or made by `-p`.
//!
//! torchrun, Open MPI, MPICH and Intel MPI (PMI) and srun are known. All that a launcher has to
//! provide are three numbers; processes then meet over TCP (see [`super::meeting`]).

use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

/// Variables by which `-p` tells its children their place.
const PROCESS: &str = "HAWSER_PROCESS";
const PROCESSES: &str = "HAWSER_PROCESSES";
const STARTED_BY: &str = "HAWSER_PROCESS_STARTED_BY";
const MEETING_FILE: &str = "HAWSER_MEETING_FILE";

/// The time for which the others may live on after one process failed.
const GRACE: Duration = Duration::from_secs(5);

/// The way in which the processes of a job find each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Meeting {
    /// There is only one process.
    Alone,
    /// Process 0 writes its address and a secret into this file; for one host.
    File(PathBuf),
    /// Process 0 listens on this host, on the first free one of a few ports.
    Host {
        /// Name or address of the host.
        host: String,
        /// First port.
        port: u16,
        /// The name of the job, which other jobs do not have and strangers may guess.
        job: String,
    },
}

/// The place of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Index in the job.
    pub process: u32,
    /// Processes of the job.
    pub processes: u32,
    /// Index among the processes of this host.
    pub local: u32,
    /// True if a launcher (or `-p`) started this process as one of several.
    pub launched: bool,
    /// The way in which the processes find each other.
    pub meeting: Meeting,
}

impl Place {
    /// Reads the place from the environment.
    ///
    /// # Errors
    /// A launcher was recognized, but its numbers make no sense or no meeting point can be derived.
    pub fn from_env() -> Result<Self> {
        place(&|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
    }
}

/// Runs this same command `processes` times and waits. Fails if one of them fails.
pub fn spawn(processes: u32) -> Result<()> {
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let file = private_dir().join(format!("hawser-{}-{:x}", std::process::id(), unique()));
    let children = (0..processes).map(|process| {
        Command::new(&program)
            .args(std::env::args_os().skip(1))
            .env(PROCESS, process.to_string())
            .env(PROCESSES, processes.to_string())
            .env(MEETING_FILE, &file)
            .env(STARTED_BY, std::process::id().to_string())
            .spawn()
            .with_context(|| format!("cannot start process {process} of {processes}"))
    });
    let mut started = Vec::new();
    let mut failure = None;
    for child in children {
        match child {
            Ok(child) => started.push(child),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    let result = wait(&mut started, failure);
    let _ = std::fs::remove_file(&file);
    result
}

/// Ends this process with the one that has started it by [`spawn`], whichever way that ends.
pub fn end_with_starter() {
    let Some(starter) = std::env::var(STARTED_BY).ok().and_then(|text| text.parse::<i32>().ok()) else {
        return;
    };
    // A failure leaves things as they are without this.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    // It may have ended just before.
    if rustix::process::getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != starter) {
        std::process::exit(1);
    }
}

/// Waits for all children; once something failed, the rest gets a moment and is then stopped.
fn wait(children: &mut [Child], mut failure: Option<anyhow::Error>) -> Result<()> {
    let mut ended: Vec<Option<ExitStatus>> = vec![None; children.len()];
    let mut deadline = failure.as_ref().map(|_| Instant::now() + GRACE);
    while ended.iter().any(Option::is_none) {
        for (process, (child, ended)) in children.iter_mut().zip(&mut ended).enumerate() {
            if ended.is_some() {
                continue;
            }
            let Some(status) = child.try_wait().context("cannot wait for a process")? else { continue };
            *ended = Some(status);
            if !status.success() && failure.is_none() {
                failure = Some(anyhow!("process {process} ended with {status}"));
                deadline = Some(Instant::now() + GRACE);
            }
        }
        if deadline.is_some_and(|d| Instant::now() > d) {
            for (child, _) in children.iter_mut().zip(&ended).filter(|(_, status)| status.is_none()) {
                // It may have ended just now, which is as good.
                let _ = child.kill();
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    failure.map_or(Ok(()), Err)
}

type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

fn place(env: Variables) -> Result<Place> {
    // (process, processes, index on the host, processes of the host)
    const LAUNCHERS: [(&str, [&str; 4]); 5] = [
        ("hawser -p", [PROCESS, PROCESSES, PROCESS, PROCESSES]),
        ("torchrun", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]),
        (
            "Open MPI",
            [
                "OMPI_COMM_WORLD_RANK",
                "OMPI_COMM_WORLD_SIZE",
                "OMPI_COMM_WORLD_LOCAL_RANK",
                "OMPI_COMM_WORLD_LOCAL_SIZE",
            ],
        ),
        ("PMI", ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
        ("srun", ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""]),
    ];
    for (launcher, names) in LAUNCHERS {
        // A batch script of Slurm sees its job's numbers too; only a step is a launch.
        if launcher == "srun" && env("SLURM_STEP_ID").is_none() {
            continue;
        }
        let (Some(_), Some(_)) = (env(names[0]), env(names[1])) else { continue };
        return launched(env, launcher, names);
    }
    Ok(Place { process: 0, processes: 1, local: 0, launched: false, meeting: Meeting::Alone })
}

fn launched(env: Variables, launcher: &str, names: [&str; 4]) -> Result<Place> {
    let number = |name: &str| -> Result<Option<u32>> {
        let Some(text) = env(name) else { return Ok(None) };
        let number = text.trim().parse();
        Ok(Some(number.map_err(|_| anyhow!("{name}={text}, set by {launcher}, is not a number"))?))
    };
    let process = number(names[0])?.unwrap_or(0);
    let processes = number(names[1])?.unwrap_or(1);
    if process >= processes {
        bail!("{}={process} and {}={processes} do not fit: the first must be less", names[0], names[1]);
    }
    let hosts = number("SLURM_STEP_NUM_NODES")?.filter(|_| launcher == "srun");
    let of_host = number(names[3])?;
    let one_host = of_host == Some(processes) || hosts == Some(1) || (of_host.is_none() && hosts.is_none());
    let local = number(names[2])?.unwrap_or(process);
    let meeting = if processes == 1 {
        Meeting::Alone
    } else {
        meeting(env, launcher, one_host, of_host == Some(processes))?
    };
    Ok(Place { process, processes, local, launched: true, meeting })
}

/// `one_host`: as far as is known. `is_told`: the launcher says so.
fn meeting(env: Variables, launcher: &str, one_host: bool, is_told: bool) -> Result<Meeting> {
    if let Some(file) = env(MEETING_FILE) {
        return Ok(Meeting::File(file.into()));
    }
    let job = job(env);
    let shared = |host: &str, port: u16| job.clone().unwrap_or_else(|| format!("{host}:{port}"));
    if let Some(address) = env("NCCL_COMM_ID") {
        let split = address.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let Some((host, port)) = split else {
            bail!("NCCL_COMM_ID={address} must have the form host:port");
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let job = shared(&host, port);
        return Ok(Meeting::Host { host, port: port.saturating_add(1), job });
    }
    if let (Some(host), Some(port)) = (env("MASTER_ADDR"), env("MASTER_PORT")) {
        let number: u16 = port.trim().parse().map_err(|_| anyhow!("MASTER_PORT={port} is not a port"))?;
        if is_told {
            // A file needs no name that nobody guesses. The port tells jobs of one name apart.
            let job = job.unwrap_or_default();
            return Ok(Meeting::File(private_dir().join(format!("hawser-{job}-{number}"))));
        }
        let job = shared(&host, number);
        // The launcher itself may listen on this one.
        return Ok(Meeting::Host { host, port: number.saturating_add(1), job });
    }
    if one_host {
        let job = job.unwrap_or_else(|| format!("parent-{}", std::os::unix::process::parent_id()));
        return Ok(Meeting::File(private_dir().join(format!("hawser-{job}"))));
    }
    bail!(
        "{launcher} started processes on several hosts, but not where they can meet: \
         set MASTER_ADDR to the host of process 0 and MASTER_PORT to a free port there"
    )
}

/// A word that the processes of one job share and other jobs of the host do not.
fn job(env: Variables) -> Option<String> {
    let slurm = || Some(format!("{}.{}", env("SLURM_JOB_ID")?, env("SLURM_STEP_ID")?));
    let known = ["TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID"];
    let name = known.into_iter().find_map(env).or_else(slurm)?;
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '-' { c } else { '_' };
    Some(name.chars().map(plain).take(64).collect())
}

/// The folder where files of one user live for the time of a session.
fn private_dir() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|d| d.is_dir());
    runtime.unwrap_or_else(std::env::temp_dir)
}

/// A number that two runs will not share.
pub fn unique() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Place> {
        place(&|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    fn numbers(pairs: &[(&str, &str)]) -> (u32, u32, u32) {
        let place = read(pairs).expect("a place");
        assert!(place.launched);
        (place.process, place.processes, place.local)
    }

    #[test]
    fn alone_without_a_launcher() {
        let place = read(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]).expect("a place");
        assert_eq!((place.processes, place.launched, place.meeting), (1, false, Meeting::Alone));
    }

    #[test]
    fn torchrun_meets_beside_the_store() {
        let env = [
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RUN_ID", "a/b"),
        ];
        assert_eq!(numbers(&env), (5, 8, 1));
        let meeting = read(&env).expect("a place").meeting;
        assert_eq!(meeting, Meeting::Host { host: "node0".into(), port: 29501, job: "a_b".into() });
    }

    #[test]
    fn torchrun_on_one_host_meets_in_a_file() {
        let env = [
            ("RANK", "1"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29500"),
            ("TORCHELASTIC_RUN_ID", "none"),
        ];
        match read(&env).expect("a place").meeting {
            Meeting::File(path) => assert!(path.ends_with("hawser-none-29500"), "{path:?}"),
            other => panic!("{other:?}"),
        }
        // Without the number of processes of this host, the others may be elsewhere.
        let without: Vec<_> = env.into_iter().filter(|(name, _)| *name != "LOCAL_WORLD_SIZE").collect();
        assert!(matches!(read(&without).expect("a place").meeting, Meeting::Host { port: 29501, .. }));
    }

    #[test]
    fn mpirun_meets_in_a_file_on_one_host() {
        let env = [
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "3"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "3"),
            ("PMIX_NAMESPACE", "prterun@1"),
        ];
        assert_eq!(numbers(&env), (2, 3, 2));
        match read(&env).expect("a place").meeting {
            Meeting::File(path) => assert!(path.ends_with("hawser-prterun_1"), "{path:?}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn several_hosts_need_an_address() {
        let mut env = vec![
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let error = read(&env).expect_err("no meeting point").to_string();
        assert!(error.contains("MASTER_ADDR"), "{error}");
        env.push(("NCCL_COMM_ID", "[fe80::1]:7000"));
        let job = match read(&env).expect("a place").meeting {
            Meeting::Host { host, port, job } => {
                assert_eq!((host.as_str(), port), ("fe80::1", 7001));
                job
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(job, "fe80::1:7000");
        env.pop();
        env.push(("NCCL_COMM_ID", "nonsense"));
        assert!(read(&env).is_err());
    }

    #[test]
    fn srun_and_pmi_are_known() {
        let slurm = [
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_JOB_ID", "7"),
            ("SLURM_STEP_NUM_NODES", "1"),
        ];
        assert_eq!(numbers(&slurm), (1, 2, 1));
        assert_eq!(numbers(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]), (1, 2, 1));
        assert_eq!(numbers(&[("PMI_RANK", "0"), ("PMI_SIZE", "1")]), (0, 1, 0));
    }

    #[test]
    fn bad_numbers_are_refused() {
        assert!(read(&[("RANK", "x"), ("WORLD_SIZE", "2")]).is_err());
        assert!(
            read(&[("RANK", "2"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "h"), ("MASTER_PORT", "1")]).is_err()
        );
    }
}
