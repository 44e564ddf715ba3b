//! Compares the layouts and constants of [`super::sys`] with the headers of rdma-core: a C compiler checks an
//! assertion for each.

use std::fmt::Write as _;
use std::io::{Write as _, stderr};
use std::process::{Command, Stdio};

use super::sys::{PINNED, bits};

/// The constants, and their names in the headers.
const CONSTANTS: &[(u64, &str)] = &[
    (bits::QPT_RC as u64, "IBV_QPT_RC"),
    (bits::QPS_INIT as u64, "IBV_QPS_INIT"),
    (bits::QPS_RTR as u64, "IBV_QPS_RTR"),
    (bits::QPS_RTS as u64, "IBV_QPS_RTS"),
    (bits::QPS_ERR as u64, "IBV_QPS_ERR"),
    (bits::STATE as u64, "IBV_QP_STATE"),
    (bits::TO_INIT as u64, "IBV_QP_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT"),
    (
        bits::TO_RTR as u64,
        "IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN \
         | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER",
    ),
    (
        bits::TO_RTS as u64,
        "IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN \
         | IBV_QP_MAX_QP_RD_ATOMIC",
    ),
    (bits::LOCAL_WRITE as u64, "IBV_ACCESS_LOCAL_WRITE"),
    (bits::REMOTE_WRITE as u64, "IBV_ACCESS_REMOTE_WRITE"),
    (bits::REMOTE_READ as u64, "IBV_ACCESS_REMOTE_READ"),
    (bits::RELAXED as u64, "IBV_ACCESS_RELAXED_ORDERING"),
    (bits::RDMA_WRITE as u64, "IBV_WR_RDMA_WRITE"),
    (bits::RDMA_WRITE_IMM as u64, "IBV_WR_RDMA_WRITE_WITH_IMM"),
    (bits::SEND as u64, "IBV_WR_SEND"),
    (bits::RDMA_READ as u64, "IBV_WR_RDMA_READ"),
    (bits::SIGNALED as u64, "IBV_SEND_SIGNALED"),
    (bits::INLINE as u64, "IBV_SEND_INLINE"),
    (bits::WITH_IMM as u64, "IBV_WC_WITH_IMM"),
    (bits::PORT_ACTIVE as u64, "IBV_PORT_ACTIVE"),
    (bits::INFINIBAND as u64, "IBV_LINK_LAYER_INFINIBAND"),
    (bits::ETHERNET as u64, "IBV_LINK_LAYER_ETHERNET"),
];

#[test]
fn layouts_and_constants_are_those_of_the_headers() {
    let check = |code: &str| -> Option<(bool, String)> {
        let mut compiler = Command::new("cc")
            .args(["-x", "c", "-std=c11", "-fsyntax-only", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .ok()?;
        compiler.stdin.take()?.write_all(code.as_bytes()).ok()?;
        let output = compiler.wait_with_output().ok()?;
        Some((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let include = "#include <infiniband/verbs.h>\n#include <stddef.h>\n";
    if !check(include).is_some_and(|(is_good, _)| is_good) {
        let _ = writeln!(stderr(), "skipped: needs a C compiler and infiniband/verbs.h (libibverbs-dev)");
        return;
    }
    let (is_good, text) = check(&format!("{include}{}", assertions(0))).unwrap();
    assert!(is_good, "the headers disagree:\n{text}");
    let (is_good, text) = check(&format!("{include}{}", assertions(1))).unwrap();
    let refused = text.matches("error: static assertion failed").count();
    let all = assertions(1).lines().count();
    assert!(!is_good && refused == all, "{refused} of {all} wrong assertions are refused:\n{text}");
}

/// An assertion in C for each field, size and constant, wrong by `error`.
fn assertions(error: usize) -> String {
    let mut code = String::new();
    for (name, bytes, fields) in PINNED {
        let name = c_name(name);
        for (field, at) in *fields {
            let field = c_field(&name, field);
            let _ =
                writeln!(code, "_Static_assert(offsetof(struct {name}, {field}) == {}, \"\");", at + error);
        }
        match name.as_str() {
            // The library makes those; only their heads are read here.
            "ibv_context" | "ibv_qp" | "ibv_mr" => {}
            // The library fills those: there must be room.
            "ibv_port_attr" | "ibv_device_attr" => {
                let most = if error == 0 { *bytes } else { 1 };
                let _ = writeln!(code, "_Static_assert(sizeof(struct {name}) <= {most}, \"\");");
            }
            _ => {
                let _ = writeln!(code, "_Static_assert(sizeof(struct {name}) == {}, \"\");", bytes + error);
            }
        }
    }
    for (value, name) in CONSTANTS {
        let _ = writeln!(code, "_Static_assert(({name}) == {}, \"\");", value + error as u64);
    }
    code
}

/// `IbvQpAttr` is `ibv_qp_attr`.
fn c_name(name: &str) -> String {
    if name == "IbvOps" {
        return "ibv_context_ops".into();
    }
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}

/// The field's name in the headers, which nest some.
fn c_field(of: &str, field: &str) -> String {
    match (of, field) {
        ("ibv_send_wr", "remote_addr" | "rkey") => format!("wr.rdma.{field}"),
        ("ibv_ah_attr", "flow_label" | "sgid_index") => format!("grh.{field}"),
        ("ibv_qp_attr", "ah") => "ah_attr".into(),
        _ => field.into(),
    }
}
