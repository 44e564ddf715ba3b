//! Waits for what the kernel has on its way between sockets of this machine. Where it has much to do, a
//! thread of its own brings that: packets wait in a list per processor. `/proc/net/softnet_stat` has a line
//! for each list, with numbers in hexadecimal.

/// The number of times that packets which came of others are waited for: a call, its answer, what is said.
const ROUNDS: usize = 8;

/// The number of times that a list is looked at before it is given up: that takes a second or more.
const LOOKS: usize = 10_000;

/// The columns with the packets that have been taken from the list so far, and those that wait in it.
const TAKEN: usize = 0;
const WAITING: usize = 11;

/// The list of a processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Backlog {
    taken: u32,
    waiting: u32,
}

impl Backlog {
    /// True if all that waited earlier has been taken now.
    fn is_taken(&self, now: &Self) -> bool {
        now.waiting == 0 || now.taken.wrapping_sub(self.taken) >= self.waiting
    }
}

/// Waits until what was sent has come. `pause` leaves the processor to others for a moment.
pub(super) fn wait(pause: fn()) {
    wait_until_taken(|| read(&std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default()), pause);
}

fn wait_until_taken(mut look: impl FnMut() -> Option<Vec<Backlog>>, pause: fn()) {
    for _ in 0..ROUNDS {
        // A kernel that does not tell has a moment.
        let Some(before) = look() else { return pause() };
        if before.iter().all(|list| list.waiting == 0) {
            return;
        }
        let is_taken = |now: Vec<Backlog>| before.iter().zip(&now).all(|(before, now)| before.is_taken(now));
        for _ in 0..LOOKS {
            if look().is_none_or(is_taken) {
                break;
            }
            pause();
        }
    }
}

/// The lists of all processors; None if the text has none.
fn read(text: &str) -> Option<Vec<Backlog>> {
    let list = |line: &str| {
        let column = |at| u32::from_str_radix(line.split_ascii_whitespace().nth(at)?, 16).ok();
        Some(Backlog { taken: column(TAKEN)?, waiting: column(WAITING)? })
    };
    let lists: Option<Vec<Backlog>> = text.lines().map(list).collect();
    lists.filter(|lists| !lists.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_old_kernels_have_none() {
        let line = |taken: u32, waiting: u32| {
            format!("{taken:08x} 0 2 0 0 0 0 0 0 0 0 {waiting:08x} 00000000 00000000 00000000")
        };
        let text = format!("{}\n{}\n", line(0x077b_ca4b, 0), line(17, 20));
        let lists = [Backlog { taken: 0x077b_ca4b, waiting: 0 }, Backlog { taken: 17, waiting: 20 }];
        assert_eq!(read(&text), Some(lists.to_vec()));
        assert_eq!((read(""), read("00000000 00000000 00000002 00000000")), (None, None));
    }

    #[test]
    fn what_waits_and_what_comes_of_it_is_waited_for() {
        let list = |taken, waiting| Some(vec![Backlog { taken, waiting }]);
        // Two wait; another program sends all the time; what came of the two waits behind it.
        let mut looks =
            [list(u32::MAX, 2), list(0, 5), list(1, 9), list(1, 1), list(2, 7), list(9, 0)].into_iter();
        let mut seen = 0;
        wait_until_taken(|| looks.next().inspect(|_| seen += 1).flatten(), || {});
        assert_eq!(seen, 6);
    }
}
