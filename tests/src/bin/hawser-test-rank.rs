//! A rank in a process of its own, for tests.
//!
//! ```text
//! hawser-test-rank rank ID RANKS RANK STEP...   joins, then carries out the steps in order
//! hawser-test-rank hosts HOSTS STEP...           a thread per rank; letter i names the host of rank i
//! hawser-test-rank leaks SCENARIO               counts what many rounds leave behind
//! hawser-test-rank flooded ID RANKS RANK FILES  a rank that strangers flood (ID `new`: makes one)
//! hawser-test-rank stranger CONNECTIONS USER NICE  makes silent connections to the ports that it reads
//! hawser-test-rank elastic RANKS                measures a shrink by one rank and growth by one
//! hawser-test-rank together RANKS               all in one thread; in the second group one differs
//! hawser-test-rank verdicts                     why this host's first process says it hangs, as JSON
//! ```
//!
//! ID `env` is the one that `NCCL_COMM_ID` stands for.
//!
//! Steps: `all_reduce`, `matrix` (all collectives), `small` (the same with fewer cases), `vectors`
//! (parts of different lengths), `puts` (one-sided transfers), `put-loop` (the same until one fails),
//! `registered` (calls whose buffers are registered), `unstaged` (their bytes that went unstaged),
//! `given-up` and `given-up-aborted` (a message that comes too late for such a call),
//! `mixed` (groups of collectives and messages), `gathers` (all-gathers until one fails), `decision`
//! (writes which rule decided last), `again` (all-reduces until one fails), `follow` (the same; writes
//! "changed" after some changes of rules), `changes` (`follow` beside a thread that changes rules),
//! `switches` (writes the changes that this rank took), `rounds` (until rank 0 reads the line `stop`;
//! other lines it writes back after one more round), `registered-rounds` (with registered buffers),
//! `abort-on-stdin` (a thread aborts when a line
//! comes), `mark` (writes "mark"), `loop=COLLECTIVE` (calls of random lengths until one fails), `ring`
//! (messages to the next rank until one fails), `splits`, `shrinks` and `grows` (new communicators, each
//! with an all-reduce, until one fails), `take-in=COUNT` (grows by ranks of other processes, for which rank 0
//! writes an id, and works until a call fails), `grow-once` (grows by a thread), `survive=RANK` (makes a
//! communicator without a dead rank, and uses it), `send=PEER`, `recv=PEER` (one message), `fork` (a child
//! that sleeps), `fork-calls` (a child that calls what it must not), `misuse=SEED` (wrong calls of several
//! threads), `late` (one after `destroy`), `break[=SENDS]` (the test net fails soon), `flip` (it changes
//! a bit soon), `stall` (it soon ends no send any more),
//! `pause=MS`, `sleep` (until killed), `finalize`, `destroy`, `abort`,
//! `call=COLLECTIVE/COUNT/TYPE/REDUCTION/ROOT`, `big-send=PEER`, `big-recv=PEER`,
//! `queued=COUNT`, `child=first|second|late`,
//! `unmapped[=message]` (a buffer where no memory is), `two[=unmapped]` (two calls in a group),
//! `paced=MS` (all-reduces with pauses), `soak=SEED/LIMIT/TIME` (random sleeps, see `soak.rs`),
//! `beside=ROUNDS` (urgent all-reduces beside best-effort ones, see `urgent.rs`),
//! `spin` and `read` (for hangs, see `hangs.rs`),
//! `recorded=PATH` (writes what the test plugin in this library wrote down). A step that fails writes
//! `error KIND: TEXT` and ends the process with 3; with `?` before its name the next step follows.

use std::ffi::CStr;
use std::io::stdin;
use std::os::unix::process::parent_id;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::time::Duration;

use hawser_compat::library::Library;
use hawser_plan::{Collective, DataType, ReduceOp};
use hawser_plugin::tuner::SettingsFile;
use hawser_runtime::rules_update::Switch;
use hawser_runtime::{Comm, Config, Error, Result, unique_id};
use hawser_tests::oracle::Case;
use hawser_tests::process::id_from_hex;
use hawser_tests::{
    deaths, floods, hangs, leaks, misuse, mixed, puts, registered, soak, urgent, vectors, world,
};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        ["rank", id, ranks, rank, ref steps @ ..] => serve(id, ranks, rank, steps),
        ["hosts", hosts, ref steps @ ..] => serve_hosts(hosts, steps),
        ["elastic", ranks] => ranks
            .parse()
            .map_err(|_| Error::invalid_argument("elastic RANKS"))
            .and_then(hawser_tests::elastic::measure),
        ["together", ranks] => {
            ranks.parse().map_err(|_| Error::invalid_argument("together RANKS")).and_then(hangs::together)
        }
        ["verdicts"] => hangs::print_verdicts(),
        ["flooded", id, ranks, rank, files] => flooded(id, [ranks, rank, files]),
        ["stranger", connections, user, nice] => stranger([connections, user, nice]),
        ["leaks", scenario] => leaks::run(scenario).map_err(Error::internal),
        _ => Err(Error::invalid_argument(format!("{args:?}: see the source"))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&error);
            ExitCode::from(3)
        }
    }
}

fn flooded(id: &str, numbers: [&str; 3]) -> Result<()> {
    end_with_parent();
    let bad = |_| Error::invalid_argument("flooded ID RANKS RANK FILES");
    let [ranks, rank, files] = numbers.map(str::parse::<u32>);
    floods::rank(id, ranks.map_err(bad)?, rank.map_err(bad)?, files.map_err(bad)?.into())
}

fn stranger(numbers: [&str; 3]) -> Result<()> {
    let bad = |_| Error::invalid_argument("stranger CONNECTIONS USER NICE");
    let [connections, user, nice] = numbers.map(str::parse::<u32>);
    floods::stranger(connections.map_err(bad)?, user.map_err(bad)?, nice.map_err(bad)?)
}

fn serve(id: &str, ranks: &str, rank: &str, steps: &[&str]) -> Result<()> {
    end_with_parent();
    let bad = || Error::invalid_argument("id, ranks and rank are not what the test passed");
    let id = if id == "env" { unique_id()? } else { id_from_hex(id).ok_or_else(bad)? };
    let (ranks, rank) = (ranks.parse().map_err(|_| bad())?, rank.parse().map_err(|_| bad())?);
    carry_out_all(&Comm::init(&[id], ranks, rank, 0, Config::default())?, steps)
}

fn serve_hosts(hosts: &str, steps: &[&str]) -> Result<()> {
    end_with_parent();
    let (id, ranks) = (unique_id()?, hosts.len() as u32);
    let run = |rank: u32, host: char| {
        let config = Config { host: Some(host.into()), ..Config::default() };
        carry_out_all(&Comm::init(&[id], ranks, rank, rank, config)?, steps)
    };
    std::thread::scope(|scope| {
        let start = |(rank, host)| scope.spawn(move || run(rank, host));
        let threads: Vec<_> = (0..).zip(hosts.chars()).map(start).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, Result<()>>| {
            t.join().unwrap_or_else(|_| Err(Error::internal("a rank panicked")))
        };
        threads.into_iter().map(join).collect::<Vec<_>>().into_iter().collect()
    })
}

fn carry_out_all(comm: &Comm, steps: &[&str]) -> Result<()> {
    for step in steps {
        match step.strip_prefix('?') {
            Some(step) => {
                let _ = carry_out(comm, step).inspect_err(report);
            }
            None => carry_out(comm, step)?,
        }
    }
    Ok(())
}

/// Writes the text that a C test plugin keeps in its variable `recorded`.
fn print_recorded(path: &str) -> Result<()> {
    let library = Library::open(Path::new(path)).map_err(Error::invalid_argument)?;
    let text =
        library.data("recorded").ok_or_else(|| Error::invalid_argument(format!("{path} records nothing")))?;
    // SAFETY: the recorder keeps its text terminated.
    println!("{}", unsafe { CStr::from_ptr(text.cast()) }.to_string_lossy());
    Ok(())
}

/// A test that is killed leaves no process behind.
fn end_with_parent() {
    let parent = parent_id();
    std::thread::spawn(move || {
        while parent_id() == parent {
            std::thread::sleep(Duration::from_millis(500));
        }
        std::process::exit(4)
    });
}

fn carry_out(comm: &Comm, step: &str) -> Result<()> {
    match step {
        "all_reduce" => world::all_reduce(comm, 5_000),
        "again" => loop {
            world::all_reduce(comm, 200_000)?;
        },
        "matrix" => matrix(comm),
        "small" => small(comm),
        "vectors" => vectors::run_all(comm),
        "puts" => puts::run_all(comm),
        "registered" => registered::run_all(comm),
        "unstaged" => registered::count(comm),
        "given-up" => registered::given_up(comm, false),
        "given-up-aborted" => registered::given_up(comm, true),
        "put-loop" => puts::looped(comm),
        "mixed" => (0..3).try_for_each(|_| mixed::run(comm)),
        "gathers" => loop {
            world::run(comm, world::plain(Collective::AllGather, comm.ranks(), 30_011), false, 1)?;
        },
        "fork" => deaths::fork_a_sleeper(),
        "fork-calls" => deaths::fork_a_caller(comm),
        "ring" => deaths::ring(comm),
        "splits" => deaths::splits(comm),
        "shrinks" => deaths::shrinks(comm),
        "grows" => deaths::grows(comm),
        "grow-once" => deaths::grow_once(comm),
        taken if taken.starts_with("take-in=") => deaths::take_in(comm, &taken["take-in=".len()..]),
        "late" => misuse::late(comm),
        misused if misused.starts_with("misuse=") => misuse::run(comm, &misused["misuse=".len()..]),
        survived if survived.starts_with("survive=") => deaths::survive(comm, &survived["survive=".len()..]),
        looped if looped.starts_with("loop=") => deaths::looped(comm, &looped["loop=".len()..]),
        sent if sent.starts_with("send=") => deaths::message(comm, true, &sent["send=".len()..]),
        received if received.starts_with("recv=") => deaths::message(comm, false, &received["recv=".len()..]),
        other => live(comm, other),
    }
}

/// Carries out a step that is no operation: of the communicator's life, of its rules, or of waiting.
fn live(comm: &Comm, step: &str) -> Result<()> {
    match step {
        "decision" => {
            println!("decision: {:?}", comm.last_decision()?.and_then(|last| last.rule));
            Ok(())
        }
        "rounds" => rounds(comm, |case| world::run(comm, case, false, 1)),
        "registered-rounds" => {
            rounds(comm, |case| registered::run(comm, case, false))?;
            println!("unstaged {}", registered::moved().1);
            Ok(())
        }
        "break" => {
            hawser_tests::net::break_after(40);
            Ok(())
        }
        broken if broken.starts_with("break=") => {
            let sends = broken["break=".len()..].parse();
            hawser_tests::net::break_after(sends.map_err(|_| Error::invalid_argument("break=SENDS"))?);
            Ok(())
        }
        "flip" => {
            hawser_tests::net::flip_after(20);
            Ok(())
        }
        "stall" => {
            hawser_tests::net::stall_after(40);
            Ok(())
        }
        "changes" => {
            let proposer = comm.clone();
            std::thread::spawn(move || change_rules(&proposer));
            follow(comm)
        }
        "follow" => follow(comm),
        "switches" => {
            print_switches(comm);
            Ok(())
        }
        "mark" => {
            println!("mark");
            Ok(())
        }
        pause if pause.starts_with("pause=") => {
            let time = pause["pause=".len()..].parse().map_err(|_| Error::invalid_argument("a pause"))?;
            std::thread::sleep(Duration::from_millis(time));
            Ok(())
        }
        "sleep" => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        "abort-on-stdin" => {
            abort_on_stdin(comm.clone());
            Ok(())
        }
        soaks if soaks.starts_with("soak=") => soak::step(comm, &soaks["soak=".len()..]),
        beside if beside.starts_with("beside=") => {
            let rounds = beside["beside=".len()..].parse();
            urgent::beside(comm, rounds.map_err(|_| Error::invalid_argument("beside=ROUNDS"))?)
        }
        "suspend" => comm.suspend(),
        "resume" => comm.resume(),
        "finalize" => comm.finalize(),
        "destroy" => comm.destroy(),
        "abort" => comm.abort(),
        recorded if recorded.starts_with("recorded=") => print_recorded(&recorded["recorded=".len()..]),
        other => hangs::step(comm, other)
            .unwrap_or_else(|| Err(Error::invalid_argument(format!("no step is called {other}")))),
    }
}

/// Starts a thread that aborts when a line comes.
fn abort_on_stdin(comm: Comm) {
    std::thread::spawn(move || {
        let _ = stdin().read_line(&mut String::new());
        comm.abort()
    });
}

/// All collectives over a choice of types, operations and sizes: nothing, one, odd, unaligned, several tiles.
fn matrix(comm: &Comm) -> Result<()> {
    let ranks = comm.ranks();
    let types = [DataType::Float32, DataType::Int8, DataType::Bfloat16];
    for collective in Collective::ALL {
        for (number, dtype) in types.into_iter().enumerate() {
            let two = [ReduceOp::ALL[number], ReduceOp::ALL[number + 3]];
            for &op in if collective.reduces() { &two[..] } else { &[ReduceOp::Sum] } {
                for count in [0, 1, 131, 20_011] {
                    let root = if collective.rooted() { ranks - 1 } else { 0 };
                    let case = Case { collective, dtype, op, ranks, root, count };
                    world::run(comm, case, false, count % 3)?;
                    if collective != Collective::AllToAll {
                        world::run(comm, case, true, 1)?;
                    }
                }
            }
        }
        let root = if collective.rooted() { ranks / 2 } else { 0 };
        world::run(comm, Case { root, ..world::plain(collective, ranks, 300_007) }, false, 1)?;
    }
    Ok(())
}

/// All collectives, with little and with more data.
fn small(comm: &Comm) -> Result<()> {
    for collective in Collective::ALL {
        for count in [1, 131, 40_009] {
            world::run(comm, world::plain(collective, comm.ranks(), count), false, 1)?;
        }
    }
    Ok(())
}

/// Collectives until rank 0 is told to stop. A line is answered when all ranks have begun and ended a round
/// after it.
fn rounds(comm: &Comm, run: impl Fn(Case) -> Result<()>) -> Result<()> {
    let (tell, lines) = channel();
    if comm.rank() == 0 {
        std::thread::spawn(move || {
            stdin().lines().map_while(std::io::Result::ok).try_for_each(|l| tell.send(l))
        });
    }
    loop {
        let told: Vec<String> = lines.try_iter().collect();
        for collective in
            [Collective::AllReduce, Collective::AllGather, Collective::AllToAll, Collective::ReduceScatter]
        {
            run(world::plain(collective, comm.ranks(), 30_011))?;
        }
        let (end, answers): (Vec<String>, _) = told.into_iter().partition(|line| line == "stop");
        answers.iter().for_each(|line| println!("{line}"));
        if world::rank_0_says(comm, !end.is_empty())? {
            return Ok(());
        }
    }
}

/// Other rules, one after the other, until something fails.
fn change_rules(comm: &Comm) {
    for number in 0u32.. {
        let (algorithm, channels) = (["ring", "tree", "all_pairs"][number as usize % 3], 1 + number % 2);
        let text = format!("[[rule]]\nuse = {{ algorithm = \"{algorithm}\", channels = {channels} }}\n");
        match comm.change_rules(&[SettingsFile { name: format!("{number}.toml"), text }]) {
            Ok(_) => {}
            // This thread is faster than the calls.
            Err(error) if error.text.contains("too many") => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => return report(&error),
        }
    }
}

/// All-reduces until one fails. Says "changed" after some changes of rules.
fn follow(comm: &Comm) -> Result<()> {
    let mut said = false;
    for round in 0.. {
        world::all_reduce(comm, 3_000)?;
        if round % 8 == 0 && !said && comm.rule_changes().len() >= 3 {
            said = true;
            println!("changed");
        }
    }
    Ok(())
}

/// Writes the changes of rules that this rank took.
fn print_switches(comm: &Comm) {
    for Switch { change, at, begun, digest } in comm.rule_changes() {
        println!("switch {change} {at} {begun} {digest:016x}");
    }
}

fn report(error: &Error) {
    eprintln!("error {:?}: {}", error.kind, error.text);
}
