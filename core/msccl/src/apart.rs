//! Programs that are right out of place only, made right in place too: the input is copied to scratch first.

use hawser_program::{Buf, Dep, Op, Program, Ref, Step};
use hawser_types::Collective;

/// The program with a copy of the input that it reads instead.
pub(super) fn with_copies(program: &Program) -> Program {
    let mut safe = program.clone();
    let shape = &mut safe.shape;
    let first = shape.scratch;
    let inputs = shape.chunks(Buf::Input);
    shape.scratch += inputs;
    let (collective, root): (Collective, u32) = (shape.collective, shape.root);
    for (rank, steps) in (0..).zip(&mut safe.ranks) {
        if !collective.has_input(rank, root) || steps.channels.is_empty() {
            continue;
        }
        for (number, channel) in (0..).zip(&mut steps.channels) {
            for step in &mut channel.steps {
                let deps = step.after.iter_mut().filter(|dep| dep.channel == 0);
                deps.for_each(|dep| dep.step += 1);
                step.src = step.src.map(|at| copied(at, first));
            }
            if let Some(step) = channel.steps.first_mut().filter(|_| number > 0)
                && !step.after.iter().any(|dep| dep.channel == 0)
            {
                step.after.push(Dep { channel: 0, step: 0 });
            }
        }
        let copy = Step {
            src: Some(Ref { buf: Buf::Input, chunk: 0 }),
            dst: Some(Ref { buf: Buf::Scratch, chunk: first }),
            times: inputs,
            stride: if inputs > 1 { 1 } else { 0 },
            ..Step::new(Op::Copy)
        };
        steps.channels[0].steps.insert(0, copy);
    }
    safe
}

/// The place of the copy of a chunk.
fn copied(at: Ref, first: u32) -> Ref {
    match at.buf {
        Buf::Input => Ref { buf: Buf::Scratch, chunk: first + at.chunk },
        _ => at,
    }
}
