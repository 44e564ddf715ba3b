//! Short ways to write steps, for generators, parsers and tests.

use super::{Buf, Channel, Dep, Op, RankProgram, Ref, Step};

/// Chunk `chunk` of the user's send buffer.
pub const fn input(chunk: u32) -> Ref {
    Ref { buf: Buf::Input, chunk }
}

/// Chunk `chunk` of the user's receive buffer.
pub const fn output(chunk: u32) -> Ref {
    Ref { buf: Buf::Output, chunk }
}

/// Chunk `chunk` of the communicator's scratch memory.
pub const fn scratch(chunk: u32) -> Ref {
    Ref { buf: Buf::Scratch, chunk }
}

/// `dst = src`.
pub fn copy(src: Ref, dst: Ref) -> Step {
    Step { src: Some(src), dst: Some(dst), ..Step::new(Op::Copy) }
}

/// `dst = dst ⊕ src`.
pub fn reduce(src: Ref, dst: Ref) -> Step {
    Step { src: Some(src), dst: Some(dst), ..Step::new(Op::Reduce) }
}

/// Sends `src` to every rank of `to`.
pub fn send(src: Ref, to: Vec<u32>) -> Step {
    Step { src: Some(src), send: to, ..Step::new(Op::Send) }
}

/// `dst = src`, sent to every rank of `to`.
pub fn copy_send(src: Ref, dst: Ref, to: Vec<u32>) -> Step {
    Step { src: Some(src), dst: Some(dst), send: to, ..Step::new(Op::CopySend) }
}

/// `dst =` what `from` sent.
pub fn recv(from: u32, dst: Ref) -> Step {
    Step { recv: vec![from], dst: Some(dst), ..Step::new(Op::Recv) }
}

/// Passes on what `from` sent and keeps it in `dst`.
pub fn recv_copy_send(from: u32, dst: Ref, to: Vec<u32>) -> Step {
    Step { recv: vec![from], dst: Some(dst), send: to, ..Step::new(Op::RecvCopySend) }
}

/// Sends the reduction of what `from` sent with `src` at position `order`.
pub fn recv_reduce_send(from: Vec<u32>, src: Ref, order: u32, to: Vec<u32>) -> Step {
    Step { recv: from, src: Some(src), order, send: to, ..Step::new(Op::RecvReduceSend) }
}

/// Keeps the reduction of what `from` sent with `src` at position `order`.
pub fn recv_reduce_copy(from: Vec<u32>, src: Ref, order: u32, dst: Ref) -> Step {
    Step { recv: from, src: Some(src), order, dst: Some(dst), ..Step::new(Op::RecvReduceCopy) }
}

/// Keeps and sends the reduction of what `from` sent with `src` at position `order`.
pub fn recv_reduce_copy_send(from: Vec<u32>, src: Ref, order: u32, dst: Ref, to: Vec<u32>) -> Step {
    Step { recv: from, src: Some(src), order, dst: Some(dst), send: to, ..Step::new(Op::RecvReduceCopySend) }
}

impl Step {
    /// A step without operands that runs once.
    pub fn new(op: Op) -> Self {
        Self {
            op,
            recv: Vec::new(),
            send: Vec::new(),
            src: None,
            dst: None,
            order: 0,
            times: 1,
            stride: 0,
            finish: false,
            after: Vec::new(),
        }
    }

    /// Runs `times` times, moving by `stride` chunks.
    pub fn repeat(mut self, times: u32, stride: i32) -> Self {
        self.times = times;
        self.stride = stride;
        self
    }

    /// Marks the value as complete.
    pub fn finish(mut self) -> Self {
        self.finish = true;
        self
    }

    /// Waits for a step of another channel.
    pub fn after(mut self, channel: u32, step: u32) -> Self {
        self.after.push(Dep { channel, step });
        self
    }
}

impl Channel {
    /// Appends a step.
    pub fn push(&mut self, step: Step) {
        self.steps.push(step);
    }
}

impl RankProgram {
    /// A program of `channels` channels without steps.
    pub fn with_channels(channels: usize) -> Self {
        Self { channels: vec![Channel::default(); channels], lanes: Vec::new(), runs: Vec::new() }
    }

    /// A program of one channel.
    pub fn single(steps: Vec<Step>) -> Self {
        Self { channels: vec![Channel { steps }], lanes: Vec::new(), runs: Vec::new() }
    }
}
