//! The ways to run a program: executor, protocol and strategy.

use crate::device::DeviceKind;
use crate::protocol::Protocol;

/// An executor: the machinery that runs a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Executor {
    /// Blocks of a kernel that follow the steps of any program over FIFOs.
    Interpreter,
    /// A kernel that runs a whole call as one or two exchanges between the ranks of one host.
    Fused,
    /// Copy engines and stream memory operations; a small kernel reduces where the call does.
    CopyEngine,
    /// Threads of the CPU that follow the steps of any program, for ranks without a GPU.
    Host,
}

impl Executor {
    /// All executors.
    pub const ALL: [Executor; 4] = [Self::Interpreter, Self::Fused, Self::CopyEngine, Self::Host];

    /// The name in logs, settings, files and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interpreter => "interpreter",
            Self::Fused => "fused",
            Self::CopyEngine => "copy_engine",
            Self::Host => "host",
        }
    }
}

/// An executor with the protocol and the strategy that it uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Route {
    /// The executor that runs the program.
    pub executor: Executor,
    /// The protocol by which data travel.
    pub protocol: Protocol,
    /// True if data go straight between buffers, without staging.
    pub zero_copy: bool,
}

impl Route {
    /// The interpreter with words of 4 bytes of data and 4 of flag.
    pub const LL: Route = Self::new(Executor::Interpreter, Protocol::Ll);
    /// The interpreter with lines of 120 bytes of data and 8 of flag.
    pub const LL128: Route = Self::new(Executor::Interpreter, Protocol::Ll128);
    /// The interpreter with plain data and counters.
    pub const SIMPLE: Route = Self::new(Executor::Interpreter, Protocol::Simple);
    /// A fused kernel with words of 8 bytes of data between two flags.
    pub const FUSED_LL: Route = Self::new(Executor::Fused, Protocol::Ll);
    /// A fused kernel with lines of 120 bytes of data and 8 of flag.
    pub const FUSED_LL128: Route = Self::new(Executor::Fused, Protocol::Ll128);
    /// A fused kernel with tiles of plain data, then a flag per warp.
    pub const FUSED_SIMPLE: Route = Self::new(Executor::Fused, Protocol::Simple);
    /// Copy engines, through staging or straight from user buffer to user buffer.
    pub const COPY_ENGINE: Route = Self::new(Executor::CopyEngine, Protocol::Simple);
    /// A fused kernel whose data go straight between buffers that all ranks reach.
    pub const ZERO_COPY: Route = Self { zero_copy: true, ..Self::FUSED_SIMPLE };
    /// The interpreter's messages that the sender stores where the receiver wants them, if it reaches that
    /// memory. Not one of [`Route::ALL`]: nobody chooses it, and only messages go so.
    pub const LANDING: Route = Self { zero_copy: true, ..Self::SIMPLE };
    /// Threads of the CPU with plain data and counters.
    pub const HOST: Route = Self::new(Executor::Host, Protocol::Simple);

    /// All routes, in the order in which ties are decided.
    pub const ALL: [Route; 9] = [
        Self::LL,
        Self::LL128,
        Self::SIMPLE,
        Self::FUSED_LL,
        Self::FUSED_LL128,
        Self::FUSED_SIMPLE,
        Self::COPY_ENGINE,
        Self::ZERO_COPY,
        Self::HOST,
    ];

    /// An executor with a protocol, without a strategy.
    pub const fn new(executor: Executor, protocol: Protocol) -> Self {
        Self { executor, protocol, zero_copy: false }
    }

    /// The interpreter with a protocol.
    pub const fn interpreter(protocol: Protocol) -> Self {
        Self::new(Executor::Interpreter, protocol)
    }

    /// The route that runs any program with plain data on a device: the interpreter's or the host's.
    pub const fn simple(device: DeviceKind) -> Self {
        match device {
            DeviceKind::Host => Self::HOST,
            DeviceKind::Cuda { .. } => Self::SIMPLE,
        }
    }

    /// The position in [`Route::ALL`]; that of [`Route::SIMPLE`] for [`Route::LANDING`].
    pub fn index(self) -> usize {
        let listed = if self == Self::LANDING { Self::SIMPLE } else { self };
        Self::ALL.iter().position(|route| *route == listed).unwrap_or(0)
    }

    /// The position of the size of its slots among the three of the settings; staging has the last one.
    pub const fn slots(self) -> usize {
        match self.executor {
            Executor::Interpreter | Executor::Host => self.protocol as usize,
            Executor::Fused | Executor::CopyEngine => Protocol::Simple as usize,
        }
    }

    /// True if a fused kernel runs the program.
    pub fn is_fused(self) -> bool {
        self.executor == Executor::Fused
    }

    /// True if copy engines move the data.
    pub fn is_copied(self) -> bool {
        self.executor == Executor::CopyEngine
    }

    /// The executor, the protocol and the strategy, as logs, answers and files have them and `NCCL_PROTO`
    /// reads them.
    pub const fn name(self) -> &'static str {
        match (self.executor, self.protocol) {
            (Executor::Interpreter, Protocol::Ll) => "interpreter/LL",
            (Executor::Interpreter, Protocol::Ll128) => "interpreter/LL128",
            (Executor::Interpreter, Protocol::Simple) if self.zero_copy => "interpreter/Simple/zero_copy",
            (Executor::Interpreter, Protocol::Simple) => "interpreter/Simple",
            (Executor::Fused, Protocol::Ll) => "fused/LL",
            (Executor::Fused, Protocol::Ll128) => "fused/LL128",
            (Executor::Fused, Protocol::Simple) if self.zero_copy => "fused/Simple/zero_copy",
            (Executor::Fused, Protocol::Simple) => "fused/Simple",
            (Executor::CopyEngine, _) => "copy_engine/Simple",
            (Executor::Host, _) => "host/Simple",
        }
    }

    /// The one word from when every route counted as a protocol of its own. Settings and files still read it;
    /// NCCL's own words for the interpreter (`LL`, `LL128`, `Simple`) are among them.
    pub const fn old_name(self) -> &'static str {
        match (self.executor, self.protocol) {
            (Executor::Interpreter | Executor::Host, protocol) => protocol.name(),
            (Executor::Fused, Protocol::Ll) => "SymLL",
            (Executor::Fused, Protocol::Ll128) => "SymLL128",
            (Executor::Fused, Protocol::Simple) if self.zero_copy => "SymDirect",
            (Executor::Fused, Protocol::Simple) => "SymSimple",
            (Executor::CopyEngine, _) => "DMA",
        }
    }
}

/// A set of routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Routes {
    /// For each of [`Route::ALL`] whether it is in the set.
    has: [bool; Route::ALL.len()],
}

impl Routes {
    /// The set of all routes.
    pub const ALL: Routes = Routes { has: [true; Route::ALL.len()] };

    /// The routes for which `is` holds.
    pub fn that(is: impl Fn(Route) -> bool) -> Self {
        Self { has: Route::ALL.map(is) }
    }

    /// True if a route is in the set.
    pub fn contains(&self, route: Route) -> bool {
        self.has[route.index()]
    }

    /// The routes of the set.
    pub fn iter(&self) -> impl Iterator<Item = Route> {
        let has = self.has;
        Route::ALL.into_iter().zip(has).filter(|(_, has)| *has).map(|(route, _)| route)
    }

    /// The set without those of another.
    pub fn without(&self, others: &Routes) -> Self {
        Self::that(|route| self.contains(route) && !others.contains(route))
    }

    /// A number that differs when sets differ, for digests.
    pub fn number(&self) -> u64 {
        self.iter().fold(0, |all, route| all | 1 << route.index())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_hold_what_was_put_in() {
        let fused = Routes::that(Route::is_fused);
        assert_eq!(fused.iter().count(), 4);
        assert!(fused.contains(Route::ZERO_COPY) && !fused.contains(Route::SIMPLE));
        let others = Routes::ALL.without(&fused);
        assert!(others.contains(Route::COPY_ENGINE) && others.iter().all(|route| !route.is_fused()));
        assert_ne!(fused.number(), others.number());
    }
}
