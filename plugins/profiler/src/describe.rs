//! Names of events and their particulars, for people who look at the trace.

use compact_str::{CompactString, format_compact};
use hawser_plugin::profiler::{Event, EventMask, EventState, What};

/// A particular of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Number(u64),
    Truth(bool),
    Text(CompactString),
    /// An address or another number that is read in hexadecimal.
    Hex(u64),
}

/// Particulars by name.
pub type Particulars = Vec<(&'static str, Value)>;

/// Kinds by bit: their names, and whether their events follow each other in one thread and nest there.
pub const KINDS: [(&str, bool); 16] = [
    ("group", false),
    ("coll", false),
    ("p2p", false),
    ("proxy_op", false),
    ("proxy_step", false),
    ("proxy_ctrl", true),
    ("kernel_ch", false),
    ("net_plugin", false),
    ("group_api", true),
    ("coll_api", true),
    ("p2p_api", true),
    ("kernel_launch", true),
    ("ce_coll", false),
    ("ce_sync", false),
    ("ce_batch", false),
    ("kernel_phase", false),
];

/// Number of the bit of a kind, for [`KINDS`].
pub fn index(kind: EventMask) -> usize {
    (kind.0.trailing_zeros() as usize).min(KINDS.len() - 1)
}

/// The text on the event's bar.
pub fn name(what: &What<'_>) -> CompactString {
    let fixed = match what {
        What::Coll { func, .. } | What::P2p { func, .. } | What::CeColl { func, .. } => func,
        What::CollApi { func, .. } | What::P2pApi { func, .. } => return format_compact!("nccl{func}"),
        What::GroupApi { .. } => "ncclGroup",
        What::Group => "group",
        What::ProxyOp { is_send: true, .. } => "proxy send",
        What::ProxyOp { is_send: false, .. } => "proxy receive",
        What::ProxyStep { .. } => "proxy step",
        What::ProxyCtrl => "proxy thread",
        What::KernelCh { .. } => "kernel channel",
        What::KernelLaunch { .. } => "kernel launch",
        What::NetPlugin { .. } => "network",
        What::CeSync { .. } => "copy engine sync",
        What::CeBatch { .. } => "copy engine batch",
        What::KernelPhase { name, .. } => name,
        _ => "event",
    };
    CompactString::new(fixed)
}

/// Everything else that the host said.
pub fn particulars(event: &Event<'_>) -> Particulars {
    let mut all = of_kind(&event.what);
    if event.tag != 0 {
        all.push(("tag", Value::Number(event.tag)));
    }
    all
}

fn of_kind(what: &What<'_>) -> Particulars {
    let text = |text: &str| Value::Text(text.into());
    let small = |number: u32| Value::Number(number.into());
    match *what {
        What::Coll { seq, send, recv, count, root, datatype, channels, warps, algo, proto, .. } => vec![
            ("seq", Value::Number(seq)),
            ("count", Value::Number(count)),
            ("bytes", bytes(count, datatype)),
            ("datatype", text(datatype)),
            ("algo", text(algo)),
            ("proto", text(proto)),
            ("channels", small(channels.into())),
            ("warps", small(warps.into())),
            ("root", small(root)),
            ("send", Value::Hex(send)),
            ("recv", Value::Hex(recv)),
        ],
        What::P2p { buff, datatype, count, peer, channels, .. } => vec![
            ("peer", small(peer)),
            ("count", Value::Number(count)),
            ("bytes", bytes(count, datatype)),
            ("datatype", text(datatype)),
            ("channels", small(channels.into())),
            ("buff", Value::Hex(buff)),
        ],
        What::ProxyOp { pid, channel, peer, steps, chunk_bytes, .. } => vec![
            ("peer", small(peer)),
            ("channel", small(channel.into())),
            ("steps", small(steps)),
            ("chunk_bytes", small(chunk_bytes)),
            ("pid", Value::Number(u64::try_from(pid).unwrap_or(0))),
        ],
        What::ProxyStep { step } => vec![("step", small(step))],
        What::KernelCh { channel, timer } => {
            vec![("channel", small(channel.into())), ("gpu_start_ns", Value::Number(timer))]
        }
        What::KernelPhase { channel, phase, timer, .. } => vec![
            ("channel", small(channel.into())),
            ("phase", small(phase.into())),
            ("gpu_start_ns", Value::Number(timer)),
        ],
        What::NetPlugin { id, data } => vec![("plugin", Value::Hex(id as u64)), ("data", Value::Hex(data))],
        _ => call_particulars(what),
    }
}

/// The bytes of so many elements.
fn bytes(count: u64, datatype: &str) -> Value {
    Value::Number(count.saturating_mul(element_bytes(datatype)))
}

/// Those of the user's calls and of copy engines.
fn call_particulars(what: &What<'_>) -> Particulars {
    let text = |text: &str| Value::Text(text.into());
    let small = |number: u32| Value::Number(number.into());
    match *what {
        What::GroupApi { depth, captured } => {
            vec![("depth", small(depth)), ("captured", Value::Truth(captured))]
        }
        What::CollApi { count, datatype, root, stream, captured, .. } => vec![
            ("count", Value::Number(count)),
            ("bytes", bytes(count, datatype)),
            ("datatype", text(datatype)),
            ("root", small(root)),
            ("stream", Value::Hex(stream)),
            ("captured", Value::Truth(captured)),
        ],
        What::P2pApi { count, datatype, stream, captured, .. } => vec![
            ("count", Value::Number(count)),
            ("bytes", bytes(count, datatype)),
            ("datatype", text(datatype)),
            ("stream", Value::Hex(stream)),
            ("captured", Value::Truth(captured)),
        ],
        What::KernelLaunch { stream } => vec![("stream", Value::Hex(stream))],
        What::CeColl { seq, send, recv, count, root, datatype, stream, .. } => vec![
            ("seq", Value::Number(seq)),
            ("count", Value::Number(count)),
            ("bytes", bytes(count, datatype)),
            ("datatype", text(datatype)),
            ("root", small(root)),
            ("send", Value::Hex(send)),
            ("recv", Value::Hex(recv)),
            ("stream", Value::Hex(stream)),
        ],
        What::CeSync { complete, ranks } => {
            vec![("complete", Value::Truth(complete)), ("ranks", small(ranks))]
        }
        What::CeBatch { ops, bytes, intra_sync } => vec![
            ("ops", small(ops)),
            ("bytes", Value::Number(bytes)),
            ("intra_sync", Value::Truth(intra_sync)),
        ],
        _ => Vec::new(),
    }
}

/// The name of a state.
pub fn state(state: EventState) -> &'static str {
    match state {
        EventState::SEND_GPU_WAIT => "send_gpu_wait",
        EventState::SEND_PEER_WAIT => "send_peer_wait",
        EventState::SEND_WAIT => "send_wait",
        EventState::RECV_WAIT => "recv_wait",
        EventState::RECV_FLUSH_WAIT => "recv_flush_wait",
        EventState::RECV_GPU_WAIT => "recv_gpu_wait",
        EventState::PROXY_IDLE => "idle",
        EventState::PROXY_ACTIVE => "active",
        EventState::PROXY_SLEEP => "sleep",
        EventState::PROXY_WAKEUP => "wakeup",
        EventState::PROXY_APPEND => "append",
        EventState::PROXY_APPEND_END => "append_end",
        EventState::PROXY_OP_IN_PROGRESS => "in_progress",
        EventState::NET_PLUGIN_UPDATE => "update",
        EventState::KERNEL_CH_STOP => "kernel_stop",
        EventState::KERNEL_PHASE_STOP => "phase_stop",
        EventState::GROUP_START_API_STOP => "group_start_over",
        EventState::GROUP_END_API_START => "group_end_begins",
        _ => "other",
    }
}

/// Bytes of an element by the name of its type; 1 if it is unknown.
pub fn element_bytes(datatype: &str) -> u64 {
    match datatype.strip_prefix("nccl").unwrap_or(datatype) {
        "Float16" | "Bfloat16" => 2,
        "Int32" | "Uint32" | "Float32" => 4,
        "Int64" | "Uint64" | "Float64" => 8,
        _ => 1,
    }
}
