//! The steps of a program, as one rank carries them out.

use std::time::Duration;

use hawser_oracle::Case;
use hawser_plugin::tuner::SettingsFile;
use hawser_runtime::{Comm, Error, Result, group};
use hawser_tests::mail::{Mail, Parcel};
use hawser_tests::puts::{self, Windows};
use hawser_tests::vectors;
use hawser_tests::world::{Issued, issue};

use crate::turns;
use crate::world::{Drawn, Message, Step};

/// The beginning of the text of an error that says that a result is wrong.
pub const WRONG: &str = "wrong result";

/// Carries out a step, which has a number of its own among those on a communicator.
///
/// # Errors
/// The library's; a text that begins with [`WRONG`] if a result is wrong.
pub fn carry_out(comm: &Comm, number: usize, step: &Step) -> Result<()> {
    let place = |who: usize| who % comm.ranks() as usize == comm.rank() as usize;
    match step {
        Step::Collective(drawn) => judge(call(comm, drawn)?.fault()),
        Step::Group(collectives, messages) => in_a_group(comm, collectives, messages),
        Step::Groups(groups) => in_groups(comm, groups),
        Step::Split(colors, inner) => {
            let Some(child) = comm.split(colors[comm.rank() as usize % colors.len()], 0, None)? else {
                return Ok(());
            };
            inner.iter().try_for_each(|drawn| judge(call(&child, drawn)?.fault()))?;
            child.destroy()
        }
        Step::Rules(who, number) if place(*who) && comm.ranks() > 1 => {
            match comm.change_rules(&rules(*number)) {
                Err(error) if !error.text.contains("too many changes wait") => Err(error),
                _ => Ok(()),
            }
        }
        Step::Often(drawn, times) => (0..*times).try_for_each(|_| judge(call(comm, drawn)?.fault())),
        Step::SideBySide(here, there) => side_by_side(comm, here, there),
        Step::Put(bytes, rounds) => {
            let mut windows = Windows::new(comm, *bytes, 2 * number as u64)?;
            (0..*rounds).try_for_each(|round| puts::exchange(comm, &mut windows, *bytes, round))
        }
        Step::Vectors => vectors::run_all(comm),
        Step::Suspend => {
            comm.suspend()?;
            comm.resume()
        }
        Step::Nap(who, time) if place(*who) => {
            std::thread::sleep(Duration::from_micros(*time));
            Ok(())
        }
        Step::Rules(..) | Step::Nap(..) => Ok(()),
        Step::Stop(who, after, time, drawn) => {
            let (after, time) = (Duration::from_micros(*after), Duration::from_millis(*time));
            if place(*who) && !turns::freeze(after, time) {
                // Threads that take no turns cannot be stopped one by one.
                std::thread::sleep(after);
            }
            judge(call(comm, drawn)?.fault())
        }
    }
}

fn judge(fault: Option<String>) -> Result<()> {
    fault.map_or(Ok(()), |text| Err(Error::internal(format!("{WRONG}: {text}"))))
}

fn call(comm: &Comm, drawn: &Drawn) -> Result<Issued> {
    let ranks = comm.ranks();
    let Drawn { collective, dtype, op, count, .. } = *drawn;
    let root = if collective.rooted() { drawn.root % ranks } else { 0 };
    issue(comm, Case { collective, dtype, op, ranks, root, count }, drawn.in_place, drawn.shift)
}

fn side_by_side(comm: &Comm, here: &[Drawn], there: &[Drawn]) -> Result<()> {
    let all = |comm: &Comm, drawn: &[Drawn]| drawn.iter().try_for_each(|d| judge(call(comm, d)?.fault()));
    let Some(other) = comm.split(0, 0, None)? else { return Ok(()) };
    let (one, two) = std::thread::scope(|scope| {
        let two = scope.spawn(|| all(&other, there));
        let one = all(comm, here);
        if one.is_err() {
            // Nobody comes to the other one any more.
            let _ = other.abort();
        }
        (one, two.join().unwrap_or_else(|_| Err(Error::internal("the other thread panicked"))))
    });
    if two.is_err() {
        let _ = other.abort();
    }
    one.and(two)?;
    other.destroy()
}

fn in_a_group(comm: &Comm, collectives: &[Drawn], messages: &[Message]) -> Result<()> {
    let parcels = parcels(comm, messages);
    group::start()?;
    let called = (|| {
        let issued: Vec<Issued> = collectives.iter().map(|drawn| call(comm, drawn)).collect::<Result<_>>()?;
        Ok::<_, Error>((issued, Mail::post(comm, &parcels)?))
    })();
    let ended = group::end();
    let (issued, mail) = called?;
    ended?;
    judge(issued.iter().find_map(Issued::fault).or_else(|| mail.fault()))
}

fn parcels(comm: &Comm, messages: &[Message]) -> Vec<Parcel> {
    let ranks = comm.ranks();
    let parcel = |m: &Message| Parcel { from: m.from % ranks, to: m.to % ranks, bytes: m.bytes };
    messages.iter().map(parcel).collect()
}

/// Groups of messages one after the other. Nobody looks at what has come before the last group has ended.
fn in_groups(comm: &Comm, groups: &[Vec<Message>]) -> Result<()> {
    let mut mails = Vec::new();
    for (number, messages) in (0..).zip(groups) {
        group::start()?;
        // No two groups send the same.
        let posted = Mail::post_from(comm, &parcels(comm, messages), 50 * number);
        let ended = group::end();
        mails.push(posted?);
        ended?;
    }
    judge(mails.iter().find_map(Mail::fault))
}

/// Rules that take one algorithm wherever it can run; every number gives other rules.
fn rules(number: u64) -> Vec<SettingsFile> {
    let algorithms = ["ring", "tree", "all_pairs", "one_shot", "halving_doubling", "recursive_doubling"];
    let algorithm = algorithms[(number % 6) as usize];
    let (channels, chunk) = (1 + number / 6 % 2, 512 * (1 + number / 12 % 8));
    let text = format!(
        "[[rule]]\nuse = {{ algorithm = \"{algorithm}\", channels = {channels}, chunk = {chunk} }}\n"
    );
    vec![SettingsFile { name: "world.toml".into(), text }]
}
