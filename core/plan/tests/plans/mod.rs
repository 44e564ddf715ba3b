//! Small plans in MSCCL++'s JSON, of every operation that can be imported: written for these tests.

use serde_json::{Value, json};

/// All plans: name and text. The number of ranks is part of the name.
pub fn all() -> Vec<(String, String)> {
    let mut plans = Vec::new();
    for ranks in [2, 3, 4, 8] {
        plans.push((format!("packets_{ranks}"), packets(ranks)));
        plans.push((format!("reads_{ranks}"), reads(ranks)));
        plans.push((format!("ring_{ranks}"), ring(ranks)));
        plans.push((format!("gets_{ranks}"), gets(ranks)));
        plans.push((format!("scatter_{ranks}"), scatter(ranks)));
        plans.push((format!("next_{ranks}"), next(ranks)));
        plans.push((format!("rotate_{ranks}"), rotate(ranks)));
    }
    plans.push(("forward_4".to_owned(), forward(4)));
    plans.push(("groups_2".to_owned(), groups(1)));
    plans.push(("even_groups_2".to_owned(), groups(2)));
    plans.push(("old_reads_2".to_owned(), old_reads()));
    plans.push(("old_packets_2".to_owned(), old_packets()));
    plans.into_iter().map(|(name, plan)| (name, serde_json::to_string_pretty(&plan).unwrap())).collect()
}

/// The text of one of them.
#[allow(dead_code, reason = "not all tests that include this file need it")]
pub fn named(name: &str) -> String {
    all().into_iter().find(|(known, _)| known == name).unwrap().1
}

fn plan(name: &str, collective: &str, protocol: &str, in_place: bool, gpus: Vec<Value>) -> Value {
    json!({ "name": name, "collective": collective, "protocol": protocol, "inplace": in_place, "gpus": gpus })
}

fn gpu(
    id: u32,
    chunks: [u32; 3],
    channels: Value,
    buffers: Value,
    semaphores: Value,
    blocks: Vec<Value>,
) -> Value {
    json!({
        "id": id, "input_chunks": chunks[0], "output_chunks": chunks[1], "scratch_chunks": chunks[2],
        "channels": channels, "remote_buffers": buffers, "semaphores": semaphores, "threadblocks": blocks
    })
}

/// A threadblock with memory channels and remote buffers.
fn block(id: u32, channels: &[u32], buffers: &[u32], ops: Vec<Value>) -> Value {
    json!({
        "id": id, "ops": ops,
        "channels": [{ "channel_type": "memory", "channel_ids": channels }],
        "remote_buffer_refs": [{ "access_channel_type": "memory", "remote_buffer_ids": buffers }]
    })
}

fn here(buf: &str, index: u32, size: u32) -> Value {
    json!({ "type": buf, "index": index, "size": size })
}

fn there(buffer: u32, index: u32, size: u32) -> Value {
    json!({ "buffer_id": buffer, "index": index, "size": size })
}

fn op(name: &str, src: Vec<Value>, dst: Vec<Value>) -> Value {
    json!({ "name": name, "src_buff": src, "dst_buff": dst, "channel_type": "memory" })
}

fn sync(name: &str, channels: &[u32]) -> Value {
    json!({ "name": name, "channel_ids": channels, "channel_type": "memory" })
}

fn peers(ranks: u32, rank: u32) -> Vec<u32> {
    (0..ranks).filter(|peer| *peer != rank).collect()
}

fn memory_to(peers: &[u32]) -> Value {
    json!([{ "channel_type": "memory", "connected_to": peers }])
}

fn buffers_of(peers: &[u32], kind: &str) -> Value {
    peers
        .iter()
        .map(|peer| json!({ "rank": peer, "type": kind, "access_channel_types": ["memory"] }))
        .collect()
}

/// All-reduce with packets: chunks go to their owner, which adds them up and sends the sum to all. A
/// threadblock per peer, and one that adds.
fn packets(ranks: u32) -> Value {
    let rank = |me: u32| {
        let others = peers(ranks, me);
        let put = |(at, &peer): (usize, &u32)| {
            let ops = vec![
                op("ppkt", vec![here("i", peer, 1)], vec![there(0, me, 1)]),
                json!({
                    "name": "upkt", "src_buff": [here("s", ranks + peer, 1)], "dst_buff": [here("i", peer, 1)]
                }),
            ];
            block(at as u32, &[at as u32], &[at as u32], ops)
        };
        let mut blocks: Vec<Value> = others.iter().enumerate().map(put).collect();
        let own = std::iter::once(here("i", me, 1));
        let from = own.chain(others.iter().map(|peer| here("s", *peer, 1))).collect();
        let ids: Vec<u32> = (0..ranks - 1).collect();
        let sums = ids.iter().map(|id| there(*id, ranks + me, 1));
        let mut sum = op("respkt", from, std::iter::once(here("i", me, 1)).chain(sums).collect());
        sum["reduce_op"] = json!("sum");
        blocks.push(block(ranks - 1, &ids, &ids, vec![sum]));
        gpu(me, [ranks, ranks, 2 * ranks], memory_to(&others), buffers_of(&others, "s"), json!([]), blocks)
    };
    plan("packets", "allreduce", "LL", true, (0..ranks).map(rank).collect())
}

/// All-reduce that reads its peers' inputs, adds them up and writes the sum back; the data in two pieces, a
/// threadblock each.
fn reads(ranks: u32) -> Value {
    let rank = |me: u32| {
        let others = peers(ranks, me);
        let count = ranks - 1;
        let one = |piece: u32| {
            let (ids, local): (Vec<u32>, Vec<u32>) =
                ((0..count).map(|at| piece * count + at).collect(), (0..count).collect());
            let chunk = 2 * me + piece;
            let both = |first: Value| {
                std::iter::once(first).chain(local.iter().map(|id| there(*id, chunk, 1))).collect()
            };
            let sum = op("rres", both(here("i", chunk, 1)), both(here("i", chunk, 1)));
            let ops = vec![
                sync("rlxsignal", &local),
                sync("rlxwait", &local),
                json!({ "name": "nop" }),
                sum,
                json!({ "name": "nop" }),
                sync("signal", &local),
                sync("wait", &local),
            ];
            block(piece, &ids, &local, ops)
        };
        let twice: Vec<u32> = others.iter().chain(&others).copied().collect();
        let chunks = [2 * ranks, 2 * ranks, 0];
        gpu(me, chunks, memory_to(&twice), buffers_of(&others, "i"), json!([]), (0..2).map(one).collect())
    };
    let mut plan = plan("reads", "allreduce", "Simple", true, (0..ranks).map(rank).collect());
    plan["max_message_size"] = json!(1 << 20);
    plan
}

/// All-gather around a ring, over ports that signal with the data.
fn ring(ranks: u32) -> Value {
    let rank = |me: u32| {
        let (next, last) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        let put = |step: u32| {
            let chunk = (me + ranks - step) % ranks;
            let mut put = op("pwsf", vec![here("o", chunk, 1)], vec![there(0, chunk, 1)]);
            put["channel_type"] = json!("port");
            put["channel_ids"] = json!([0]);
            [put, json!({ "name": "wait", "channel_ids": [1], "channel_type": "port" })]
        };
        let ports = json!([{ "channel_type": "port", "channel_ids": [0, 1] }]);
        let refs = json!([{ "access_channel_type": "port", "remote_buffer_ids": [0] }]);
        let ops: Vec<Value> = (0..ranks - 1).flat_map(put).collect();
        let block = json!({ "id": 0, "ops": ops, "channels": ports, "remote_buffer_refs": refs });
        // Of two ranks both are next and last: the second channel of one ends at the second of the other.
        let connected = if ranks == 2 { json!([next, next]) } else { json!([next, last]) };
        let channels = json!([{ "channel_type": "port", "connected_to": connected }]);
        let buffers = json!([{ "rank": next, "type": "o", "access_channel_types": ["port"] }]);
        let mut gpu = gpu(me, [1, ranks, 0], channels, buffers, json!([]), vec![block]);
        if ranks == 2 {
            gpu["threadblocks"][0]["ops"][1]["channel_ids"] = json!([0]);
        }
        gpu
    };
    plan("ring", "allgather", "Simple", true, (0..ranks).map(rank).collect())
}

/// All-to-all out of place that gets from its peers; two threadblocks that meet at a barrier.
fn gets(ranks: u32) -> Value {
    let rank = |me: u32| {
        let others = peers(ranks, me);
        let ids: Vec<u32> = (0..ranks - 1).collect();
        let ready = vec![
            sync("signal", &ids),
            sync("wait", &ids),
            json!({ "name": "barrier", "barrier_id": 0, "num_threadblocks": 2 }),
            json!({ "name": "copy", "src_buff": [here("i", me, 1)], "dst_buff": [here("o", me, 1)] }),
        ];
        let mut fetch = vec![json!({ "name": "barrier", "barrier_id": 0, "num_threadblocks": 2 })];
        let get =
            |(id, peer): (usize, &u32)| op("get", vec![there(id as u32, me, 1)], vec![here("o", *peer, 1)]);
        fetch.extend(others.iter().enumerate().map(get));
        let blocks = vec![block(0, &ids, &[], ready), block(1, &[], &ids, fetch)];
        gpu(me, [ranks, ranks, 0], memory_to(&others), buffers_of(&others, "i"), json!([]), blocks)
    };
    plan("gets", "alltoall", "Simple", false, (0..ranks).map(rank).collect())
}

/// Reduce-scatter: one threadblock puts into scratch, another adds up what has come, behind semaphores, in a
/// pipeline.
fn scatter(ranks: u32) -> Value {
    let rank = |me: u32| {
        let others = peers(ranks, me);
        let ids: Vec<u32> = (0..ranks - 1).collect();
        let put = |(id, peer): (usize, &u32)| {
            // Where this rank stands among the peers of the other.
            let place = if me < *peer { me } else { me - 1 };
            op("put", vec![here("i", *peer, 1)], vec![there(id as u32, place, 1)])
        };
        let mut out: Vec<Value> = others.iter().enumerate().map(put).collect();
        out.extend([
            json!({ "name": "nop" }),
            sync("signal", &ids),
            json!({ "name": "flush" }),
            sync("wait", &ids),
        ]);
        out.push(json!({ "name": "sem_release", "semaphore_ids": [0] }));
        let from = std::iter::once(here("i", me, 1)).chain(ids.iter().map(|id| here("s", *id, 1))).collect();
        let mut sum = op("re", from, vec![here("o", 0, 1)]);
        sum["reduce_op"] = json!("sum");
        let inner =
            vec![json!({ "name": "sem_acquire", "semaphore_ids": [1, 0] }), json!({ "name": "nop" }), sum];
        let context = json!({ "unit_size": 1 << 20, "num_chunks": 1 });
        let pipeline = json!({ "name": "pipeline", "iter_context": context, "ops": inner });
        let blocks = vec![block(0, &ids, &ids, out), block(1, &[], &[], vec![pipeline])];
        let semaphores = json!([{ "init_value": 0 }, { "init_value": 1 }]);
        gpu(me, [ranks, 1, ranks - 1], memory_to(&others), buffers_of(&others, "s"), semaphores, blocks)
    };
    plan("scatter", "reducescatter", "Simple", false, (0..ranks).map(rank).collect())
}

/// No collective: each rank puts its input into the output of the next one, when that one says that it may.
fn next(ranks: u32) -> Value {
    let rank = |me: u32| {
        let (next, last) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        // Of two ranks both are next and last: the first channel of one ends at the second of the other.
        let swapped = ranks == 2 && me == 1;
        let (to, from) = if swapped { (1, 0) } else { (0, 1) };
        let connected = if swapped { [last, next] } else { [next, last] };
        let mut put = op("pws", vec![here("i", 0, 2)], vec![there(0, 0, 2)]);
        put["channel_ids"] = json!([to]);
        let ops = vec![sync("signal", &[from]), sync("wait", &[to]), put, sync("wait", &[from])];
        let buffers = buffers_of(&[next], "o");
        gpu(me, [2, 2, 0], memory_to(&connected), buffers, json!([]), vec![block(0, &[0, 1], &[0], ops)])
    };
    plan("next", "sendrecv", "Simple", false, (0..ranks).map(rank).collect())
}

/// No collective: what the next rank has goes to it by packets, and from its scratch to the chunk behind, so
/// that chunks change their places, too. The input has fewer chunks than the output.
fn rotate(ranks: u32) -> Value {
    let rank = |me: u32| {
        let (next, last) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        let to = if next == last { vec![next] } else { vec![next, last] };
        let mut ops = vec![op("ppkt", vec![here("i", 0, 2)], vec![there(0, 0, 2)])];
        for (from, chunk) in [(0, 2), (1, 0)] {
            ops.push(op("upkt", vec![here("s", from, 1)], vec![here("o", chunk, 1)]));
        }
        let buffers = buffers_of(&[next], "s");
        gpu(me, [2, 3, 2], memory_to(&to), buffers, json!([]), vec![block(0, &[0], &[0], ops)])
    };
    plan("rotate", "custom", "LL", true, (0..ranks).map(rank).collect())
}

/// All-gather with packets that are passed on: pairs exchange, then each sends its pair's to the other pair.
fn forward(ranks: u32) -> Value {
    let rank = |me: u32| {
        let (twin, far) = (me ^ 1, me ^ 2);
        let ops = vec![
            op("cpkt", vec![here("o", me, 1)], vec![here("s", me, 1)]),
            op("ppkt", vec![here("o", me, 1)], vec![there(0, me, 1)]),
            op("rppkt", vec![here("s", me, 1)], vec![there(1, me, 1)]),
            op("rppkt", vec![here("s", twin, 1)], vec![there(1, twin, 1)]),
            op("upkt", vec![here("s", twin, 1)], vec![here("o", twin, 1)]),
            op("upkt", vec![here("s", far, 1)], vec![here("o", far, 1)]),
            op("upkt", vec![here("s", far ^ 1, 1)], vec![here("o", far ^ 1, 1)]),
        ];
        let blocks = vec![block(0, &[0, 1], &[0, 1], ops)];
        gpu(me, [1, ranks, ranks], memory_to(&[twin, far]), buffers_of(&[twin, far], "s"), json!([]), blocks)
    };
    plan("forward", "allgather", "LL", true, (0..ranks).map(rank).collect())
}

/// All-reduce of two ranks in which two threadblocks share every operation, half a chunk each.
/// Two threadblocks share each operation on so many chunks.
fn groups(chunks: u32) -> Value {
    let rank = |me: u32| {
        let one = |part: u32| {
            let mut from =
                op("repkt", vec![here("i", 0, chunks), here("s", 0, chunks)], vec![here("i", 0, chunks)]);
            let mut put = op("ppkt", vec![here("i", 0, chunks)], vec![there(0, 0, chunks)]);
            for op in [&mut from, &mut put] {
                op["tbg_info"] = json!({ "tb_id": part, "tbg_size": 2 });
            }
            block(part, &[0], &[0], vec![put, json!({ "name": "nop" }), from])
        };
        let other = [1 - me];
        gpu(me, [chunks; 3], memory_to(&other), buffers_of(&other, "s"), json!([]), (0..2).map(one).collect())
    };
    plan("groups", "allreduce", "LL", true, (0..2).map(rank).collect())
}

fn old_gpu(id: u32, scratch: u32, ends: [&str; 2], ops: Vec<Value>) -> Value {
    json!({
        "id": id, "inputChunks": 2, "outputChunks": 0, "scratchChunks": scratch, "chunkGroups": 1,
        "channels": [{ "srcbuff": ends[0], "dstbuff": ends[1], "type": "sm", "connectedTo": [1 - id] }],
        "threadblocks": [{
            "id": 0, "ops": ops,
            "channels": [{ "src": ends[0], "dst": ends[1], "ctype": "sm", "cids": [0] }]
        }]
    })
}

/// The older dialect: each of two ranks reads, adds and writes back its half.
fn old_reads() -> Value {
    let ends = json!({ "src": "i", "dst": "i" });
    let rank = |me: u32| {
        let at = json!([{ "id": 0, "off": me }]);
        let ops = vec![
            json!({
                "name": "signal", "o_buff": ends, "o_cids": [{ "id": 0, "off": 0 }], "ctype": "sm", "cnt": 1
            }),
            json!({
                "name": "wait", "i_buff": ends, "i_cids": [{ "id": 0, "off": 0 }], "ctype": "sm", "cnt": 1
            }),
            json!({ "name": "nop", "deps": [{ "tb": 0, "step": 1 }] }),
            json!({
                "name": "rrcs", "i_buff": ends, "i_cids": at, "o_buff": ends, "o_cids": at, "src": me,
                "srcbuff": "i",
                "srcoff": me, "dst": me, "dstbuff": "i", "dstoff": me, "ctype": "sm", "cnt": 1
            }),
            json!({
                "name": "signal", "o_buff": ends, "o_cids": [{ "id": 0, "off": 0 }], "ctype": "sm", "cnt": 1
            }),
            json!({
                "name": "wait", "i_buff": ends, "i_cids": [{ "id": 0, "off": 0 }], "ctype": "sm", "cnt": 1
            }),
        ];
        old_gpu(me, 0, ["i", "i"], ops)
    };
    plan("old_reads", "allreduce", "Simple", true, (0..2).map(rank).collect())
}

/// The older dialect with packets.
fn old_packets() -> Value {
    let ends = json!({ "src": "i", "dst": "s" });
    let rank = |me: u32| {
        let other = 1 - me;
        let ops = vec![
            json!({
                "name": "ppkt", "o_buff": ends, "o_cids": [{ "id": 0, "off": 0 }],
                "srcs": [{ "buff": "i", "off": other }],
                "ctype": "sm", "cnt": 1
            }),
            json!({
                "name": "rspkt", "o_buff": ends, "o_cids": [{ "id": 0, "off": 1 }],
                "srcs": [{ "buff": "s", "off": 0 }],
                "srcbuff": "i", "srcoff": me, "dstbuff": "i", "dstoff": me, "ctype": "sm", "cnt": 1
            }),
            json!({
                "name": "cpkt", "srcbuff": "s", "srcoff": 1, "dstbuff": "i", "dstoff": other,
                "ctype": "none", "cnt": 1
            }),
        ];
        old_gpu(me, 2, ["i", "s"], ops)
    };
    plan("old_packets", "allreduce", "LL", true, (0..2).map(rank).collect())
}
